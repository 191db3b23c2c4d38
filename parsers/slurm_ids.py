"""Job, step and task identities as Slurm writes them: in messages, cgroup paths and file names.

Spellings: SchedMD/slurm src/common/log.c (`_jobid2fmt`, `log_build_job_id_str`, `log_build_step_id_str`)
and src/common/sluid.c (a SLUID is `s` and 13 characters of Crockford's base 32), branches 16.05 to 26.11.
"""

import re
from typing import Any

SLUID = r"s[0-9A-HJKMNP-TV-Z]{13}"
_N = r"\d{1,10}(?!\d)"  # ids are 32 bits wide; longer numbers are something else
_STEPS = r"(?:\d{1,10}|TBD|(?i:batch|extern|interactive))"

_JOB = re.compile(
    rf"\bJobI[dD]=(?:(?P<state>Invalid|CORRUPT)\b|(?P<job>{_N})"
    rf"(?:_(?:(?P<task>{_N})|(?P<expr>\*|\[[^\]\s]*\]))|\+(?P<offset>{_N}))?(?:\((?P<own>{_N})\))?)",
    re.ASCII,
)
_STEP = re.compile(
    rf"\bStepI[dD]=(?:(?P<state>Invalid|CORRUPT)\b|(?:(?P<job>{_N}(?:[_+][^(\s]{{0,64}}\({_N}\))?)\.|(?P<sluid>{SLUID})\.)?"
    rf"(?P<step>{_STEPS})\b(?:\+(?P<component>{_N}))?)",
    re.ASCII,
)
_SLUID = re.compile(rf"\bSLUID=({SLUID})\b")
# Up to 25.05: `[job 70011]`, `Job 70011`, `step 70011.0`, `task 70011.0`, `task 70020+1.0`.
_WORD_JOB = re.compile(
    rf"\b(?:[Jj]ob|JOB)(?:_[Ii][Dd]|id| allocation)?[ =]({_N})(?:_({_N})|\+({_N}))?(?:\(({_N})\))?(?![.\w])", re.ASCII
)
_WORD_STEP = re.compile(rf"\b(?:[Ss]tep|STEP|task) ({_N})(?:\+({_N}))?\.({_STEPS})\b(?:\+({_N}))?", re.ASCII)
_PREFIX = re.compile(
    rf"\[(?:(?P<job>{_N})|(?P<sluid>{SLUID}))\.(?P<step>{_STEPS})"
    r"(?:\+(?P<component>\d{1,10}))?(?P<stepmgr> stepmgr)?\] ",
    re.ASCII,
)
# RE2 text for lines that name an id in another way than the plain `JobId=70011`.
ID_GATE = (
    r"SLUID=|StepI[dD]=|JobID=|JobId=(?:[^0-9]|[0-9]+[_+(]|[0-9]{11})"
    r"|(?:[Jj]ob|JOB)(?:_[Ii][Dd]|id| allocation)?[ =][0-9]|(?:[Ss]tep|STEP|task) [0-9]+[.+]"
)
_CGROUP = {
    "job_id": re.compile(r"/job_(\d{1,10})(?=/|$)", re.ASCII),
    "sluid": re.compile(rf"/({SLUID})/step_"),
    "step_id": re.compile(r"/step_(\w+)", re.ASCII),
    "task_id": re.compile(r"/task_(\d{1,10})(?=/|$)", re.ASCII),
}
_FILE = re.compile(rf"(?:job_({_N})\.[^/]*|slurm-({_N})\.[^/]*|[^/]*_({_N})\.log)", re.ASCII)


def step_name(text: str) -> str:
    """`Batch` and `Extern` (18.08 to 20.02) in today's spelling."""
    return text if text == "TBD" else text.lower()


def prefix(text: str, fields: dict[str, Any]) -> int:
    """Read the step prefix of slurmstepd (`[70011.batch] `) into `fields`; return its length, 0 without one."""
    found = _PREFIX.match(text)
    if not found:
        return 0
    fields["daemon"] = "slurmstepd"
    fields["step_id"] = step_name(found["step"])
    if found["job"]:
        fields["job_id"] = int(found["job"])
    else:
        fields["sluid"] = found["sluid"]
    if found["component"]:
        fields["het_component"] = int(found["component"])
    if found["stepmgr"]:
        fields["stepmgr"] = True
    return found.end()


def _job(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    if found["state"]:
        fields["job_id_state"] = found["state"].lower()
        return
    if found["task"] or found["expr"]:
        fields["array_job_id"] = int(found["job"])
        fields |= {"array_task_id": int(found["task"])} if found["task"] else {"array_task_expr": found["expr"]}
    elif found["offset"]:
        fields |= {"het_job_id": int(found["job"]), "het_offset": int(found["offset"])}
    else:
        fields["job_id"] = int(found["job"])
    if found["own"]:
        fields["job_id"] = int(found["own"])


def _step(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    if found["state"]:
        fields.setdefault("job_id_state", found["state"].lower())
        return
    fields["step_id"] = step_name(found["step"])
    if found["component"]:
        fields["het_component"] = int(found["component"])
    if found["sluid"]:
        fields["sluid"] = found["sluid"]
    if found["job"] and "job_id" not in fields and (job := _JOB.match(f"JobId={found['job']}")):
        _job(job, fields)


def identify(text: str, fields: dict[str, Any]) -> None:
    """Read the first job and step that `text` names. Ids already in `fields` (a step prefix) stay."""
    own = "job_id" in fields or "sluid" in fields
    job = None if own else _JOB.search(text)
    if job:
        _job(job, fields)
    step = None if "step_id" in fields else _STEP.search(text)
    if step:
        _step(step, fields)
    if "sluid" not in fields and (sluid := _SLUID.search(text)):
        fields["sluid"] = sluid[1]
    if own or job:
        return
    words = _WORD_STEP.search(text)
    if words:
        fields |= {"het_job_id": int(words[1]), "het_offset": int(words[2])} if words[2] else {}
        if not step:
            fields |= {"step_id": step_name(words[3])} | ({} if words[2] else {"job_id": int(words[1])})
            fields |= {"het_component": int(words[4])} if words[4] else {}
    elif not step and (word := _WORD_JOB.search(text)):
        if word[2]:
            fields |= {"array_job_id": int(word[1]), "array_task_id": int(word[2])}
        elif word[3]:
            fields |= {"het_job_id": int(word[1]), "het_offset": int(word[3])}
        else:
            fields["job_id"] = int(word[1])
        if word[4]:
            fields["job_id"] = int(word[4])


def cgroup_fields(path: str) -> dict[str, Any]:
    """`job_id` or `sluid`, `step_id` and `task_id` of a cgroup path, as far as it names them.

    v1 `/slurm/uid_U/job_J/step_S/task_T`; v2 `/system.slice/[NODE_]slurmstepd.scope/job_J/step_S/user/task_T`,
    since 26.05 with the SLUID in place of `job_J`. Other paths (pods, services) give {}.
    """
    found = {name: match[1] for name, pattern in _CGROUP.items() if (match := pattern.search(path))}
    if "job_id" not in found and "sluid" not in found:
        return {}
    return {name: int(value) if name in ("job_id", "task_id") else value for name, value in found.items()}


def job_of_path(path: str) -> int | None:
    """Job id in a file name: `job_N.*`, `slurm-N.*`, `*_N.log`; None when there is none."""
    found = _FILE.fullmatch(path.rsplit("/", 1)[-1])
    return int(found[1] or found[2] or found[3]) if found else None
