"""What the tier makes of the lines of one stream: rows of the stores, and what the alert rules count."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from flows import stored
from flows.batch import Chunk
from flows.config import Config
from flows.demo.loki_push_decode import decode
from flows.detect.events import Partial
from flows.detect.partials import Detector
from flows.pipeline import Pipeline
from flows.steps import summaries
from parsers import clock
from parsers.record import Stream
from sinks.azure_rows import Profile, json_rows, stream_of
from sinks.loki import COLUMNS
from sinks.loki_limits import Limits
from sinks.loki_push import Block, body, encode, places

BLOCK = 200  # lines of a message
_TOPIC = "parse"
_PROTOBUF = {"content-type": "application/x-protobuf"}

Key = tuple[int, int]  # number of the first line in the file, part


class Fate(NamedTuple):
    """A record as the stores get it, and the partials of the rules that count it."""

    record: stored.Stored
    partials: Sequence[Partial]


class Tier:
    """Takes the lines of a file through the pipeline; nothing is sent anywhere."""

    def __init__(self, config: Config, stream: Stream, received_ms: int) -> None:
        cluster = config.tier.cluster
        self._pipeline, self._received_ms = config.for_tests().pipeline(), received_ms
        self._detector = Detector(config.all_rules(), config.alerts.detect, cluster)
        times = stream.times
        said = {
            "v": "1",
            "kind": stream.kind,
            "node": stream.node,
            "cluster": stream.cluster,
            "path": stream.path,
            "tz": times.tz,
            "boot_time": None if times.boot_ns is None else clock.text(clock.Stamp(times.boot_ns)),
            "mtime": None if times.mtime_ns is None else clock.text(clock.Stamp(times.mtime_ns)),
        }
        self._headers = tuple((name, value.encode()) for name, value in said.items() if value)
        self._lines: list[bytes] = []
        self._blocks = 0
        self.fates: dict[Key, Fate] = {}

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, with its configuration."""
        return self._pipeline

    def feed(self, line: bytes) -> None:
        """Take a line."""
        self._lines.append(line)
        if len(self._lines) == BLOCK:
            self._process(ended=False)

    def end(self) -> None:
        """The file has ended."""
        self._process(ended=True)

    def _process(self, ended: bool) -> None:
        values: list[bytes | None] = [b"\n".join(self._lines)] if self._lines else []
        count = len(values)
        chunk = Chunk(
            [_TOPIC],
            np.zeros(count, dtype=np.int32),
            np.zeros(count, dtype=np.int32),
            np.full(count, self._blocks, dtype=np.int64),
            np.full(count, self._received_ms, dtype=np.int64),
            [None] * count,
            [self._headers] * count,
            values,
            self._received_ms,
            ended,
        )
        self._lines = []
        self._blocks += 1
        delivery, _ = self._pipeline.process(chunk)
        counted: dict[Key, list[Partial]] = defaultdict(list)
        for partial in self._detector.partials(delivery):
            for line, part, number in partial.records:
                for more in range(number):
                    counted[partial.offset * BLOCK + line + more, part].append(partial)
        for record in stored.records(delivery):
            values_ = record.values
            if values_["kind"] != summaries.KIND:
                key = (values_["offset"] * BLOCK + values_["line"], values_["part"])
                self.fates[key] = Fate(record, counted.get(key, ()))


class LokiEntry(NamedTuple):
    """A line in Loki, beside its labels."""

    line: str
    metadata: dict[str, str]


def loki_entry(record: stored.Stored, limits: Limits, record_id: bool) -> LokiEntry:
    """What the sink would push for a record that is no noise, read back from the push."""
    assert record.at is not None  # noqa: S101 - of noise nothing is pushed
    rows = record.part.rows.slice(record.at, 1).select(COLUMNS)
    place, _ = places(rows)
    entries = encode(
        rows, place, record.part.streams, record.part.demoted, max_line=limits.max_line_bytes, record_id=record_id
    )
    (pushed,) = decode(_PROTOBUF, body([(b"{}", Block((), bytes(entries.data), entries.rows))]))
    names, values = pushed.metadata.names.to_pylist(), pushed.metadata.values.to_pylist()
    return LokiEntry(
        pushed.lines[0].as_py().decode(errors="replace"),
        {name.decode(): value.decode(errors="replace") for name, value in zip(names, values, strict=True)},
    )


def azure_row(record: stored.Stored, profile: Profile, streams: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Stream of the data collection rule, and the columns of the row."""
    assert record.at is not None  # noqa: S101 - noise is not sent
    (row,) = json_rows(record.part.rows.slice(record.at, 1), profile)
    return stream_of(record.part.kind, profile, streams), orjson.loads(row.data)
