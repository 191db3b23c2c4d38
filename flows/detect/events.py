"""What moves between the two halves of detection, and what they make; both as JSON, version 1."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import orjson

from sinks.base import Partition

VERSION = 1
MAX_EXCERPT = 500  # characters of a line that evidence shows

Group = tuple[tuple[str, str], ...]  # sorted (label, value) pairs; values that are not known are left out
Run = tuple[
    int, int, int
]  # (line, part, n): records of n lines in a row, from `line` on, each the `part`th of its line
State = Literal["firing", "resolved", "late"]


class Evidence(NamedTuple):
    """A line that stands for an alert. `ts_ns` is the record's own time, never the corrected one."""

    ts_ns: int
    topic: str
    partition: int
    offset: int
    line: int
    node: str
    kind: str
    boot_id: str
    message: str  # at most MAX_EXCERPT characters


@dataclass(frozen=True, slots=True)
class Partial:
    """Alike records of one Kafka message that match one rule: same group, second, and role in the count.

    Every field but `records`, `first`, `values` and `nodes` is the same for each record it stands for, and a
    function of the record and the rules alone. So a record gives the same partial whatever batch it came in.
    """

    rule: str
    group: Group
    second: int  # s since the epoch, in the windows' time: `ts`, or `appended_at` where `ts` cannot be
    topic: str
    partition: int
    offset: int
    appended_ms: int  # the broker's time of the message
    records: tuple[Run, ...]
    first: Evidence
    key: str = ""  # records of one key within the rule's `fold_s` are one fault
    carrier: str = ""  # which way kernel text came (kmsg, journal, …); empty where a line comes one way only
    weight: int = 1  # occurrences one record stands for
    follower: bool = False  # belongs to a fault, is none itself
    clock_suspect: bool = False  # `ts` lies in the future; `second` is of `appended_at`
    late: bool = False  # older than the horizon: recorded, pages nobody
    values: tuple[tuple[str, str], ...] = ()  # sorted; for the placeholders of the rule's annotations
    nodes: tuple[str, ...] = ()  # sorted; hosts of the records, at most MAX_NODES

    @property
    def source(self) -> Partition:
        """Where it came from: clocks and order are per source partition."""
        return self.topic, self.partition

    def to_json(self) -> bytes:
        """The value of a message on the topic of partials."""
        return orjson.dumps({"v": VERSION, **asdict(self), "first": list(self.first)})


MAX_NODES = 32


def partial_from_json(value: bytes) -> Partial:
    """Raises ValueError where the value is no partial of this version."""
    try:
        read: dict[str, Any] = orjson.loads(value)
        if read.pop("v") != VERSION:
            raise ValueError("not version 1")
        read["first"] = Evidence(*read["first"])
        for name in ("group", "records", "values"):
            read[name] = tuple(map(tuple, read[name]))
        read["nodes"] = tuple(read["nodes"])
        return Partial(**read)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no partial: {error!r}") from error


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One change of one alert.

    An alert is the episode (`fingerprint`, `starts_at`). Episodes of a fingerprint never overlap in truth, so an event
    voids whatever was told before about overlapping ones (`starts_at` up to, but without, `ends_at`): older lines
    have moved or merged them. `replaces` names those that this process has told of. What was told last is true once
    the watermark is `horizon_s + repeat_s` past it. `late` events are for the record only: nobody is paged.
    """

    rule: str
    fingerprint: str  # of the rule's name and the group, 16 hex digits
    state: State
    starts_at: int  # s since the epoch: when the threshold had been exceeded for `for`
    ends_at: int  # s since the epoch: when it no longer is, as far as known; moves while lines go on
    count: int  # occurrences: faults after folding, repeats counted
    lines: int  # records, followers and renderings of the same record included
    severity: str
    labels: tuple[tuple[str, str], ...]  # sorted; the same for all events of a fingerprint
    annotations: tuple[tuple[str, str], ...]
    evidence: tuple[Evidence, ...]  # the first lines by their own time
    nodes: tuple[str, ...] = ()
    job_id: str = ""  # the job that held the node when the alert began, where Slurm told
    clock_suspect: bool = False
    replaces: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        """The value of a message on the topic of alerts."""
        return orjson.dumps(
            {
                "v": VERSION,
                **asdict(self),
                "labels": dict(self.labels),
                "annotations": dict(self.annotations),
                "evidence": [line._asdict() for line in self.evidence],
            }
        )


def fingerprint(rule: str, group: Group) -> str:
    """Names an alert for good: the same in every process and run."""
    return hashlib.sha256(orjson.dumps([rule, group])).hexdigest()[:16]
