"""Daemon files whose records start with a stamp: a line without one continues the record before it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parsers.json_lines import CONTROLS, placed, plain, unparsed
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Record, Ref, Stream, decode

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header


class Heads(NamedTuple):
    """What the usual first line of a record looks like, for `stamped_columns`.

    `head` is RE2 text with the groups `head` (what is no text), `time` (local, of one width) and `level`; `place`, if
    any, is what is taken off the end of the text. Their other groups are fields. Blanks around levels are no part of
    them.
    """

    head: str
    place: str | None = None


# Dates that are in reach of int64 nanoseconds, RE2 and Python alike.
YEAR = r"(?:19[7-9][0-9]|2[01][0-9]{2}|22[0-5][0-9])"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
ISO_MS = rf"{YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]) {CLOCK}[,.][0-9]{{3}}"


def header(heads: Heads) -> "Callable[[pa.LargeBinaryArray, str | None], Header]":
    """The header of a kind with such lines (record.Parser)."""

    def read(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
        from parsers.stamped_columns import columns  # here, so that files are read without the column libraries

        return columns(lines, tz, heads)

    return read


class StampedStream(ABC):
    """Stream parser of such a file. Lines before the first stamp are records of their own, flag `unparsed`.

    Empty lines belong to the record if it goes on after them, else to none.
    """

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times
        self.record: Record | None = None
        self.line = Line(b"", ())
        self.texts: list[str] = []
        self.refs: list[Ref] = []
        self.empty: list[Ref] = []
        self.size = 0

    @abstractmethod
    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:
        """The record that a line starts, with the rest of the line as its message; None when it starts none."""

    def finish(self, record: Record) -> None:  # noqa: B027 - most texts need nothing more
        """Read the message of a whole record."""

    def full(self) -> bool:
        """Whether the record takes no further line."""
        return False

    def read(self, text: str, line: Line, flags: set[str]) -> Record | None:
        """The record of a text that is one as a whole, such as syslog carries it; None without a stamp."""
        record = self.start(text, line, flags)
        if record is None:
            return None
        self._hold(record, line)
        return self.flush()[0]

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = plain(decode(line.raw, flags)).rstrip(CONTROLS)
        if not text:
            if self.record is not None and len(self.empty) < MAX_HELD_LINES // 2:
                self.empty += line.refs
            return []
        started = self.start(text, line, flags)
        if started is None and self.record is not None and not self.full():
            return self._continue(self.record, text, line, flags)
        done = self.flush()
        if started is None:
            return [*done, unparsed(line)]
        self._hold(started, line)
        return done

    def _hold(self, record: Record, line: Line) -> None:
        self.record, self.line = record, line
        self.texts, self.refs, self.size = [record.fields["message"]], [*line.refs], len(line.raw)

    def _continue(self, record: Record, text: str, line: Line, flags: set[str]) -> list[Record]:
        done = []
        if len(self.refs) + len(self.empty) >= MAX_HELD_LINES or self.size + len(line.raw) > MAX_HELD_BYTES:
            record.flags.add("partial")
            done = self.flush()
            self._hold(Record({"message": text}, line.refs, record.ts, record.ts_source, {"partial", *flags}), line)
            return done
        self.texts += [*[""] * len(self.empty), text]
        self.refs += [*self.empty, *line.refs]
        self.empty = []
        self.size += len(line.raw)
        record.flags |= flags
        return done

    def flush(self) -> list[Record]:
        record, self.record = self.record, None
        self.empty = []
        if record is None:
            return []
        record.refs = tuple(self.refs)
        record.fields["message"] = "\n".join(self.texts).rstrip(CONTROLS)
        self.texts, self.refs, self.size = [], [], 0
        self.finish(record)
        return [placed(record, self.line)]

    @property
    def held(self) -> Sequence[Ref]:
        return [*self.refs, *self.empty]
