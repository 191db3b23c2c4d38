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

# The same kernel record comes in several renderings; the first of these that has it leads.
CARRIERS = ("kmsg", "journal", "syslog", "dmesg")


class Shape(NamedTuple):
    """What of a rule decides: all in seconds but the threshold."""

    window: int
    threshold: int
    hold: int  # `for`
    reach: int  # lines of one fault, and renderings of one record, are no further apart
    folds: bool  # whether lines of one key within reach are one fault


class Frontier(NamedTuple):
    """Seconds up to `at` are settled. `since`: when the threshold was crossed, if it still is at `at`.

    `faults` and `lines`: of the seconds after `since - window` and up to `at - window`.
    """

    at: int
    since: int | None
    faults: int
    lines: int


START = Frontier(-(2**62), None, 0, 0)


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


def occurrences(cells: Mapping[Cell, Tally], shape: Shape) -> "Counter[int]":
    """Faults per second: lines of one fault count once, in its first second; renderings of one record once."""
    faults: Counter[int] = Counter()
    if shape.folds:
        by_key: dict[str, set[int]] = {}
        for (second, key, _), (count, _) in cells.items():
            if count:
                by_key.setdefault(key, set()).add(second)
        for seconds in by_key.values():
            before = START.at
            for second in sorted(seconds):
                faults[second] += second - before > shape.reach
                before = second
        return faults
    led = _led(cells, shape.reach)
    for cell, (count, _) in cells.items():
        if count and cell not in led:
            faults[cell[0]] += count
    return faults


def _led(cells: Mapping[Cell, Tally], reach: int) -> set[Cell]:
    """Cells of carriers that show again what a better one shows within reach."""
    if len({carrier for _, _, carrier in cells if carrier}) < 2:
        return set()
    rank = {carrier: place for place, carrier in enumerate(CARRIERS)}
    best: dict[tuple[int, str], int] = {}
    for (second, key, carrier), (count, _) in cells.items():
        if count and carrier:
            best[second, key] = min(rank[carrier], best.get((second, key), len(rank)))
    return {
        (second, key, carrier)
        for second, key, carrier in cells
        if carrier
        and any(best.get((near, key), len(rank)) < rank[carrier] for near in range(second - reach, second + reach + 1))
    }


def crossings(cells: Mapping[Cell, Tally], shape: Shape, frontier: Frontier = START) -> list[Crossing]:
    """All crossings that end after the frontier, in order.

    At time t the window holds the seconds after `t - window` and up to t. Without a threshold every line in it
    counts, else every fault. A crossing's faults and lines are of all seconds that were in a window while it lasted.
    """
    faults = occurrences(cells, shape)
    level, steps = 0, Counter[int]()
    for second, count in (faults if shape.threshold else _raw(cells)).items():
        for at, change in ((second, count), (second + shape.window, -count)):
            if at <= frontier.at:
                level += change
            else:
                steps[at] += change
    found: list[tuple[int, int]] = []
    since = frontier.since
    for at in sorted(steps):
        level += steps[at]
        if since is None and level > shape.threshold:
            since = at
        elif since is not None and level <= shape.threshold:
            found.append((since, at))
            since = None
    counted, recorded = _Sums(faults.items()), _Sums((second, lines) for (second, _, _), (_, lines) in cells.items())
    result = []
    for crossed, ends in found:
        resumed = crossed == frontier.since
        after = (frontier.at if resumed else crossed) - shape.window
        result.append(
            Crossing(
                crossed,
                crossed + shape.hold,
                ends,
                counted.between(after, ends) + resumed * frontier.faults,
                recorded.between(after, ends) + resumed * frontier.lines,
            )
        )
    return result


def advance(cells: dict[Cell, Tally], shape: Shape, frontier: Frontier, to: int) -> Frontier:
    """The frontier at `to`; drops the cells that no later result needs. No cell up to `to + reach` may come later."""
    if to <= frontier.at:
        return frontier
    open_at = [one for one in crossings(cells, shape, frontier) if one.crossed <= to < one.ends]
    settled = Frontier(to, None, 0, 0)
    for crossed, *_ in open_at:
        resumed = crossed == frontier.since
        after = (frontier.at if resumed else crossed) - shape.window
        counted = _Sums(occurrences(cells, shape).items())
        recorded = _Sums((second, lines) for (second, _, _), (_, lines) in cells.items())
        until = to - shape.window + 1
        settled = Frontier(
            to,
            crossed,
            counted.between(after, until) + resumed * frontier.faults,
            recorded.between(after, until) + resumed * frontier.lines,
        )
    for cell in [cell for cell in cells if cell[0] <= to - shape.window - shape.reach]:
        del cells[cell]
    return settled


def _raw(cells: Mapping[Cell, Tally]) -> "Counter[int]":
    """Occurrences per second as they came, unfolded."""
    raw: Counter[int] = Counter()
    for (second, _, _), (count, _) in cells.items():
        raw[second] += count
    return raw


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
