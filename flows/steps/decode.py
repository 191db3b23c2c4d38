"""Messages to physical lines: a Chunk becomes Raw tables, one for each kind and zone.

Forms of a message: a block of lines (header `v=1`); one line, of which one line feed at the end is
dropped and others stay (one event of several lines counts as one physical line); a JSON envelope
(flows.steps.envelopes), looked for only where lines of the kind are not JSON themselves. Bytes of a line
are left as they are, also `\\r`.

Reasons for dead letters: `bad_version` (header `v` is not 1), `bad_envelope` (the topic's form is json and
the value is none), `too_large` (more bytes or lines than configured).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from flows.batch import Chunk, Decoded, Raw
from flows.steps.envelopes import unwrap
from flows.steps.kinds import BUILT_IN, JSON_LINES, Kinds, require_kind
from flows.steps.lines import Ints, Place, Rows, gathered, merged, split, whole
from flows.steps.origins import STABLE, Group, Labels, Origin, read_origin, read_time
from flows.steps.zones import Zone, zone_of
from parsers.clock import Times, zone
from parsers.record import Stream
from parsers.schema import RAW
from sinks.base import MAX_DEAD_BYTES, DeadLetter

Form = Literal["auto", "block", "raw", "json"]

MAX_ORIGINS = 16_384  # distinct sets of headers remembered, about 2.5 KB each

_AUTO, _BLOCK, _RAW, _JSON, _BAD = range(5)
_FORMS: dict[str, int] = {"auto": _AUTO, "block": _BLOCK, "raw": _RAW, "json": _JSON}
_BRACE = ord("{")
_NS_PER_MS = 1_000_000
_MAX_MS = (2**63 - 1) // _NS_PER_MS


class DecodeConfig(BaseModel):
    """How the values of messages are read. Headers of the wire contract win over all of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Form = Field("auto", description="Form of messages without header `v`: auto, raw, json or block.")
    forms: dict[str, Form] = Field(
        default_factory=dict, description="Form by topic. Set raw where applications log JSON of their own."
    )
    kinds: dict[str, str] = Field(
        default_factory=dict, description="Kind by topic, of messages that name none themselves."
    )
    tz: str | None = Field(None, description="Zone (IANA name) of local times in lines, unless a message names one.")
    zones: tuple[Zone, ...] = Field((), description="Zones by kind and node, before `tz`; the first that fits holds.")
    max_message_bytes: int = Field(8 << 20, ge=1024, description="A longer value becomes a dead letter.")
    max_message_lines: int = Field(200_000, ge=1, description="A block of more lines becomes a dead letter.")

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for kind in kinds.values():
            require_kind(kind, info)
        return kinds

    @field_validator("tz")
    @classmethod
    def _known_zone(cls, tz: str | None) -> str | None:
        return None if tz is None else zone(tz).key

    def with_kinds(self, kinds: Mapping[str, str]) -> "DecodeConfig":
        """With further kinds by topic, such as those of the source; kinds set here win."""
        return self.model_copy(update={"kinds": {**kinds, **self.kinds}})

    def zone_of(self, kinds: Kinds, kind: str, node: str) -> str | None:
        """The zone of local times in lines of a kind and a node, where their message names none."""
        own = kinds.own[kind].tz if kind in kinds.own else None
        return zone_of(self.zones, kind, node) or own or self.tz

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


def decode(chunk: Chunk, config: DecodeConfig, kinds: Kinds = BUILT_IN) -> Decoded:
    """All lines of a chunk; within a Raw in the order of message and line. Never raises on any bytes."""
    return _decoder(config, kinds).decode(chunk)


@lru_cache(maxsize=16)
def _decoder(config: DecodeConfig, kinds: Kinds) -> "Decoder":
    return Decoder(config, kinds)


