"""Columns of the rows that a sink is given: read, cut, and traced back to their places in Kafka as a whole."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.base import Gap, Partition

# Structured array with a row per record; offset, line, owned as in schema.LOG, `place` numbers its (topic, partition).
Rows = np.ndarray[Any, np.dtype[np.void]]


def places(rows: pa.Table) -> tuple[npt.NDArray[np.int32], list[tuple[str, int]]]:
    """Number of the (topic, partition) of each row, and these pairs by number."""
    topic = flat(rows, "topic")
    key = np.asarray(topic.indices).astype(np.int64) << 32 | np.asarray(flat(rows, "partition"))
    coded = pa.array(key).dictionary_encode()
    names = topic.dictionary.to_pylist()
    return np.asarray(coded.indices), [
        (names[value >> 32], value & 0xFFFFFFFF) for value in coded.dictionary.to_pylist()
    ]


def times(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Time of each row in ns since the epoch: `ts`, or when Kafka took the line where that is null."""
    ts = flat(rows, "ts").cast(pa.int64())
    if ts.null_count:
        ts = pc.coalesce(ts, pc.multiply(flat(rows, "appended_at"), 1_000_000))
    return np.asarray(ts)


def flat(rows: pa.Table, name: str) -> pa.Array:
    """One column as a single array."""
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.unify_dictionaries().chunks)


def cut(text: bytes, limit: int) -> bytes:
    """At most `limit` bytes, never ending inside a UTF-8 character."""
    if len(text) <= limit:
        return text
    for end in range(limit, max(limit - 4, -1), -1):
        if text[end] & 0xC0 != 0x80:
            return text[:end]
    return text[:limit]  # not UTF-8 at all


def cut_lines(lines: pa.Array, limit: int) -> tuple[pa.Array, npt.NDArray[np.intp]]:
    """`lines` (large_binary) with none longer than `limit` bytes, and the rows that were cut."""
    too_long = np.flatnonzero(np.asarray(pc.binary_length(lines)) > limit)
    if not len(too_long):
        return lines, too_long
    mask = np.zeros(len(lines), dtype=bool)
    mask[too_long] = True
    pieces = [cut(line, limit) for line in lines.take(too_long).to_pylist()]
    return pc.replace_with_mask(lines, pa.array(mask), pa.array(pieces, pa.large_binary())), too_long


def claim(places: Sequence[Partition], all_rows: Sequence[Rows]) -> list[Gap]:
    """The lines that some rows answer for, by partition; `places` by number."""
    gaps: dict[int, Gap] = {}
    for rows in all_rows:
        for place in np.unique(rows["place"]):
            own = rows[rows["place"] == place]
            topic, partition = places[place]
            first, last, lines = int(own["offset"].min()), int(own["offset"].max()), int(own["owned"].sum())
            known = gaps.get(place, Gap(topic, partition, first, last, 0))
            gaps[place] = Gap(topic, partition, min(first, known.first), max(last, known.last), lines + known.lines)
    return list(gaps.values())
