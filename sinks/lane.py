"""The way from a sink to its store: a bounded pool, retries, a barrier, and the list of what is missing.

A lane never stops the dataflow for good. What the store has not acknowledged when an epoch ends is
named in the gap list, which is part of the snapshot, and leaves it when the store acknowledges it.
While the store is down the queue stays bounded: the oldest tasks are given up to the gap list.

Records that own no line (alerts, summaries of noise) stand in no gap: of those a store misses what was given up.
The archive has them all, and alerts are in their topic as well.
"""

import heapq
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, Protocol

from sinks.base import Account, Gap, Partition
from sinks.errors import RetryLater

_LOG = logging.getLogger("tailrace.lane")
_LOG_EVERY_S = 60.0
MAX_GAPS = 100  # ranges per partition; beyond it the nearest ones are joined, so that a refill reads more than it must


class Result(NamedTuple):
    """What became of a task: lines by fate (delivered, dead) and partition, and the tasks that take over the rest."""

    fates: Mapping[str, Mapping[Partition, int]]
    more: "Sequence[Task]" = ()


class Task(Protocol):
    """A request to a store. `size` is the memory it holds, in bytes; `claim` names the lines it answers for."""

    @property
    def size(self) -> int: ...
    @property
    def claim(self) -> Sequence[Gap]: ...

    def run(self) -> Result:
        """Called in a thread of the pool. Raises RetryLater to be run again, with the same content."""
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before attempt n+1: `base_s` doubled per attempt up to `max_s`, then a random half to whole of it."""

    base_s: float = 0.25
    max_s: float = 30.0

    def delay(self, attempt: int, after_s: float | None = None) -> float:
        """Seconds to wait after failed attempt `attempt` (from 0); `after_s` is the store's own wish."""
        limit = max(min(self.max_s, self.base_s * 2.0 ** min(attempt, 30)), after_s or 0.0)
        return limit * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing


def merge(gaps: Iterable[Gap], at_most: int = MAX_GAPS) -> tuple[Gap, ...]:
    """Gaps in order, those that overlap or touch joined; at most `at_most` per partition, lines summed."""
    partitions: dict[Partition, list[Gap]] = {}
    for gap in sorted(gaps):
        known = partitions.setdefault((gap.topic, gap.partition), [])
        if known and gap.first <= known[-1].last + 1:
            known[-1] = _join(known[-1], gap)
        else:
            known.append(gap)
    return tuple(gap for known in partitions.values() for gap in _thin(known, at_most))


def _join(left: Gap, right: Gap) -> Gap:
    return left._replace(last=max(left.last, right.last), lines=left.lines + right.lines)


def _thin(gaps: list[Gap], at_most: int) -> list[Gap]:
    if len(gaps) <= at_most:
        return gaps
    widest = sorted(range(1, len(gaps)), key=lambda i: gaps[i].first - gaps[i - 1].last)[len(gaps) - at_most :]
    kept = set(widest)
    thin = gaps[:1]
    for i, gap in enumerate(gaps[1:], 1):
        if i in kept:
            thin.append(gap)
        else:
            thin[-1] = _join(thin[-1], gap)
    return thin


@dataclass(order=True, slots=True)
class _Ticket:
    due: float  # monotonic seconds
    seq: int
    task: Task = field(compare=False)
    attempts: int = field(default=0, compare=False)


