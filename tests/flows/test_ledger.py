"""The second half of the ledger: a sink answers for every line it is offered, once, over all restarts."""

import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from hypothesis import given
from hypothesis import strategies as st

from flows.ledger import Account, Accounted, Accounts
from flows.pipeline import Pipeline, by_partition
from flows.steps.decode import DecodeConfig
from sinks.base import Delivery, Partition
from sinks.sharded import ShardedSink
from tests.chunks import block_headers, chunk
from tests.flows.tier import Tier, assert_balanced

PLACE: Partition = ("logs.job", 0)
Answer = Callable[[Account, dict[Partition, int]], None]


class Sink(ShardedSink[int]):
    """Answers for the lines of its rows as the test says; its state is how often it was asked for one."""

    def __init__(self, account: Account, answer: Answer, takes_noise: bool) -> None:
        super().__init__(["0000"])
        self.account, self.answer, self.takes_noise = account, answer, takes_noise

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> "SinkPart":
        return SinkPart(self, resume_state or 0)


class SinkPart(StatefulSinkPartition[Delivery, int]):
    def __init__(self, sink: Sink, snapshots: int) -> None:
        self._sink, self._snapshots = sink, snapshots

    def write_batch(self, values: list[Delivery]) -> None:
        for part in (part for delivery in values for part in delivery.parts):
            for rows in (part.rows, part.noise) if self._sink.takes_noise else (part.rows,):
                if lines := by_partition(rows, "owned"):
                    self._sink.answer(self._sink.account, dict(lines))

    def snapshot(self) -> int:
        self._snapshots += 1
        return self._snapshots


def delivered(account: Account, lines: dict[Partition, int]) -> None:
    account("delivered", lines)


def lost(account: Account, lines: dict[Partition, int]) -> None:
    account("delivered", {place: count - 1 for place, count in lines.items()})


def repeated(account: Account, lines: dict[Partition, int]) -> None:
    account("delivered", lines)
    account("dead", dict.fromkeys(lines, 1))


def gapped_then_closed(account: Account, lines: dict[Partition, int]) -> None:
    account("gapped", lines)
    account("gapped", {place: -count for place, count in lines.items()})
    account("delivered", lines)


def wrong_place(account: Account, lines: dict[Partition, int]) -> None:
    account("delivered", {("logs.job", 7): sum(lines.values())})


class Desk:
    """One accounted sink; `restart` goes on from its pickled snapshot, as after a kill."""

    def __init__(self, answer: Answer = delivered, takes_noise: bool = True) -> None:
        self._answer, self._takes_noise = answer, takes_noise
        self.differences: list[tuple[str, str, dict[Partition, int]]] = []
        self.start(None)

    def start(self, state: Any) -> None:
        self.accounts = Accounts()

        def make(account: Account) -> FixedPartitionedSink[Delivery, Any]:
            return Sink(account, self._answer, self._takes_noise)

        def differs(sink: str, shard: str, lines: dict[Partition, int]) -> None:
            self.differences.append((sink, shard, lines))

        sink = Accounted("store", ["0000"], make, self.accounts, self._takes_noise, differs)
        self.part = sink.build_part("step", "0000", state)

    def restart(self, state: bytes) -> None:
        self.start(pickle.loads(state))

    def epoch(self, *deliveries: Delivery) -> bytes:
        for delivery in deliveries:
            self.part.write_batch([delivery])
        return pickle.dumps(self.part.snapshot())

    @property
    def totals(self) -> dict[str, int]:
        return {fate: lines for fate, lines in self.accounts.totals()["store"].items() if lines}


NOISE = b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"


@cache
def delivery(lines: int, noise: int = 0) -> Delivery:
    """So many kept lines, and so many of noise."""
    found, counts = Pipeline(DecodeConfig()).process(
        chunk([(block_headers("training"), [b"step 41 loss 2.13"] * lines + [NOISE] * noise)], ended=True)
    )
    assert counts.kept.total() == lines
    assert sum(rule.total() for rule in counts.dropped.values()) == noise
    return found


