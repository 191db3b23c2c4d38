"""Agents of Azure CycleCloud, which log in the ways of Python.

    2025-03-04 05:06:07,089 - healthagent - ERROR - text                healthagent.log
    2025-03-04 05:06:07,089 INFO     text                               jetpack.log, jetpackd.log
    2025-03-04 05:06:07,089  context LEVEL: text                        azslurm and its kin

Source: Azure/cyclecloud-healthagent (logging.conf, reporter.py), Azure/cyclecloud-slurm. Local time. A report is the
repr of a Python dictionary, logged as INFO also when the node is bad.
"""

import re

from parsers.clock import local, parse_iso, parse_rfc3339
from parsers.gpu_catalogue import xid_meaning
from parsers.json_lines import level_of, no_header
from parsers.kernel_rules import Fields, Rule, apply, by_word, rule
from parsers.nvidia import judge
from parsers.record import Line, Parser, Record
from parsers.stamped import StampedStream

_LEVEL = r"(?P<level>DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE|NOTSET)"
_HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[,.]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)"
    rf"(?: - (?P<app>[^\s]{{1,200}}) - {_LEVEL} -(?: |$)| +{_LEVEL.replace('level', 'bare')}(?:: | +|$)"
    rf"|  ?(?P<context>\S{{1,200}}) {_LEVEL.replace('level', 'colon')}:(?: |$))",
    re.ASCII,
)
_STATUS = re.compile(r"""['"]status['"]: ['"]([\w ]{1,40})['"]""")
_ERRORS = re.compile(r"""['"]error_count['"]: (\d{1,9})\b""")


def _report(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    text = found["_rest"]
    if status := _STATUS.search(text):
        fields["health_status"] = status[1]
    if errors := _ERRORS.search(text):
        fields["error_count"] = int(errors[1])


def _xid(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    judge(fields, xid_meaning(fields["xid"]))


RULES: tuple[Rule, ...] = (
    rule(
        "health_report",
        "Updated health report for ",
        r"Updated health report for (?P<health_check>\w+): (?P<_rest>(?s:.*))",
        _report,
    ),
    rule("gpu_xid", "XID detected: ", r"\bXID detected: (?P<xid>\d{1,9}) +on gpu: ?(?P<gpu_index>\d{1,9})", _xid),
)
_BY_WORD = by_word(RULES)


def agent_text(text: str, fields: Fields, flags: set[str]) -> None:
    """Add event and fields of a text of healthagent to `fields`."""
    apply(_BY_WORD, text, fields, flags)


class AgentStream(StampedStream):
    """One file of an agent. Lines without a stamp (tracebacks) continue their record."""

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - contract
        head = _HEAD.match(text)
        parsed = parse_iso(head["time"]) if head else None
        if head is None or parsed is None:
            return None
        ts = parse_rfc3339(head["time"]) if parsed[2] else local(parsed[0], parsed[1], self.times.tz, flags)
        word = head["level"] or head["bare"] or head["colon"]
        fields: Fields = {"level": level_of(word), "level_raw": word, "message": text[head.end() :]}
        if head["app"]:
            fields["app"] = head["app"]
        return Record(fields, (), ts, ("record" if parsed[2] else "zone") if ts else None, flags)

    def finish(self, record: Record) -> None:
        agent_text(record.fields["message"], record.fields, record.flags)


AGENT = Parser(AgentStream, no_header)
