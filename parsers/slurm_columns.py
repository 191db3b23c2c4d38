"""Columns of Slurm daemon lines with the default stamp `[2025-03-04T05:06:07.089] `, no Python per line.

Apart from `slurm`, so that reading single files does not wait for the column libraries.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.header import Header, as_text
from parsers.schema import CODE
from parsers.slurm_text import LEVELS

_STAMP = np.frombuffer(b"[0000-00-00T00:00:00.000] ", dtype=np.uint8)
_IS_DIGIT = ord("0") == _STAMP
_FIELDS = ("yyyy", "mm", "dd", "HH", "MM", "SS", "mmm")
# Digits to numbers in one product; every value is exact in float32.
_WEIGHTS = np.zeros((17, 7), dtype=np.float32)
for _column, _name in enumerate(_FIELDS):
    _start = sum(map(len, _FIELDS[:_column]))
    _WEIGHTS[_start : _start + len(_name), _column] = [10.0**power for power in reversed(range(len(_name)))]

_AFTER = len(_STAMP)
_END = 1 << 40  # arrow refuses an open end for binary slices
_STEP = r"(?:\[(?P<job>[0-9]{1,10})\.(?P<step>[0-9]{1,10}|batch|extern|interactive|TBD)\] )?"
_LEVEL = r"(?P<level>(?:fatal|internal error|error|warning|debug[2-5]): |debug: {1,2})?"
_HEAD = rf"^{_STEP}{_LEVEL}(?:sched: )?"
_BARE_HEAD = re.sub(r"\?P<\w+>", "?:", _HEAD)
_JOB = r"\bJobId=(?P<job>[0-9]{1,10})"
_PROGRAM = r"^(?:slurm[a-z]+|sackd|srun|sbatch|salloc|scrun)[^ ]*: "  # left to the rich side
_CONTROL = r"[\x00-\x08\x0a-\x1f\x7f]"

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Longs = np.ndarray[tuple[int], np.dtype[np.int64]]


def _local_ms(lines: pa.LargeBinaryArray) -> tuple[Bools, Longs]:
    """Which lines start with the default stamp (a possible date of 1970 to 2261), and its ms since the epoch, local."""
    count = len(lines)
    ends = np.frombuffer(lines.buffers()[1], dtype=np.int64)[lines.offset : lines.offset + count + 1]
    fits = np.diff(ends) >= len(_STAMP)
    ms = np.zeros(count, dtype=np.int64)
    rows = np.flatnonzero(fits)
    if not len(rows):
        return fits, ms
    data = np.frombuffer(lines.buffers()[2], dtype=np.uint8)
    head = data[ends[rows, None] + np.arange(len(_STAMP))]
    digits = head[:, _IS_DIGIT] - ord("0")  # uint8: what is no digit wraps above 9
    year, month, day, hour, minute, second, milli = (digits.astype(np.float32) @ _WEIGHTS).astype(np.int64).T
    months = np.clip((year - 1970) * 12 + month - 1, 0, 3_503)
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    good = (digits <= 9).all(axis=1) & (head[:, ~_IS_DIGIT] == _STAMP[~_IS_DIGIT]).all(axis=1)
    good &= (year >= 1970) & (year <= 2261) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= following - first)
    good &= (hour < 24) & (minute < 60) & (second < 60)
    fits[rows] = good
    ms[rows] = (((first + day - 1) * 24 + hour) * 60 + minute) * 60_000 + second * 1_000 + milli
    return fits, np.where(fits, ms, 0)


def _utc(ms: Longs, tz: str) -> tuple[pa.Array, pa.Array]:
    """Local ms to UTC ns, and a mask of times that do not exist or exist twice."""
    naive = pa.array(ms).view(pa.timestamp("ms"))
    early = pc.assume_timezone(naive, tz, ambiguous="earliest", nonexistent="earliest").view(pa.int64())
    late = pc.assume_timezone(naive, tz, ambiguous="latest", nonexistent="latest").view(pa.int64())
    return pc.multiply(early, 1_000_000), pc.not_equal(early, late)


def _text_or_null(captured: pa.Array) -> pa.Array:
    """A captured binary column as text; an absent group is captured as empty."""
    return pc.if_else(pc.equal(captured, b""), pa.scalar(None, pa.string()), captured.cast(pa.string()))


def _number(captured: pa.Array) -> pa.Array:
    return _text_or_null(captured).cast(pa.int64())


def _levels(words: pa.Array) -> pa.Array:
    """Level words with their colon (binary), empty for none, as a dictionary column of levels."""
    coded = words.dictionary_encode()
    names = [LEVELS[word.decode().rstrip(": ")] if word else "info" for word in coded.dictionary.to_pylist()]
    known = list(dict.fromkeys(names))
    places = pa.array([known.index(name) for name in names], pa.int8())
    return pa.DictionaryArray.from_arrays(places.take(coded.indices), pa.array(known, pa.string())).cast(CODE)


def columns(lines: pa.LargeBinaryArray, tz: str | None) -> Header:
    """Columns of lines with the default stamp. Any other line, and the line before it, is `rich`."""
    fits, ms = _local_ms(lines)
    tail = pc.binary_slice(lines, _AFTER, _END)
    message, bad = as_text(pc.replace_substring_regex(tail, _BARE_HEAD, "", max_replacements=1))
    head = pc.extract_regex(tail, _HEAD)
    step, prefix_job = pc.struct_field(head, "step"), _number(pc.struct_field(head, "job"))
    named = _number(pc.struct_field(pc.extract_regex(tail, _JOB), "job"))
    rich = ~fits
    rich[:-1] |= ~fits[1:]
    odd = [pc.match_substring_regex(lines, _CONTROL), pc.match_substring_regex(tail, _PROGRAM)]
    # A prefix in another form (SLUID, heterogeneous component, stepmgr), or text that only looks like one.
    odd.append(pc.and_(pc.starts_with(tail, "["), pc.is_null(prefix_job)))
    ts = ts_source = None
    if tz is not None:
        utc, doubtful = _utc(ms, tz)
        odd.append(doubtful)
        known = pa.array(fits)
        ts = pc.if_else(known, utc, pa.scalar(None, pa.int64()))
        ts_source = pc.if_else(known, "zone", pa.scalar(None, pa.string())).cast(CODE)
    for mask in odd if bad is None else [*odd, bad]:
        rich |= mask.to_numpy(zero_copy_only=False)
    return Header(
        ts=ts,
        ts_source=ts_source,
        level=_levels(pc.struct_field(head, "level")),
        message=message,
        columns={"job_id": pc.coalesce(prefix_job, named), "step_id": _text_or_null(step)},
        rich=pa.array(rich),
    )
