"""The closed list of kinds, Loki's `job` of each, and the kind that a file's path tells."""

from fnmatch import fnmatchcase

from parsers.registry import KINDS, PLAIN

UNKNOWN = "unknown"

JOBS: dict[str, str] = {UNKNOWN: PLAIN.job} | {name: kind.job for name, kind in KINDS.items()}

# Kinds whose lines are JSON objects, so that an object says nothing of the forwarder.
JSON_LINES = frozenset({"journal", "json", "docker"})

# First match wins. Patterns with a slash are matched against the whole path, the others against the file's name,
# both in lower case: what a directory is called says little of the files in it.
_PATHS = (
    ("*/pods/*/*/*.log*", "pod"),
    ("*/containers/*-json.log*", "docker"),
    ("*/containers/*.log*", "pod"),
    ("job_*.sh", "job_script"),
    ("job_*.env", "job_env"),
    ("*prolog*", "prolog"),
    ("*epilog*", "epilog"),
    ("*slurm*sched*", "slurm_sched"),
    ("*slurmctld*", "slurmctld"),
    ("*slurmdbd*", "slurmdbd"),
    ("*slurmrestd*", "slurmrestd"),
    ("*slurmd*", "slurmd"),
    ("*kmsg*", "kmsg"),
    ("*dmesg*", "dmesg"),
    ("*fabric*manager*", "fabric_manager"),
    ("*nv-hostengine*", "dcgm"),
    ("*dcgm*", "dcgm"),
    ("*healthagent*", "healthagent"),
    ("*jetpackd*", "jetpackd"),
    ("*jetpack*", "jetpack"),
    ("*journal*.json*", "journal"),
    ("syslog*", "syslog"),
    ("messages*", "syslog"),
    ("kern.log*", "syslog"),
    ("auth.log*", "syslog"),
    ("*.out", "training"),
    ("*.err", "training"),
    ("*.jsonl", "json"),
)


def kind_of_path(path: str) -> str | None:
    """The kind that a log file's path tells, or None."""
    lower = path.lower()
    name = lower.rpartition("/")[2]
    return next((kind for pattern, kind in _PATHS if fnmatchcase(lower if "/" in pattern else name, pattern)), None)
