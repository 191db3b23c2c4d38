"""The conservation ledger: every physical line that was read is accounted for, by partition and sink.

    read + held before = delivered + dropped + dead + gapped + held after

The first half (read to kept, dropped, dead, held) is checked by the pipeline for every chunk. The second
half is here: whatever a sink is offered in an epoch must be delivered, dead or in its gap list when the
epoch ends. Totals are part of each sink's snapshot, so they hold over restarts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from flows.pipeline import by_partition, by_rule
from sinks.base import Delivery, Partition
from sinks.sharded import ShardedSink

FATES = ("delivered", "dead", "gapped")


@dataclass(slots=True)
class Account:
    """What one sink of one shard did with the lines it was offered. Thread-safe; see sinks.base.Account."""

    offered: Counter[Partition] = field(default_factory=Counter)
    fates: dict[str, Counter[Partition]] = field(default_factory=lambda: {fate: Counter() for fate in FATES})
    dropped: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def __call__(self, fate: str, lines: dict[Partition, int], rule: str = "") -> None:
        with self.lock:
            if fate == "dropped":
                self.dropped[rule] += sum(lines.values())
            self.fates.setdefault(fate, Counter()).update(lines)

    def offer(self, lines: Counter[Partition]) -> None:
        with self.lock:
            self.offered.update(lines)

    def state(self) -> dict[str, Any]:
        """An immutable copy for the snapshot."""
        with self.lock:
            return {
                "offered": dict(self.offered),
                "fates": {fate: dict(lines) for fate, lines in self.fates.items()},
                "dropped": dict(self.dropped),
            }

    def restore(self, state: dict[str, Any]) -> None:
        with self.lock:
            self.offered = Counter(state["offered"])
            self.fates = {fate: Counter(lines) for fate, lines in state["fates"].items()}
            self.dropped = Counter(state["dropped"])

    def difference(self) -> dict[Partition, int]:
        """Lines offered that are neither delivered, dead, dropped nor gapped (negative: answered for twice)."""
        with self.lock:
            balance = Counter(self.offered)
            for lines in self.fates.values():
                balance.subtract(lines)
            return {place: lines for place, lines in balance.items() if lines}


class Accounts:
    """The accounts of all sinks and shards of a process."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Account] = {}

    def of(self, sink: str, shard: str) -> Account:
        return self._accounts.setdefault((sink, shard), Account())

    def totals(self) -> dict[str, dict[str, int]]:
        """Lines by sink and fate, with `offered` and `difference`."""
        totals: dict[str, Counter[str]] = {}
        for (sink, _), account in list(self._accounts.items()):
            state = account.state()
            total = totals.setdefault(sink, Counter())
            total["offered"] += sum(state["offered"].values())
            for fate, lines in state["fates"].items():
                total[fate] += sum(lines.values())
            total["difference"] += sum(abs(lines) for lines in account.difference().values())
        return {sink: dict(total) for sink, total in totals.items()}


class Accounted(ShardedSink[Any]):
    """A sink with its account in the same snapshot.

    `make` builds the sink of one shard around that shard's account. `takes_noise`: the sink stores
    dropped rows too. `on_difference(sink, shard, lines)` is called when an epoch ends unbalanced.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[str],
        make: Callable[[Account], FixedPartitionedSink[Delivery, Any]],
        accounts: Accounts,
        takes_noise: bool,
        on_difference: Callable[[str, str, dict[Partition, int]], None],
    ) -> None:
        super().__init__(shards)
        self._name, self._make, self._accounts = name, make, accounts
        self._takes_noise, self._on_difference = takes_noise, on_difference

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> StatefulSinkPartition[Delivery, Any]:
        account = self._accounts.of(self._name, for_part)
        inner_state = None
        if resume_state is not None:
            inner_state, totals = resume_state
            account.restore(totals)
        part = self._make(account).build_part(step_id, for_part, inner_state)

        def differs(lines: dict[Partition, int]) -> None:
            self._on_difference(self._name, for_part, lines)

        return _AccountedPart(part, account, self._takes_noise, differs)


class _AccountedPart(StatefulSinkPartition[Delivery, Any]):
    def __init__(
        self,
        inner: StatefulSinkPartition[Delivery, Any],
        account: Account,
        takes_noise: bool,
        on_difference: Callable[[dict[Partition, int]], None],
    ) -> None:
        self._inner, self._account = inner, account
        self._takes_noise, self._on_difference = takes_noise, on_difference

    def write_batch(self, values: list[Delivery]) -> None:
        for delivery in values:
            for part in delivery.parts:
                self._account.offer(by_partition(part.rows, "owned"))
                self._offer_noise(part.noise)
        self._inner.write_batch(values)

    def _offer_noise(self, noise: Any) -> None:
        lines = by_partition(noise, "owned")
        if not lines:
            return
        self._account.offer(lines)
        if not self._takes_noise:
            for rule, dropped in by_rule(noise).items():
                self._account("dropped", dropped, rule)

    def snapshot(self) -> Any:
        state = self._inner.snapshot()
        difference = self._account.difference()
        if difference:
            self._on_difference(difference)
        return state, self._account.state()

    def close(self) -> None:
        self._inner.close()
