"""What moves through the dataflow: a Chunk from a source, Raw blocks after decode, a Delivery to the sinks."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from flows.steps.labels import Labelled
from parsers.record import Stream
from sinks.base import DeadLetter, Partition

Headers = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Chunk:
    """Messages as a source read them: lists and arrays of one length, in reading order per partition.

    `topic` indexes `topics`. `appended_ms` is the broker's (or the file's) time in ms. `now_ms` is the
    source's clock when it made the chunk; a chunk without messages is a tick that only carries it.
    `ended` says that the source is bounded and this was its last chunk. `behind` names the partitions that
    are known to hold messages which have not been read yet, or that nothing is known of yet.
    """

    topics: list[str]
    topic: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    partition: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    offset: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    appended_ms: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    keys: list[bytes | None]
    headers: list[Headers]
    values: list[bytes | None]
    now_ms: int
    ended: bool = False
    behind: frozenset[Partition] = frozenset()


@dataclass(slots=True)
class Raw:
    """Physical lines of one kind and one zone. `rows` has schema.RAW; `streams` is indexed by its column `stream`.

    Once labelled (flows.steps.labelling) `rows` has a column `labels` more, which indexes `labelled`. `redacted` are
    the places of rows that had a secret (flows.steps.redact).
    """

    kind: str
    tz: str | None
    rows: pa.Table
    streams: list[Stream]
    labelled: list[Labelled] = field(default_factory=list)
    redacted: frozenset[int] = frozenset()


@dataclass(slots=True)
class Decoded:
    """Result of decoding a chunk: every message is in `raws`, in `dead`, or counted in `empty`.

    `empty` counts messages without any line (tombstones, empty values) by (topic, partition).
    """

    raws: list[Raw]
    dead: list[DeadLetter] = field(default_factory=list)
    empty: dict[tuple[str, int], int] = field(default_factory=dict)
