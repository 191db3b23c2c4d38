"""A lane delivers, retries, never blocks for good, and accounts for every line at every checkpoint."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.base import Partition
from sinks.errors import RetryLater
from sinks.lane import Backoff, Gap, Lane, Result, Task, merge

PARTITION = ("logs.job", 0)
SWIFT = Backoff(base_s=0.001, max_s=0.01)
WAIT = 30.0  # what a test may wait for a thread; it never does unless it is about to fail


class Books:
    """An account that remembers each report."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[Partition, int]]] = []

    def __call__(self, fate: str, lines: dict[Partition, int], rule: str = "") -> None:
        self.reports.append((fate, lines))

    @property
    def totals(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for fate, lines in self.reports:
            totals[fate] += sum(lines.values())
        return {fate: count for fate, count in totals.items() if count}


@dataclass
class Push:
    """A task of one offset and `lines` lines; `steps` are called one per attempt, the last says how it ends."""

    offset: int
    steps: list[Callable[["Push"], Result]]
    lines: int = 1
    size: int = 10
    attempts: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def claim(self) -> Sequence[Gap]:
        return [Gap(*PARTITION, self.offset, self.offset, self.lines)]

    def run(self) -> Result:
        step = self.steps[min(self.attempts, len(self.steps) - 1)]
        self.attempts += 1
        result = step(self)
        self.done.set()
        return result


def delivered(push: Push) -> Result:
    return Result({"delivered": {PARTITION: push.lines}})


def dead(push: Push) -> Result:
    return Result({"dead": {PARTITION: push.lines}})


def refused(push: Push) -> Result:
    raise RetryLater("down")


def broken(push: Push) -> Result:
    raise ZeroDivisionError


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def lane(books: Books) -> Iterator[Callable[..., Lane]]:
    lanes: list[Lane] = []

    def make(**settings: object) -> Lane:
        lanes.append(Lane("test", books, **{"threads": 2, "max_bytes": 1000, "backoff": SWIFT, **settings}))  # type: ignore[arg-type]
        return lanes[-1]

    yield make
    for one in lanes:
        one.close()


def put(lane: Lane, *tasks: Task) -> None:
    for task in tasks:
        lane.hold(task.size)
        lane.submit(task)


def test_what_is_delivered_is_reported_once_at_the_checkpoint(lane: Callable[..., Lane], books: Books) -> None:
    one = lane()
    task = Push(1, [delivered], lines=3)
    put(one, task)
    assert task.done.wait(WAIT)
    assert books.reports == []
    assert one.checkpoint(WAIT) == ()
    assert one.checkpoint(WAIT) == ()
    assert books.reports == [("delivered", {PARTITION: 3})]


def test_a_failed_request_is_tried_again_until_it_passes(lane: Callable[..., Lane], books: Books) -> None:
    one = lane()
    task = Push(1, [refused, refused, refused, delivered])
    put(one, task)
    assert one.checkpoint(WAIT) == ()
    assert task.attempts == 4
    assert books.totals == {"delivered": 1}


def test_the_barrier_ends_and_what_is_late_is_a_gap_until_it_is_acknowledged(
    lane: Callable[..., Lane], books: Books
) -> None:
    gate = threading.Event()

    def slow(push: Push) -> Result:
        gate.wait(WAIT)
        return delivered(push)

    one = lane()
    put(one, Push(5, [slow], lines=4), Push(6, [delivered]))
    assert one.checkpoint(0.05) == (Gap(*PARTITION, 5, 5, 4),)
    assert one.checkpoint(0.05) == (Gap(*PARTITION, 5, 5, 4),)
    assert books.totals == {"delivered": 1, "gapped": 4}
    gate.set()
    assert one.checkpoint(WAIT) == ()
    assert books.totals == {"delivered": 5}


def test_a_full_lane_blocks_its_feeder_until_there_is_room(lane: Callable[..., Lane]) -> None:
    gate = threading.Event()

    def slow(push: Push) -> Result:
        gate.wait(WAIT)
        return delivered(push)

    one = lane(max_bytes=20, outage_s=WAIT)
    put(one, Push(1, [slow]), Push(2, [slow]))
    assert not one.fits(1)
    feeder = threading.Thread(target=put, args=(one, Push(3, [delivered])))
    feeder.start()
    feeder.join(0.1)
    assert feeder.is_alive()
    gate.set()
    feeder.join(WAIT)
    assert not feeder.is_alive()
    assert one.checkpoint(WAIT) == ()


def test_what_is_larger_than_the_bound_passes_through_an_empty_lane(lane: Callable[..., Lane], books: Books) -> None:
    one = lane(max_bytes=20)
    put(one, Push(1, [delivered], size=50), Push(2, [delivered], size=50))
    assert one.checkpoint(WAIT) == ()
    assert books.totals == {"delivered": 2}


def test_in_an_outage_the_oldest_are_given_up_and_the_newest_wait(lane: Callable[..., Lane], books: Books) -> None:
    up = threading.Event()

    def when_up(push: Push) -> Result:
        return delivered(push) if up.is_set() else refused(push)

    one = lane(max_bytes=50, outage_s=0.05)
    tasks = [Push(offset, [when_up]) for offset in range(101)]
    put(one, *tasks[:100])
    assert one.checkpoint(WAIT) == (Gap(*PARTITION, 0, 99, 100),)  # does not wait: it is an outage
    assert books.totals == {"gapped": 100}
    up.set()
    put(one, tasks[100])
    for _ in range(3_000):
        if one.fits(50):  # empty
            break
        sleep(0.01)
    assert tasks[99].done.is_set()
    assert tasks[100].done.is_set()
    gaps = one.checkpoint(WAIT)
    passed = sum(task.done.is_set() for task in tasks)
    assert 2 <= passed <= 5
    assert gaps == (Gap(*PARTITION, 0, gaps[0].last, 101 - passed),)
    assert books.totals == {"gapped": 101 - passed, "delivered": passed}


def test_a_request_may_go_on_as_several(lane: Callable[..., Lane], books: Books) -> None:
    def split(push: Push) -> Result:
        return Result({"delivered": {PARTITION: 1}}, [Push(1, [refused, delivered], size=4), Push(2, [dead], size=4)])

    one = lane(max_bytes=10)
    put(one, Push(1, [split], lines=3))
    assert one.checkpoint(WAIT) == ()
    assert books.totals == {"delivered": 2, "dead": 1}
    assert one.fits(10)


def test_a_fault_in_a_task_costs_neither_the_thread_nor_its_lines(
    lane: Callable[..., Lane], books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    one = lane(threads=1)
    put(one, Push(1, [broken], lines=2), Push(2, [delivered]))
    assert one.checkpoint(WAIT) == (Gap(*PARTITION, 1, 1, 2),)
    assert books.totals == {"delivered": 1, "gapped": 2}
    assert "ZeroDivisionError" in caplog.text


def test_an_outage_is_one_line_in_the_log(lane: Callable[..., Lane], caplog: pytest.LogCaptureFixture) -> None:
    one = lane()
    with caplog.at_level(logging.WARNING):
        put(one, *(Push(offset, [refused] * 5 + [delivered]) for offset in range(20)))
        assert one.checkpoint(WAIT) == ()
    assert [record.getMessage() for record in caplog.records].count(caplog.records[0].getMessage()) == 1
    assert len(caplog.records) == 1
    assert "down" in caplog.text


def test_gaps_of_an_earlier_run_stay_and_are_not_reported_again(lane: Callable[..., Lane], books: Books) -> None:
    old = (Gap(*PARTITION, 1, 9, 20), Gap("logs.kernel", 3, 5, 5, 1))
    one = lane(gaps=old)
    put(one, Push(10, [broken]))
    assert one.checkpoint(WAIT) == (Gap(*PARTITION, 1, 10, 21), Gap("logs.kernel", 3, 5, 5, 1))
    assert books.totals == {"gapped": 1}


def test_closing_sends_nothing(lane: Callable[..., Lane]) -> None:
    gate = threading.Event()
    one = lane(threads=1)
    first, second = Push(1, [lambda push: (gate.wait(WAIT), delivered(push))[1]]), Push(2, [delivered])
    put(one, first, second)
    closing = threading.Thread(target=one.close)
    closing.start()
    closing.join(0.05)
    gate.set()
    closing.join(WAIT)
    assert second.attempts == 0


@given(st.integers(0, 10_000), st.floats(0.001, 10), st.floats(0.001, 100), st.none() | st.floats(0, 100))
def test_the_delay_doubles_up_to_its_limit_and_is_spread(
    attempt: int, base: float, limit: float, wish: float | None
) -> None:
    whole = max(min(limit, base * 2.0 ** min(attempt, 30)), wish or 0)
    assert whole / 2 <= Backoff(base, limit).delay(attempt, wish) <= whole


GAPS = st.lists(
    st.builds(
        lambda topic, partition, first, length, lines: Gap(topic, partition, first, first + length, lines),
        st.sampled_from("ab"),
        st.integers(0, 1),
        st.integers(0, 300),
        st.integers(0, 20),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(GAPS, st.integers(1, 5))
def test_merged_gaps_cover_the_same_offsets_without_overlap_and_are_few(gaps: list[Gap], at_most: int) -> None:
    def covered(some: Sequence[Gap]) -> set[tuple[str, int, int]]:
        return {(gap.topic, gap.partition, offset) for gap in some for offset in range(gap.first, gap.last + 1)}

    exact, few = merge(gaps), merge(gaps, at_most)
    assert covered(exact) == covered(gaps)
    assert covered(few) >= covered(gaps)
    for merged in (exact, few):
        assert sum(gap.lines for gap in merged) == sum(gap.lines for gap in gaps)
        for left, right in pairwise(merged):
            assert left[:2] != right[:2] or left.last + 1 < right.first
    assert max(Counter(gap[:2] for gap in few).values(), default=0) <= at_most
    assert merge(few, at_most) == few


def test_the_widest_holes_between_gaps_are_kept() -> None:
    gaps = [Gap("t", 0, first, first, 1) for first in (0, 3, 50, 52, 54)]
    assert merge(gaps, 2) == (Gap("t", 0, 0, 3, 2), Gap("t", 0, 50, 54, 3))


ENDS = st.sampled_from([delivered, dead, broken])


@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), ENDS, st.integers(0, 5))), max_size=40))
def test_every_line_is_accounted_for_at_every_checkpoint(
    script: list[tuple[int, Callable[[Push], Result], int] | None],
) -> None:
    books = Books()
    lane = Lane("test", books, threads=3, max_bytes=100, backoff=SWIFT, outage_s=0.01)
    try:
        offered = 0
        for offset, step in enumerate(script):
            if step is None:
                gaps = lane.checkpoint(0.001)
                assert sum(books.totals.values()) == offered
                assert books.totals.get("gapped", 0) == sum(gap.lines for gap in gaps)
            else:
                failures, end, lines = step
                put(lane, Push(offset, [refused] * failures + [end], lines=lines))
                offered += lines
        lane.checkpoint(1.0)
        assert sum(books.totals.values()) == offered
    finally:
        lane.close()
