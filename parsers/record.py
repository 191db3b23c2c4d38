"""The rich side of a parser: physical lines in, records with the fields of the field dictionary out.

A `StreamParser` reads the lines of ONE stream (one file, one container, one node's kernel log) in
order and returns a record as soon as nothing that follows can change it. `tailrace parse` feeds it
every line; the tier feeds it the lines that the gate picked and, while it holds something, the
lines after them. It must therefore cope with plain lines missing between two gated ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from parsers.clock import Stamp, Times

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

# Bounds of what one stream may hold while it waits for the rest of a record. A parser that meets one
# returns what it has, with the flag `truncated` (text was cut off) or `partial` (the rest will follow
# as a record of its own).
MAX_HELD_LINES = 2_000
MAX_HELD_BYTES = 1 << 20


# Gate of kinds whose rich lines are all known by their form, from the header: finds the empty line only.
NO_LINE = "^$"


class Ref(NamedTuple):
    """Where a physical line stands: the Kafka offset of its message, and its index inside it.

    For files the offset is 0 and `line` counts from the start of the file. Refs of one stream sort in
    reading order.
    """

    offset: int
    line: int


class Line(NamedTuple):
    """One line handed to a stream parser, without its line feed.

    `refs` names the physical lines it was made of (several when a carrier such as CRI cut it in
    pieces); `received` is when the line was read on the node or reached Kafka (None = unknown).
    """

    raw: bytes
    refs: tuple[Ref, ...]
    received: Stamp | None = None
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Record:
    """One logical record.

    `fields` holds the keys of FIELDS.md except kind, node, cluster, ts, ts_source, lines and flags,
    with values as they are printed; null values may be left out. `refs` are the physical lines used,
    in order. Records that share their first line are told apart by `part`, counted from 0.
    """

    fields: dict[str, Any]
    refs: tuple[Ref, ...]
    ts: Stamp | None = None
    ts_source: str | None = None
    flags: set[str] = field(default_factory=set)
    part: int = 0
    body: str | None = None  # text without the carrier's prefix (CRI, docker, kmsg), where that is not the raw line
    node: str | None = None  # host named by the envelope; used when the stream's node is not known


@dataclass(frozen=True, slots=True)
class Stream:
    """What is known about a stream beside its lines (options of `tailrace parse`, message headers)."""

    kind: str
    node: str | None = None
    cluster: str | None = None
    path: str | None = None
    times: Times = field(default_factory=Times)


class StreamParser(Protocol):
    """Stateful and picklable: its state is part of the tier's snapshot. Never raises on any bytes."""

    def feed(self, line: Line) -> list[Record]:
        """Take the next line; return the records that are now complete."""
        ...

    def flush(self) -> list[Record]:
        """Return what is held: the stream has ended, or has been silent for too long."""
        ...

    @property
    def held(self) -> Sequence[Ref]:
        """Physical lines taken in but not yet part of a returned record; empty means idle."""
        ...


class Parser(NamedTuple):
    """Both speeds of one kind of log.

    `stream` makes the rich parser of one stream. `header` gives the columns of a large_binary array of
    lines; its second argument is the zone of local times (IANA name, or None). With `near` there is a third: for
    each line the time that a stamp without year lies near (int64, ns). `gate` is RE2 text (no
    look-around) for the lines that need the rich parser, None for every line. `noise`, where the kind
    has any, gives a dictionary column (schema.CODE) with the noise id of lines that are noise whole and
    alone (nothing glued to them, no piece of another line), null elsewhere; it runs first, on every
    line, so it is the hottest code of the tier. `path_job`: a file's name may tell the job (slurm_text.job_of_path).
    """

    stream: Callable[[Stream], StreamParser]
    header: "Callable[..., Header]"
    gate: str | None = None
    noise: "Callable[[pa.LargeBinaryArray], pa.DictionaryArray] | None" = None
    near: bool = False
    path_job: bool = False


def decode(raw: bytes, flags: set[str]) -> str:
    """Bytes as text; bad bytes become U+FFFD and set the flag `invalid_utf8`. Leading NULs are skipped."""
    raw = raw.lstrip(b"\0") if raw[:1] == b"\0" else raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        flags.add("invalid_utf8")
        return raw.decode(errors="replace")
