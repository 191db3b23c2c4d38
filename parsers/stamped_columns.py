"""Columns of daemon files whose records start with a stamp (see `stamped`), no Python per line."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.clock import MONTHS
from parsers.header import Header, as_text, slices, text_map, utc
from parsers.json_lines import level_of
from parsers.schema import CODE
from parsers.stamped import Heads

CONTROL = r"[\x00-\x08\x0a-\x1f\x7f]"  # such lines are left to the stream parser
_LATE_DAY = r"^[0-9]{4}-(?:02-(?:29|30)|..-31)"  # days that not every month has
_MONTHS = pa.array([f"{number:02}" for number in MONTHS.values()])

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


def columns(lines: pa.LargeBinaryArray, tz: str | None, heads: Heads) -> Header:
    """Time, level, text and `pid`; the other groups of `heads` in `fields`.

    A line with another head, one that may hold more than text, and the line before a line that starts no record
    are `rich`.
    """
    found = pc.extract_regex(lines, heads.head)
    parts = dict(zip(found.type.names, found.flatten(), strict=True))
    naive = _naive(parts.pop("time"))
    fits = bools(naive.is_valid())
    whole, bad = as_text(lines)
    text = slices(whole, numbers(pc.fill_null(pc.binary_length(parts.pop("head")), 0)))
    raw, level = coded(parts.pop("level"), level_of)
    odd = [pc.match_substring_regex(lines, CONTROL), pc.is_null(level), *([] if bad is None else [bad])]
    if heads.place:
        placed_text, text = text, pc.replace_substring_regex(text, heads.place, "")
        # Captures are looked for in what was taken off alone: it is a fifth of the work.
        place = slices(placed_text, numbers(pc.fill_null(pc.binary_length(text), 0)))
        placed = pc.extract_regex(place, "^" + heads.place)
        parts |= dict(zip(placed.type.names, placed.flatten(), strict=True))
    ts = ts_source = None
    if tz is not None:
        ms, doubtful = utc(naive, tz)
        odd.append(doubtful)
        ts = pc.multiply(ms, 1_000_000)
        ts_source = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8), mask=~fits), ["zone"])
    rich = ~fits
    rich[:-1] |= ~fits[1:]
    for mask in odd:
        rich |= bools(mask)
    pid = known(parts.pop("pid")).cast(pa.int64()) if "pid" in parts else None
    more = {} if pid is None else {"pid": pc.if_else(pc.greater(pid, 0), pid, None)}
    fields = text_map({"level_raw": raw, **{name: known(part) for name, part in parts.items()}})
    return Header(ts, ts_source, level, message=text, columns={**more, "fields": fields}, rich=pa.array(rich))


def bools(array: pa.Array) -> Bools:
    """A mask without nulls as numpy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def numbers(array: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Integers without nulls as numpy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def known(captured: pa.Array) -> pa.Array:
    """A captured group as text, null where it is empty or absent; bytes that are no UTF-8 are null too."""
    text, _ = as_text(captured.cast(pa.large_binary()))
    return pc.if_else(pc.equal(text, ""), None, text)


def coded(words: pa.Array, meaning: Callable[[str], str | None]) -> tuple[pa.Array, pa.DictionaryArray]:
    """Captured level words, blanks around them removed, and the levels they stand for, both null where unknown."""
    encoded = words.dictionary_encode()
    raw = [word.decode(errors="replace").strip() for word in encoded.dictionary.to_pylist()]
    names = [meaning(word) for word in raw]
    distinct = list(dict.fromkeys(name for name in names if name))
    places = pa.array([distinct.index(name) if name else None for name in names], pa.int8())
    level = pa.DictionaryArray.from_arrays(places.take(encoded.indices), pa.array(distinct, pa.string())).cast(CODE)
    return pa.array(raw, pa.large_string()).take(encoded.indices), level


def _naive(times: pa.Array) -> pa.Array:
    """Captured times of one form, `2025-03-04 05:06:07,089` or `Mar 04 2025 05:06:07`, as timestamps (ms)."""
    first = times.drop_null()[:1].cast(pa.string()).to_pylist()
    if first and first[0][0].isalpha():
        name, day, year, clock = (
            pc.binary_slice(times, *cut).cast(pa.string()) for cut in ((0, 3), (4, 6), (7, 11), (12, 20))
        )
        month = _MONTHS.take(pc.index_in(name, pa.array(list(MONTHS))))
        texts = pc.binary_join_element_wise(pc.binary_join_element_wise(year, month, day, "-"), clock, " ")
    else:
        texts = pc.binary_replace_slice(times, 19, 20, b".").cast(pa.string())
    try:
        return texts.cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:  # the 30th of February
        late = pc.match_substring_regex(texts, _LATE_DAY)
        return pc.if_else(late, None, texts).cast(pa.timestamp("ms"))
