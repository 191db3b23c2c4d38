"""Hands gated lines to the stream parsers and keeps what they hold between batches.

A parser sees the lines of its stream that the gate picked and, while it holds something, the lines
that follow. What it holds is bounded per stream (parsers.record.MAX_HELD_*) and here in all: past
`max_streams` or `max_bytes` the stream that has been silent longest is flushed early, and counted.

A stream is flushed once its next line is more than its age younger (broker time) than its last, or when the
clock says so. Both give the same records, so a replay repeats them: the clock waits longer than the lines may
be apart, for one that the broker has and that is on its way to us. The age is that of the kind
(parsers.registry), at most `max_age_ms`. Empty lines that make no record are counted in `swallowed` by
(topic, partition).
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from flows.batch import Raw
from flows.steps.kinds import BUILT_IN, Kinds
from flows.steps.labels import Labelled
from parsers.clock import Stamp
from parsers.record import Line, Record, Ref, Stream, StreamParser
from parsers.schema import ENVELOPE

ENVELOPE_NAMES = ENVELOPE.names
GRACE_MS = 1_000  # a line that the broker took in time is read by then
QUICK_GRACE_MS = 150  # the same for kinds with an age of their own, which are not to wait

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Places = np.ndarray[tuple[int], np.dtype[np.intp]]
StreamKey = tuple[str, int, Stream]  # topic, partition, stream


class Said(NamedTuple):
    """What the message of a line says of it: schema.ENVELOPE values, and the labels they are shown as."""

    envelope: dict[str, str | None]
    labelled: Labelled


@dataclass(slots=True)
class Held:
    """A physical line that a parser has taken in. `counted`: a record already owns it in the ledger.

    `gated`: it may say more than its header; else it is here for its neighbours' sake or its odd form.
    """

    raw: bytes
    appended_ms: int
    said: Said
    gated: bool
    counted: bool = False


@dataclass(slots=True)
class Open:
    """One stream whose parser holds lines."""

    parser: StreamParser
    topic: str
    partition: int
    last_ms: int
    lines: dict[Ref, Held] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(len(held.raw) for held in self.lines.values())


@dataclass(frozen=True, slots=True)
class Finished:
    """A record with all that its row in LOG needs. `row`: place of its first line in the batch, else -1.

    `plain`: a single line that the gate did not pick. Its row must not say more than it would, had the
    line stood elsewhere in its batch, or a repeat would not be recognised as one.
    """

    record: Record
    kind: str
    topic: str
    partition: int
    envelope: dict[str, str | None]
    labelled: Labelled
    appended_ms: int
    raw: bytes
    owned: int
    row: int
    plain: bool


@dataclass(slots=True)
class Reassembler:
    """The open streams of one shard. Picklable: it is part of the snapshot."""

    max_age_ms: int = 2_000
    max_streams: int = 20_000
    max_bytes: int = 64 << 20
    kinds: Kinds = BUILT_IN
    streams: "OrderedDict[StreamKey, Open]" = field(default_factory=OrderedDict)
    evicted: int = 0
    swallowed: Counter[tuple[str, int]] = field(default_factory=Counter)
    _quick: set[StreamKey] = field(default_factory=set)  # open streams of a kind with a short age, and some closed

    @property
    def hurries(self) -> bool:
        """Whether something is held that the clock will flush soon."""
        self._quick = {key for key in self._quick if key in self.streams}
        return bool(self._quick)

    def restore(self, streams: "OrderedDict[StreamKey, Open]") -> None:
        """Go on with the streams of a snapshot."""
        self.streams = streams
        self._quick = {key for key in streams if self._age_ms(key) < self.max_age_ms}

    def feed(self, raw: Raw, gated: Mask, rich: Mask) -> tuple[list[Finished], Mask]:
        """Feed the rows marked `rich` and what must follow them; in kinds that follow also the last of each stream.

        `gated` are those of `rich` that the gate picked. Rows of one stream stand together in `raw`. Returns the
        finished records and a mask of the rows taken; the others are plain lines.
        """
        taken = np.zeros(len(rich), dtype=np.bool_)
        rows = Rows(raw)
        starts, stops = rows.runs()
        picked = rich.copy()
        if self.kinds.get(raw.kind).follows:
            picked[rows.last_filled(starts, stops)] = True
        wanted = np.flatnonzero(picked)
        firsts, lasts = np.searchsorted(wanted, starts), np.searchsorted(wanted, stops)
        # Without open streams only runs with a wanted row matter, and most have none.
        runs = np.flatnonzero(lasts > firsts) if not self.streams else np.arange(len(starts))
        finished: list[Finished] = []
        for run in runs.tolist():
            start, first, last = int(starts[run]), firsts[run], lasts[run]
            key = rows.key(start)
            opened = self.streams.get(key)
            if opened is None:
                if first == last:
                    continue
                opened = Open(self.kinds.parser(raw.kind).stream(key[2]), *key[:2], rows.appended(start))
            self._feed_run(
                key, opened, rows, (start, int(stops[run])), wanted[first:last], gated, rich, taken, finished
            )
            self._keep(key, opened)
        self._shrink(finished)
        return finished, taken

    def tick(self, now_ms: Mapping[tuple[str, int], int]) -> list[Finished]:
        """Flush the streams that are silent for longer than their age and grace, by the time of their partition."""
        stale = [
            key for key, opened in self.streams.items() if opened.last_ms + self._patience_ms(key) < now_ms[key[:2]]
        ]
        finished: list[Finished] = []
        for key in stale:
            opened = self.streams.pop(key)
            finished += self._finish(key, opened, opened.parser.flush(), {})
        return finished

    def flush(self) -> list[Finished]:
        """Flush all: the source has ended."""
        finished = [
            done
            for key, opened in self.streams.items()
            for done in self._finish(key, opened, opened.parser.flush(), {})
        ]
        self.streams.clear()
        return finished

    def held(self) -> dict[tuple[str, int], int]:
        """Physical lines held that no record owns yet, by (topic, partition)."""
        held: dict[tuple[str, int], int] = {}
        for opened in self.streams.values():
            place = (opened.topic, opened.partition)
            held[place] = held.get(place, 0) + sum(not line.counted for line in opened.lines.values())
        return held

    def _feed_run(
        self,
        key: StreamKey,
        opened: Open,
        rows: "Rows",
        run: tuple[int, int],
        wanted: Places,
        gated: Mask,
        rich: Mask,
        taken: Mask,
        finished: list[Finished],
    ) -> None:
        # In kinds whose lines follow one another, header marks every continuation as rich: any other line
        # starts a record of its own, so that what is held is complete.
        follows = self.kinds.get(key[2].kind).follows
        age_ms = self._age_ms(key)
        queue = iter(wanted.tolist())
        following = next(queue, None)
        places: dict[Ref, int] = {}
        row, stop = run
        while row < stop:
            if not opened.lines:
                while following is not None and following < row:
                    following = next(queue, None)
                if following is None:
                    break
                row = following
            appended_ms = rows.appended(row)
            over = appended_ms - opened.last_ms > age_ms or (follows and not rich[row])
            if opened.lines and over:
                finished += self._finish(key, opened, opened.parser.flush(), places)
                continue
            ref, line = rows.line(row)
            opened.lines[ref] = Held(line.raw, appended_ms, rows.said(row), bool(gated[row] or not follows))
            opened.last_ms = appended_ms
            places[ref] = row
            taken[row] = True
            finished += self._finish(key, opened, opened.parser.feed(line), places)
            row += 1

    def _finish(self, key: StreamKey, opened: Open, records: list[Record], places: dict[Ref, int]) -> list[Finished]:
        held = opened.parser.held
        if not records and len(held) == len(opened.lines):
            return []
        finished = []
        for record in records:
            lines = [opened.lines[ref] for ref in record.refs]
            owned = sum(not line.counted for line in lines)
            for line in lines:
                line.counted = True
            finished.append(
                Finished(
                    record,
                    key[2].kind,
                    opened.topic,
                    opened.partition,
                    *lines[0].said,
                    lines[0].appended_ms,
                    b"\n".join(line.raw for line in lines),
                    owned,
                    places.get(record.refs[0], -1),
                    plain=len(lines) == 1 and not lines[0].gated,
                )
            )
        kept = {ref: opened.lines.pop(ref) for ref in held}
        if gone := sum(not line.counted for line in opened.lines.values()):
            self.swallowed[key[:2]] += gone  # empty lines, which make no record
        opened.lines = kept
        return finished

    def _keep(self, key: StreamKey, opened: Open) -> None:
        if opened.lines:
            self.streams[key] = opened
            self.streams.move_to_end(key)
            if self._age_ms(key) < self.max_age_ms:
                self._quick.add(key)
        else:
            self.streams.pop(key, None)

    def _age_ms(self, key: StreamKey) -> int:
        age_ms = self.kinds.get(key[2].kind).age_ms
        return self.max_age_ms if age_ms is None else min(age_ms, self.max_age_ms)

    def _patience_ms(self, key: StreamKey) -> int:
        age_ms = self._age_ms(key)
        return age_ms + (QUICK_GRACE_MS if age_ms < self.max_age_ms else GRACE_MS)

    def _shrink(self, finished: list[Finished]) -> None:
        size = sum(opened.size for opened in self.streams.values())
        while self.streams and (len(self.streams) > self.max_streams or size > self.max_bytes):
            key, opened = self.streams.popitem(last=False)
            size -= opened.size
            self.evicted += 1
            finished += self._finish(key, opened, opened.parser.flush(), {})


class Rows:
    """Python access to single rows of a Raw table; only gated rows are ever asked for."""

    def __init__(self, raw: Raw) -> None:
        table = raw.rows
        self._streams, self._labelled, self._redacted = raw.streams, raw.labelled, raw.redacted
        self._labels = whole(table["labels"]).to_numpy()
        self._said: dict[int, Said] = {}  # by number of what is shown, which tells envelopes apart
        self.stream = whole(table["stream"]).to_numpy()
        self._table = table
        topic = whole(table["topic"])
        self._topic, self._topics = topic.indices.to_numpy(), topic.dictionary.to_pylist()
        self._words: dict[str, list[str | None]] | None = None
        self._origin: Places = self.stream
        self._offset = whole(table["offset"]).to_numpy()
        self._line = whole(table["line"]).to_numpy()
        self._partition = whole(table["partition"]).to_numpy()
        self._appended = whole(table["appended_at"]).to_numpy()
        self._received = whole(table["received_at"]).to_numpy()
        lines = whole(table["raw"])
        self._ends = np.frombuffer(lines.buffers()[1], dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
        self._data = memoryview(lines.buffers()[2] or b"")

    def runs(self) -> tuple[Places, Places]:
        """Stretches of rows of one stream and partition: where they start, and where they stop."""
        change = (np.diff(self.stream) != 0) | (np.diff(self._partition) != 0)
        cuts = np.flatnonzero(change) + 1
        return np.insert(cuts, 0, 0), np.append(cuts, len(self.stream))

    def last_filled(self, starts: Places, stops: Places) -> Places:
        """The last line of each stretch that is not empty, else its last: a record may go on after empty lines."""
        filled = np.flatnonzero(np.diff(self._ends))
        at = np.searchsorted(filled, stops) - 1
        last = np.where(at >= 0, filled[np.maximum(at, 0)] if len(filled) else -1, -1)
        return np.where(last >= starts, last, stops - 1)

    def key(self, row: int) -> StreamKey:
        topic = self._topics[self._topic[row]]
        return (topic, int(self._partition[row]), self._streams[self.stream[row]])

    def said(self, row: int) -> Said:
        number = int(self._labels[row])
        known = self._said.get(number)
        if known is None:
            if self._words is None:
                columns = {name: whole(self._table[name]) for name in ENVELOPE_NAMES}
                self._words = {name: column.dictionary.to_pylist() for name, column in columns.items()}
                self._origin = columns["node"].indices.to_numpy()  # the index that all of them share
            origin = self._origin[row]
            envelope = {name: words[origin] for name, words in self._words.items()}
            known = self._said[number] = Said(envelope, self._labelled[number])
        return known

    def appended(self, row: int) -> int:
        return int(self._appended[row])

    def line(self, row: int) -> tuple[Ref, Line]:
        ref = Ref(int(self._offset[row]), int(self._line[row]))
        raw = bytes(self._data[self._ends[row] : self._ends[row + 1]])
        flags = ("redacted",) if row in self._redacted else ()
        return ref, Line(raw, (ref,), Stamp(int(self._received[row])), flags)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """One array, without a copy where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
