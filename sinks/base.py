"""What a sink is given, and what it must answer for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

Partition = tuple[str, int]  # (topic, partition)


class DeadLetter(NamedTuple):
    """Something that could not be delivered: where it came from, why, and its first 64 KiB."""

    topic: str
    partition: int
    offset: int
    line: int
    lines: int  # physical lines the ledger counts for it
    reason: str  # one of a closed list, used as a metric label: tombstone, bad_envelope, too_large, rejected_loki, …
    detail: str  # for a person
    raw: bytes


MAX_DEAD_BYTES = 64 * 1024


@dataclass(slots=True)
class Part:
    """Records of one kind on their way to the stores.

    `rows` (schema.LOG plus `body` and `stream`) are the records that every store gets; `noise` (schema.LOG) were
    dropped by a named rule and reach the archive only. `body` (large_binary) is the text without the
    carrier's prefix, null where that is `raw` itself; `stream` (int32) indexes `streams`, the label set
    of each Loki stream as sorted (name, value) pairs, and `demoted`, the pairs that found no room as
    labels and are metadata of each record (empty when there are none at all).
    """

    kind: str
    rows: pa.Table
    noise: pa.Table
    streams: Sequence[tuple[tuple[str, str], ...]]
    demoted: Sequence[tuple[tuple[str, str], ...]] = ()


@dataclass(slots=True)
class Delivery:
    """One dataflow item after the pure steps: all parts of one chunk, and its dead letters.

    `kept` and `dropped` (by rule) count the physical lines of all rows and of all noise, by partition.
    """

    parts: list[Part] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    kept: dict[Partition, int] = field(default_factory=dict)
    dropped: dict[str, dict[Partition, int]] = field(default_factory=dict)


class Account(Protocol):
    """Where a sink reports the fate of physical lines (column `owned`), by partition. Thread-safe.

    Each line of `rows` (and of `noise` where the sink stores it) is reported exactly once as delivered,
    dead or dropped, or stays in the sink's gap list.
    """

    def __call__(self, fate: str, lines: dict[Partition, int], rule: str = "") -> None:
        """`fate`: delivered, dropped, dead or gapped (minus values when a gap closes)."""
        ...


class DeadLetterWriter(Protocol):
    """Stores dead letters durably before it returns. Thread-safe; blocks while its store is down."""

    def write(self, letters: Sequence[DeadLetter]) -> None: ...


class Gap(NamedTuple):
    """`lines` physical lines of messages `first` to `last` (both included) that a store has not acknowledged."""

    topic: str
    partition: int
    first: int
    last: int
    lines: int


class GapWriter(Protocol):
    """Takes over what a store will not get from its sink any more, so that a refill finds it."""

    def publish(self, store: str, shard: str, gaps: Sequence[Gap]) -> None:
        """Durable on return; waits while that is not possible."""
        ...


class Site(NamedTuple):
    """Where a sink works: its layout's number, the shards of its process, its account, its way for what is rejected,
    and for what its store missed (None: that stays in the state of the sink)."""

    generation: int
    shards: Sequence[str]
    account: Account
    dead: DeadLetterWriter
    gaps: GapWriter | None = None