class Decoder:
    """Decodes chunks; remembers only the origins it has met, which changes no result."""

    def __init__(self, config: DecodeConfig, kinds: Kinds) -> None:
        self._config, self._kinds = config, kinds
        self._tz_of = partial(config.zone_of, kinds)
        self._ids: dict[tuple[str, bytes | None, Labels], int] = {}
        self._origins: list[Origin] = []
        self._groups: dict[Group, int] = {}
        # By origin: its form and its group.
        self._form = np.zeros(1024, dtype=np.int8)
        self._group = np.zeros(1024, dtype=np.int32)

    def decode(self, chunk: Chunk) -> Decoded:
        decoded = Decoded([])
        count = len(chunk.values)
        if not count:
            return decoded
        if len(self._origins) > MAX_ORIGINS:
            self._ids.clear()
            self._origins.clear()
            self._groups.clear()
        values, size = _sized(chunk.values)
        received = np.clip(chunk.appended_ms, -_MAX_MS, _MAX_MS) * _NS_PER_MS
        ids, mtimes = self._identify(chunk, received)
        state = _Chunk(chunk, values, size, received, ids, mtimes, decoded)
        form = self._form[ids]
        open_ = self._sort_out(state, form)
        pieces = self._unwrap(state, form, open_)
        block = form == _BLOCK
        groups = self._group[ids]
        wanted = {*np.unique(groups[open_]).tolist(), *pieces}
        for group in sorted(wanted):
            of_group = open_ & (groups == group) if len(wanted) > 1 else open_
            parts = pieces.get(group, [])
            parts += self._blocks(state, np.flatnonzero(of_group & block))
            parts += self._singles(state, np.flatnonzero(of_group & ~block))
            if parts:
                decoded.raws.append(self._table(state, merged(parts)))
        return decoded

    def _identify(self, chunk: Chunk, received: Ints) -> tuple[Ints, dict[int, int]]:
        """The origin of each message; writes read_at into `received`, returns mtime (ns) by message."""
        topics = list(map(chunk.topics.__getitem__, chunk.topic.tolist()))
        found = list(map(self._ids.get, zip(topics, chunk.keys, chunk.headers, strict=True)))
        mtimes: dict[int, int] = {}
        if None in found:
            # Either new, or with headers that belong to the message alone.
            for at, known in enumerate(found):
                if known is None:
                    headers = chunk.headers[at]
                    stable = tuple(header for header in headers if header[0] in STABLE)
                    found[at] = self._origin(topics[at], chunk.keys[at], stable)
                    if len(stable) < len(headers):
                        said = dict(headers)
                        if (read_at := _time(said.get("read_at"))) is not None:
                            received[at] = read_at
                        if (mtime := _time(said.get("mtime"))) is not None:
                            mtimes[at] = mtime
        return np.array(found, dtype=np.int64), mtimes

    def _origin(self, topic: str, key: bytes | None, headers: Labels) -> int:
        """The number of an origin."""
        identity = (topic, key, headers)
        number = self._ids.get(identity)
        if number is not None:
            return number
        number = len(self._origins)
        origin = read_origin(headers, key, self._config.kinds.get(topic), self._tz_of, self._kinds)
        self._ids[identity] = number
        self._origins.append(origin)
        if number == len(self._form):
            self._form = np.resize(self._form, 2 * number)
            self._group = np.resize(self._group, 2 * number)
        form = _FORMS[self._config.forms.get(topic, self._config.form)]
        if form == _AUTO and origin.group.kind in JSON_LINES:
            form = _RAW
        self._form[number] = form if origin.version is None else _BLOCK if origin.version == b"1" else _BAD
        self._group[number] = self._groups.setdefault(origin.group, len(self._groups))
        return number

    def _sort_out(self, state: "_Chunk", form: Any) -> Any:
        """Count the empty and bury what cannot be read; returns a mask of the messages left."""
        empty = state.size == 0
        for at in np.flatnonzero(empty).tolist():
            state.count_empty(at)
        version = (form == _BAD) & ~empty
        for at in np.flatnonzero(version).tolist():
            said = self._origins[state.ids[at]].version or b""
            detail = f"header v is {said[:20]!r}, this version of tailrace knows 1: upgrade tailrace or the forwarder"
            state.bury(at, "bad_version", detail)
        limit = self._config.max_message_bytes
        large = (state.size > limit) & ~empty & ~version
        for at in np.flatnonzero(large).tolist():
            state.bury(at, "too_large", f"{state.size[at]} bytes; decode.max_message_bytes is {limit}")
        return ~(empty | version | large)

    def _unwrap(self, state: "_Chunk", form: Any, open_: Any) -> dict[int, list[Rows]]:
        """Lines of JSON envelopes by group; their messages leave `open_`."""
        certain = open_ & (form == _JSON)
        perhaps = np.flatnonzero(open_ & (form == _AUTO))
        if len(perhaps):
            first = np.fromiter(map(itemgetter(0), state.pick(perhaps)), np.uint8, len(perhaps))
            perhaps = perhaps[first == _BRACE]
        places: dict[int, list[Place]] = {}
        for at in sorted((*np.flatnonzero(certain).tolist(), *perhaps.tolist())):
            pieces = unwrap(state.values[at], bool(certain[at]), self._kinds)
            if pieces is None:
                if certain[at]:
                    state.bury(at, "bad_envelope", "no JSON object with a line in it; see decode.forms")
                    open_[at] = False
                continue
            open_[at] = False
            if not pieces:
                state.count_empty(at)
            topic, key, own = state.place(at)
            line = 0
            for piece in pieces:
                labels = tuple({**dict(piece.labels), **dict(own)}.items()) if own else piece.labels
                origin = self._origin(topic, key, labels)
                ns = int(state.received[at]) if piece.time_ns is None else piece.time_ns
                rows = places.setdefault(int(self._group[origin]), [])
                for text in piece.text.split(b"\n") if piece.lines else (piece.text,):
                    rows.append((at, line, origin, ns, text))
                    line += 1
        return {group: [gathered(rows)] for group, rows in places.items()}

    def _blocks(self, state: "_Chunk", messages: Ints) -> list[Rows]:
        """Lines of block messages."""
        if not len(messages):
            return []
        counts, raw = split(state.pick(messages))
        limit = self._config.max_message_lines
        if (crowded := counts > limit).any():
            for at, lines in zip(messages[crowded].tolist(), counts[crowded].tolist(), strict=True):
                state.bury(at, "too_large", f"{lines} lines; decode.max_message_lines is {limit}", lines)
            return self._blocks(state, messages[~crowded])
        message = np.repeat(messages, counts)
        line = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
        return [Rows(message, line, state.ids[message], state.received[message], raw)]

    def _singles(self, state: "_Chunk", messages: Ints) -> list[Rows]:
        """Messages that are one line each."""
        if not len(messages):
            return []
        raw = whole(state.pick(messages))
        line = np.zeros(len(messages), dtype=np.int64)
        return [Rows(messages, line, state.ids[messages], state.received[messages], raw)]

    def _table(self, state: "_Chunk", rows: Rows) -> Raw:
        """The RAW table of one group. Columns of ENVELOPE share one index: the origin of the line."""
        used = np.zeros(len(self._origins), dtype=np.bool_)
        used[rows.origin] = True
        numbers = np.flatnonzero(used)
        rank = np.zeros(len(self._origins), dtype=np.int32)
        rank[numbers] = np.arange(len(numbers), dtype=np.int32)
        index = rank[rows.origin]
        origins = [self._origins[number] for number in numbers.tolist()]
        streams: dict[Stream, int] = {}
        stream_of = np.array([streams.setdefault(origin.stream, len(streams)) for origin in origins], dtype=np.int32)
        stream = stream_of[index]
        shared = pa.array(index)
        chunk = state.chunk
        topic = pa.DictionaryArray.from_arrays(
            pa.array(chunk.topic[rows.message].astype(np.int32)), pa.array(chunk.topics, pa.string())
        )
        values = zip(*(origin.envelope for origin in origins), strict=True)
        columns = [
            topic,
            pa.array(chunk.partition[rows.message]),
            pa.array(chunk.offset[rows.message]),
            pa.array(rows.line.astype(np.int32)),
            pa.array(chunk.appended_ms[rows.message]),
            pa.array(rows.received),
            pa.array(stream),
            *(pa.DictionaryArray.from_arrays(shared, pa.array(column, pa.string())) for column in values),
            rows.raw,
        ]
        group = origins[0].group
        named = list(streams)
        if state.mtimes:
            _date(named, stream, rows.message, state.mtimes)
        return Raw(group.kind, group.tz, pa.Table.from_arrays(columns, schema=RAW), named)


