"""A back-test of alert rules: which alerts other rules would have made of what was logged."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bytewax.inputs import FixedPartitionedSource

from flows.batch import Chunk
from flows.config import Config
from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent
from flows.detect.outcome import Outcome
from flows.detect.partials import Detector
from flows.detect.rules import Rule
from flows.pipeline import Pipeline
from flows.steps.selection import Selection
from sinks.base import Delivery, Partition

_IDLE_S = 0.005


class Difference(NamedTuple):
    """An alert that differs: `now` by the rules that hold, `then` by the others; None where there is none."""

    now: AlertEvent | None
    then: AlertEvent | None

    def __str__(self) -> str:
        event = self.then or self.now
        assert event is not None  # noqa: S101 - one of them is there
        labels = ", ".join(f"{name}={value}" for name, value in event.labels)
        at = datetime.fromtimestamp(event.starts_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        what = f"{event.rule} ({labels}) at {at}, count {event.count}"
        if self.now is None:
            return f"+ {what}"
        if self.then is None:
            return f"- {what}"
        moved = self.then.starts_at - self.now.starts_at
        when = f", {abs(moved)} s {'later' if moved > 0 else 'earlier'}" if moved else ""
        more = f", count was {self.now.count}" if self.now.count != self.then.count else ""
        ends = ", ends otherwise" if (self.now.state, self.now.ends_at) != (self.then.state, self.then.ends_at) else ""
        return f"~ {what}{when}{more}{ends}"


class Trial:
    """One set of rules."""

    def __init__(self, rules: tuple[Rule, ...], config: Config) -> None:
        detect = config.alerts.detect
        self._detector, self._evaluator = Detector(rules, detect, config.tier.cluster), Evaluator(rules, detect)
        self._outcome = Outcome()

    def take(self, delivery: Delivery, clocks: dict[Partition, int]) -> None:
        self._outcome.take(self._evaluator.feed(self._detector.partials(delivery)))
        self._outcome.take(self._evaluator.tick(clocks))

    def alerts(self) -> list[AlertEvent]:
        """All alerts, those that still fire with their latest counts."""
        self._outcome.take(self._evaluator.firing())
        return self._outcome.alerts()


def compare(
    config: Config, other: tuple[Rule, ...], origin: FixedPartitionedSource[Any, Any], selection: Selection
) -> list[Difference]:
    """What differs between the alerts of the configuration's rules and those of `other`, over all that is read.

    The clock is that of the messages, so the alerts are those that were, or would have been, made live.
    """
    kafka = config.source.kafka
    decode = config.decode.with_kinds(kafka.kinds) if kafka else config.decode
    pipeline = Pipeline(decode, config.tier.cluster, config.noise, stores_noise=False, kinds=config.all_kinds())
    trials = Trial(config.all_rules(), config), Trial(other, config)
    for chunk in chunks(origin):
        newest = int(chunk.appended_ms.max()) if len(chunk.values) else pipeline.now_ms
        delivery, _ = pipeline.process(replace(chunk, now_ms=max(newest, pipeline.now_ms)))
        for trial in trials:
            trial.take(selection.of(delivery), pipeline.now())
    return differences(trials[0].alerts(), trials[1].alerts())


def chunks(origin: FixedPartitionedSource[Any, Any]) -> Iterator[Chunk]:
    """All chunks of a bounded source."""
    for name in origin.list_parts():
        part = origin.build_part("backtest", name, None)
        while True:
            try:
                batch = list(part.next_batch())
            except StopIteration:
                break
            if not batch:
                time.sleep(_IDLE_S)
            for _, chunk in batch:
                yield chunk
        part.close()


def differences(now: Iterable[AlertEvent], then: Iterable[AlertEvent]) -> list[Difference]:
    """Alerts of one fingerprint that overlap are one alert that may have changed; others stand alone."""
    left = list(then)
    found: list[Difference] = []
    for event in now:
        mine = [other for other in left if other.fingerprint == event.fingerprint and _overlap(event, other)]
        match = min(mine, key=lambda other: abs(other.starts_at - event.starts_at), default=None)
        if match is None:
            found.append(Difference(event, None))
            continue
        left.remove(match)
        if _told(match) != _told(event):
            found.append(Difference(event, match))
    found += [Difference(None, event) for event in left]
    return sorted(found, key=lambda each: (each.then or each.now).starts_at)  # type: ignore[union-attr]


def _overlap(one: AlertEvent, other: AlertEvent) -> bool:
    return one.starts_at <= other.ends_at and other.starts_at <= one.ends_at


def _told(event: AlertEvent) -> tuple[Any, ...]:
    return event.starts_at, event.ends_at, event.state, event.count
