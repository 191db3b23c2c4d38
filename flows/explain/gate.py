"""Which part of a gate picks a line."""

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from parsers.configured import nameless

_PIECE = re.compile(r"(?s)\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|.")


class Pick(NamedTuple):
    """A part of the gate, and the text it found."""

    part: str
    text: str


def pick(gate: str, line: bytes) -> Pick | None:
    """The part of a gate (RE2) that finds the foremost text of a line; None when the gate does not pick it."""
    array = pa.array([line], pa.large_binary())
    if not pc.match_substring_regex(array, gate)[0].as_py():
        return None
    found = [(pc.extract_regex(array, f"(?P<text>{_unnamed(part)})")[0].as_py(), part) for part in parts(gate)]
    texts = [(line.find(captured["text"]), captured["text"], part) for captured, part in found if captured]
    _, text, part = min(texts, key=lambda each: each[0])
    return Pick(part, text.decode(errors="replace"))


def parts(regex: str) -> list[str]:
    """The alternatives of a pattern, of the outermost group where that is all of it; flags in front go with each."""
    flags = found[0] if (found := re.match(r"\(\?[a-z]+\)", regex)) else ""
    regex = regex[len(flags) :]
    found_parts, depth, current, closed = list[str](), 0, "", 0
    for piece in (match[0] for match in _PIECE.finditer(regex)):
        depth += (piece == "(") - (piece == ")")
        closed += piece == ")" and depth == 0
        if piece == "|" and depth == 0:
            found_parts.append(current)
            current = ""
        else:
            current += piece
    found_parts.append(current)
    if (
        len(found_parts) == 1
        and closed == 1
        and regex.startswith("(?:")
        and regex.endswith(")")
        and regex[-2:] != r"\)"
    ):
        return [flags + part for part in parts(regex[3:-1])]
    return [flags + part for part in found_parts]


def _unnamed(regex: str) -> str:
    """The same with groups that capture nothing, which is all that RE2's extraction takes beside named ones."""
    pieces = [match[0] for match in _PIECE.finditer(nameless(regex))]
    return "".join(
        "(?:" if piece == "(" and pieces[at + 1 : at + 2] != ["?"] else piece for at, piece in enumerate(pieces)
    )
