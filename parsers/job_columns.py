"""Job output by columns: noise ids, and message, level, rank and host of lines that need no stream parser."""

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.header import Header, as_text, buffers, slices
from parsers.job_gate import (
    BAR,
    BULK,
    CLEAN,
    FLOOD,
    FREQUENT,
    NCCL_PREFIX,
    NOISE,
    NOISE_HEAD,
    PLAIN_PREFIX,
    REFUSED,
    SELDOM,
    TAG,
)
from parsers.job_records import LONGEST_BYTES
from parsers.job_torn import PIECE_BYTES
from parsers.launcher import MAX_RANK

_IDS = pa.array(["N02", *(rule.id for rule in NOISE), "N25", "progress"])
_CODES = {name: code for code, name in enumerate(_IDS.to_pylist())}
_MARK = b" NCCL "
_INFO = b" NCCL INFO "
_WORD = int.from_bytes(_INFO[:8], "little")
# What a prefix can add to the length of a line. Longer ones are taken for pieces at their limit only.
_LIMITS = (PIECE_BYTES, LONGEST_BYTES)
_LONGEST_PREFIX = 300

_RANK = (
    r"^(?:\[rank(?P<tag>\d{1,9})\]: ?|\[\d{1,9},(?P<mpi>\d{1,9})\]<std(?:out|err)>:| {0,9}(?P<label>\d{1,7}): "
    rf"|{TAG})?(?:(?P<host>[A-Za-z0-9_.-]+):(?P<pid>\d{{1,10}}):\d{{1,10}} (?:\[-?\d{{1,10}}\] )?NCCL INFO )?"
)

Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
Places: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Codes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int8]]
Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]


def noise_column(lines: pa.LargeBinaryArray) -> pa.DictionaryArray:
    """schema.CODE column with the noise id of lines that are noise whole and alone, null for all others."""
    codes = np.full(len(lines), -1, dtype=np.int8)
    flood = np.flatnonzero(_matches(lines, FLOOD))
    codes[flood] = _flood_ids(lines.take(pa.array(flood)))
    others = np.ones(len(lines), dtype=np.bool_)
    others[flood] = False
    rest = np.flatnonzero(others)
    lines = lines.take(pa.array(rest))
    codes[rest[_matches(lines, BAR)]] = _CODES["progress"]
    heads = np.flatnonzero(_matches(lines, NOISE_HEAD))
    rest, lines = rest[heads], lines.take(pa.array(heads))
    texts = slices(lines, _find(lines, _MARK) + len(_MARK))  # INFO text
    is_info = _mask(pc.starts_with(texts, b"INFO "))
    codes[rest[~is_info]] = _CODES["N25"]
    texts = slices(texts, np.where(is_info, len(b"INFO "), len(b"CALL ")))
    left = np.flatnonzero(is_info)
    some = texts.take(pa.array(left))
    for code, rule in enumerate(NOISE, start=1):
        if code == len(FREQUENT) + 1:  # few are left, and most of them are useful
            seldom = _matches(some, SELDOM)
            left, some = left[seldom], some.filter(pa.array(seldom))
        if not len(left):
            break
        found = _matches(some, f"^{rule.head}")
        codes[rest[left[found]]] = code
        if found.any():
            left, some = left[~found], some.filter(pa.array(~found))
    codes[rest[_matches(texts, REFUSED) | at_limit(lines)]] = -1
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), _IDS)


def _flood_ids(lines: pa.LargeBinaryArray) -> Codes:
    """Codes of lines of the floods, told by how the text starts; the two that start with a name, by their ends."""
    if not len(lines):
        return np.zeros(0, dtype=np.int8)
    ends, data = buffers(lines)
    starts = pc.dictionary_encode(pa.array(_words(lines, _info(lines) + len(_INFO))))
    known = [_bulk(word.to_bytes(8, "little")) for word in starts.dictionary.to_pylist()]
    codes: Codes = np.array(known, dtype=np.int8)[starts.indices.to_numpy()]
    codes[(codes == _CODES["N19"]) & (data[ends[1:] - 1] == ord("}"))] = _CODES["N20"]
    codes[np.isin(np.diff(ends), _LIMITS) & (codes != _CODES["N02"])] = -1
    return codes


def _bulk(word: bytes) -> int:
    """The code that the first bytes of a text tell."""
    return next((_CODES[name] for name, (heads, _) in BULK.items() if word.startswith(heads)), _CODES["N19"])


