"""When a group alerts: a pure function of how many records it has in each second.

Order of arrival cannot matter, since there is none: `crossings` looks at all seconds at once. `advance` moves a
frontier up to which nothing can change any more, so that old seconds can be forgotten without changing a result.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

Cell = tuple[int, str, str]  # second, key of the fault, carrier
Tally = tuple[int, int]  # occurrences of faults as counted, records of any role

# The same kernel record may come in each of these renderings; every other line comes one way only (carrier "").
CARRIERS = frozenset({"kmsg", "journal", "syslog", "dmesg"})

Amounts = Mapping[str, Mapping[int, int]]  # occurrences by carrier and second


class Shape(NamedTuple):
    """What of a rule decides: all in seconds but the threshold."""

    window: int
    threshold: int
    hold: int  # `for`
    reach: int | None  # lines of one key no further apart are one fault; None: every occurrence is one


class Frontier(NamedTuple):
    """Seconds up to `at` are settled. `since`: when the threshold was crossed, if it still is at `at`.

    `faults` by carrier, and `lines`: of the seconds after `since - window` and up to `at - window`.
    """

    at: int
    since: int | None
    faults: Mapping[str, int]
    lines: int


START = Frontier(-(2**62), None, {}, 0)


class Crossing(NamedTuple):
    """The threshold is exceeded from `crossed` on and no longer at `ends`. `starts`: the alert does, if `fires`."""

    crossed: int
    starts: int
    ends: int
    faults: int
    lines: int

    @property
    def fires(self) -> bool:
        """It lasts until the alert starts."""
        return self.ends > self.starts


def merged(by_carrier: Mapping[str, int]) -> int:
    """One number of those by carrier: each rendering shows the same records, so the one that shows most counts."""
    return by_carrier.get("", 0) + max((n for carrier, n in by_carrier.items() if carrier), default=0)


def crossings(cells: Mapping[Cell, Tally], shape: Shape, frontier: Frontier = START) -> list[Crossing]:
    """All crossings that end after the frontier, in order.

    At time t the window holds the seconds after `t - window` and up to t; the threshold is about the occurrences
    in it. A crossing's faults and lines are of all seconds that were in a window while it lasted. More records
    never shorten or remove a crossing.
    """
    levels = {"": 0}
    steps: list[tuple[int, str, int]] = []
    for carrier, seconds in _occurrences(cells).items():
        name = carrier if shape.threshold else ""  # any line will do, whatever carried it
        for second, count in seconds.items():
            for at, change in ((second, count), (second + shape.window, -count)):
                if at <= frontier.at:
                    levels[name] = levels.get(name, 0) + change
                else:
                    steps.append((at, name, change))
    steps.sort()
    found: list[tuple[int, int]] = []
    since = frontier.since
    for place, (at, name, change) in enumerate(steps, 1):
        levels[name] = levels.get(name, 0) + change
        if place < len(steps) and steps[place][0] == at:
            continue
        above = (levels[""] if len(levels) == 1 else merged(levels)) > shape.threshold
        if above and since is None:
            since = at
        elif since is not None and not above:
            found.append((since, at))
            since = None
    if not found:
        return []
    totals = _Totals(cells, shape, frontier)
    return [Crossing(crossed, crossed + shape.hold, ends, *totals.of(crossed, ends)) for crossed, ends in found]


def advance(cells: dict[Cell, Tally], shape: Shape, frontier: Frontier, to: int) -> Frontier:
    """The frontier at `to`; drops the cells that no later result needs. No cell up to `to` may come later."""
    if to <= frontier.at:
        return frontier
    settled = Frontier(to, None, {}, 0)
    lasting = [crossed for crossed, _, ends, *_ in crossings(cells, shape, frontier) if crossed <= to < ends]
    if lasting:
        faults, lines = _Totals(cells, shape, frontier).parts(lasting[0], to - shape.window + 1)
        settled = Frontier(to, lasting[0], faults, lines)
    for cell in [cell for cell in cells if cell[0] <= to - shape.window - (shape.reach or 0)]:
        del cells[cell]
    return settled


def _occurrences(cells: Mapping[Cell, Tally]) -> dict[str, "Counter[int]"]:
    """Occurrences as they came."""
    found: dict[str, Counter[int]] = {}
    for (second, _, carrier), (count, _) in cells.items():
        if count:
            found.setdefault(carrier, Counter())[second] += count
    return found


def _faults(cells: Mapping[Cell, Tally], reach: int) -> dict[str, "Counter[int]"]:
    """Lines of one fault, whatever carried them, count once, in its first second."""
    by_key: dict[str, set[int]] = {}
    for (second, key, _), (count, _) in cells.items():
        if count:
            by_key.setdefault(key, set()).add(second)
    faults: Counter[int] = Counter()
    for seconds in by_key.values():
        before = START.at
        for second in sorted(seconds):
            faults[second] += second - before > reach
            before = second
    return {"": faults}


class _Totals:
    """Faults and lines of ranges of seconds."""

    def __init__(self, cells: Mapping[Cell, Tally], shape: Shape, frontier: Frontier) -> None:
        faults = _occurrences(cells) if shape.reach is None else _faults(cells, shape.reach)
        self._faults = {carrier: _Sums(seconds.items()) for carrier, seconds in faults.items()}
        self._lines = _Sums((second, lines) for (second, _, _), (_, lines) in cells.items())
        self._frontier, self._window = frontier, shape.window

    def parts(self, crossed: int, before: int) -> tuple[dict[str, int], int]:
        """Faults by carrier, and lines, of the seconds of a crossing that are less than `before`."""
        frontier = self._frontier
        resumed = crossed == frontier.since
        after = (frontier.at if resumed else crossed) - self._window
        faults = {carrier: sums.between(after, before) for carrier, sums in self._faults.items()}
        lines = self._lines.between(after, before)
        if resumed:
            lines += frontier.lines
            for carrier, count in frontier.faults.items():
                faults[carrier] = faults.get(carrier, 0) + count
        return faults, lines

    def of(self, crossed: int, ends: int) -> tuple[int, int]:
        """Faults and lines of a crossing."""
        faults, lines = self.parts(crossed, ends)
        return merged(faults), lines


class _Sums:
    """Sums over ranges of seconds."""

    def __init__(self, amounts: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(amounts)
        self._seconds = [second for second, _ in ordered]
        self._sums = [0, *accumulate(amount for _, amount in ordered)]

    def between(self, after: int, before: int) -> int:
        """Of the seconds greater than `after` and less than `before`."""
        first = bisect_right(self._seconds, after)
        return self._sums[max(bisect_left(self._seconds, before), first)] - self._sums[first]
