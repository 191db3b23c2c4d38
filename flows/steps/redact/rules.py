"""The rules of secrets as data: those of `secrets.toml`, and what a configuration adds to them."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

DEFAULTS = Path(__file__).with_name("secrets.toml")


class Example(NamedTuple):
    """A line, and what becomes of it; None: it stays as it is."""

    line: str
    becomes: str | None = None


class Shape(NamedTuple):
    """A secret told by its form. `gate` (RE2, case is ignored) finds every line that `regex` (Python) may find.

    The first group that took part is the secret, else the whole match.
    """

    name: str
    regex: str
    gate: str
    tests: tuple[Example, ...] = ()


class Names(NamedTuple):
    """Which names have a secret as their value; see secrets.toml."""

    words: tuple[str, ...]
    tails: tuple[str, ...]
    secret: tuple[str, ...]
    innocent: tuple[str, ...]
    upper: tuple[str, ...]
    environment: tuple[str, ...]
    literal: tuple[str, ...]
    prose: tuple[str, ...]


class Rules(NamedTuple):
    """All rules; hashable, so that what is compiled from them is shared."""

    names: Names
    shapes: tuple[Shape, ...]

    def extended(self, names: tuple[str, ...], innocent: tuple[str, ...], shapes: tuple[Shape, ...]) -> "Rules":
        """With further names (any case and separators, as they end) that are secret or are not, and further shapes."""
        words = tuple(_last_word(name) for name in names)
        merged = self.names._replace(
            words=tuple(dict.fromkeys((*self.names.words, *words))),
            secret=(*self.names.secret, *(_ending(name) for name in names)),
            innocent=(*self.names.innocent, *(_ending(name) for name in innocent)),
            environment=(*self.names.environment, *(_ending(name) for name in names)),
        )
        return Rules(merged, (*self.shapes, *shapes))


@cache
def default_rules() -> Rules:
    """The rules that come with tailrace."""
    data = tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))
    names = Names(**{name: tuple(data["names"][name]) for name in Names._fields})
    shapes = tuple(
        Shape(
            rule["name"],
            rule["regex"],
            rule.get("gate", rule["regex"]),
            tuple(Example(test["line"], test.get("becomes")) for test in rule.get("tests", ())),
        )
        for rule in data["rules"]
    )
    return Rules(names, shapes)


def in_words(name: str) -> str:
    """A name in lower case, its words joined by `_`: `apiKey`, `api-key` and `API_KEY` are `api_key`."""
    split = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", name)
    return re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").lower()


def _ending(name: str) -> str:
    return rf"(?:^|_){re.escape(in_words(name))}$"


def _last_word(name: str) -> str:
    return in_words(name).rpartition("_")[2]
