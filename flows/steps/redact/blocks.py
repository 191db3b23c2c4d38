"""Lines in their order: secrets that go on over several lines, and the variables of a job's environment.

`Open` is what one line leaves to the next of its stream. It is small, bounded in lines, and part of the snapshot, so
that it does not matter how lines were cut into batches.
"""

import re
from typing import NamedTuple

from flows.steps.redact.line import LineRedactor
from flows.steps.redact.values import MARK

# Kinds in which every line is looked at, since each may belong to the one before it.
WHOLE = frozenset({"job_env", "job_script"})
_SCRIPTS = frozenset({"job_script", "prolog", "epilog", "srun"})

_KEY_LINES = 400  # an RSA key of 16,384 bits has some 200
_KEY_MISSES = 32  # lines of other writers in between
_VALUE_LINES = 200

_BEGIN = re.compile(rb"---- ?-?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-? ?----")
_END = re.compile(rb"---- ?-?END [A-Z0-9 ]{0,40}PRIVATE KEY")
# Base64 of some length, where it is not an escape that a string of JSON starts it with; and what is all of a line.
_MATERIAL = re.compile(
    rb"(?:(?<![\\A-Za-z0-9+/])|(?<=\\[nrt]))[A-Za-z0-9+/]{16,}={0,2}"
    rb"|(?<=\"log\":\")[A-Za-z0-9+/=]+(?=\\[nr])"
    rb"|(?:(?<=^)|(?<= [FP] )|(?<=: )|(?<=>:)|(?<=[\t ]{4}))[A-Za-z0-9+/=]+(?=[\"',; \t\r]*$)"
)
_VARIABLE = re.compile(
    rb"(?P<shell>(?:export|declare(?: -\w+)?|typeset(?: -\w+)?|set)[ \t]+|setenv[ \t]+(?=\S+[ \t]))?"
    rb"(?P<name>[A-Za-z_][\w.-]{0,200})(?:=|(?<=\w)[ \t](?=\S))"
)
_FUNCTION = re.compile(rb"[A-Za-z_][\w.-]*(?:%%|\(\))?=")
_BASE64 = re.compile(rb"(?![A-Z_][A-Z0-9_]*=\r?$)[A-Za-z0-9+/]{4,}={1,2}\r?")  # its end, which looks like a name
_QUOTED = re.compile(rb"\$?(?P<quote>[\"'])")


class Open(NamedTuple):
    """What goes on, for `left` lines: a `key`, a `value` until its quote, a `variable` until the next, a `piece`.

    Of a piece (flows.steps.redact.carriers) `quote` is the end of its text.
    """

    what: str
    left: int
    quote: bytes = b""
    misses: int = 0


class Read(NamedTuple):
    """A line without its secrets, whether it had any, and what it leaves to the next line."""

    line: bytes
    found: bool
    opened: Open | None = None


def read_line(redactor: LineRedactor, kind: str, raw: bytes, opened: Open | None = None) -> Read:
    """The next line of a stream of some kind."""
    if kind == "job_env":
        return _environment(redactor, raw, opened)
    if opened and opened.what == "key":
        return _key(redactor, kind, raw, opened)
    if opened and opened.what == "value":
        return _value(redactor, raw, opened)
    raw, had, begun = _keys(raw)
    line, found, quote = redactor.line(raw, script=kind in _SCRIPTS)
    found |= had
    if begun:
        return Read(line, found, Open("key", _KEY_LINES))
    goes_on = kind in _SCRIPTS and _goes_on(line, quote)
    return Read(line, found, Open("value", _VALUE_LINES, quote) if goes_on else None)


def read_lines(redactor: LineRedactor, text: bytes) -> bytes:
    """Lines of an unknown kind, joined by line feeds."""
    opened: Open | None = None
    lines = []
    for raw in text.split(b"\n"):
        line, _, opened = read_line(redactor, "", raw, opened)
        lines.append(line)
    return b"\n".join(lines)


def _goes_on(line: bytes, quote: bytes) -> bool:
    """Whether the shell reads on after a line whose last value is open: after `echo 'token="'` it does not."""
    other = {b'"': b"'", b"'": b'"'}.get(quote)
    return other is not None and line[: line.rfind(quote + MARK)].count(other) % 2 == 0


