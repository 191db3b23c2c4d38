"""What the evaluator keeps of one group: its counts, a few lines to show, and the episodes it has told of."""

from dataclasses import dataclass, field

from flows.detect.episodes import START, Cell, Crossing, Frontier, Shape, Tally, advance, crossings
from flows.detect.events import MAX_NODES, Evidence, Partial

MAX_EVIDENCE = 3  # lines an alert shows
MIN_SLOT_S = 300


@dataclass(slots=True)
class Slot:
    """What is shown of the lines of some minutes: the first lines, the first value of each field, some hosts.

    Each is the least of all that came, so order does not matter.
    """

    first: list[Evidence] = field(default_factory=list)
    values: dict[str, tuple[bool, Evidence, str]] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    clock_suspect: bool = False

    def add(self, partial: Partial) -> None:
        """Show a partial, if it is among the first."""
        if partial.first not in self.first:
            self.first = sorted([*self.first, partial.first])[:MAX_EVIDENCE]
        for name, value in partial.values:
            shown = (partial.follower, partial.first, value)  # a follower speaks of itself: last choice
            self.values[name] = min(self.values.get(name, shown), shown)
        if not set(partial.nodes) <= set(self.nodes):
            self.nodes = sorted({*self.nodes, *partial.nodes})[:MAX_NODES]
        self.clock_suspect |= partial.clock_suspect

    def merge(self, other: "Slot") -> None:
        """Show another slot's lines as well."""
        self.first = sorted({*self.first, *other.first})[:MAX_EVIDENCE]
        for name, shown in other.values.items():
            self.values[name] = min(self.values.get(name, shown), shown)
        self.nodes = sorted({*self.nodes, *other.nodes})[:MAX_NODES]
        self.clock_suspect |= other.clock_suspect


@dataclass(slots=True)
class Told:
    """An episode as last told. `job_id`: of the node, when the alert was first told of."""

    episode: Crossing
    resolved: bool
    job_id: str


@dataclass(slots=True)
class GroupState:
    """Counts of one group of one rule since its frontier. `open`: the latest crossing when last computed."""

    cells: dict[Cell, Tally] = field(default_factory=dict)
    frontier: Frontier = START
    slots: dict[int, Slot] = field(default_factory=dict)
    told: dict[int, Told] = field(default_factory=dict)  # by starts_at
    open: Crossing | None = None
    wake_at: tuple[int, int] = (0, 0)  # seconds of the watermark and of the fastest clock when it is due

    def add(self, partial: Partial, records: int, shape: Shape) -> bool:
        """Count some records of a partial; returns whether more can follow from it than that an episode goes on."""
        cell = (partial.second, partial.key, partial.carrier)
        count, lines = self.cells.get(cell, (0, 0))
        self.cells[cell] = (count + records * partial.weight * (not partial.follower), lines + records)
        slot = self.slots.setdefault(partial.second // max(shape.window, MIN_SLOT_S), Slot())
        slot.add(partial)
        if self.open is None or not self.open.crossed <= partial.second < self.open.ends:
            return True
        if not partial.follower and records * partial.weight > shape.threshold:  # enough by itself for a window
            self.open = self.open._replace(ends=max(self.open.ends, partial.second + shape.window))
        return False

    def crossings(self, shape: Shape) -> list[Crossing]:
        """All crossings since the frontier; remembers the latest."""
        found = crossings(self.cells, shape, self.frontier)
        self.open = found[-1] if found else None
        return found

    def settle(self, shape: Shape, to: int) -> None:
        """Forget what can no longer change an episode that ends after `to`."""
        self.frontier = advance(self.cells, shape, self.frontier, to)
        self.told = {starts: told for starts, told in self.told.items() if told.episode.ends > to}
        since = self.frontier.since
        oldest = min([to if since is None else since, *(told.episode.crossed for told in self.told.values())])
        width = max(shape.window, MIN_SLOT_S)
        for number in [number for number in self.slots if (number + 1) * width <= oldest - shape.window]:
            del self.slots[number]
        if since is not None:  # an episode that lasts keeps one slot of all that is settled
            mine = sorted(n for n in self.slots if n * width > since - shape.window and (n + 1) * width <= to)
            for number in mine[1:]:
                self.slots[mine[0]].merge(self.slots.pop(number))

    def shown(self, episode: Crossing, shape: Shape) -> Slot:
        """What to show of an episode."""
        width = max(shape.window, MIN_SLOT_S)
        whole = Slot()
        for number, slot in self.slots.items():
            if episode.crossed - shape.window < (number + 1) * width - 1 and number * width < episode.ends:
                whole.merge(slot)
        return whole

    @property
    def idle(self) -> bool:
        """Nothing is left that a later event could need."""
        return not self.cells and not self.told and self.frontier.since is None
