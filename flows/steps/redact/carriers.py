"""Secrets that a carrier hides: cut in two by CRI or Docker, or written as numbers by the journal.

A piece leaves the end of its text to the next one, which is read behind it: so the rest of a value is known for
what it is. What the piece before shows of a token cut in its middle stays.
"""

import re

from flows.steps.redact.blocks import Open, Read, read_line, read_lines
from flows.steps.redact.line import LineRedactor

# RE2 for lines that must be looked at beside those of LineRedactor.gate.
GATES = {
    "pod": r"^[^ ]+ std(?:out|err) P[: ]",
    "docker": r'(?:[^n]|[^\\]n)","stream"',
    "journal": r"\[[0-9]+, ?[0-9]",
}

_CONTEXT = 200  # bytes of a piece that the next one is read behind
_CRI = re.compile(rb"[^ ]{20,35} std(?:out|err) (?P<tag>[PF])(?::[^ ]*)? ")
_DOCKER = re.compile(rb'\{"log":"(?=(?P<text>[^"\\]*(?:\\.[^"\\]*)*)")')
# journal-fields in JSON: text that is no UTF-8 or holds control characters is an array of its bytes.
_BYTES = re.compile(rb"\[(?P<bytes>\d{1,3}(?:, ?\d{1,3})+)\]")


def read(redactor: LineRedactor, kind: str, raw: bytes, opened: Open | None = None) -> Read:
    """The next physical line of a stream of some kind without its secrets."""
    if kind in ("pod", "docker"):
        return _piece(redactor, kind, raw, opened)
    clean = _BYTES.sub(lambda array: _array(redactor, array), raw) if kind == "journal" else raw
    line = read_line(redactor, kind, clean, opened)
    return line._replace(found=line.found or clean != raw)


def _piece(redactor: LineRedactor, kind: str, raw: bytes, opened: Open | None) -> Read:
    found = (_CRI if kind == "pod" else _DOCKER).match(raw)
    if not found:
        return read_line(redactor, kind, raw, opened)
    start = found.end()
    context = opened.quote if opened and opened.what == "piece" else b""
    whole = raw[:start] + context + raw[start:]
    shown, had, further = read_line(redactor, kind, whole, None if context else opened)
    before = start + len(context)
    line = raw[:start] + shown[before if shown.startswith(whole[:before]) else max(start, _same(shown, whole)) :]
    goes_on = found["tag"] == b"P" if kind == "pod" else not found["text"].endswith(b"\\n")
    if goes_on and further is None:
        text = shown[start:] if kind == "pod" else shown[start : shown.find(b'","stream"', start)]
        further = Open("piece", 1, text[-_CONTEXT:])
    return Read(line, had and (line != raw or not context), further)


def _same(one: bytes, other: bytes) -> int:
    """How many bytes at their start are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _array(redactor: LineRedactor, array: "re.Match[bytes]") -> bytes:
    numbers = [int(number) for number in array["bytes"].split(b",")]
    if max(numbers) > 255:
        return array[0]
    text = bytes(numbers)
    clean = read_lines(redactor, text)
    return array[0] if clean == text else b"[" + b",".join(b"%d" % byte for byte in clean) + b"]"