class Lane:
    """Runs tasks in `threads` threads and holds at most `max_bytes` for its one feeder.

    `account` is called in `checkpoint` only, so its sums and the returned gap list belong to the same
    epoch: lines submitted = delivered + dead + gapped, at every checkpoint. `gaps` is the list of an
    earlier run; its lines were reported as gapped then. `outage_s` without a delivery, while tasks
    wait, is an outage.
    """

    def __init__(
        self,
        name: str,
        account: Account,
        *,
        threads: int,
        max_bytes: int,
        outage_s: float = 5.0,
        backoff: Backoff | None = None,
        gaps: Iterable[Gap] = (),
    ) -> None:
        self._name = name
        self._account = account
        self._max_bytes = max_bytes
        self._outage_s = outage_s
        self._backoff = backoff or Backoff()
        self._lost = merge(gaps)  # given up, by this run or an earlier one
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []  # heap by (due, seq)
        self._running: dict[int, _Ticket] = {}
        self._held = 0
        self._seq = 0
        self._fates: dict[str, Counter[Partition]] = {}  # since the last checkpoint
        self._pending: Counter[Partition] = Counter()  # reported as gapped although still on its way
        self._delivered_at = monotonic()
        self._log_at = 0.0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(max(1, threads))
        ]
        for thread in self._threads:
            thread.start()

    def fits(self, size: int) -> bool:
        """Whether `hold(size)` would return at once."""
        with self._changed:
            return not self._held or self._held + size <= self._max_bytes

    def hold(self, size: int) -> None:
        """Count `size` more bytes as held, and wait until there is room for them.

        What is too large for the bound waits for an empty lane. The feeder first submits what it holds
        itself, since only tasks make room. In an outage the oldest tasks are given up instead of waiting.
        """
        with self._changed:
            while self._held and self._held + size > self._max_bytes and not self._closed:
                left = self._delivered_at + self._outage_s - monotonic()
                if left > 0:
                    self._changed.wait(left)
                elif self._waiting:
                    oldest = min(self._waiting, key=lambda ticket: ticket.seq)
                    self._waiting.remove(oldest)
                    heapq.heapify(self._waiting)
                    self._give_up(oldest.task)
                else:  # all in flight: their timeouts bound this
                    self._changed.wait(1.0)
            self._held += size

    def submit(self, task: Task) -> None:
        """Hand over a task whose size is held already. Never blocks."""
        with self._changed:
            if not self._waiting and not self._running:
                self._delivered_at = monotonic()  # an idle lane has no outage
            self._enqueue(task, 0.0, 0)
            self._changed.notify()

    def checkpoint(
        self, barrier_s: float, hand_over: Callable[[tuple[Gap, ...]], None] | None = None
    ) -> tuple[Gap, ...]:
        """Wait up to `barrier_s` for all submitted tasks, report to the account, return the gap list.

        In an outage it does not wait. `hand_over` takes what was given up: then the list has only what is on its way.
        """
        deadline = monotonic() + barrier_s
        with self._changed:
            while self._waiting or self._running:
                left = min(deadline, self._delivered_at + self._outage_s) - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            claims = [
                gap for ticket in (*self._waiting, *self._running.values()) for gap in ticket.task.claim if gap.lines
            ]
            fates, self._fates = self._fates, {}
            pending = _lines(claims)
            gapped = fates.setdefault("gapped", Counter())
            gapped.update(pending)
            gapped.subtract(self._pending)
            self._pending = pending
            lost = self._lost
            if hand_over:
                self._lost = ()
        if hand_over and lost:
            hand_over(lost)
        gaps = merge(claims if hand_over else (*lost, *claims))
        for fate, lines in fates.items():
            if changed := {partition: count for partition, count in lines.items() if count}:
                self._account(fate, changed)
        return gaps

    def close(self) -> None:
        """Stop the pool. Sends nothing: tasks not acknowledged are in the gap list of the last checkpoint."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)  # one that is inside a request ends with the process

    def _enqueue(self, task: Task, delay: float, attempts: int) -> None:
        self._seq += 1
        heapq.heappush(self._waiting, _Ticket(monotonic() + delay, self._seq, task, attempts))

    def _work(self) -> None:
        while ticket := self._next():
            try:
                result = ticket.task.run()
            except RetryLater as error:
                self._again(ticket, error)
            except Exception as error:  # noqa: BLE001 - a fault in a task must cost neither the thread nor its lines
                self._fail(ticket, error)
            else:
                self._settle(ticket, result)

    def _next(self) -> _Ticket | None:
        with self._changed:
            while not self._closed:
                left = self._waiting[0].due - monotonic() if self._waiting else None
                if left is not None and left <= 0:
                    ticket = heapq.heappop(self._waiting)
                    self._running[ticket.seq] = ticket
                    return ticket
                self._changed.wait(left)
            return None

    def _settle(self, ticket: _Ticket, result: Result) -> None:
        with self._changed:
            del self._running[ticket.seq]
            self._held += sum(task.size for task in result.more) - ticket.task.size
            for task in result.more:
                self._enqueue(task, 0.0, ticket.attempts)
            for fate, lines in result.fates.items():
                self._fates.setdefault(fate, Counter()).update(lines)
            if "delivered" in result.fates:
                self._delivered_at = monotonic()
            self._changed.notify_all()

    def _again(self, ticket: _Ticket, error: RetryLater) -> None:
        with self._changed:
            del self._running[ticket.seq]
            ticket.due = monotonic() + self._backoff.delay(ticket.attempts, error.after_s)
            ticket.attempts += 1
            heapq.heappush(self._waiting, ticket)
            self._changed.notify_all()
            now = monotonic()
            quiet, waiting = now < self._log_at, len(self._waiting)
            if not quiet:
                self._log_at = now + _LOG_EVERY_S
        if not quiet:
            _LOG.warning("%s: will try again, %d requests wait: %s", self._name, waiting, error)

    def _fail(self, ticket: _Ticket, error: Exception) -> None:
        with self._changed:
            del self._running[ticket.seq]
            self._give_up(ticket.task)
            self._changed.notify_all()
        _LOG.error("%s: a request failed for good and went to the gap list: %r", self._name, error, exc_info=error)

    def _give_up(self, task: Task) -> None:
        claims = [gap for gap in task.claim if gap.lines]
        self._lost = merge((*self._lost, *claims))
        self._fates.setdefault("gapped", Counter()).update(_lines(claims))
        self._held -= task.size


def _lines(gaps: Iterable[Gap]) -> Counter[Partition]:
    lines: Counter[Partition] = Counter()
    for gap in gaps:
        lines[gap.topic, gap.partition] += gap.lines
    return lines