@pytest.mark.parametrize(
    ("answer", "difference"),
    [
        (delivered, {}),
        (gapped_then_closed, {}),
        (lost, {PLACE: 1}),
        (repeated, {PLACE: -1}),
        (wrong_place, {PLACE: 3, ("logs.job", 7): -3}),
        (lambda account, lines: None, {PLACE: 3}),
    ],
)
def test_a_sink_that_loses_or_repeats_lines_is_noticed_at_the_end_of_the_epoch(
    answer: Answer, difference: dict[Partition, int]
) -> None:
    desk = Desk(answer)
    desk.epoch(delivery(3))
    assert desk.differences == ([("store", "0000", difference)] if difference else [])
    assert desk.accounts.totals()["store"]["difference"] == sum(map(abs, difference.values()))


@pytest.mark.parametrize(
    ("takes_noise", "totals"),
    [(True, {"offered": 7, "delivered": 7}), (False, {"offered": 7, "delivered": 3, "dropped": 4})],
)
def test_noise_is_dropped_or_stored_and_accounted_for_either_way(takes_noise: bool, totals: dict[str, int]) -> None:
    desk = Desk(takes_noise=takes_noise)
    desk.epoch(delivery(3, noise=4))
    assert desk.totals == totals
    assert not desk.differences


def test_an_epoch_that_is_redone_counts_once() -> None:
    desk = Desk()
    committed = desk.epoch(delivery(3))
    desk.epoch(delivery(5))  # killed before its commit
    desk.restart(committed)
    desk.epoch(delivery(5))
    assert desk.totals == {"offered": 8, "delivered": 8}
    assert desk.accounts.before() == {"store": {"offered": 3, "delivered": 3, "dead": 0, "gapped": 0}}


def test_a_loss_of_before_a_restart_is_not_forgotten() -> None:
    desk = Desk(lost)
    desk.restart(desk.epoch(delivery(3)))
    desk._answer = delivered
    desk.epoch(delivery(1))
    assert desk.accounts.totals()["store"]["difference"] >= 1


epochs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=12)


@given(epochs)
def test_totals_hold_over_any_restarts(script: list[tuple[int, int, bool]]) -> None:
    desk, committed, lines = Desk(gapped_then_closed, takes_noise=False), None, Counter[str]()
    for kept, noise, killed in script:
        state = desk.epoch(delivery(kept, noise))
        if killed:
            desk.start(pickle.loads(committed) if committed else None)
        else:
            committed = state
            lines.update(delivered=kept, dropped=noise, offered=kept + noise)
    assert desk.totals == +lines
    assert not desk.differences


def test_reports_of_many_threads_add_up() -> None:
    account = Account()

    def report() -> None:
        for _ in range(2_000):
            account.offer(Counter({PLACE: 2}))
            account("delivered", {PLACE: 1})
            account("dead", {PLACE: 1})

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not account.difference()
    assert account.state()["offered"] == {PLACE: 16_000}


def test_a_snapshot_never_changes_after_it_was_taken() -> None:
    desk = Desk()
    desk.part.write_batch([delivery(3)])
    state = desk.part.snapshot()
    before = json.dumps(repr(state))
    desk.epoch(delivery(5))
    assert json.dumps(repr(state)) == before


def test_an_error_while_a_sink_is_closed_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.part._inner.close = lambda: (tmp for tmp in ()).throw(OSError("disk gone"))  # type: ignore[attr-defined]
    desk.part.close()
    assert "disk gone" in caplog.text


def test_a_finished_run_balances_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"step 41\n\n" + NOISE + b"\n\xff\0\nTraceback (most recent call last):\n  File")
    storage = {"url": "archive"}
    config = {
        "source": {"files": {"paths": ["a.log"], "kind": "training"}},
        "sinks": {"parquet": {"storage": storage}, "console": {}},
        "dead_letter": {"storage": storage},
    }
    with Tier(tmp_path, config).start() as tier:
        assert tier.wait() == 0, tier.tail()
    assert_balanced(tier.ledger)
    assert tier.ledger["read"] == 6
    assert tier.ledger["dropped"] == {"N02": 1, "empty": 1}
    assert tier.ledger["sinks"]["parquet"] == {"offered": 5, "delivered": 5, "dead": 0, "gapped": 0, "difference": 0}
    assert tier.ledger["sinks"]["console"]["delivered"] == 4
    assert tier.ledger["sinks"]["console"]["dropped"] == 1
