"""The second half of detection: partials in, alert events out.

Which alerts there are is a function of what was counted (`episodes`); this module keeps the counts, tells what
changed, and forgets. It forgets, and counts in `forgotten`:

- buckets of seconds `horizon_s + repeat_s` behind the watermark (no new line may count there): `too_old` records
- messages `repeat_s` behind their partition's clock; their partials then pass for repeats. Beyond `max_messages`
  of a partition, earlier: `messages`
- groups beyond `max_groups`, or `max_cells` seconds, of a rule, the one longest without lines first: `groups`

The watermark is the slowest partition's clock, so a partition without ticks holds it back: idle ones must tick.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from flows.detect import knowledge
from flows.detect.episodes import Crossing, Shape
from flows.detect.events import AlertEvent, Group, Partial, State, fingerprint
from flows.detect.groups import GroupState, Told
from flows.detect.knowledge import Knowledge
from flows.detect.rules import DetectConfig, Rule
from flows.detect.seen import Seen
from flows.detect.telling import event
from sinks.base import Partition

_NEVER = 2**62
_TIDY_S = 300  # forgetting may wait this long, so that it is done for many seconds at once

_CELLS_PER_TICK = 10_000  # below 0.1 s of work; what is due beyond waits for the next tick

Key = tuple[str, Group]


class Evaluator:
    """Pure state machine over the partials of all partitions; not thread-safe.

    `sources`: partitions it must wait for although nothing was heard of them yet. Counters for metrics:
    `forgotten` (see above), `repeated` records by source partition, `late` records by rule.
    """

    def __init__(self, rules: Sequence[Rule], config: DetectConfig, sources: Collection[Partition] = ()) -> None:
        names = [rule.name for rule in rules]
        double = [name for name in [*names, *knowledge.NAMES] if [*names, *knowledge.NAMES].count(name) > 1]
        if double:
            raise ValueError(f"two rules are named {double[0]}: rename one of them")
        self._rules = {rule.name: rule for rule in rules}
        self._shapes = {rule.name: _shape(rule) for rule in rules}
        self._config = config
        self._groups: dict[str, dict[Group, GroupState]] = {name: {} for name in names}
        self._cells: Counter[str] = Counter()
        self._seen: dict[Partition, Seen] = {}
        self._clocks: dict[Partition, int] = dict.fromkeys(sources, 0)
        self._knowledge = Knowledge()
        self._due: tuple[list[tuple[int, Key]], list[tuple[int, Key]]] = ([], [])  # by watermark, by fastest clock
        self.forgotten: Counter[str] = Counter()
        self.repeated: Counter[Partition] = Counter()
        self.late: Counter[str] = Counter()

    @property
    def watermark(self) -> int:
        """Seconds up to which every partition has been read."""
        return min(self._clocks.values(), default=0) // 1_000

    @property
    def now(self) -> int:
        """The fastest partition's clock, in seconds."""
        return max(self._clocks.values(), default=0) // 1_000

    def feed(self, partials: Iterable[Partial]) -> list[AlertEvent]:
        """Count partials, repeats or not, in any order of partitions; returns what changed."""
        events: list[AlertEvent] = []
        touched: dict[Key, None] = {}
        for partial in partials:
            if partial.rule in knowledge.NAMES:
                self._knowledge.learn(partial)
                continue
            if partial.rule not in self._rules:
                self.forgotten["unknown_rule"] += 1
                continue
            self._clocks.setdefault(partial.source, partial.appended_ms)
            records = self._seen.setdefault(partial.source, Seen()).fresh(partial)
            self.repeated[partial.source] += sum(count for _, _, count in partial.records) - records
            if not records:
                continue
            if partial.late:
                self.late[partial.rule] += records
                events.append(self._late(partial, records))
            elif partial.second < self._floor:
                self.forgotten["too_old"] += records
            elif self._count(partial, records):
                touched[partial.rule, partial.group] = None
        for rule, group in touched:
            events += self._refresh(rule, group)
        for rule in {rule for rule, _ in touched}:
            events += self._make_room(rule)
        return events

    def tick(self, clocks: Mapping[Partition, int]) -> list[AlertEvent]:
        """Move the clocks (ms since the epoch) of source partitions; 0 makes one known. Returns what changed."""
        for source, clock in clocks.items():
            self._clocks[source] = max(clock, self._clocks.get(source, 0))
        for source, seen in self._seen.items():
            before = self._clocks[source] - self._config.repeat_s * 1_000
            self.forgotten["messages"] += seen.forget(before, self._config.max_messages)
        events: list[AlertEvent] = []
        work = 0
        for which, reached in ((1, self.now), (0, self.watermark)):
            due = self._due[which]
            while due and due[0][0] <= reached and work < _CELLS_PER_TICK:
                at, (rule, group) = heappop(due)
                state = self._groups.get(rule, {}).get(group)
                if state is not None and state.wake_at[which] == at:
                    work += len(state.cells)
                    events += self._refresh(rule, group)
        return events

    def firing(self) -> list[AlertEvent]:
        """The latest event of each alert that fires: what a receiver must be told again."""
        events = []
        for rule, groups in self._groups.items():
            for group, state in groups.items():
                now = {one.starts: one for one in state.crossings(self._shapes[rule])}
                for starts, told in state.told.items():
                    if not told.resolved:
                        events.append(self._event(rule, group, state, now.get(starts, told.episode), "firing", told))
        return events

    def groups(self) -> dict[str, int]:
        """Groups with counts, by rule."""
        return {rule: len(groups) for rule, groups in self._groups.items()}

    def state(self) -> Any:
        """Picklable; valid until the next call."""
        return {
            "groups": self._groups,
            "seen": self._seen,
            "clocks": self._clocks,
            "knowledge": self._knowledge,
            "counters": (self.forgotten, self.repeated, self.late),
        }

    def restore(self, state: Any) -> None:
        """Go on from a snapshot. Groups of rules that are gone are dropped."""
        self._groups = {name: state["groups"].get(name, {}) for name in self._rules}
        self._seen, self._knowledge = state["seen"], state["knowledge"]
        self._clocks = self._clocks | state["clocks"]
        self.forgotten, self.repeated, self.late = state["counters"]
        self._due = ([], [])
        for rule, groups in self._groups.items():
            self._cells[rule] = sum(len(kept.cells) for kept in groups.values())
            for group, kept in groups.items():
                kept.wake_at = (0, 0)
                for due in self._due:
                    heappush(due, (0, (rule, group)))

    @property
    def _floor(self) -> int:
        """Seconds before this one are settled."""
        return self.watermark - self._config.horizon_s - self._config.repeat_s

    def _count(self, partial: Partial, records: int) -> bool:
        """Count new records; returns whether the group must be looked at now."""
        groups = self._groups[partial.rule]
        state = groups.pop(partial.group, None) or GroupState()
        groups[partial.group] = state  # the one longest without lines stays first
        cells = len(state.cells)
        changed = state.add(partial, records, self._shapes[partial.rule])
        self._cells[partial.rule] += len(state.cells) - cells
        return changed or (state.open is not None and state.open.ends <= self.now)

    def _refresh(self, rule: str, group: Group) -> list[AlertEvent]:
        """Compare what alerts there are with what was told; forget what is settled; see when to look again."""
        shape, state = self._shapes[rule], self._groups[rule][group]
        found = state.crossings(shape)
        events = self._tell(rule, group, state, found)
        cells = len(state.cells)
        state.settle(shape, self._floor - 1)
        self._cells[rule] += len(state.cells) - cells
        if state.idle:
            del self._groups[rule][group]
            return events
        wake_at = self._wake_at(shape, state, found)
        for due, at, before in zip(self._due, wake_at, state.wake_at, strict=True):
            if at not in (before, _NEVER):
                heappush(due, (at, (rule, group)))
        state.wake_at = wake_at
        return events

    def _wake_at(self, shape: Shape, state: GroupState, found: list[Crossing]) -> tuple[int, int]:
        """The next second of the watermark, and of the fastest clock, at which something may change by itself."""
        behind = self._config.horizon_s + self._config.repeat_s + 1 + _TIDY_S
        by_watermark = [told.episode.ends for told in state.told.values() if not told.resolved]
        by_watermark += [told.episode.ends + behind for told in state.told.values()]
        if state.cells:
            by_watermark.append(min(state.cells)[0] + shape.window + (shape.reach or 0) + behind)
        by_clock = [one.starts for one in found if one.fires and one.starts not in state.told]
        by_clock += [one.ends for one in found[-1:] if not one.fires]  # until then, lines may make it last longer
        return min(by_watermark, default=_NEVER), min((at for at in by_clock if at > self.now), default=_NEVER)

    def _tell(self, rule: str, group: Group, state: GroupState, found: list[Crossing]) -> list[AlertEvent]:
        shape = self._shapes[rule]
        current = [one for one in found if one.fires and (not shape.hold or one.starts <= self.now)]
        kept = {one.starts for one in current}
        gone = {starts: told for starts, told in state.told.items() if starts not in kept}
        events: list[AlertEvent] = []
        for one in current:
            told = state.told.get(one.starts)
            replaced = tuple(
                sorted(starts for starts, old in gone.items() if starts < one.ends and one.starts < old.episode.ends)
            )
            jobs = [gone.pop(starts).job_id for starts in replaced]
            for starts in replaced:
                del state.told[starts]
            job = told.job_id if told else next(iter(jobs), self._job(group, state, one))
            resolved = one.ends <= self.watermark or one is not current[-1]  # before the next one is told of
            new = Told(one, resolved, job)
            if told is None or replaced or (told.resolved and not resolved):
                events.append(self._event(rule, group, state, one, "firing", new, replaced))
                told = Told(one, False, job)
            if resolved and (not told.resolved or told.episode != one):
                events.append(self._event(rule, group, state, one, "resolved", new))
            state.told[one.starts] = new
        for starts, old in gone.items():  # told by a rule of this name that has been changed since
            if not old.resolved:
                events.append(self._event(rule, group, state, old.episode, "resolved", old))
            del state.told[starts]
        return events

    def _job(self, group: Group, state: GroupState, episode: Crossing) -> str:
        labels = dict(group)
        nodes = [labels["node"]] if "node" in labels else list(next(iter(state.slots.values())).nodes)
        if "job_id" in labels or len(nodes) != 1:
            return labels.get("job_id", "")
        return self._knowledge.job_on(nodes[0], episode.crossed)

    def _event(
        self,
        rule: str,
        group: Group,
        state: GroupState,
        episode: Crossing,
        kind: State,
        told: Told,
        replaces: tuple[int, ...] = (),
    ) -> AlertEvent:
        shown = state.shown(episode, self._shapes[rule])
        name = fingerprint(rule, group)
        return event(self._rules[rule], name, group, kind, episode, shown, told.job_id, self._knowledge, replaces)

    def _late(self, partial: Partial, records: int) -> AlertEvent:
        """Told once per partial, and counted nowhere."""
        shape = self._shapes[partial.rule]
        alone = GroupState()
        alone.add(partial, records, shape)
        second = partial.second
        faults = 0 if partial.follower else records * partial.weight
        episode = Crossing(second, second, second + 1, faults, records)
        told = Told(episode, True, self._job(partial.group, alone, episode))
        return self._event(partial.rule, partial.group, alone, episode, "late", told)

    def _make_room(self, rule: str) -> list[AlertEvent]:
        """Forget groups while there are too many; alerts that fire are resolved first."""
        groups, events = self._groups[rule], list[AlertEvent]()
        while groups and (len(groups) > self._config.max_groups or self._cells[rule] > self._config.max_cells):
            group = next(iter(groups))
            state = groups[group]
            for told in state.told.values():
                if not told.resolved:
                    events.append(self._event(rule, group, state, told.episode, "resolved", told))
            self._cells[rule] -= len(state.cells)
            self.forgotten["groups"] += 1
            del groups[group]
        return events


def _shape(rule: Rule) -> Shape:
    reach = None if rule.fold_by is None else rule.fold_s
    return Shape(rule.window_s, rule.threshold, rule.for_s, reach)
