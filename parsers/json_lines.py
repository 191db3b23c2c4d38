"""JSON objects, one per line: a kind of their own, and the text of many pods.

Lifted: time (`ts`, `time`, `timestamp`), level (`level`, `severity`), text (`msg`, `message`), `rank`,
`step`; all other pairs are `attributes`. JSON as Python, Go and C++ programs write it is read: NaN and
Infinity (printed as text and named in `non_finite`), keys twice (the last wins, named in
`duplicate_keys`), raw control characters in strings, lone surrogates (U+FFFD).
"""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from parsers.clock import Stamp, Times, from_number, local, parse_iso, parse_rfc3339
from parsers.record import Line, Parser, Record, Ref, Stream, decode

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

MAX_DEPTH = 100  # deeper nesting is kept as text: recursion would end at another depth in every caller
MAX_RANK = 2**31 - 1  # schema.TYPED holds ranks as int32
MAX_INT = 2**63 - 1

LEVELS = {
    "emergency": "emergency", "emerg": "emergency",
    "alert": "alert",
    "critical": "critical", "crit": "critical", "fatal": "critical", "panic": "critical", "dpanic": "critical",
    "error": "error", "err": "error", "severe": "error",
    "warning": "warning", "warn": "warning",
    "notice": "notice",
    "info": "info", "information": "info", "informational": "info",
    "debug": "debug", "trace": "debug", "verbose": "debug", "verb": "debug",
}  # fmt: skip

CONTROLS = "".join(map(chr, [*range(9), *range(10, 32), 127]))  # removed at the end of a message
_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SLOG_LEVEL = re.compile(r"[+-]\d+$")  # Go log/slog prints levels between its words as INFO+2
_GO_CALLER = re.compile(r"(.+\.go):(\d{1,6})$")


class Object(NamedTuple):
    """A decoded JSON object; floats are still Decimal in `pairs`, so that a time keeps its digits."""

    pairs: dict[str, Any]
    duplicate_keys: list[str]
    non_finite: list[str]


class Lifted(NamedTuple):
    """Fields of one record; `ts` is None when the pairs hold no usable time."""

    fields: dict[str, Any]
    ts: Stamp | None = None
    ts_source: str | None = None


def plain(text: str) -> str:
    """Text without ANSI sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def valid(text: str) -> str:
    """Text that can be encoded: a lone surrogate (`\\ud83d` cut by its writer) becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def read_object(text: str) -> Object | None:
    """One JSON object and nothing else; None for anything else, however deep, long or broken."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    duplicates: dict[str, None] = {}
    non_finite: dict[str, None] = {}

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = {}
        for key, value in items:
            key = valid(key)
            if key in found:
                duplicates[key] = None
            found[key] = value
        return found

    def clean(key: str, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(value, str):
            return valid(value)
        if isinstance(value, dict):
            return {name: clean(name, inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list):
            return [clean(key, inner, depth + 1) for inner in value]
        if isinstance(value, Decimal) and (not value.is_finite() or abs(float(value)) == float("inf")):
            non_finite[key] = None
            return "NaN" if value.is_nan() else ("-" if value < 0 else "") + "Infinity"
        return value

    try:
        value = json.loads(text, strict=False, parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=pairs)
        return Object(clean("", value, 0), list(duplicates), list(non_finite))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def time_of(value: Any, times: Times, flags: set[str]) -> tuple[Stamp, str] | None:
    """A JSON value as time and its `ts_source`: a number by its size, or ISO text with a zone or `times.tz`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal):
        if not -9 <= value.adjusted() < 19:
            return None
        value = format(value, "f")
    if isinstance(value, int):
        value = str(value) if abs(value) <= MAX_INT else ""
    if not isinstance(value, str):
        return None
    stamp = parse_rfc3339(value) or from_number(value)
    if stamp:
        return stamp, "record"
    found = parse_iso(value)
    if found and found[2] is None and (stamp := local(found[0], found[1], times.tz, flags)):
        return stamp, "zone"
    return None


