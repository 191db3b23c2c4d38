"""Bounded expansion of Slurm host lists and task lists.

Grammar: SchedMD/slurm src/common/hostlist.c and the manual page of scontrol (`show hostnames`). The width
of a range's low bound is its zero padding; several bracket groups multiply; a comma separates hosts only
outside brackets. A line of text must not be able to fill the memory, hence the bound.
"""

import re
from itertools import product

MAX_NAMES = 65_536

_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s()]+)|(,)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)

# A host list inside a sentence, for use in larger patterns: no blanks, ends before punctuation. A list that its
# writer cut (an open bracket) still counts as one, so that its text is kept.
HOSTS = r"(?:\(null\)|[^\s()]*[\w\]])"


def _range(text: str) -> tuple[int, int, int] | None:
    """`007` or `08-11` to (first, last, width)."""
    found = _RANGE.fullmatch(text)
    if not found:
        return None
    low, high = int(found[1]), int(found[2] or found[1])
    return (low, high, len(found[1])) if low <= high else None


def _group(text: str, room: int) -> list[str] | None:
    """Inside of a bracket, `001-004,007`, to numbers as written; None when malformed or more than `room`."""
    names: list[str] = []
    for part in text.split(","):
        bounds = _range(part)
        if bounds is None or bounds[1] - bounds[0] >= room - len(names):
            return None
        low, high, width = bounds
        names += [str(number).zfill(width) for number in range(low, high + 1)]
    return names


def expand(text: str) -> list[str] | None:
    """Host names in written order; None when malformed or more than `MAX_NAMES`."""
    names: list[str] = []
    groups: list[list[str]] = []
    count, position = 1, 0
    while position < len(text):
        found = _PIECE.match(text, position)
        if not found:
            return None
        position = found.end()
        if found[3]:
            if not groups or position == len(text):
                return None
            names += map("".join, product(*groups))
            groups, count = [], 1
            continue
        group = [found[2]] if found[2] else _group(found[1], MAX_NAMES)
        if group is None:
            return None
        groups.append(group)
        count *= len(group)
        if count > MAX_NAMES - len(names):
            return None
    return names + list(map("".join, product(*groups))) if groups else None


def tasks(text: str) -> list[int] | None:
    """`0-15,24` (brackets allowed) to task numbers; None when malformed or more than `MAX_NAMES`."""
    numbers = _group(text.removeprefix("[").removesuffix("]"), MAX_NAMES)
    return None if numbers is None else [int(number) for number in numbers]


def fields(text: str) -> dict[str, object]:
    """`nodes`, `node_count` and `nodes_raw` of a host list as written; `(null)` and nothing give no fields."""
    if not text or text == "(null)":
        return {}
    names = expand(text)
    return {"nodes": names, "node_count": None if names is None else len(names), "nodes_raw": text}
