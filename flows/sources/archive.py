"""The archive as a source: rows become the messages they came from, in the order the broker took them.

A record's row shows its lines and their places (`spans`), so a message is put together again line by line, with headers
that say what its rows were told: kind, envelope, zone, and the times by which stamps without zone, year or date were
placed. Lines that made no row (empty ones) are empty again. DuckDB selects and sorts, on disk where memory does not do.
"""

import heapq
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bytewax.inputs import AbortExecution, FixedPartitionedSource, StatefulSourcePartition

from flows.batch import Chunk, Headers
from flows.sources.chunks import now_ms, tick
from flows.sources.drain import Drain
from flows.steps.selection import Selection
from parsers import clock
from parsers.clock import Stamp
from parsers.schema import ENVELOPE
from sinks.base import Partition
from sinks.errors import Misconfigured

Position = tuple[Any, ...]  # _ORDER of the last row that was read

_CHUNK_LINES = 20_000
_DERIVED = {"job", "owner_job"}
_HEADERS = [name for name in ENVELOPE.names if name not in _DERIVED]
_ORDER = ["appended_at", "topic", "partition", "offset", "line", "part"]
_COLUMNS = [
    "topic",
    "partition",
    "offset",
    "line",
    "spans",
    "appended_at",
    "part",
    "ts_source",
    "kind",
    "monotonic_us",
    "raw",
]


class Window(NamedTuple):
    """Which rows: of the broker's time from `start` to before `end`, of a selection. None: no bound."""

    start: datetime | None
    end: datetime | None
    selection: Selection


@dataclass(slots=True)
class _Message:
    """A message in the making: its lines by index."""

    appended_ms: int
    headers: Headers
    lines: dict[int, bytes] = field(default_factory=dict)

    def value(self) -> tuple[Headers, bytes]:
        """A block; or one line that has line feeds of its own."""
        if len(self.lines) == 1 and b"\n" in (line := next(iter(self.lines.values()))):
            return self.headers, line
        lines = (self.lines.get(number, b"") for number in range(max(self.lines) + 1))
        return (("v", b"1"), *self.headers), b"\n".join(lines)


class Messages:
    """Puts messages together from rows in the order of (appended_at, topic, partition, offset, line)."""

    def __init__(self) -> None:
        self._open: dict[Partition, dict[int, _Message]] = defaultdict(dict)
        self._offsets: dict[Partition, list[int]] = defaultdict(list)

    def add(self, row: dict[str, Any]) -> Iterator[tuple[Partition, int, _Message]]:
        """Take a row; yields the messages that no later row can add to: those before it in its partition."""
        place = (row["topic"], row["partition"])
        yield from self._before(place, row["offset"])
        headers = _headers(row)
        spans, raw = row["spans"], row["raw"]
        pieces = raw.split(b"\n") if spans else [raw]
        if spans and len(pieces) != len(spans):  # lines with line feeds of their own were joined
            spans, pieces = None, [raw]
        places = [(span["offset"], span["line"]) for span in spans] if spans else [(row["offset"], row["line"])]
        for (offset, line), piece in zip(places, pieces, strict=True):
            message = self._open[place].get(offset)
            if message is None:
                message = self._open[place][offset] = _Message(row["appended_at"], headers)
                heapq.heappush(self._offsets[place], offset)
            elif offset == row["offset"]:
                message.appended_ms = row["appended_at"]
                message.headers = _merged(message.headers, headers)
            message.lines.setdefault(line, piece)

    def rest(self) -> Iterator[tuple[Partition, int, _Message]]:
        """All that is left."""
        for place in list(self._open):
            yield from self._before(place, None)

    def _before(self, place: Partition, offset: int | None) -> Iterator[tuple[Partition, int, _Message]]:
        waiting = self._offsets[place]
        while waiting and (offset is None or waiting[0] < offset):
            first = heapq.heappop(waiting)
            yield place, first, self._open[place].pop(first)


def _headers(row: dict[str, Any]) -> Headers:
    said = {name: row[name] for name in _HEADERS if row[name]}
    said |= {"kind": row["kind"], **({"job_id": row["owner_job"]} if row["owner_job"] else {})}
    if (ns := row["ts"]) is not None:
        if row["ts_source"] == "received":
            said["read_at"] = clock.text(Stamp(ns))
        elif row["ts_source"] == "year":
            said["mtime"] = clock.text(Stamp(ns))
        elif row["ts_source"] == "boot" and row["monotonic_us"] is not None:
            said["boot_time"] = clock.text(Stamp(ns - 1_000 * row["monotonic_us"]))
    return tuple((name, str(value).encode()) for name, value in said.items())


def _merged(first: Headers, more: Headers) -> Headers:
    """Headers of two rows of one message; each may show a time that the other does not need."""
    known = dict(first)
    return (*first, *(header for header in more if header[0] not in known))


