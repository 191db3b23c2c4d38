"""logfmt, as Go programs print it: `time="2025-03-04T05:06:07Z" level=info msg="cleaning up" id=ab12`.

Written by logrus (containerd, dcgm-exporter up to 3) and by log/slog (dcgm-exporter since 4), whose levels are upper
case. Values are bare or quoted as Go quotes them (strconv.Quote).
"""

import re
from typing import Any

from parsers.clock import Times
from parsers.json_lines import lift, placed, plain
from parsers.record import Line, Record

_PAIR = re.compile(r'[ \t]*([A-Za-z_@][\w.@/-]{0,200})(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*)))?(?=[ \t]|$)')
_ESCAPE = re.compile(r"""\\(?:([abfnrtv\\'"])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))""")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unquote(text: str) -> str:
    """The inside of a Go-quoted string as text; unknown escapes stay."""
    if "\\" not in text:
        return text

    def one(found: re.Match[str]) -> str:
        letter, byte, octal, short, long = found.groups()
        if letter:
            return _LETTERS.get(letter, letter)
        code = int(octal, 8) if octal else int(byte or short or long, 16)
        stray = code > 0x7F if octal or byte else code > 0x10FFFF or 0xD800 <= code < 0xE000  # \xff is a bad byte
        return "\ufffd" if stray else chr(code)

    return _ESCAPE.sub(one, text)


def logfmt(text: str) -> dict[str, Any] | None:
    """The pairs of a logfmt line: two of text, level and time must be among them, and nothing that is no pair."""
    if "msg=" not in text and "level=" not in text:
        return None
    pairs: dict[str, Any] = {}
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if not found:
            return None
        key, quoted, bare = found.groups()
        pairs[key] = unquote(quoted) if quoted is not None else bare or ""
        at = found.end()
    return pairs if ("msg" in pairs) + ("level" in pairs) + bool(pairs.keys() & {"time", "ts"}) > 1 else None


def logfmt_record(text: str, line: Line, times: Times, flags: set[str]) -> Record | None:
    """The record of a logfmt line; None when it is none."""
    pairs = logfmt(plain(text).strip())
    if pairs is None:
        return None
    fields, ts, source = lift(pairs, text, times, flags)
    return placed(Record(fields, line.refs, ts, source, flags), line)
