"""Where the value of a secret's name starts and ends in a line, and which values are none.

All of it is linear in the length of the line: what is looked at before a decision is bounded, and what is
decided to be a value is not looked at again.
"""

import re
from typing import NamedTuple

MARK = b"***"

_OPENING = re.compile(rb"(?:[bfruBFRU]{1,2}|\$)?(?P<quote>\\{0,3}[\"'])")
_SCHEME = re.compile(rb"(?i)(?:bearer|basic|token|digest)[ \t]{1,4}(?=\S)")
# The end of a string of JSON in which a name stood without a value: {"log":"TOKEN=","stream":"stdout"}
_CLOSES = re.compile(rb"\"(?:, ?\"[\w-]|[}\]]+(?:[,\s]|$))")
_STOP = rb"(?=[\s\"',;&)\]}<>|\\\0]|$)"
# References to a value that stands elsewhere, and place holders.
_REFERENCE = re.compile(
    rb"(?:\$\w{1,100}|\$\{\w{1,100}\}|%\w{1,100}%|<[\w .-]{1,60}>|\*{4,64}|x{3,64}|\.{3})" + _STOP
    + rb"|\$\(|\$\{\{|\{\{|\{|\[|`|<\w{1,40} object at|SecretStr\("
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d{1,7}(?:\.\d{1,6})?%?" + _STOP)
_PAIR = re.compile(rb"[\w.%-]{1,64}=")
_CLOSED = {b'"': re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*'), b"'": re.compile(rb"[^'\\]*(?:\\.[^'\\]*)*")}
_BARE = re.compile(rb"[^\s\"'\\&;,<\0]+")
_WORD = re.compile(rb"[^\s\"'\\;&|<>(),:\]}\0]+")
_TRAILING = b",;)]}."
_LOOK = 64


class Value(NamedTuple):
    """A value at start:end; `quote` is what would close it, when nothing does in this line."""

    start: int
    end: int
    quote: bytes = b""


class Quotes(NamedTuple):
    """Where each sort of quote first stands in a line (its length where it does not): what may be closed after it."""

    double: int
    single: int
    escaped: int

    @classmethod
    def of(cls, text: bytes) -> "Quotes":
        places = (text.find(quote) for quote in (b'"', b"'", b'\\"'))
        return cls(*(place if place >= 0 else len(text) for place in places))


def value_at(text: bytes, start: int, name_start: int, quotes: Quotes) -> Value:
    """The value that starts at `start`: quoted (several pieces as in the shell), else up to a blank."""
    if scheme := _SCHEME.match(text, start):
        start = scheme.end()
    if quotes.double < name_start and _CLOSES.match(text, start):
        return Value(start, start)
    opening = _OPENING.match(text, start)
    if not opening:
        return Value(start, _bare_end(text, start, name_start, quotes))
    first, quote = opening.end(), opening["quote"]
    end = _closing(text, first, quote)
    if end < 0:
        return Value(first, len(text), quote)
    if len(quote) > 1 or text[name_start - 1 : name_start] == quote:
        return Value(first, end)
    after = _shell_end(text, end + 1)
    return Value(first, end) if after == end + 1 else Value(start, after)


def _shell_end(text: bytes, at: int) -> int:
    """Where a word of the shell ends that goes on after a closing quote: 'it'\\''s' is one."""
    while at < len(text):
        if text.startswith((b"'", b'"'), at):
            end = _closing(text, at + 1, text[at : at + 1])
            at = len(text) if end < 0 else end + 1
        elif text.startswith((b"\\'", b'\\"'), at):
            at += 2
        elif found := _WORD.match(text, at):
            at = found.end()
        else:
            break
    return at


def _closing(text: bytes, start: int, quote: bytes) -> int:
    if len(quote) > 1:
        return text.find(quote, start)
    found = _CLOSED[quote].match(text, start)
    return found.end() if found and found.end() < len(text) else -1


def _bare_end(text: bytes, start: int, name_start: int, quotes: Quotes) -> int:
    """The end of a value without quotes: a blank, a quote that something before the name opened, the next pair."""
    at = start
    while at < len(text):
        if found := _BARE.match(text, at):
            at = found.end()
            continue
        char = text[at : at + 1]
        if (char == b'"' and quotes.double > name_start) or (char == b"'" and quotes.single > name_start):
            at += 1
        elif char == b"\\" and not _ends_string(text, at, name_start, quotes):
            at += 2
        elif char in b"&;," and not _PAIR.match(text, at + 1) and text[at + 1 : at + 2].strip():
            at += 1
        else:
            break
    at = min(at, len(text))
    while at > start + 1 and text[at - 1] in _TRAILING:
        at -= 1
    return at


def _ends_string(text: bytes, at: int, name_start: int, quotes: Quotes) -> bool:
    """Whether a backslash starts what ends a string of JSON, or a line inside it."""
    following = text[at + 1 : at + 2]
    if following == b'"':
        return quotes.escaped < name_start
    return following in (b"n", b"r", b"t", b"0") and quotes.double < name_start


class Innocent:
    """Values that are none: references, numbers where a number is no secret, and words that say so."""

    def __init__(self, literal: tuple[str, ...], prose: tuple[str, ...]) -> None:
        self._literal, self._prose = (
            re.compile(b"(?i)(?:" + b"|".join(re.escape(word.encode()) for word in words) + b")" + stop)
            for words, stop in ((literal, _STOP), (prose, rb"(?=[\s:,.;!]|$)"))
        )

    def is_innocent(self, text: bytes, value: Value, name: bytes, *, loose: bool) -> bool:
        """`loose`: a colon stands before the value, which may be prose then: a password is still believed."""
        if value.end <= value.start:
            return True
        if _REFERENCE.match(text, value.start) or self._literal.match(text, value.start):
            return True
        words = name.lower()
        password = b"pass" in words or b"pwd" in words
        if (b"token" in words or b"key" in words) and not password and _NUMBER.match(text, value.start):
            return True
        if not loose:
            return False
        return bool(self._prose.match(text, value.start)) or not (password or _is_random(text, value))


def _is_random(text: bytes, value: Value) -> bool:
    look = text[value.start : min(value.end, value.start + _LOOK)]
    return len(look) >= 16 or (len(look) >= 8 and any(48 <= byte <= 57 for byte in look))
