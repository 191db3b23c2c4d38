"""Columns of Slurm daemon lines with the default stamp `[2025-03-04T05:06:07.089] `, no Python per line.

Apart from `slurm`, so that reading single files does not wait for the column libraries.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.header import Header, as_text, buffers, slices, utc
from parsers.schema import CODE
from parsers.slurm_text import LEVELS

_AFTER = len("[2025-03-04T05:06:07.089] ")
_FITS = (
    r"^\[(?:19[7-9][0-9]|2[01][0-9]{2}|22[0-5][0-9])-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}\] "
)
_LATE_DAY = r"^\[[0-9]{4}-(?:02-(?:29|30)|..-31)"  # days that not every month has
_STEP = r"(?:\[(?P<job>[0-9]{1,10})\.(?P<step>[0-9]{1,10}|batch|extern|interactive|TBD)\] )?"
_LEVEL = r"(?P<level>(?:fatal|internal error|error|warning|debug[2-5]): |debug: {1,2})?"
_HEAD = rf"^(?P<head>{_STEP}{_LEVEL}(?:sched: )?)"
_HAS_HEAD = r"^(?:\[|fatal|internal|error|warning|debug|sched)"
_JOB = r"\bJobId=(?P<job>[0-9]{1,10})"
_PROGRAM = r"^(?:slurm[a-z]+|sackd|srun|sbatch|salloc|scrun)[^ ]*: "  # left to the rich side
_CONTROL = r"[\x00-\x08\x0a-\x1f\x7f]"

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Longs = np.ndarray[tuple[int], np.dtype[np.int64]]


def _local_ms(lines: pa.LargeBinaryArray) -> tuple[Bools, pa.Array]:
    """Which lines start with the default stamp (a date of 1970 to 2259), and its local time, null elsewhere."""
    fits = pc.match_substring_regex(lines, _FITS)
    stamps = pc.if_else(fits, pc.binary_slice(lines, 1, _AFTER - 2), pa.scalar(None, pa.large_binary()))
    try:
        naive = stamps.cast(pa.large_string()).cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:  # the 30th of February
        fits = pc.and_not(fits, pc.match_substring_regex(lines, _LATE_DAY))
        naive = pc.if_else(fits, stamps, pa.scalar(None, pa.large_binary()))
        naive = naive.cast(pa.large_string()).cast(pa.timestamp("ms"))
    return np.asarray(fits.to_numpy(zero_copy_only=False), dtype=np.bool_), naive


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


def _heads(tail: pa.LargeBinaryArray) -> tuple[Longs, pa.Array, pa.Array, pa.Array]:
    """Length of step prefix, level word and `sched: `; level words (binary), step ids (text), job ids.

    Most lines have none of them, and looking for captures costs five times a plain match.
    """
    some = np.flatnonzero(pc.match_substring_regex(tail, _HAS_HEAD).to_numpy(zero_copy_only=False))
    found = pc.extract_regex(tail.take(pa.array(some)), _HEAD)
    lengths = np.zeros(len(tail), dtype=np.int64)
    lengths[some] = pc.binary_length(pc.struct_field(found, "head")).to_numpy(zero_copy_only=False)
    back = _back(some, len(tail))
    words = pc.fill_null(pc.struct_field(found, "level").take(back), b"")
    step = _text_or_null(pc.struct_field(found, "step")).take(back)
    return lengths, words, step, _number(pc.struct_field(found, "job")).take(back)


def _named_jobs(tail: pa.LargeBinaryArray) -> pa.Array:
    """The number behind the first `JobId=` of each line."""
    some = np.flatnonzero(pc.match_substring_regex(tail, "JobId=").to_numpy(zero_copy_only=False))
    found = pc.extract_regex(tail.take(pa.array(some)), _JOB)
    return _number(pc.struct_field(found, "job")).take(_back(some, len(tail)))


def _has_controls(lines: pa.LargeBinaryArray) -> bool:
    """Whether any line holds a control character: one look at all bytes, a fraction of what a regex costs."""
    ends, data = buffers(lines)
    used = data[ends[0] : ends[-1]]
    return bool((((used < 0x20) & (used != 0x09)) | (used == 0x7F)).any())


def _back(some: Longs, count: int) -> pa.Array:
    """Indices that put values of the rows `some` back in their places, null elsewhere."""
    back = np.full(count, -1, dtype=np.int64)
    back[some] = np.arange(len(some))
    return pa.array(back, mask=back < 0)


def columns(lines: pa.LargeBinaryArray, tz: str | None) -> Header:
    """Columns of lines with the default stamp. Any other line, and the line before it, is `rich`."""
    fits, naive = _local_ms(lines)
    tail = slices(lines, np.full(len(lines), _AFTER))
    lengths, words, step, prefix_job = _heads(tail)
    message, bad = as_text(slices(tail, lengths))
    named = _named_jobs(tail)
    rich = ~fits
    rich[:-1] |= ~fits[1:]
    odd = [pc.match_substring_regex(tail, _PROGRAM)]
    if _has_controls(lines):
        odd.append(pc.match_substring_regex(lines, _CONTROL))
    # A prefix in another form (SLUID, heterogeneous component, stepmgr), or text that only looks like one.
    odd.append(pc.and_(pc.starts_with(tail, "["), pc.is_null(prefix_job)))
    ts = ts_source = None
    if tz is not None:
        ms, doubtful = utc(naive, tz)
        ts = pc.multiply(ms, 1_000_000)
        odd.append(doubtful)
        zone = pa.array(np.zeros(len(lines), dtype=np.int8), mask=~fits)
        ts_source = pa.DictionaryArray.from_arrays(zone, pa.array(["zone"]))
    for mask in odd if bad is None else [*odd, bad]:
        rich |= mask.to_numpy(zero_copy_only=False)
    return Header(
        ts=ts,
        ts_source=ts_source,
        level=_levels(words),
        message=message,
        columns={"job_id": pc.coalesce(prefix_job, named), "step_id": step},
        rich=pa.array(rich),
    )


def sched_columns(lines: pa.LargeBinaryArray, tz: str | None) -> Header:
    """Columns of lines of SlurmSchedLogFile, which have `sched: ` in front of the stamp."""
    marked = pc.starts_with(lines, "sched: [").to_numpy(zero_copy_only=False)
    return columns(slices(lines, np.where(marked, len("sched: "), 0)), tz)
