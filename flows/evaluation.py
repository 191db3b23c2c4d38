"""The evaluator as a step, and where its events go: Alertmanager, the topic of alerts, and all stores as records."""

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic

from flows import alert_records
from flows.alert_metrics import AlertMetrics
from flows.config import Config
from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent
from flows.findings import Findings, joined
from flows.sources.chunks import now_ms
from sinks.alertmanager import AlertmanagerSink
from sinks.base import DeadLetter, DeadLetterWriter, Delivery, Partition
from sinks.kafka_topic import KafkaTopicSink, Message

log = logging.getLogger("tailrace.alerts")

KEY = "alerts"  # of the one evaluator, and the shard of its records
_PUBLISH_S = 1.0
_REFRESH_S = 30.0  # how often texts and counts of alerts that fire are brought up to date
_LOST_S = 600.0


class Verdict(NamedTuple):
    """`events` are news; `again` are alerts that fire and were told before, as they are now."""

    events: list[AlertEvent]
    again: list[AlertEvent]
    dead: list[DeadLetter]


class EvaluatorLogic(StatefulBatchLogic[Findings, Verdict, bytes]):
    """Runs the evaluator; its snapshot is the pickled state, taken at once, so it cannot change later."""

    def __init__(self, config: Config, metrics: AlertMetrics, ended: Callable[[], None], state: bytes | None) -> None:
        """`ended` is called when an epoch ends."""
        self._evaluator = Evaluator(config.all_rules(), config.alerts.detect)
        self._metrics, self._ended = metrics, ended
        self._firing: dict[tuple[str, int], str] = {}  # (fingerprint, start) -> rule
        self._heard: dict[Partition, float] = {}
        self._published = 0.0
        self._refreshed = time.monotonic()
        if state is not None:
            kept = pickle.loads(state)  # noqa: S301 - our own recovery store
            self._evaluator.restore(kept)
            self._heard = dict.fromkeys(kept["clocks"], time.monotonic())
            self._firing = {(event.fingerprint, event.starts_at): event.rule for event in self._evaluator.firing()}
            self._refreshed = 0.0
        self._metrics.publish(self._evaluator, Counter(self._firing.values()), now_ms())

    def on_batch(self, values: list[Findings]) -> tuple[list[Verdict], bool]:
        findings = joined(values)
        events = self._evaluator.feed(findings.partials)
        events += self._evaluator.tick({**findings.clocks, **self._lost(findings)})
        for event in events:
            self._note(event)
        now = time.monotonic()
        again: list[AlertEvent] = []
        if now - self._refreshed > _REFRESH_S:
            self._refreshed, again = now, self._evaluator.firing()
        if events or now - self._published > _PUBLISH_S:
            self._published = now
            self._metrics.publish(self._evaluator, Counter(self._firing.values()), now_ms())
        if not (events or again or findings.dead):
            return [], StatefulBatchLogic.RETAIN
        return [Verdict(events, again, list(findings.dead))], StatefulBatchLogic.RETAIN

    def on_notify(self) -> tuple[list[Verdict], bool]:
        return [], StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[list[Verdict], bool]:
        return [], StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        return None

    def snapshot(self) -> bytes:
        self._ended()
        return pickle.dumps(self._evaluator.state())

    def _note(self, event: AlertEvent) -> None:
        self._metrics.events.labels(event.state).inc()
        for starts in (event.starts_at, *event.replaces):
            self._firing.pop((event.fingerprint, starts), None)
        if event.state == "firing":
            self._firing[event.fingerprint, event.starts_at] = event.rule

    def _lost(self, findings: Findings) -> dict[Partition, int]:
        """Clocks of the source partitions of which nothing was heard for long, moved on with the others.

        Their topic is gone, or the process that reads it: no alert may fire for ever because of that.
        """
        now = time.monotonic()
        self._heard |= dict.fromkeys(findings.clocks, now)
        lost = [source for source, at in self._heard.items() if now - at > _LOST_S]
        if not lost or not findings.clocks:
            return {}
        for source in lost:
            log.warning(
                "nothing is heard of a source partition; its alerts are no longer waited for",
                extra={"topic": source[0], "partition": source[1]},
            )
            self._heard[source] = now
        return dict.fromkeys(lost, max(findings.clocks.values()))


def evaluate(
    config: Config,
    metrics: AlertMetrics,
    findings: KeyedStream[Findings],
    writer: DeadLetterWriter,
    ended: Callable[[], None],
) -> KeyedStream[Delivery]:
    """Adds the evaluator and its own outputs to a graph; `findings` must all have the key KEY.

    Returns the alerts as records, with the key KEY. Raises Misconfigured when an output cannot be used.
    """
    cluster = config.tier.cluster
    verdicts = op.stateful_batch("evaluator", findings, lambda state: EvaluatorLogic(config, metrics, ended, state))
    if config.sinks.alertmanager:
        alerts = op.flat_map_value(
            "alerts",
            verdicts,
            lambda verdict: filter(None, map(alert_records.alert, [*verdict.events, *verdict.again])),
        )
        op.output("alertmanager", alerts, AlertmanagerSink(config.sinks.alertmanager, writer, metrics.outcome))
    if sink := alerts_topic(config):
        told = op.flat_map_value(
            "alert_messages",
            verdicts,
            lambda verdict: [Message(event.fingerprint.encode(), event.to_json()) for event in verdict.events],
        )
        op.output("alerts_topic", told, sink)
    return op.map_value(
        "alert_records",
        verdicts,
        lambda verdict: Delivery([alert_records.part(verdict.events, cluster)], verdict.dead),
    )


def alerts_topic(config: Config) -> KafkaTopicSink | None:
    """The topic that alert events are written to, if any."""
    kafka, topic = config.source.kafka, config.alerts_topic()
    return KafkaTopicSink(topic, kafka.client(), "alerts", [KEY]) if kafka and topic else None


def partials_topic(config: Config, shards: list[str]) -> KafkaTopicSink:
    """The topic from the tier to the evaluator."""
    kafka = config.source.kafka
    assert kafka is not None  # noqa: S101 - Config allows mode topic with Kafka only
    return KafkaTopicSink(config.alerts.partials_topic, kafka.client(), "partials", shards)
