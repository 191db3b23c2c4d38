"""The kinds that are known, Loki's `job` of each, and the kind that a file's path tells."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from parsers.record import Parser
from parsers.registry import KINDS, PLAIN, Kind, loaded, parser

if TYPE_CHECKING:
    from pydantic import ValidationInfo

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


@dataclass(frozen=True, slots=True)
class OwnKind:
    """A kind of a configuration. `labels` and `tz` hold where the message says nothing; `paths` are as those above."""

    kind: Kind
    paths: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    tz: str | None = None


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kinds that one configuration knows: those of tailrace and its own. Never changes."""

    own: Mapping[str, OwnKind] = field(default_factory=dict)

    @cached_property
    def jobs(self) -> Mapping[str, str]:
        """Loki's `job` by kind."""
        return JOBS | {name: own.kind.job for name, own in self.own.items()}

    def get(self, name: str) -> Kind:
        """The entry of a kind, that of unknown kinds for another name."""
        return self.own[name].kind if name in self.own else KINDS.get(name, PLAIN)

    def parser(self, name: str) -> Parser:
        """The parser of a kind."""
        return loaded(self.own[name].kind) if name in self.own else parser(name)

    def of_path(self, path: str) -> str | None:
        """The kind that a log file's path tells, or None; the configuration's own patterns come first."""
        own = ((pattern.lower(), name) for name, kind in self.own.items() for pattern in kind.paths)
        lower = path.lower()
        name = lower.rpartition("/")[2]
        return next(
            (kind for pattern, kind in (*own, *_PATHS) if fnmatchcase(lower if "/" in pattern else name, pattern)),
            None,
        )


BUILT_IN = Kinds()


def kind_of_path(path: str) -> str | None:
    """The kind of tailrace's that a log file's path tells, or None."""
    return BUILT_IN.of_path(path)


def require_kind(kind: str, info: "ValidationInfo") -> None:
    """Raise ValueError for a kind that the configuration does not know; its own are in the context as `kinds`."""
    known = [*JOBS, *(info.context or {}).get("kinds", ())]
    if kind not in known:
        nearest = difflib.get_close_matches(kind, known, n=1) or sorted(known)
        raise ValueError(f"unknown kind {kind}; did you mean {', '.join(nearest)}?")
