"""Columns of syslog lines with a usual head, no Python per line: RFC 3164 or an ISO stamp with a zone, host and tag.

Any other head is left to the stream parser, and so is the text of a program with a grammar of its own, except the
kernel's: its time since boot is read here, and its events are behind the gate.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.clock import MONTHS
from parsers.dmesg import FACILITIES, LEVEL_NAMES
from parsers.header import Header, buffers, nearest_year, slices, text_map, utc
from parsers.programs import has_grammar
from parsers.schema import CODE

_ISO = (
    r"(?:19[7-9][0-9]|2[01][0-9]{2})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]"
    r":[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_BSD = rf"(?:{'|'.join(MONTHS)}) [ 0-3][0-9] (?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_HEAD = (
    rf"^(?:<(?P<pri>[0-9]{{1,3}})>)?(?:(?P<iso>{_ISO})|(?P<bsd>{_BSD})) (?P<host>[^ \[\]]*[^ :\[\]]) "
    r"(?P<app>[^ :\[\]\"'{}<>=,;]+)(?:\[(?P<pid>[0-9]{1,10})\])?: "
)
_LATE_DAY = r"^[0-9]{4}-(?:02-(?:29|30)|..-31)"  # days that not every month has
# Bytes that are not printable ASCII, escapes of rsyslog and of the kernel.
_ODD = r"[^ -~]|#[01]|\\x"
_UPTIME = r"^\[ *(?P<seconds>[0-9]{1,9})\.(?P<micros>[0-9]{6})\] "
_ODD_KERNEL = r"^<|^\[ *[0-9]+\.[0-9]+ *[^]0-9]|^\[ *[0-9]+\.[0-9]*\](?:[^ ]|$)|^(?:\[ *[0-9.]+\] )?\[ *[TC][0-9]+\]"
_MONTH_KEYS = np.array([int.from_bytes(name.encode(), "big") for name in MONTHS])
_LEVELS = pa.array(LEVEL_NAMES)
_FACILITIES = pa.array([*FACILITIES, None])
_SOURCES = pa.array(["record", "year"])

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Longs = np.ndarray[tuple[int], np.dtype[np.int64]]


def columns(lines: pa.LargeBinaryArray, tz: str | None, near: pa.Array | None = None) -> Header:
    """Time, level, text, `pid`, `node` and `monotonic_us`; app and facility in `fields`.

    `near`, int64 ns, is what stamps without year lie near; without it they give no time.
    """
    found = pc.extract_regex(lines, _HEAD)
    parts = {name: pc.struct_field(found, name) for name in ("pri", "iso", "bsd", "host", "app", "pid")}
    sizes = {name: _numbers(pc.fill_null(pc.binary_length(part), 0)) for name, part in parts.items()}
    rich = ~_bools(found.is_valid())
    lengths = sum(sizes.values()) + 4 + 2 * (sizes["pri"] > 0) + 2 * (sizes["pid"] > 0)
    pri = _text(parts["pri"], sizes["pri"]).cast(pa.int16())
    pid = _text(parts["pid"], sizes["pid"]).cast(pa.int64())
    app = parts["app"].dictionary_encode()
    names = [name.decode(errors="replace") for name in app.dictionary.to_pylist()]
    kernel = _named(app, [name == "kernel" for name in names])
    rich |= _named(app, [name.startswith(("NVRM", "nvidia-nvswitch")) or has_grammar(name) for name in names]) & ~kernel
    rich |= _bools(pc.fill_null(pc.greater(pri, 191), False)) | _bools(pc.match_substring_regex(lines, _ODD))
    tail = slices(lines, lengths)
    uptime, skipped, odd = _kernel(tail, np.flatnonzero(kernel))
    rich |= odd
    ts, ts_source, doubtful = _times(parts, sizes, rich, tz, near)
    rich |= doubtful
    mask = pa.array(rich)
    message = pc.if_else(mask, pa.scalar(None, pa.large_binary()), slices(tail, skipped)).cast(pa.large_string())
    pri = pc.if_else(mask, pa.scalar(None, pa.int16()), pri)
    texts = {
        "app": pc.if_else(mask, pa.scalar(None, pa.binary()), parts["app"].cast(pa.binary())),
        "facility": _FACILITIES.take(pc.shift_right(pri, pa.scalar(3, pa.int16()))),
    }
    level = pa.DictionaryArray.from_arrays(pc.bit_wise_and(pri, pa.scalar(7, pa.int16())).cast(pa.int8()), _LEVELS)
    return Header(
        ts=ts,
        ts_source=ts_source,
        level=level,
        message=message,
        columns={
            "pid": pc.if_else(pc.greater(pid, 0), pid, None),
            "monotonic_us": uptime,
            "node": pc.if_else(mask, None, parts["host"].cast(pa.binary())).cast(pa.string()),
            "fields": text_map(texts),
        },
        rich=mask,
    )


def _numbers(array: pa.Array) -> Longs:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def _bools(array: pa.Array) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _text(captured: pa.Array, sizes: Longs) -> pa.Array:
    """A captured binary column as text; an absent group is captured as empty."""
    return pc.if_else(pa.array(sizes > 0), captured, None).cast(pa.large_string())


def _named(app: pa.DictionaryArray, chosen: list[bool]) -> Bools:
    """Which rows have one of the chosen values of a dictionary."""
    return _bools(pc.fill_null(pa.array(chosen, pa.bool_()).take(app.indices), False))


def _kernel(tail: pa.Array, rows: Longs) -> tuple[pa.Array, Longs, Bools]:
    """`monotonic_us` of kernel text, the width of its stamp, and which text is in a form that is not read here."""
    texts = tail.take(pa.array(rows))
    found = pc.extract_regex(texts, _UPTIME)
    seconds, micros = (
        pc.struct_field(found, name).cast(pa.large_string()).cast(pa.int64()) for name in ("seconds", "micros")
    )
    width, odd = np.zeros(len(tail), dtype=np.int64), np.zeros(len(tail), dtype=np.bool_)
    width[rows] = _numbers(pc.fill_null(pc.add(pc.find_substring(texts, b"] "), 2), 0)) * _bools(found.is_valid())
    odd[rows] = _bools(pc.match_substring_regex(texts, _ODD_KERNEL))
    back = np.full(len(tail), -1, dtype=np.int64)
    back[rows] = np.arange(len(rows))
    uptime = pc.add(pc.multiply(seconds, 1_000_000), micros).take(pa.array(back, mask=back < 0))
    return uptime, width, odd


def _times(
    parts: dict[str, pa.Array], sizes: dict[str, Longs], rich: Bools, tz: str | None, near: pa.Array | None
) -> tuple[pa.Array, pa.Array, Bools]:
    """Time (int64 ns) and its source; rows whose time takes a closer look."""
    count = len(rich)
    ns, known, doubtful = (
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        np.zeros(count, dtype=np.bool_),
    )
    iso = np.flatnonzero((sizes["iso"] > 0) & ~rich)
    stamps = parts["iso"].take(pa.array(iso)).cast(pa.large_string())
    try:
        times = stamps.cast(pa.timestamp("ns", "UTC"))
    except pa.ArrowInvalid:  # the 30th of February
        late = pc.match_substring_regex(stamps, _LATE_DAY)
        doubtful[iso] = _bools(late)
        times = pc.if_else(late, None, stamps).cast(pa.timestamp("ns", "UTC"))
    ns[iso] = _numbers(pc.fill_null(times.view(pa.int64()), 0))
    known[iso] = ~doubtful[iso]
    bsd = np.flatnonzero((sizes["bsd"] > 0) & ~rich)
    if tz is not None and near is not None and len(bsd):
        rows = pa.array(bsd)
        naive, dated = nearest_year(*_digits(parts["bsd"].take(rows)), near.take(rows), tz)
        seconds, odd = utc(pa.array(naive), tz)
        ns[bsd] = _numbers(seconds) * 1_000_000_000
        known[bsd] = dated
        doubtful[bsd] = ~dated | _bools(odd)
    elif len(bsd):
        doubtful[bsd] = _impossible(parts["bsd"].take(pa.array(bsd)))
    source = pa.array((sizes["bsd"] > 0).astype(np.int8), mask=~known)
    return pa.array(ns, mask=~known), pa.DictionaryArray.from_arrays(source, _SOURCES).cast(CODE), doubtful


def _digits(stamps: pa.Array) -> tuple[Longs, Longs, Longs]:
    """Month (from 0), day and second of the day of `Mmm dd hh:mm:ss`."""
    ends, data = buffers(stamps.cast(pa.large_binary()))
    shown = data[ends[0] : ends[-1]].reshape(len(stamps), 15).astype(np.int64)
    keys = (shown[:, 0] << 16) | (shown[:, 1] << 8) | shown[:, 2]
    order = np.argsort(_MONTH_KEYS)
    month = order[np.searchsorted(_MONTH_KEYS, keys, sorter=order)]
    digit = np.where(shown == ord(" "), 0, shown - ord("0"))
    two = digit[:, [4, 7, 10, 13]] * 10 + digit[:, [5, 8, 11, 14]]
    return month, two[:, 0], two[:, 1] * 3600 + two[:, 2] * 60 + two[:, 3]


def _impossible(stamps: pa.Array) -> Bools:
    """Days that no year has."""
    month, day, _ = _digits(stamps)
    longest = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    return np.asarray((day < 1) | (day > longest[month]), dtype=np.bool_)
