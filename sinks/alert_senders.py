"""Tells every replica of Alertmanager about every alert: a thread per replica over one table of alerts.

What is to be told is a table, not a queue: only the latest state of an alert is of use, so memory is bounded by
the number of alerts, however long a replica is away. Facts about Alertmanager are from its api/v2/api.go and
types/types.go (0.25): an invalid alert is answered with 400 while the valid ones beside it are taken; endsAt
before startsAt is invalid; an alert is resolved once its endsAt has passed.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from sinks.base import DeadLetter, DeadLetterWriter
from sinks.errors import RetryLater
from sinks.http import Endpoint
from sinks.lane import Backoff

log = logging.getLogger("tailrace.alertmanager")

MAX_ALERTS = 50_000  # in the table; beyond it the oldest resolved one is forgotten, then the oldest
_AGAIN = frozenset({408, 425, 429})
_DENIED = frozenset({401, 403, 404, 405})  # the sender is refused, not the alert: a person must act
_NOW = 0.0
_CATCH_UP_S = 10.0  # what a restart may take until all that was known before it is known again

Pairs = tuple[tuple[str, str], ...]
Outcome = Callable[[str, str, int], None]  # replica's URL; sent, failed, rejected or forgotten; number of alerts


class Alert(NamedTuple):
    """An episode of an alert. Times in ms since the epoch; it fires while `ends_ms` is None.

    `fingerprint` goes with `labels`: both stay the same for all episodes. `replaces`: starts of episodes that
    this one puts right.
    """

    fingerprint: str
    starts_ms: int
    ends_ms: int | None
    labels: Pairs
    annotations: Pairs
    replaces: tuple[int, ...] = ()

    def supersedes(self, known: "Alert") -> bool:
        """Whether this is news about the same episode or a later one."""
        return self.starts_ms >= known.starts_ms or known.starts_ms in self.replaces


class Told(NamedTuple):
    """An alert in a snapshot. `told`: some replica has taken it as firing."""

    alert: Alert
    told: bool


class Pace(NamedTuple):
    """Seconds, and alerts per request; see AlertmanagerConfig."""

    resend_s: float
    lifetime_s: float
    repeat_resolved_s: float
    per_request: int


@dataclass(slots=True)
class _Entry:
    alert: Alert
    told: bool
    since: float  # monotonic time of the last change of state
    version: int = 0


@dataclass(slots=True)
class _Replica:
    url: str
    endpoint: Endpoint
    due: dict[str, float] = field(default_factory=dict)  # fingerprint -> monotonic time of its next sending
    attempts: int = 0
    retry_at: float = _NOW


class _Sending(NamedTuple):
    fingerprint: str
    version: int
    firing: bool
    body: dict[str, Any]


class Senders:
    """The table and its threads. `state` is what an earlier run was to tell; what it may not have told is told at once.

    What it has told to fire waits a moment: it may have ended, and been told so, after that state was taken. To
    tell it again before the evaluator has caught up would page once more for an incident that is over.
    An alert that ended before any replica took it is told as firing first, so that an incident during an
    outage of Alertmanager still pages. Rejected alerts become dead letters.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, Endpoint]],
        pace: Pace,
        backoff: Backoff,
        dead: DeadLetterWriter,
        outcome: Outcome,
        state: Sequence[Told] = (),
    ) -> None:
        self._pace, self._backoff, self._dead, self._outcome = pace, backoff, dead, outcome
        self._changed = threading.Condition()
        self._closed = False
        self._burials = ThreadPoolExecutor(1, thread_name_prefix="alert-burial")  # its store may be away
        now = time.monotonic()
        self._entries = {told.alert.fingerprint: _Entry(told.alert, told.told, now) for told in state}
        later = now + min(pace.resend_s, _CATCH_UP_S)
        due = {name: later if one.told and one.alert.ends_ms is None else _NOW for name, one in self._entries.items()}
        self._replicas = [_Replica(url, endpoint, dict(due)) for url, endpoint in endpoints]
        for replica in self._replicas:
            threading.Thread(target=self._work, args=(replica,), name=f"alerts-{replica.url}", daemon=True).start()

    def put(self, alert: Alert) -> None:
        """Take over an alert's state. News in text and count alone wait for the next sending of it."""
        with self._changed:
            entry = self._entries.get(alert.fingerprint)
            if entry is None:
                self._make_room()
                entry = self._entries[alert.fingerprint] = _Entry(alert, False, time.monotonic())
            elif not alert.supersedes(entry.alert):
                return
            else:
                known, entry.alert = entry.alert, alert
                if _state(known) == _state(alert):
                    return
                entry.told = entry.told and known.starts_ms == alert.starts_ms
                entry.since = time.monotonic()
                entry.version += 1
            for replica in self._replicas:
                replica.due[alert.fingerprint] = _NOW
            self._changed.notify_all()

    def settle(self, barrier_s: float) -> tuple[Told, ...]:
        """Wait until the replicas that answer know all, at most `barrier_s`; returns what a restart must tell."""
        with self._changed:
            self._changed.wait_for(lambda: not any(map(self._news, self._replicas)), barrier_s)
            return tuple(Told(entry.alert, entry.told) for entry in self._entries.values())

    def close(self) -> None:
        """Stop the threads. Sends nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._burials.shutdown(wait=False)

    def _news(self, replica: _Replica) -> bool:
        return not replica.attempts and _NOW in replica.due.values()

    def _make_room(self) -> None:
        while len(self._entries) >= MAX_ALERTS:
            oldest = next((name for name, one in self._entries.items() if one.alert.ends_ms), next(iter(self._entries)))
            self._forget(oldest)
            self._outcome("", "forgotten", 1)

    def _forget(self, fingerprint: str) -> None:
        del self._entries[fingerprint]
        for replica in self._replicas:
            replica.due.pop(fingerprint, None)

    def _work(self, replica: _Replica) -> None:
        while (batch := self._next(replica)) is not None:
            try:
                self._send(replica, batch)
            except RetryLater as error:
                self._failed(replica, len(batch), error)
            except Exception as error:  # a fault here must not end the thread: alerts would stop in silence
                log.exception("an alert request failed in a way that is not foreseen")
                self._failed(replica, len(batch), RetryLater(repr(error)))
        replica.endpoint.close()

    def _next(self, replica: _Replica) -> list[_Sending] | None:
        """The next request's alerts, new ones first; None when closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = sorted((at, name) for name, at in replica.due.items() if at <= now)
                if due and replica.retry_at <= now:
                    return [self._sending(name) for _, name in due[: self._pace.per_request]]
                wake = max(min(replica.due.values(), default=now + 60.0), replica.retry_at)
                self._changed.wait(wake - now)
            return None

    def _sending(self, fingerprint: str) -> _Sending:
        entry = self._entries[fingerprint]
        alert = entry.alert
        firing = alert.ends_ms is None or not entry.told
        now_ms = time.time_ns() // 1_000_000
        if firing:
            ends_ms = max(now_ms, alert.starts_ms) + int(self._pace.lifetime_s * 1000)
        else:
            ends_ms = max(alert.ends_ms or 0, alert.starts_ms)
        body = {
            "labels": dict(alert.labels),
            "annotations": dict(alert.annotations),
            "startsAt": _rfc3339(alert.starts_ms),
            "endsAt": _rfc3339(ends_ms),
        }
        return _Sending(fingerprint, entry.version, firing, body)

    def _send(self, replica: _Replica, batch: Sequence[_Sending]) -> None:
        """Raises RetryLater when the replica did not judge the alerts."""
        answer = replica.endpoint.post(orjson.dumps([sending.body for sending in batch]))
        if answer.status < 300:
            self._taken(replica, batch)
        elif answer.status in _AGAIN or answer.status >= 500 or answer.status < 400:
            raise RetryLater(f"{replica.url} answers {answer.status}: {answer.text[:200]}")
        elif answer.status in _DENIED:
            raise RetryLater(
                f"{replica.url} refuses us with {answer.status}: {answer.text[:200]}; check urls and credentials"
            )
        elif len(batch) > 1:
            half = len(batch) // 2
            self._send(replica, batch[:half])
            self._send(replica, batch[half:])
        else:
            self._rejected(replica, batch[0], f"{replica.url} answers {answer.status}: {answer.text[:500]}")

    def _taken(self, replica: _Replica, batch: Sequence[_Sending]) -> None:
        now = time.monotonic()
        with self._changed:
            if replica.attempts:
                log.info("Alertmanager takes alerts again", extra={"replica": replica.url})
            replica.attempts, replica.retry_at = 0, _NOW
            for sending in batch:
                entry = self._entries.get(sending.fingerprint)
                if entry is None or entry.version != sending.version:
                    continue
                entry.told = entry.told or sending.firing
                replica.due[sending.fingerprint] = now + self._pace.resend_s
                if not sending.firing and replica.due[sending.fingerprint] > entry.since + self._pace.repeat_resolved_s:
                    self._done(replica, sending.fingerprint)
            self._changed.notify_all()
        self._outcome(replica.url, "sent", len(batch))

    def _rejected(self, replica: _Replica, sending: _Sending, detail: str) -> None:
        with self._changed:
            entry = self._entries.get(sending.fingerprint)
            if entry is not None and entry.version == sending.version:
                self._done(replica, sending.fingerprint)
            self._changed.notify_all()
        self._outcome(replica.url, "rejected", 1)
        log.error(
            "Alertmanager rejects an alert; it is a dead letter now", extra={"alert": sending.body, "why": detail}
        )
        letter = DeadLetter("tailrace.alerts", 0, 0, 0, 0, "rejected_alertmanager", detail, orjson.dumps(sending.body))
        self._burials.submit(self._dead.write, [letter])

    def _done(self, replica: _Replica, fingerprint: str) -> None:
        """Nothing more to tell a replica about an alert, until it changes."""
        del replica.due[fingerprint]
        resolved = self._entries[fingerprint].alert.ends_ms is not None
        if resolved and not any(fingerprint in other.due for other in self._replicas):
            self._forget(fingerprint)

    def _failed(self, replica: _Replica, alerts: int, error: RetryLater) -> None:
        with self._changed:
            now = time.monotonic()
            replica.retry_at = now + self._backoff.delay(replica.attempts, error.after_s)
            replica.attempts += 1
            # What others know to be over resolves here by itself; what nobody was told must still be told.
            for name, entry in list(self._entries.items()):
                over = entry.alert.ends_ms is not None and entry.told
                if over and name in replica.due and now > entry.since + self._pace.repeat_resolved_s:
                    self._done(replica, name)
            self._changed.notify_all()
        self._outcome(replica.url, "failed", alerts)
        if replica.attempts == 1:
            log.warning(
                "no alerts reach an Alertmanager; retrying", extra={"replica": replica.url, "error": str(error)}
            )


def _state(alert: Alert) -> tuple[int, int | None]:
    return alert.starts_ms, alert.ends_ms


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
