"""Columns of klog text (see `klog`), no Python per line; JSON, logfmt, blocks and odd values are left to the parser."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.header import Header, Longs, as_text, buffers, nearest_year, slices, text_map, utc
from parsers.klog import LETTERS
from parsers.stamped import CLOCK
from parsers.stamped_columns import CONTROL, bools, coded, known, numbers

_HEAD = (
    r"^(?P<head>(?P<level>[IWEF])(?P<stamp>(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]) "
    rf"{CLOCK}\.[0-9]{{6}}) +(?P<pid>[0-9]{{1,10}}) (?P<file>[^\s:\]]+):(?P<line>0|[1-9][0-9]{{0,6}})\] )"
)
_WIDTH = len("0304 05:06:07.123456")
# `"message" key="quoted" key=plain` whose escapes are those of JSON, so that the pairs become an object by replacement.
_KEY, _QUOTED, _BARE = r'[^\s="\\]+', r'(?:[^"\\\t]|\\["\\nt])*', r'[^\s"<\\][^\s"\\]*'
_STRUCTURED = rf'^"(?P<message>[^"\\]*)"(?P<pairs>(?: {_KEY}=(?:"{_QUOTED}"|{_BARE}))*)$'
_PAIR = rf' ({_KEY})=(?:"({_QUOTED})"|({_BARE}))'


def columns(lines: pa.LargeBinaryArray, tz: str | None, near: pa.Array | None) -> Header:
    """Time, level, text and `pid`; source place and attributes (a JSON object) in `fields`.

    `near`, int64 ns, is what stamps, which have no year, lie near; without it they give no time. Lines of any other
    form are `rich`, and so is the line before them.
    """
    found = pc.extract_regex(lines, _HEAD)
    parts = dict(zip(found.type.names, found.flatten(), strict=True))
    fits = bools(found.is_valid())
    whole, bad = as_text(lines)
    text = slices(whole, numbers(pc.fill_null(pc.binary_length(parts["head"]), 0)))
    raw, level = coded(parts["level"], LETTERS.get)
    rich = ~fits
    rich[:-1] |= ~fits[1:]
    rich |= bools(pc.match_substring_regex(lines, CONTROL))
    if bad is not None:
        rich |= bools(bad)
    message, attributes, odd = _structured(text)
    rich |= odd
    ts = ts_source = None
    if tz is not None and near is not None:
        ts, doubtful = _times(parts["stamp"], np.flatnonzero(fits), near, tz)
        rich |= doubtful
        ts_source = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8), mask=~fits), ["year"])
    pid = known(parts["pid"]).cast(pa.int64())
    fields = {
        "level_raw": raw, "src_file": known(parts["file"]), "src_line": known(parts["line"]), "attributes": attributes
    }  # fmt: skip
    return Header(
        ts,
        ts_source,
        level,
        message=message,
        columns={"pid": pc.if_else(pc.greater(pid, 0), pid, None), "fields": text_map(fields)},
        rich=pa.array(rich),
    )


def _structured(text: pa.Array) -> tuple[pa.Array, pa.Array, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    """Messages without quotes, attributes of structured texts, and texts that begin so but go on otherwise."""
    quoted = bools(pc.fill_null(pc.starts_with(text, '"'), False))
    rows = np.flatnonzero(quoted)
    back = np.full(len(text), -1, dtype=np.int64)
    back[rows] = np.arange(len(rows))
    places = pa.array(back, mask=~quoted)
    found = pc.extract_regex(text.take(pa.array(rows)), _STRUCTURED)
    pairs = known(pc.struct_field(found, "pairs"))
    objects = pc.replace_substring_regex(pairs, _PAIR, r',"\1":"\2\3"')
    opened = slices(objects, np.ones(len(rows), dtype=np.int64))
    left, right, nothing = (pa.scalar(part, pa.large_string()) for part in ("{", "}", ""))
    attributes = pc.binary_join_element_wise(left, opened, right, nothing).take(places)
    message = pc.coalesce(pc.struct_field(found, "message").cast(pa.large_string()).take(places), text)
    odd = quoted & bools(found.is_null().take(places).fill_null(False))
    odd[rows[_repeats(pairs)]] = True
    return message, attributes, odd


def _repeats(pairs: pa.Array) -> Longs:
    """Which of the texts of pairs have a key twice: the last one counts, which replacement cannot tell."""
    keys = pc.split_pattern(pc.replace_substring_regex(pairs, _PAIR, r" \1"), " ")
    row = numbers(pc.list_parent_indices(keys))
    code = numbers(pc.list_flatten(keys).dictionary_encode().indices)
    _, first = np.unique(row * (code.max(initial=0) + 1) + code, return_index=True)
    return np.unique(np.delete(row, first))


def _times(
    stamps: pa.Array, rows: Longs, near: pa.Array, tz: str
) -> tuple[pa.Array, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    """Time (int64 ns) of the rows that have a stamp; rows whose time takes a closer look."""
    some = pa.array(rows)
    ends, data = buffers(stamps.take(some).cast(pa.large_binary()))
    digit = data[ends[0] : ends[-1]].reshape(len(rows), _WIDTH).astype(np.int64) - ord("0")
    two = digit[:, [0, 2, 5, 8, 11]] * 10 + digit[:, [1, 3, 6, 9, 12]]
    second = two[:, 2] * 3600 + two[:, 3] * 60 + two[:, 4]
    naive, dated = nearest_year(two[:, 0] - 1, two[:, 1], second, near.take(some), tz)
    seconds, odd = utc(pa.array(naive), tz)
    ns, missing, doubtful = np.zeros(len(stamps), np.int64), np.ones(len(stamps), bool), np.zeros(len(stamps), bool)
    ns[rows] = numbers(seconds) * 1_000_000_000 + digit[:, 14:] @ (1_000 * 10 ** np.arange(5, -1, -1))
    missing[rows] = ~dated
    doubtful[rows] = ~dated | bools(odd)
    return pa.array(ns, mask=missing), doubtful