class ArchiveSource(FixedPartitionedSource[tuple[str, Chunk], bytes]):
    """Chunks of what the files hold, as one shard; the last is `ended`. `read` is told the rows done so far.

    Unless the window selects some, rows of all `kinds` are read: those that stand for lines.

    `spool`: directory for what does not fit into `memory_mib`. Raises Misconfigured when a file cannot be read.
    """

    def __init__(
        self,
        files: Sequence[Path],
        window: Window,
        spool: Path,
        memory_mib: int,
        drain: Drain,
        read: Callable[[int], None],
        kinds: Iterable[str],
    ) -> None:
        self._files, self._window, self._spool, self._memory = list(files), window, spool, memory_mib
        self._drain, self._read, self._kinds = drain, read, frozenset(kinds)

    def list_parts(self) -> list[str]:
        return ["0000"]

    def build_part(self, step_id: str, for_part: str, resume_state: bytes | None) -> "ArchivePart":  # noqa: ARG002 - Bytewax's signature
        position, messages = (None, Messages()) if resume_state is None else pickle.loads(resume_state)  # noqa: S301 - our own recovery store
        return ArchivePart(self.rows(position), position, messages, self._drain, self._read)

    def count(self) -> int:
        """How many rows there are."""
        return int(self._ask("count(*)", "", None).fetchall()[0][0]) if self._files else 0

    def rows(self, after: Position | None) -> Iterator[dict[str, Any]]:
        """Rows in the order of the broker's time, then place; those after a position."""
        if not self._files:
            return
        columns = ", ".join(map(_quoted, (*_COLUMNS, *ENVELOPE.names)))
        found = self._ask(f"{columns}, epoch_ns(ts) AS ts", "ORDER BY " + ", ".join(map(_quoted, _ORDER)), after)
        for batch in found.to_arrow_reader(_CHUNK_LINES):
            yield from batch.to_pylist()

    def _ask(self, what: str, order: str, after: Position | None) -> Any:
        import duckdb

        window, conditions, values = self._window, ["kind IN (SELECT unnest(?))"], list[Any]()
        kinds = window.selection.kinds or self._kinds
        values += [[str(path) for path in self._files], sorted(kinds)]
        for bound, sign in ((window.start, ">="), (window.end, "<")):
            if bound is not None:
                conditions.append(f"appended_at {sign} ?")
                values.append(int(bound.timestamp() * 1_000))
        if window.selection.nodes:
            conditions.append("node IN (SELECT unnest(?))")
            values.append(sorted(window.selection.nodes))
        if window.selection.jobs:
            conditions.append("(owner_job IN (SELECT unnest(?)) OR CAST(job_id AS VARCHAR) IN (SELECT unnest(?)))")
            values += [sorted(window.selection.jobs)] * 2
        if after is not None:
            conditions.append(f"({', '.join(map(_quoted, _ORDER))}) > ({', '.join('?' * len(_ORDER))})")
            values += after
        connection = duckdb.connect(
            config={"memory_limit": f"{self._memory}MB", "temp_directory": str(self._spool), "threads": "2"}
        )
        query = (
            f"SELECT {what} FROM read_parquet(?, union_by_name = true, hive_partitioning = false) "  # noqa: S608 - values are parameters
            f"WHERE {' AND '.join(conditions)} {order}"
        )
        try:
            return connection.execute(query, values)
        except duckdb.Error as error:
            raise Misconfigured(f"the archive cannot be read: {error}") from error


class ArchivePart(StatefulSourcePartition[tuple[str, Chunk], bytes]):
    """The one shard of an archive."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        position: Position | None,
        messages: Messages,
        drain: Drain,
        read: Callable[[int], None],
    ) -> None:
        self._rows, self._position, self._messages = iter(rows), position, messages
        self._drain, self._told = drain, read
        self._read, self._ended, self._draining = 0, False, False
        drain.enter("0000")

    def next_batch(self) -> Iterable[tuple[str, Chunk]]:
        """At most one chunk; StopIteration at the end."""
        if self._ended or self._draining:
            self._drain.leave("0000")
            if self._ended:
                raise StopIteration
            if self._drain.finished:
                raise AbortExecution
            return []
        done: list[tuple[Partition, int, _Message]] = []
        lines = 0
        for row in self._rows:
            self._read += 1
            self._position = tuple(row[name] for name in _ORDER)
            for each in self._messages.add(row):
                done.append(each)
                lines += len(each[2].lines)
            if lines >= _CHUNK_LINES:
                break
        else:
            done += self._messages.rest()
            self._ended = True
        self._told(self._read)
        chunks = [_chunk(done)] if done else []
        if self._ended:
            chunks.append(tick([], ended=True))
        return [("0000", chunk) for chunk in chunks]

    def snapshot(self) -> bytes:
        self._draining = self._drain.is_set()
        return pickle.dumps((self._position, self._messages))


def _quoted(name: str) -> str:
    return f'"{name}"'


def _chunk(messages: list[tuple[Partition, int, _Message]]) -> Chunk:
    topics = sorted({topic for (topic, _), _, _ in messages})
    values = [message.value() for _, _, message in messages]
    return Chunk(
        topics,
        np.array([topics.index(topic) for (topic, _), _, _ in messages], np.int32),
        np.array([partition for (_, partition), _, _ in messages], np.int32),
        np.array([offset for _, offset, _ in messages], np.int64),
        np.array([message.appended_ms for _, _, message in messages], np.int64),
        [None] * len(messages),
        [headers for headers, _ in values],
        [value for _, value in values],
        now_ms(),
    )