def _keys(raw: bytes) -> tuple[bytes, bool, bool]:
    """A line without the keys that start in it, whether there are any, and whether the last goes on."""
    pieces, at = [], 0
    while begin := _BEGIN.search(raw, at):
        pieces.append(raw[at : begin.end()])
        end = _END.search(raw, begin.end())
        if end is None:
            pieces.append(_MATERIAL.sub(MARK, raw[begin.end() :]))
            return b"".join(pieces), True, True
        # A whole key in one line, its line feeds escaped or gone. The dashes of its end are no part of it.
        key = raw[begin.end() : end.start()]
        pieces += (MARK, key[len(key.rstrip(b"-")) :], end[0])
        at = end.end()
    return (b"".join((*pieces, raw[at:])), True, False) if pieces else (raw, False, False)


def _key(redactor: LineRedactor, kind: str, raw: bytes, opened: Open) -> Read:
    if end := _END.search(raw):
        return read_line(redactor, kind, _MATERIAL.sub(MARK, raw[: end.start()]) + raw[end.start() :])._replace(
            found=True
        )
    line, count = _MATERIAL.subn(MARK, raw)
    left, misses = opened.left - 1, opened.misses + (not count)
    further = opened._replace(left=left, misses=misses) if left and misses <= _KEY_MISSES else None
    own = redactor.line(line, script=kind in _SCRIPTS)
    return Read(own.line, own.found or bool(count), further)


def _value(redactor: LineRedactor, raw: bytes, opened: Open) -> Read:
    """The rest of a quoted value."""
    end = _closing(raw, opened.quote)
    if end < 0:
        left = opened.left - 1
        return Read(MARK if raw.strip() else raw, True, opened._replace(left=left) if left else None)
    rest = redactor.line(raw[end:], script=True)
    return Read((MARK if end else b"") + rest.line, True)


def _closing(raw: bytes, quote: bytes, start: int = 0) -> int:
    at = raw.find(quote, start)
    while at > 0 and quote == b'"' and raw[at - 1 : at] == b"\\":
        at = raw.find(quote, at + 1)
    return at


def _environment(redactor: LineRedactor, raw: bytes, opened: Open | None) -> Read:
    """A line of `env`, `printenv`, `export -p` or /proc/PID/environ, whose variables NULs separate."""
    parts, found = [], False
    for part in raw.split(b"\0"):
        line, some, opened = _variable(redactor, part, opened)
        parts.append(line)
        found |= some
    return Read(b"\0".join(parts), found, opened)


def _variable(redactor: LineRedactor, part: bytes, opened: Open | None) -> Read:
    if opened and opened.what == "value":
        return _value(redactor, part, opened)
    start = _VARIABLE.match(part)
    if start and not start[0].endswith(b"=") and not (start["shell"] or b"").startswith(b"setenv"):
        start = None
    goes_on = (not start and not _FUNCTION.match(part)) or _BASE64.fullmatch(part)
    if opened and opened.what == "variable" and goes_on:
        left = opened.left - 1
        return Read(MARK if part.strip() else part, True, opened._replace(left=left) if left else None)
    if not start or not redactor.names.is_secret_variable(start["name"]):
        return read_line(redactor, "", part, opened if opened and opened.what == "key" else None)
    head, value = part[: start.end()], part[start.end() :].rstrip(b"\r")
    end = part[len(head) + len(value) :]
    quoted = _QUOTED.match(value)
    if quoted and start["shell"]:
        closing = _closing(value, quoted["quote"], quoted.end())
        if closing < 0:
            return Read(head + quoted[0] + MARK + end, True, Open("value", _VALUE_LINES, quoted["quote"]))
        return Read(head + quoted[0] + MARK + value[closing : closing + 1] + end, True)
    if quoted and len(value) > quoted.end() and value.endswith(quoted["quote"]):
        return Read(head + quoted[0] + MARK + quoted["quote"] + end, True, Open("variable", _VALUE_LINES))
    return Read(head + (MARK if value else b"") + end, bool(value), Open("variable", _VALUE_LINES))