class _Chunk(NamedTuple):
    """A chunk while it is decoded, by message: value, size, time of receipt (ns), origin, file time (ns)."""

    chunk: Chunk
    values: list[bytes]
    size: Ints
    received: Ints
    ids: Ints
    mtimes: dict[int, int]
    decoded: Decoded

    def pick(self, messages: Ints) -> list[bytes]:
        """Values of some messages, in their order."""
        if len(messages) == len(self.values):
            return self.values
        return [self.values[at] for at in messages.tolist()]

    def place(self, at: int) -> tuple[str, bytes | None, Labels]:
        own = self.chunk.headers[at]
        stable = tuple(header for header in own if header[0] in STABLE) if own else ()
        return self.chunk.topics[self.chunk.topic[at]], self.chunk.keys[at], stable

    def count_empty(self, at: int) -> None:
        where = (self.chunk.topics[self.chunk.topic[at]], int(self.chunk.partition[at]))
        self.decoded.empty[where] = self.decoded.empty.get(where, 0) + 1

    def bury(self, at: int, reason: str, detail: str, lines: int = 1) -> None:
        topic, partition = self.chunk.topics[self.chunk.topic[at]], int(self.chunk.partition[at])
        raw = self.values[at][:MAX_DEAD_BYTES]
        self.decoded.dead.append(
            DeadLetter(topic, partition, int(self.chunk.offset[at]), 0, lines, reason, detail, raw)
        )


def _sized(values: Sequence[bytes | None]) -> tuple[list[bytes], Ints]:
    """Values, tombstones as empty ones, and their lengths."""
    try:
        return values, np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type,return-value]
    except TypeError:  # quicker than to look for a tombstone in every chunk
        return _sized([value or b"" for value in values])


def _time(value: bytes | None) -> int | None:
    stamp = read_time(value.decode(errors="replace").strip()) if value else None
    return stamp.ns if stamp else None


def _date(streams: list[Stream], stream: Any, message: Ints, mtimes: dict[int, int]) -> None:
    """Give each stream the file time of its first message that names one."""
    for at, mtime in sorted(mtimes.items(), reverse=True):
        row = int(np.searchsorted(message, at))
        if row < len(message) and message[row] == at:
            known = streams[stream[row]]
            times = Times(known.times.tz, known.times.boot_ns, mtime)
            streams[stream[row]] = Stream(known.kind, known.node, known.cluster, known.path, times)