def _info(lines: pa.LargeBinaryArray) -> Places:
    """Where NCCL INFO starts in lines that have it: looked for where it stands in others, which is quick."""
    found = np.full(len(lines), -1, dtype=np.int64)
    left = np.arange(len(lines))
    sample = lines.take(pa.array(left[:: max(len(lines) // 64, 1)]))
    for place in np.unique(_find(sample, _INFO)).tolist():
        hit = _words(lines, np.full(len(left), place), left) == _WORD
        found[left[hit]] = place
        left = left[~hit]
    found[left] = _find(lines.take(pa.array(left)), _INFO)
    return found


def _words(lines: pa.LargeBinaryArray, places: Places, rows: Places | None = None) -> Words:
    """Eight bytes of each line (of those at `rows`) at its place, of whatever follows it too; zeros at the very end."""
    ends, data = buffers(lines)
    at = (ends[:-1] if rows is None else ends[rows]) + places
    last = data.size - 8
    if last < 0:
        return np.zeros(len(at), dtype=np.uint64)
    window = np.ndarray((last + 1,), "<u8", data, strides=(1,))
    return np.where(at <= last, window[np.minimum(at, last)], 0)


def columns(lines: pa.LargeBinaryArray, tz: str | None) -> Header:  # noqa: ARG001 - lines with a stamp are gated
    """Message, level, rank, host and pid. `rich`: no UTF-8, an NCCL header behind unknown text, a piece."""
    text, bad = as_text(lines)
    info = _find(lines, _INFO)
    is_info = info >= 0
    rich = np.zeros(len(lines), dtype=np.bool_) if bad is None else _mask(bad)
    places = np.flatnonzero(is_info)
    if len(places):
        infos = lines.take(pa.array(places))
        unclear = ~_matches(infos, CLEAN) | at_limit(infos) | _matches(infos, r"^ {0,9}\d{1,7}: ")
        rich[places[unclear]] = True
    tagged = _matches(lines, r"^\[[A-Za-z_-]+\d{1,6}\]:")
    if tagged.any():
        rich |= tagged & ~_matches(lines, rf"^(?:{TAG}|\[rank\d)")
    starts = np.where(is_info, info + len(_INFO), 0)
    prefixed = np.flatnonzero(_matches(lines, rf"^{PLAIN_PREFIX}") & ~is_info)
    if len(prefixed):
        starts[prefixed] = _prefix_lengths(lines.take(pa.array(prefixed)), PLAIN_PREFIX)
    message = slices(text, starts)
    level = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8), mask=~is_info), pa.array(["info"]))
    return Header(level=level, message=message, columns=_identity(lines, places, prefixed), rich=pa.array(rich))


def at_limit(lines: pa.LargeBinaryArray) -> Mask:
    """NCCL lines that are as long as a piece of libc or the limit of NCCL, with or without their stamp."""
    lengths = np.asarray(pc.binary_length(lines))
    found = np.isin(lengths, _LIMITS)
    longer = np.zeros(len(lines), dtype=np.bool_)
    for limit in _LIMITS:
        longer |= (lengths > limit) & (lengths <= limit + _LONGEST_PREFIX)
    near = np.flatnonzero(longer)
    near = near[~_matches(lines.take(pa.array(near)), r"^[A-Za-z0-9_.-]+:\d")]
    if len(near):
        some = lines.take(pa.array(near))
        own = lengths[near] - _prefix_lengths(some, NCCL_PREFIX)
        stamp = np.where(_matches(some, r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "), len("[2031-05-04 18:45:17] "), 0)
        found[near] |= np.isin(own, _LIMITS) | np.isin(own - stamp, _LIMITS)
    return found


def _identity(lines: pa.LargeBinaryArray, infos: Places, prefixed: Places) -> dict[str, pa.Array]:
    """rank, host and pid of the lines that may show them."""
    places = np.union1d(infos, prefixed)
    if not len(places):
        return {}
    found = pc.extract_regex(lines.take(pa.array(places)), _RANK)
    back = np.full(len(lines), -1, dtype=np.int64)
    back[places] = np.arange(len(places))
    indices = pa.array(back, mask=back < 0)

    def text(name: str) -> pa.Array:
        values = pc.struct_field(found, name).cast(pa.string())
        return pc.if_else(pc.equal(values, ""), None, values)

    rank = pc.coalesce(text("tag"), text("mpi"), text("label")).cast(pa.int64())
    rank = pc.if_else(pc.less_equal(rank, MAX_RANK), rank, None).cast(pa.int32())
    pid = text("pid").cast(pa.int64())
    pid = pc.if_else(pc.equal(pid, 0), None, pid)
    return {"rank": rank.take(indices), "host": text("host").take(indices), "pid": pid.take(indices)}


def _prefix_lengths(lines: pa.LargeBinaryArray, prefix: str) -> Places:
    found = pc.struct_field(pc.extract_regex(lines, f"^(?P<prefix>{prefix})"), "prefix")
    return np.asarray(pc.fill_null(pc.binary_length(found), 0))


def _find(lines: pa.LargeBinaryArray, text: bytes) -> Places:
    return np.asarray(pc.find_substring(lines, text)).astype(np.int64)


def _matches(lines: pa.Array, pattern: str) -> Mask:
    return _mask(pc.match_substring_regex(lines, pattern))


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
