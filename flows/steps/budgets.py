"""Budgets of labels and streams: what does not fit is demoted to structured metadata, never dropped.

Each tenant may have so many distinct values of a label, and so many streams (label sets), in a sliding
hour. The hour is told by the messages (when the broker took them), never by a wall clock.

What is known changes at the end of an epoch only. Inside an epoch a value that is not known yet is
admitted if the allowance of its partition still has room: at the epoch's start the room of a budget is
dealt out to the partitions, and those not met before share one allowance. So which labels a message gets
depends on the state at the epoch's start and on the earlier messages of its partition in that epoch, and
neither on batches nor on how partitions interleave: a repeated epoch gives the same labels. (Of the
partitions met for the first time the interleaving counts, in that epoch, once their allowance is used up.)

Memory: a budget holds at most as many values as its limit, a stream as a digest of 16 bytes; values that
are refused are not remembered. That is about 0.2 kB for each unit of the limits and tenant, whatever comes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from flows.steps.kinds import BUILT_IN, Kinds
from flows.steps.label_limits import LEVELS, LabelsConfig
from flows.steps.labels import LABELS, Labelled, label_pairs
from sinks.base import Partition

HOUR_MS = 3_600_000
STREAM_PARTS = 1 + LEVELS  # streams of a label set with priority: one for each level, and one without
OTHERS = "(others)"

_AHEAD_MS = 600_000  # a message from further ahead of the source's clock does not move the hour
_DECISIONS = 65_536  # remembered inside an epoch; to forget them costs time and changes nothing
_NEW_SHARE = 8  # an eighth of the room is for partitions not met before
_OWNERS = 100  # counted by name for each label
_EPOCH_OWNERS = 10_000

# What is left out, step by step, where the streams of a tenant are too many: first what comes and goes, which would
# soon fill the rest of the room, last what a cluster has few of. `job` stays.
_STEPS = (("job_id", "pod", "container"), ("unit", "app"), ("node",), ("team", "namespace", "cluster"))


@dataclass(slots=True)
class Budget:
    """Values of one label, or label sets, of one tenant. A value has a weight: the streams it stands for.

    `known` (value: time of its last use in ms, weight) is in effect since an earlier epoch, and the room left at the
    epoch's start is dealt out by lane: `fresh` are the values admitted since, `spent` their weights.
    """

    known: dict[str | bytes, tuple[int, int]] = field(default_factory=dict)
    taken: int = 0
    used: set[str | bytes] = field(default_factory=set)
    fresh: dict[int, dict[str | bytes, int]] = field(default_factory=dict)
    spent: Counter[int] = field(default_factory=Counter)

    def admits(self, value: str | bytes, limit: int | None, lane: "Lane", weight: int = 1) -> bool:
        """Whether the value is admitted, now or before; always without a limit.

        Once refused it stays so until the epoch's end.
        """
        if value in self.known:
            self.used.add(value)
            return True
        fresh = self.fresh.setdefault(lane.number, {})
        if value in fresh:
            return True
        if limit is not None and self.spent[lane.number] + weight > lane.share(limit - self.taken):
            return False
        fresh[value] = weight
        self.spent[lane.number] += weight
        return True

    @property
    def active(self) -> int:
        """The weight of all that is admitted."""
        fresh: dict[str | bytes, int] = {}
        for of_lane in self.fresh.values():
            fresh |= of_lane
        return self.taken + sum(fresh.values())

    def end_epoch(self, clock_ms: int) -> None:
        """Take up what is new, forget what was not used for an hour."""
        for value in self.used:
            self.known[value] = (clock_ms, self.known[value][1])
        for fresh in self.fresh.values():
            for value, weight in fresh.items():
                self.known[value] = (clock_ms, weight)
        self.known = {value: kept for value, kept in self.known.items() if clock_ms - kept[0] <= HOUR_MS}
        self.taken = sum(weight for _, weight in self.known.values())
        self.used, self.fresh, self.spent = set(), {}, Counter()

    def shrink(self, limit: int) -> None:
        """Keep what was used last, where the limit is lower than it was."""
        for value in sorted(self.known, key=lambda value: (self.known[value][0], str(value))):
            if self.taken <= limit:
                break
            self.taken -= self.known.pop(value)[1]


@dataclass(frozen=True, slots=True)
class Lane:
    """The allowance of one of `known` partitions; number -1 is that of all partitions not met before."""

    number: int
    known: int
    epoch: int

    def share(self, room: int) -> int:
        """The part of `room` that is dealt to this lane; what cannot be divided goes round from epoch to epoch."""
        room = max(room, 0)
        for_new = room // _NEW_SHARE if self.known else room
        if self.number < 0:
            return for_new
        each, rest = divmod(room - for_new, self.known)
        return each + ((self.number - self.epoch) % self.known < rest)


@dataclass(slots=True)
class Memory:
    """All of the state; in the snapshot. `tenants`: budgets by label, the label sets as `streams`."""

    epoch: int = 0
    clock_ms: int = 0
    partitions: dict[Partition, int] = field(default_factory=dict)
    met: set[Partition] = field(default_factory=set)
    admitted: Budget = field(default_factory=Budget)
    tenants: dict[str, dict[str, Budget]] = field(default_factory=dict)
    over: Counter[tuple[str, str]] = field(default_factory=Counter)
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)


class Budgets:
    """The budgets of one shard, which has its share of each limit."""

    def __init__(self, config: LabelsConfig, cluster: str = "", shards: int = 1, kinds: Kinds = BUILT_IN) -> None:
        self._cluster = cluster
        limits: dict[str, int] = config.model_dump()
        self._tenants = limits.pop("tenants")
        self._priority = bool(limits.pop("priority"))
        self._limits = {name: limit and max(limit // shards, 1) for name, limit in limits.items()}
        self._limits["job"] = config.job  # a closed list, the same in every shard
        streams = self._limits["streams"]
        self._with_priority, self._complete = streams // 2, streams * 3 // 4
        self._reduced = streams - min(len(set(kinds.jobs.values())), streams // 8)
        self._memory = Memory()
        self._start_epoch()

    def state(self) -> Memory:
        return self._memory

    def restore(self, state: Memory) -> None:
        """Continue with a state; where limits are lower now, they hold at once."""
        self._memory = state
        for budgets in state.tenants.values():
            for name, budget in budgets.items():
                budget.shrink(self._limits[name])
        state.admitted.shrink(self._tenants)
        self._start_epoch()

    def tell_time(self, newest_ms: int, now_ms: int) -> None:
        """The newest message of a chunk, and the source's clock when it was read."""
        self._memory.clock_ms = max(self._memory.clock_ms, min(newest_ms, now_ms + _AHEAD_MS))

    def decide(self, place: Partition, envelope: Sequence[str], priority: bool) -> Labelled:
        """What the records of a message show.

        `envelope`: values of LABELS and the tenant; messages of a partition come in their order. `priority`:
        the kind has levels as label.
        """
        known = self._decided.get((place, envelope, priority))
        if known is None:
            if len(self._decided) >= _DECISIONS:
                self._decided.clear()
            known = self._decide(place, envelope, priority)
            self._decided[place, envelope, priority] = known
        return known

    def count(self, labelled: Labelled, records: int) -> None:
        """Count records whose labels found no room."""
        over = self._memory.over
        for label in labelled.over:
            key = (label, labelled.owner)
            over[key if key in over or len(over) < _EPOCH_OWNERS else (label, OTHERS)] += records

    def end_epoch(self) -> Counter[tuple[str, str]]:
        """Take up and forget values; returns the epoch's overflow: records by (label, owner)."""
        memory, now = self._memory, self._memory.clock_ms
        memory.epoch += 1
        memory.partitions |= dict.fromkeys(memory.met, now)
        memory.partitions = {place: last for place, last in memory.partitions.items() if now - last <= HOUR_MS}
        memory.met = set()
        memory.admitted.end_epoch(now)
        memory.tenants = {
            name: budgets
            for name, budgets in memory.tenants.items()
            if name in ("", OTHERS) or name in memory.admitted.known
        }
        for budgets in memory.tenants.values():
            for budget in budgets.values():
                budget.end_epoch(now)
        over, memory.over = memory.over, Counter()
        _add(memory.totals, over)
        self._start_epoch()
        return over

    @property
    def overflow(self) -> Counter[tuple[str, str]]:
        """Records so far by (label, owner), up to the last epoch's end; at most 100 owners of a label are named."""
        return self._memory.totals

    @property
    def active(self) -> dict[str, int]:
        """Streams in use by tenant, those a label set with priority may have included."""
        return {tenant: budgets["streams"].active for tenant, budgets in self._memory.tenants.items()}

    def _start_epoch(self) -> None:
        memory = self._memory
        known = sorted(memory.partitions)
        self._lanes = {place: Lane(number, len(known), memory.epoch) for number, place in enumerate(known)}
        self._newcomers = Lane(-1, len(known), memory.epoch)
        self._decided: dict[tuple[Partition, Sequence[str], bool], Labelled] = {}

    def _decide(self, place: Partition, envelope: Sequence[str], priority: bool) -> Labelled:
        memory = self._memory
        memory.met.add(place)
        lane = self._lanes.get(place, self._newcomers)
        tenant = envelope[-1]
        if tenant and not memory.admitted.admits(tenant, self._tenants, lane):
            tenant = OTHERS
        budgets = memory.tenants.setdefault(tenant, {name: Budget() for name in self._limits})
        pairs = label_pairs(dict(zip(LABELS, envelope, strict=False)), self._cluster)
        named = dict(pairs)
        hidden = {name for name, _ in pairs if not self._limits[name]}
        over = {
            name
            for name, value in pairs
            if name not in hidden and not budgets[name].admits(value, self._limits[name], lane)
        }
        with_priority = priority and self._priority
        over |= self._reduce([pair for pair in pairs if pair[0] not in hidden | over], with_priority, budgets, lane)
        left_out = hidden | over
        return Labelled(
            tuple(pair for pair in pairs if pair[0] not in left_out),
            tuple(pair for pair in pairs if pair[0] in left_out),
            with_priority and "priority" not in over,
            tuple(sorted(over)),
            next((f"{name}={named[name]}" for name in ("namespace", "team", "job_id", "job") if name in named), OTHERS),
            place,
            envelope[-1],
        )

    def _reduce(
        self, shown: list[tuple[str, str]], with_priority: bool, budgets: dict[str, Budget], lane: Lane
    ) -> set[str]:
        """The labels to leave out, so that what remains is a stream that finds room."""
        streams = budgets["streams"]
        over: set[str] = set()
        if with_priority:
            if streams.admits(_digest(shown, True), self._with_priority, lane, STREAM_PARTS):
                return over
            over.add("priority")
        if streams.admits(_digest(shown), self._complete, lane):
            return over
        for step in _STEPS:
            if names := {name for name, _ in shown}.intersection(step):
                over |= names
                shown = [pair for pair in shown if pair[0] not in names]
                if streams.admits(_digest(shown), self._reduced, lane):
                    return over
        streams.admits(_digest(shown), None, lane)  # by source only: a closed list, for which room is kept
        return over


def _digest(labels: Sequence[tuple[str, str]], with_priority: bool = False) -> bytes:
    text = "\0".join([f"{name}\0{value}" for name, value in labels])
    return blake2b(f"{with_priority:d}{text}".encode(errors="surrogatepass"), digest_size=16).digest()


def _add(totals: Counter[tuple[str, str]], over: Counter[tuple[str, str]]) -> None:
    """Add an epoch's overflow; a new owner that is worse than the least of the named takes its place."""
    owners: dict[str, list[str]] = {}
    for label, owner in totals:
        owners.setdefault(label, []).append(owner)
    for (label, owner), records in over.most_common():
        named = owners.setdefault(label, [])
        if owner not in named and owner != OTHERS:
            if len(named) >= _OWNERS:
                least = min((name for name in named if name != OTHERS), key=lambda name: totals[label, name])
                if totals[label, least] >= records:
                    totals[label, OTHERS] += records
                    continue
                totals[label, OTHERS] += totals.pop((label, least))
                named.remove(least)
            named.append(owner)
        totals[label, owner] += records
