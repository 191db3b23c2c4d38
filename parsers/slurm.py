"""Daemon files of Slurm (slurmctld, slurmd, slurmdbd, slurmrestd, SlurmSchedLogFile): both speeds.

A record is `STAMP PREFIX LEVEL TEXT` (`slurm_stamp`, `slurm_text`); TEXT may hold line feeds (output of
prolog and health check, user text), nothing is escaped, so a line without a stamp continues the record
before it. Lines before the first stamp of a file (written before the daemon knew its log settings) are
records of their own.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsers.json_lines import CONTROLS, plain
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Parser, Record, Ref, Stream, decode
from parsers.slurm_ids import ID_GATE
from parsers.slurm_stamp import read_stamp
from parsers.slurm_text import RULES, daemon_line

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header


class SlurmStream:
    """Rich parser of one daemon file. Only slurmctld may report what only the controller knows."""

    def __init__(self, stream: Stream) -> None:
        self._times = stream.times
        self._controller = stream.kind in ("slurmctld", "slurm_sched")
        self._clock: bool | None = None  # LogTimeFormat=clock; None: no stamp seen yet
        self._record: Record | None = None
        self._text: list[str] = []
        self._refs: list[Ref] = []
        self._empty: list[Ref] = []  # empty lines: of the record if it goes on after them, else of none
        self._bytes = 0

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = plain(decode(line.raw, flags)).rstrip(CONTROLS)
        if not text:
            if self._record is None:
                return []
            self._empty += line.refs
            return self._cut(self._record) if len(self._empty) > MAX_HELD_LINES else []
        stamp = read_stamp(text, self._times, line.received, flags)
        if stamp and "cpu_clock_us" in stamp.fields and self._clock is False:
            stamp = None  # `[123] ` inside the text of a file whose stamps have another form
        if stamp is None and self._record is not None and self._clock is not None:
            return self._continue(self._record, text, line, flags)
        done = self.flush()
        record = Record(fields={}, refs=(), flags=flags)
        if stamp:
            self._clock = "cpu_clock_us" in stamp.fields
            record.fields |= stamp.fields
            record.ts, record.ts_source = stamp.ts, stamp.source
        if record.ts is None and line.received:
            record.ts, record.ts_source = line.received, "received"
        daemon_line(text[stamp.length :] if stamp else text, record.fields, flags, controller=self._controller)
        self._record, self._text, self._refs = record, [record.fields["message"]], [*line.refs]
        self._bytes = len(line.raw)
        return done

    def _continue(self, record: Record, text: str, line: Line, flags: set[str]) -> list[Record]:
        done = []
        if len(self._refs) + len(self._empty) >= MAX_HELD_LINES or self._bytes + len(line.raw) > MAX_HELD_BYTES:
            done = self._cut(record)
            record = self._record = Record({"level": None}, (), record.ts, record.ts_source, {"partial"})
            self._bytes = 0
        self._text += [*[""] * len(self._empty), text]
        self._refs += [*self._empty, *line.refs]
        self._empty = []
        record.flags |= flags
        self._bytes += len(line.raw) + 1
        return done

    def _cut(self, record: Record) -> list[Record]:
        """End the record although more of it may follow."""
        record.flags.add("partial")
        return self.flush()

    def flush(self) -> list[Record]:
        record, self._record = self._record, None
        text, self._text = self._text, []
        refs, self._refs = self._refs, []
        self._empty = []
        if record is None:
            return []
        record.refs = tuple(refs)
        record.fields["message"] = "\n".join(text).rstrip(CONTROLS)
        return [record]

    @property
    def held(self) -> Sequence[Ref]:
        return [*self._refs, *self._empty]


def header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
    """Columns of lines with the default stamp. Any other line, and the line before it, is `rich`."""
    from parsers.slurm_columns import columns  # here, so that reading a file does not wait for the column libraries

    return columns(lines, tz)


def sched_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
    """The same of lines with `sched: ` in front of the stamp."""
    from parsers.slurm_columns import sched_columns

    return sched_columns(lines, tz)


def _gate(controller: bool) -> str:
    """Lines with a word of a rule, a node list, or an id in another form than the header reads."""
    words = {re.escape(rule.word) for rule in RULES if controller or not rule.controller}
    return "|".join([*sorted(words), ID_GATE, "NodeList="])


SLURMCTLD = Parser(SlurmStream, header, _gate(controller=True))
SLURM_SCHED = Parser(SlurmStream, sched_header, SLURMCTLD.gate)
SLURMD = Parser(SlurmStream, header, _gate(controller=False))  # and all that only the controller may speak for
