"""Which names have a secret as their value, and what may stand between the two."""

import re
from functools import lru_cache

from flows.steps.redact.rules import Names, in_words

_IDENTIFIER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LONGEST = 80  # bytes of a name that are looked at
_TWO_WORDS = re.compile(rb"(?i)(?:api|access|secret|private|auth|account|client|license|session) $")
_QUOTE = r"\\{0,3}[\"']"
# `=`, `:`, Ruby's and PHP's `=>`, Go's `:=`, the shell's `${NAME:-value}`, `==`; `>` ends an XML tag; %3D in URLs;
# in lists of arguments `", "`; in Kubernetes' JSON `"name": NAME, "value": `.
_BETWEEN = (
    rf"(?:(?P<listed>{_QUOTE}[ \t]{{0,4}},[ \t]{{0,4}}(?={_QUOTE}))"
    rf"|(?P<quote>{_QUOTE})?\]?[ \t]{{0,4}}(?P<sign>:[-=?+]|=>|==?|:|%3[DdAa]|>)[ \t]{{0,4}}"
    rf"|(?P<gap>[ \t]{{1,4}}))"
)
_VALUE_OF_NAME = rf"(?P<named>{_QUOTE}[ \t]{{0,4}},[ \t]{{0,4}}{_QUOTE}value{_QUOTE}[ \t]{{0,4}}:[ \t]{{0,4}})"


class NameRules:
    """Compiled `Names`. `scan` (bytes) finds a word that may end a secret's name, and what stands after it."""

    def __init__(self, names: Names) -> None:
        words = "|".join(sorted(map(re.escape, names.words), key=len, reverse=True))
        tails = "|".join(map(re.escape, names.tails))
        ending = rf"(?:{words})(?:[_.-]?(?:{tails}|[0-9]{{1,3}}))?"
        self.scan = re.compile(rf"(?i)(?P<end>{ending})(?:{_VALUE_OF_NAME}|{_BETWEEN})".encode())
        # No counting here: it would make RE2 slower.
        last = rf"(?:{words})(?:[_.-]?(?:{tails}|[0-9]+))?"
        self.gate = rf"{last}[\"'\\\]]*[ \t]*(?:[=:>,]|%3)|(?:-|setenv[ \t])\S*{last}[ \t]"
        self._tail = re.compile(rf"_(?:{tails}|[0-9]{{1,3}})$|[0-9]{{1,3}}$")
        self._secret, self._innocent, self._upper, self._environment = (
            re.compile("|".join(f"(?:{regex})" for regex in some) or "(?!)")
            for some in (names.secret, names.innocent, names.upper, names.environment)
        )
        self._known = lru_cache(maxsize=4096)(self._decide)

    def name(self, text: bytes, start: int, end: int) -> bytes:
        """The whole name whose last word is at start:end, with the dashes of an option before it."""
        left = text[max(0, start - _LONGEST) : start]
        stem = left.rstrip(_IDENTIFIER)
        if len(stem) == len(left) and (two := _TWO_WORDS.search(left[-12:])):
            return two[0] + text[start:end]
        return left[len(stem) :] + text[start:end]

    def is_secret(self, name: bytes) -> bool:
        return self._known(name)

    def _decide(self, name: bytes) -> bool:
        text = name.decode("ascii")
        words = in_words(text)
        words = self._tail.sub("", words)
        if self._innocent.search(words) or text in ("PWD", "OLDPWD"):
            return False
        return bool(self._secret.search(words) or (text.isupper() and self._upper.search(words)))

    def is_secret_variable(self, name: bytes) -> bool:
        """The same for a variable of a job's whole environment, where little is lost by a name too many."""
        return bool(self._environment.search(in_words(name.decode("ascii", "replace")))) or self.is_secret_ascii(name)

    def is_secret_ascii(self, name: bytes) -> bool:
        return name.isascii() and self.is_secret(name)