def _integer(value: Any, limit: int) -> int | None:
    """A whole number up to `limit`, also as text (`"7"`) or with a point (`7.0`)."""
    digits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value)
    whole = isinstance(value, Decimal) and -18 < value.adjusted() < 18 and value == value.to_integral_value()
    if digits or whole:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


def level_of(word: str) -> str | None:
    """The level a program's own word stands for; None for words that are in no list."""
    return LEVELS.get(_SLOG_LEVEL.sub("", word.strip().lower()))


def _floats(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _floats(inner) for key, inner in value.items()}
    return [_floats(inner) for inner in value] if isinstance(value, list) else value


def lift(pairs: dict[str, Any], text: str, times: Times, flags: set[str], klog: bool = False) -> Lifted:
    """Take the known keys out of `pairs`; `text` is the message when they hold none.

    klog's JSON (kubernetes/component-base logs/json) has no level: an error has `err` and no `v`. It is
    recognised by that and by its caller, a Go file, or taken for granted with `klog`.
    """
    rest = dict(pairs)
    fields: dict[str, Any] = {}
    ts, source = None, None
    for key in ("ts", "time", "timestamp"):
        if key in rest and (found := time_of(rest[key], times, flags)):
            ts, source = found
            del rest[key]
            break
    for key in ("level", "severity"):
        if isinstance(rest.get(key), (str, int)) and not isinstance(rest[key], bool):
            fields["level_raw"] = str(rest.pop(key))
            fields["level"] = level_of(fields["level_raw"])
            break
    else:
        caller = _GO_CALLER.match(rest["caller"]) if isinstance(rest.get("caller"), str) else None
        if klog or (caller and "ts" in pairs):
            fields["level"] = "info" if "v" in rest else "error" if "err" in rest else None
            if caller:
                fields |= {"src_file": caller[1], "src_line": int(caller[2])}
                del rest["caller"]
    for key, limit in (("rank", MAX_RANK), ("step", MAX_INT)):
        if (number := _integer(rest.get(key), limit)) is not None:
            fields[key] = number
            del rest[key]
    fields["message"] = plain(text)
    for key in ("msg", "message"):
        if isinstance(rest.get(key), str):
            fields["message"] = plain(rest.pop(key)).rstrip("\r\n")
            break
    if rest:
        fields["attributes"] = _floats(rest)
    return Lifted(fields, ts, source)


def object_record(text: str, line: Line, times: Times, flags: set[str], klog: bool = False) -> Record | None:
    """The record of a line that is a JSON object; None when it is none."""
    found = read_object(text)
    if found is None:
        return None
    fields, ts, source = lift(found.pairs, text, times, flags, klog)
    if found.duplicate_keys:
        fields["duplicate_keys"] = found.duplicate_keys
    if found.non_finite:
        fields["non_finite"] = found.non_finite
    return placed(Record(fields, line.refs, ts, source, flags), line)


def placed(record: Record, line: Line) -> Record:
    """The record with the time of receipt where it has none of its own."""
    if record.ts is None and line.received is not None:
        record.ts, record.ts_source = line.received, "received"
    return record


def unparsed(line: Line) -> Record:
    """The record of a line that its grammar does not know: the line is its message."""
    flags = {"unparsed", *line.flags}
    text = plain(decode(line.raw, flags)).rstrip(CONTROLS)
    return placed(Record({"message": text}, line.refs, flags=flags), line)


class ObjectStream:
    """Stream parser of kind `json`: every line is a record; empty lines are none."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = decode(line.raw, flags).rstrip("\r\n")
        if not text:
            return []
        return [object_record(text, line, self.times, flags) or unparsed(line)]

    def flush(self) -> list[Record]:
        return []


def no_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":  # noqa: ARG001 - the contract of Parser.header
    """For kinds whose every line takes the rich parser: no columns."""
    from parsers.header import Header

    return Header()


JSON = Parser(ObjectStream, no_header)
