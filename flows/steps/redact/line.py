"""One line without its secrets: the names stay, the values become `***`."""

import re
from functools import lru_cache
from typing import NamedTuple

from flows.steps.redact.names import NameRules
from flows.steps.redact.rules import Rules
from flows.steps.redact.values import MARK, Innocent, Quotes, Value, value_at

# A line of `env`: the value is all that follows. The stamp of CRI and the label of a launcher may stand before it.
_VARIABLE = re.compile(
    rb"(?:\S{20,35} std(?:out|err) [FP] )?(?:\[\d+,\d+\]<std\w{3}>:|\[\w+\d+\]:| *\d+: )?"
    rb"(?P<name>[A-Z_][A-Z0-9_]*)=(?=.)"
)
_KEY_GATE = r"begin [a-z0-9 ]*private key"  # of flows.steps.redact.blocks
_MAX_PASSES = 4
_LONG = 16_384  # bytes from which RE2 is asked first: it reads a MiB in 1 ms, Python's engine in 20
_LOGIN = MARK + b"@"  # the password of a URL, which looks like a pair of name and value


class Redacted(NamedTuple):
    """A line without its secrets; `found`: it had some, or had had. `quote` still has to be closed by later lines."""

    line: bytes
    found: bool
    quote: bytes = b""


class LineRedactor:
    """Rules, compiled. `gate` is RE2 for lines that may hold a secret; `may_hold` the same in Python."""

    def __init__(self, rules: Rules) -> None:
        self.names = NameRules(rules.names)
        self._innocent = Innocent(rules.names.literal, rules.names.prose)
        self._shapes = [(re.compile(shape.regex.encode(), re.DOTALL), f"(?i:{shape.gate})") for shape in rules.shapes]
        # Arrow compiles it for every batch, so it is short: 0.2 ms.
        gates = dict.fromkeys((_KEY_GATE, self.names.gate, *(shape.gate for shape in rules.shapes)))
        self.gate = f"(?i:{'|'.join(gates)})"
        self._gate = re.compile(self.gate.encode())

    def may_hold(self, raw: bytes) -> bool:
        return self._gate.search(raw) is not None

    def line(self, raw: bytes, script: bool = False) -> Redacted:
        """The line without its secrets; in a `script` a variable's value is a word, elsewhere the rest of the line.

        The gate is not asked: it finds every line that this changes.
        """
        found, quote = False, b""
        for _ in range(_MAX_PASSES):
            before, shown = raw, False
            for shape, gate in self._shapes:
                if len(raw) < _LONG or _matches(raw, gate):
                    raw, shown = _replaced(shape, raw, shown)
            raw, named, opened = self._named(raw, script)
            found, quote = found or shown or named, quote or opened
            if raw == before:
                break
        return Redacted(raw, found, quote)

    def _named(self, text: bytes, script: bool) -> tuple[bytes, bool, bytes]:
        found, quote = False, b""
        if not script and (variable := _VARIABLE.match(text)) and self.names.is_secret(variable["name"]):
            rest = text[variable.end() :].rstrip(b"\r")
            if not self._innocent.is_innocent(text, Value(variable.end(), len(text)), variable["name"], loose=False):
                return text[: variable.end()] + MARK + text[variable.end() + len(rest) :], True, b""
        pieces: list[bytes] = []
        quotes, copied, at = Quotes.of(text), 0, 0
        while match := self.names.scan.search(text, at):
            at = match.end()
            name = self.names.name(text, *match.span("end"))
            if not self._joined(text, match, name) or not self.names.is_secret(name):
                continue
            value = value_at(text, match.end(), match.start(), quotes)
            if text[value.start : value.end] == MARK or text.startswith(_LOGIN, value.start):
                found, at = True, value.end
                continue
            loose = match["sign"] == b":" and not match["quote"] and text[match.end() - 1 : match.end()] in b" \t"
            quoted = value.start > match.end()
            if self._innocent.is_innocent(text, value, name, loose=loose and not quoted):
                continue
            # A bare value of JSON, a number, becomes a string.
            mark = match["quote"] + MARK + match["quote"] if match["quote"] and value.start == match.end() else MARK
            pieces += (text[copied : value.start], mark)
            copied = at = max(value.end, at)
            found, quote = True, quote or value.quote
        return b"".join((*pieces, text[copied:])) if pieces else text, found, quote

    @staticmethod
    def _joined(text: bytes, match: "re.Match[bytes]", name: bytes) -> bool:
        """Whether what stands after the name joins it to a value."""
        before = match.end("end") - len(name)
        if match["gap"]:
            follows = text[match.end() : match.end() + 1]
            is_option = name.startswith(b"-") or text[max(before - 7, 0) : before] == b"setenv "
            return is_option and follows not in (b"", b"-", b"|", b">", b"&", b";")
        if match["listed"]:
            return name.startswith(b"-")
        return match["sign"] != b">" or text[before - 1 : before] == b"<"


def _matches(raw: bytes, gate: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return bool(pc.match_substring_regex(pa.array([raw], pa.large_binary()), gate)[0].as_py())


def _replaced(shape: "re.Pattern[bytes]", text: bytes, found: bool) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    copied = 0
    for match in shape.finditer(text):
        start, end = match.span(match.lastgroup or 0)
        if text[start:end] == MARK:
            continue
        pieces += (text[copied:start], MARK)
        copied = end
    return (b"".join((*pieces, text[copied:])), True) if pieces else (text, found)


@lru_cache(maxsize=8)
def line_redactor(rules: Rules) -> LineRedactor:
    """The compiled rules, shared by all that use them."""
    return LineRedactor(rules)
