"""Text of one Slurm log line, whatever carried it: a daemon's file, syslog, job output or srun's stderr.

    PROGRAM: [70011.batch] LEVEL sched: TEXT

Every part but TEXT may be missing. Source of the grammar: SchedMD/slurm src/common/log.c, branches 16.05 to
26.11. Events are the rules in `slurm_jobs` and `slurm_nodes`; a new event is one rule there.
"""

import re
from typing import Any

from parsers.slurm_ids import cgroup_fields, identify, job_of_path, prefix
from parsers.slurm_jobs import JOB_RULES
from parsers.slurm_nodes import NODE_RULES
from parsers.slurm_rules import convert

__all__ = ["CLIENT", "CLIENT_LINE", "RULES", "cgroup_fields", "daemon_line", "job_of_path", "slurm_text", "stepd_line"]

LEVELS = {
    "fatal": "critical", "internal error": "error", "error": "error", "warning": "warning",
    "debug": "debug", "debug2": "debug", "debug3": "debug", "debug4": "debug", "debug5": "debug",
}  # fmt: skip
RULES = (*JOB_RULES, *NODE_RULES)

# Builds with several slurmd on a node call themselves `slurmstepd-NODE`.
_PROGRAM = re.compile(r"(slurm(?:ctld|d|stepd|dbd|restd|scriptd)|sackd|srun|sbatch|salloc|scrun)(?:-[\w.-]+)?: ")
# Whose lines a job or a script may print; also RE2.
CLIENT = r"(?:slurmstepd|slurmd|srun|sbatch|salloc)(?:-[A-Za-z0-9_.-]+)?: "
CLIENT_LINE = re.compile(CLIENT)
_LEVEL = re.compile(r"(fatal|internal error|error|warning|debug[2-5]?): ")
_PAIR = re.compile(r"(?:^|\s)(NodeList|Partition|#CPUs|InitPrio|usec)=(\S+)")
_PAIR_GROUP = {
    "NodeList": "nodes", "Partition": "partition", "#CPUs": "cpus", "InitPrio": "priority", "usec": "duration_us",
}  # fmt: skip
_NUMBERS = ("#CPUs", "InitPrio", "usec")
_BANNER_JOBS = ("batch_job", "special_job", "step_job")


def _head(text: str, fields: dict[str, Any]) -> str:
    """Read program, step prefix, level word and `sched: ` into `fields`; return the text after them."""
    for _ in range(2):  # `slurmctld: slurmscriptd: ` on stderr
        if found := _PROGRAM.match(text):
            fields["daemon"] = found[1]
            text = text[found.end() :]
    text = text[prefix(text, fields) :]
    fields["level"] = "info"
    if found := _LEVEL.match(text):
        fields |= {"level": LEVELS[found[1]], "level_raw": found[1]}
        text = text[found.end() :]
        if found[1] == "debug":  # the only word with two blanks
            text = text.removeprefix(" ")
    if text.startswith("sched: "):
        fields["subsystem"] = "sched"
        text = text[7:]
    return text


def _banner(groups: dict[str, str | None], fields: dict[str, Any]) -> None:
    """Ids of a banner of slurmstepd. `JOB n` is the batch step."""
    step = groups.pop("step_id")
    special = groups.pop("special")
    jobs = [job for name in _BANNER_JOBS if (job := groups.pop(name))]
    if "job_id" not in fields and jobs:
        fields["job_id"] = int(jobs[0])
    fields.setdefault("step_id", step or (special.lower() if special else "batch"))


def slurm_text(message: str, fields: dict[str, Any], flags: set[str], *, controller: bool = False) -> None:
    """Add ids, event and the event's fields of `message` (text after level word and prefixes) to `fields`.

    Only the first line is read: what follows is output of scripts or text of users. `controller` says that
    the text comes from slurmctld; elsewhere events that only it can report are not believed. A node list
    that was cut (open bracket) sets the flag `truncated`.
    """
    line = message.partition("\n")[0]
    identify(line, fields)
    for name, value in _PAIR.findall(line):
        if name not in _NUMBERS or (value.isdecimal() and len(value) <= 18):
            convert({_PAIR_GROUP[name]: value}, fields)
    for rule in RULES:
        if rule.word not in line or (rule.controller and not controller):
            continue
        found = rule.pattern.search(line)
        if not found:
            continue
        groups: dict[str, str | None] = found.groupdict()
        if "batch_job" in groups:
            _banner(groups, fields)
        convert(groups, fields)
        fields |= rule.fields
        if rule.event:
            fields["event"] = rule.event
        break
    hosts = fields.get("nodes_raw", "")
    if hosts.count("[") > hosts.count("]"):
        flags.add("truncated")


def daemon_line(text: str, fields: dict[str, Any], flags: set[str], *, controller: bool = False) -> None:
    """Text after a stamp or a carrier's tag: level, level_raw, daemon, subsystem, ids, event and message."""
    message = _head(text, fields)
    fields["message"] = message
    slurm_text(message, fields, flags, controller=controller)


def stepd_line(text: str, fields: dict[str, Any], flags: set[str]) -> bool:
    """Recognise a line of slurmstepd, srun, sbatch or salloc in job output and fill `fields` like `daemon_line`.

    Launcher labels (`  0: `) must be off. False, with `fields` untouched, when it is none.
    """
    if not CLIENT_LINE.match(text):
        return False
    daemon_line(text, fields, flags)
    return True
