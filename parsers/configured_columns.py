"""Columns of configured kinds (see `configured`), no Python per line."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.clock import MONTHS, NS
from parsers.configured import Form, nameless
from parsers.configured_times import UNITS, Timed, TimeFormat, compiled
from parsers.header import Header, Longs, as_text, nearest_year, slices, text_map, utc
from parsers.schema import CODE, LOG, TYPED
from parsers.stamped_columns import CONTROL, Bools, bools, coded, known, numbers

_SOURCES = pa.array(["record", "zone", "year"])
_NODE = "node"


def header(lines: pa.LargeBinaryArray, tz: str | None, near: pa.Array | None, form: Form) -> Header:
    """Time, level, node, text, typed groups; the other groups of the head in `fields`.

    `rich`: lines without a head, in kinds that follow also the line before one; texts that may be events; odd bytes.
    """
    parts, fits, text = _split(lines, form.head)
    message, cut = as_text(text)
    _, bad = as_text(lines)
    odd = [pc.match_substring_regex(lines, CONTROL), *(mask for mask in (cut, bad) if mask is not None)]
    if (gate := form.event_gate()) is not None:
        odd.append(pc.match_substring_regex(text, gate))
    level = raw_level = ts = ts_source = None
    if "level" in parts:
        raw_level, level = coded(parts.pop("level"), form.level)
    if "time" in parts:
        stamps = parts.pop("time")
        if form.time is not None:
            ts, ts_source, doubtful = times(stamps, form.time, tz, near)
            odd.append(doubtful)
    rich = ~fits
    if form.follows:
        rich[:-1] |= ~fits[1:]
    for mask in odd:
        rich |= bools(pc.fill_null(mask, False))
    columns: dict[str, pa.Array] = {}
    fields: dict[str, pa.Array] = {} if raw_level is None else {"level_raw": known(raw_level.cast(pa.large_binary()))}
    for name, captured in parts.items():
        whole = form.integer(name)
        value = known(captured) if whole is None else _integers(captured, whole)
        if name == _NODE:
            columns[name] = value.cast(pa.string())
        elif name in TYPED.names:
            columns[name] = value.cast(TYPED.field(name).type)
        else:
            fields[name] = value.cast(pa.large_string())
    none = pa.nulls(len(lines), LOG.field("fields").type)
    columns["fields"] = text_map(fields) if fields else none
    return Header(ts, ts_source, level, message=message, columns=columns, rich=pa.array(rich))


def noise(lines: pa.LargeBinaryArray, form: Form) -> pa.DictionaryArray:
    """The rule of lines that are noise as a whole: records of one line, no events, no odd bytes."""
    _, alone, text = _split(lines, nameless(form.head))
    if form.follows:
        alone[:-1] &= alone[1:]
    codes = np.full(len(lines), -1, dtype=np.int8)
    for number, (_, regex) in enumerate(form.noise):
        found = bools(pc.match_substring_regex(text, regex))
        codes[found & alone & (codes < 0)] = number
    at = np.flatnonzero(codes >= 0)
    for array, pattern in ((text, form.event_gate()), (lines, CONTROL)):
        if pattern is not None and len(at):
            at = at[~bools(pc.match_substring_regex(array.take(pa.array(at)), pattern))]
    mask = np.ones(len(lines), dtype=np.bool_)
    mask[at] = False
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), pa.array([name for name, _ in form.noise]))


def search(regex: str, text: bytes) -> dict[str, bytes | None] | None:
    """The groups of a pattern that is found in one text, else None. All groups have names."""
    texts = pa.array([text], pa.large_binary())
    if not compiled(regex).groups:
        return {} if pc.match_substring_regex(texts, regex)[0].as_py() else None
    found: dict[str, bytes | None] | None = pc.extract_regex(texts, regex)[0].as_py()
    return found


def times(stamps: pa.Array, form: TimeFormat, tz: str | None, near: pa.Array | None) -> Timed:
    """Captured stamps as times."""
    found = pc.extract_regex(stamps, f"^(?:{form.regex})$")
    parts = {name: part.cast(pa.string()) for name, part in zip(found.type.names, found.flatten(), strict=True)}
    valid = bools(found.is_valid())
    nothing = pa.array(np.zeros(len(stamps), dtype=np.bool_))
    fraction = parts.get("fraction")
    ns = np.zeros(len(stamps), np.int64) if fraction is None else _ints(pc.ascii_rpad(fraction, 9, padding="0"))
    if "epoch" in parts:
        ts, valid = _epoch(_ints(parts["epoch"]), ns, valid)
        return _timed(ts, valid, np.zeros(len(stamps), np.int8), nothing)
    month = _months(parts["name"]) if "name" in parts else _ints(parts["month"]) - 1
    day = _ints(pc.ascii_ltrim_whitespace(parts["day"]))
    seconds = 3_600 * _ints(parts["hour"]) + 60 * _ints(parts["minute"])
    if "second" in parts:
        seconds = seconds + _ints(parts["second"])
    if form.yearless:
        if near is None or tz is None:
            return _timed(ns, np.zeros(len(stamps), np.bool_), np.full(len(stamps), 2, np.int8), nothing)
        naive, dated = nearest_year(month, day, seconds, near, tz)
    else:
        months = ((_ints(parts["year"]) - 1970) * 12 + month).astype("M8[M]")
        days = months.astype("M8[D]") + (day - 1)
        naive, dated = days.astype("M8[s]") + seconds, days.astype("M8[M]") == months
    valid = valid & dated
    source = np.full(len(stamps), 2 if form.yearless else 1, np.int8)
    zoned = np.zeros(len(stamps), np.bool_)
    shift = np.zeros(len(stamps), np.int64)
    if "zone" in parts:
        zoned = valid & bools(pc.fill_null(pc.not_equal(parts["zone"], ""), False))
        shift = 3_600 * _ints(parts["zone_hour"]) + 60 * _ints(parts["zone_minute"])
        shift[bools(pc.fill_null(pc.equal(parts["sign"], "-"), False))] *= -1
        source[zoned] = 0
    seconds_utc = naive.astype(np.int64) - shift
    doubtful = nothing
    if tz is not None and not zoned[valid].all():
        local, doubtful = utc(pa.array(naive), tz)
        seconds_utc = np.where(zoned, seconds_utc, numbers(local))
        doubtful = pc.and_(doubtful, pa.array(valid & ~zoned))
    elif tz is None:
        valid = zoned
    return _timed(seconds_utc * NS + ns, valid, source, doubtful)


def _split(lines: pa.LargeBinaryArray, head: str) -> tuple[dict[str, pa.Array], Bools, pa.Array]:
    """The groups of the head, whether there is one, and the rest (bytes)."""
    if not head:
        return {}, np.ones(len(lines), dtype=np.bool_), lines
    found = pc.extract_regex(lines, f"^(?P<head>{head})")
    parts = dict(zip(found.type.names, found.flatten(), strict=True))
    length = numbers(pc.fill_null(pc.binary_length(parts.pop("head")), 0))
    return parts, bools(found.is_valid()), slices(lines, length)


def _integers(captured: pa.Array, form: str) -> pa.Array:
    fits = pc.match_substring_regex(captured, f"^(?:{form})$")
    return pc.if_else(fits, captured, None).cast(pa.string()).cast(pa.int64())


def _ints(digits: pa.Array) -> Longs:
    """Text of digits as numbers, 0 where there is none."""
    return numbers(pc.if_else(pc.equal(digits, ""), "0", digits).fill_null("0").cast(pa.int64()))


def _months(names: pa.Array) -> Longs:
    return numbers(pc.index_in(names, pa.array(list(MONTHS))).cast(pa.int64()).fill_null(0))


def _epoch(whole: Longs, ns: Longs, valid: Bools) -> tuple[Longs, Bools]:
    unit = np.ones(len(whole), np.int64)
    for limit, size, _ in reversed(UNITS[:-1]):
        unit[whole < limit] = size
    sane = whole < (2**63 - 1) // unit
    return np.where(sane, whole, 0) * unit + ns * unit // NS, valid & sane


def _timed(ts: Longs, valid: Bools, source: "np.ndarray[tuple[int], np.dtype[np.int8]]", doubtful: pa.Array) -> Timed:
    codes = pa.DictionaryArray.from_arrays(pa.array(source, mask=~valid), _SOURCES).cast(CODE)
    return Timed(pa.array(ts, mask=~valid), codes, doubtful)
