"""Columns of logs of prolog and epilog (see `scripts`), no Python per line."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parsers.header import Header, as_text, slices, text_map
from parsers.json_lines import level_of
from parsers.scripts import LEVEL, PLACE
from parsers.stamped import CLOCK, YEAR
from parsers.stamped_columns import CONTROL, bools, coded, known, numbers

# Days that exist in every year; the 29th of February is left to the stream parser.
_DAY = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_HEAD = (
    rf"^(?P<head>{YEAR}-{_DAY}T{CLOCK}Z (?P<level>{LEVEL}):?(?: +|$)"
    rf"(?:(?P<src_file>{PLACE}):(?P<src_line>0|[1-9][0-9]{{0,6}}):?(?: |$))?)"
)
_OTHER_HEAD = r"^\[?[0-9]{4}-[0-9]{2}-|^$"
_TIME = len("2025-03-04T05:06:07")
_ZEROS = rf"^{PLACE}:0[0-9]"  # a number that is written in another way than it is read


def columns(lines: pa.LargeBinaryArray) -> Header:
    """Time, level, text and place of lines with the usual head; lines without any are text. All others are `rich`."""
    usual = bools(pc.match_substring_regex(lines, _HEAD))
    text, bad = as_text(lines)
    rich = bools(pc.match_substring_regex(lines, CONTROL))
    rich |= bools(pc.match_substring_regex(lines, _OTHER_HEAD)) & ~usual
    if bad is not None:
        rich |= bools(bad)
    at = np.flatnonzero(usual)
    some = lines.take(pa.array(at))
    found = pc.extract_regex(some, _HEAD)
    parts = dict(zip(found.type.names, found.flatten(), strict=True))
    rest = slices(some, numbers(pc.binary_length(parts.pop("head"))))
    raw, level = coded(parts.pop("level"), level_of)
    rich[at] |= bools(pc.match_substring_regex(rest, _ZEROS))
    seconds = pc.binary_slice(some, 0, _TIME).cast(pa.string()).cast(pa.timestamp("s")).cast(pa.int64())
    back = np.full(len(lines), -1, dtype=np.int64)
    back[at] = np.arange(len(at))
    places = pa.array(back, mask=back < 0)
    fields = {"level_raw": raw, **{name: known(part) for name, part in parts.items()}}
    return Header(
        ts=pc.multiply(seconds, 1_000_000_000).take(places),
        ts_source=pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8), mask=~usual), ["record"]),
        level=level.take(places),
        message=pc.coalesce(as_text(rest)[0].take(places), text),
        columns={"fields": text_map({name: value.take(places) for name, value in fields.items()})},
        rich=pa.array(rich),
    )
