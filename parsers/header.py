"""The fast side of a parser: columns for all lines of a batch, no Python per line.

Every function takes and returns whole Arrow arrays. Regexes are RE2 (no look-around), short, anchored,
and never capture a `.*$` tail, which costs four to eight times the match itself.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_T = r"[\x80-\xbf]"
# Finds bytes that are no UTF-8 (RFC 3629 §4). Arrow matches binary columns byte by byte, as Latin-1.
NOT_UTF8 = (
    rf"(?s)[\xc0\xc1\xf5-\xff]|(?:^|[\x00-\x7f]){_T}|[\xc2-\xf4](?:[^\x80-\xbf]|$)"
    rf"|[\xe0-\xf4]{_T}(?:[^\x80-\xbf]|$)|[\xf0-\xf4]{_T}{_T}(?:[^\x80-\xbf]|$)"
    rf"|[\xc2-\xdf]{_T}{_T}|[\xe0-\xef]{_T}{_T}{_T}|[\xf0-\xf4]{_T}{_T}{_T}{_T}"
    r"|\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]"
)


Longs = np.ndarray[tuple[int], np.dtype[np.int64]]


class Header(NamedTuple):
    """Columns of a batch of lines, all of one length; None stands for a column of nulls.

    `ts` int64 ns since the epoch, null where the line shows no usable time (the tier then takes the
    time of receipt); `ts_source` and `level` are dictionary columns (schema.CODE); `body` int32 is
    where the text without the carrier's prefix starts (what Loki stores); `message` large_string is
    the text without envelope, stamp and level, by the rules of the field dictionary; `columns` are
    further columns of schema.TYPED by name. `rich` (bool) marks lines that need the stream parser
    although no gate word is in them: a stamp in a daylight-saving gap or fold, a header that does not
    fit, a piece of a line.
    """

    ts: pa.Array | None = None
    ts_source: pa.Array | None = None
    level: pa.Array | None = None
    body: pa.Array | None = None
    message: pa.Array | None = None
    columns: Mapping[str, pa.Array] = MappingProxyType({})
    rich: pa.Array | None = None


def as_text(lines: pa.LargeBinaryArray) -> tuple[pa.Array, pa.Array | None]:
    """Lines as large_string, and a bool mask of those that are no UTF-8 (null in the text); None when all are."""
    try:
        return lines.cast(pa.large_string()), None
    except pa.ArrowInvalid:
        bad = pc.match_substring_regex(lines, NOT_UTF8)
        return pc.if_else(bad, pa.scalar(None, pa.large_binary()), lines).cast(pa.large_string()), bad


def buffers(
    lines: pa.LargeBinaryArray,
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.uint8]]]":
    """Offsets (one more than lines) and bytes of a large_binary array without nulls; nothing is copied."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return ends, np.frombuffer(data or b"", np.uint8)


def slices(texts: pa.Array, starts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    """Every value of a large_binary or large_string array from its start (bytes) on, null where it is null.

    The bytes stay where they are: a second array over them has a head and a tail for every value, and the
    tails are taken.
    """
    if not len(texts):
        return texts
    ends, _ = buffers(texts)
    cuts = np.empty(2 * len(texts) + 1, dtype=np.int64)
    cuts[::2] = ends
    cuts[1::2] = np.minimum(ends[:-1] + starts, ends[1:])
    data = texts.buffers()[2] or pa.py_buffer(b"")
    halves = pa.Array.from_buffers(texts.type, 2 * len(texts), [None, pa.py_buffer(cuts), data])
    tails = np.arange(1, 2 * len(texts), 2)
    missing = np.asarray(texts.is_null()) if texts.null_count else None
    return halves.take(pa.array(tails, mask=missing))


def utc(naive: pa.Array, tz: str) -> tuple[pa.Array, pa.Array]:
    """Local times (timestamp without zone) as int64 in their own unit, UTC, and a mask of those missing or twice."""
    early = pc.assume_timezone(naive, tz, ambiguous="earliest", nonexistent="earliest").view(pa.int64())
    late = pc.assume_timezone(naive, tz, ambiguous="latest", nonexistent="latest").view(pa.int64())
    return early, pc.fill_null(pc.not_equal(early, late), False)


def nearest_year(
    month: Longs, day: Longs, second: Longs, near: pa.Array, tz: str
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.datetime64]], np.ndarray[tuple[int], np.dtype[np.bool_]]]":
    """Local times (s) in the year that brings them nearest to `near` (int64 ns), and whether there is one.

    `month` counts from 0, `second` is that of the day.
    """
    local = pc.local_timestamp(near.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("ns", tz)))
    here = local.to_numpy(zero_copy_only=False)
    year = here.astype("M8[Y]").astype(np.int64)
    best = np.zeros(len(month), dtype="M8[s]")
    distance = np.full(len(month), np.iinfo(np.int64).max)
    for other in (year - 1, year, year + 1):
        months = (other * 12 + month).astype("M8[M]")
        days = months.astype("M8[D]") + (day - 1)
        times = days.astype("M8[s]") + second
        apart = np.abs((times.astype("M8[ns]") - here).astype(np.int64))
        closer = (days.astype("M8[M]") == months) & (day > 0) & (apart < distance)
        best[closer], distance[closer] = times[closer], apart[closer]
    return best, distance < np.iinfo(np.int64).max


def text_map(columns: Mapping[str, pa.Array]) -> pa.MapArray:
    """Columns of strings, some null, as one column of maps from their names, nulls left out (schema.LOG `fields`)."""
    names, values = pa.array(list(columns)), pa.concat_arrays([column.cast(pa.string()) for column in columns.values()])
    count = len(values) // len(names)
    known = values.is_valid().to_numpy(zero_copy_only=False).reshape(len(names), count).T
    ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    row, column = np.nonzero(known)
    return pa.MapArray.from_arrays(
        pa.array(ends), names.take(pa.array(column)), values.take(pa.array(column * count + row))
    )
