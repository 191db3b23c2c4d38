"""The Bytewax graph of the tier: one source, the pure pipeline as one stateful step, one sink per store.

    source (shards) ─ chunks ─► tier (one Pipeline per shard) ─ deliveries ─► parquet, loki, console, dead letters
                                  └─ findings ─► evaluator ─► Alertmanager …   or ─► topic of partials

Everything is keyed by shard and stays in one worker; scaling out means more processes. The snapshot of
an epoch holds source positions, pipelines and sink states together, so they always agree. Also runs as
`TAILRACE_CONFIG=tailrace.toml python -m bytewax.run flows.cluster:flow`.
"""

import logging
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource
from bytewax.operators import KeyedStream, StatefulBatchLogic
from bytewax.outputs import FixedPartitionedSink

from flows.alert_metrics import AlertMetrics
from flows.batch import Chunk
from flows.config import Config, load
from flows.detect.partials import Detector
from flows.evaluation import KEY, evaluate, partials_topic
from flows.findings import Findings, messages
from flows.gaps import gap_topic
from flows.ledger import Account, Accounted, Accounts
from flows.metrics import Metrics
from flows.pipeline import Pipeline
from flows.sources.chunks import tick
from flows.sources.drain import Drain
from flows.sources.files import FilesSource
from flows.sources.kafka import KafkaSource
from flows.steps.reassemble import Reassembler
from sinks.base import DeadLetterWriter, Delivery, GapWriter, Partition, Site
from sinks.dead_letter import DeadLetterSink, open_writer
from sinks.registry import SINKS, sink

log = logging.getLogger("tailrace.cluster")

_PUBLISH_S = 1.0
_CLOCKS_S = 1.0  # how often the evaluator is told the time
_HURRY_S = 0.05  # how often the clock is looked at while a kernel line is held


@dataclass(slots=True)
class Runtime:
    """What the steps of one process share."""

    config: Config
    drain: Drain = field(default_factory=Drain)
    accounts: Accounts = field(default_factory=Accounts)
    metrics: Metrics = field(init=False)
    alerts: AlertMetrics = field(init=False)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "read"))

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.accounts)
        self.alerts = AlertMetrics(self.metrics.registry)


class Processed(NamedTuple):
    """What becomes of a chunk: records for the stores, findings for the evaluator."""

    delivery: Delivery
    findings: Findings


class TierLogic(StatefulBatchLogic[Chunk, Processed, bytes]):
    """Runs the pipeline of one shard; its snapshot is the pickled state, taken at once, so it cannot change later."""

    def __init__(self, runtime: Runtime, state: bytes | None) -> None:
        tier = runtime.config.tier
        self._metrics, self._xids = runtime.metrics, runtime.alerts.xids
        kafka, decode = runtime.config.source.kafka, runtime.config.decode
        parquet = runtime.config.sinks.parquet
        self._pipeline = Pipeline(
            decode.with_kinds(kafka.kinds) if kafka else decode,
            tier.cluster,
            runtime.config.noise,
            Reassembler(max_age_ms=tier.max_age_ms),
            runtime.config.labels,
            tier.shards if kafka else 1,
            stores_noise=parquet is not None and parquet.noise,
            redaction=runtime.config.redaction.redaction(),
            background=lambda work: runtime.threads.submit(work).result,
            kinds=runtime.config.all_kinds(),
        )
        if state is not None:
            self._pipeline.restore(pickle.loads(state))  # noqa: S301 - our own recovery store
        rules = () if runtime.config.alerts_mode() == "off" else runtime.config.all_rules()
        self._detector = Detector(rules, runtime.config.alerts.detect, tier.cluster)
        self._live = kafka is not None
        self._behind: frozenset[Partition] = frozenset()  # as of the source's latest chunk
        self._told_time = 0.0
        self._published = 0.0
        self._reported = self._pipeline.unbalanced
        self._publish()

    def on_batch(self, values: list[Chunk]) -> tuple[list[Processed], bool]:
        self._behind = values[-1].behind
        return [self._process(chunk) for chunk in values], StatefulBatchLogic.RETAIN

    def on_notify(self) -> tuple[list[Processed], bool]:
        """A tick between those of the source, so that a held kernel line need not wait for one."""
        return [self._process(tick([], behind=self._behind))], StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[list[Processed], bool]:
        return [], StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        if not (self._live and self._pipeline.streams.hurries):
            return None
        return datetime.now(UTC) + timedelta(seconds=_HURRY_S)

    def snapshot(self) -> bytes:
        self._metrics.epoch_ended(id(self._pipeline))
        self._end_epoch()
        self._publish()
        return pickle.dumps(self._pipeline.state())

    def _process(self, chunk: Chunk) -> Processed:
        metrics = self._metrics
        started = time.perf_counter()
        delivery, counts = self._pipeline.process(chunk)
        metrics.step_seconds.inc(time.perf_counter() - started)
        metrics.batch_lines.observe(counts.read.total())
        for letter in delivery.dead:
            metrics.dead.labels(letter.reason).inc()
        if self._pipeline.unbalanced > self._reported:
            lines, self._reported = self._pipeline.unbalanced - self._reported, self._pipeline.unbalanced
            log.error("ledger does not balance in the pipeline", extra={"lines": lines})
        if time.monotonic() - self._published > _PUBLISH_S:
            self._publish()
        self._xids.count(delivery)
        return Processed(delivery, Findings(self._detector.partials(delivery), self._time()))

    def _time(self) -> dict[Partition, int]:
        """The clocks of the source partitions, if it is time to tell them."""
        now = time.monotonic()
        if now - self._told_time < _CLOCKS_S:
            return {}
        self._told_time = now
        return self._pipeline.now()

    def _end_epoch(self) -> None:
        """Let the pipeline take up new labels; a repeat starts from the state taken after that."""
        over = self._pipeline.end_epoch()
        if over:
            log.warning(
                "labels over their budget: these values are structured metadata until there is room; let the owner use "
                "fewer, or raise the limit in [labels]",
                extra={"records": {f"{label} of {owner}": records for (label, owner), records in over.most_common(5)}},
            )

    def _publish(self) -> None:
        self._published = time.monotonic()
        self._metrics.publish(self._pipeline)


def build(
    runtime: Runtime,
    origin: FixedPartitionedSource[tuple[str, Chunk], Any] | None = None,
    change: Callable[[Delivery], Delivery] = lambda delivery: delivery,
) -> Dataflow:
    """The dataflow of one process. Raises Misconfigured when a store or source cannot be used.

    A replay reads from an `origin` of its own, and may `change` what the stores get.
    """
    config = runtime.config
    shards = config.tier.own_shards() if config.source.kafka else ["0000"]
    writer = open_writer(config.dead_letter)
    graph = Dataflow("tailrace")
    chunks = op.input("source", graph, origin or source(runtime, shards))
    processed = op.stateful_batch("tier", chunks, lambda state: TierLogic(runtime, state))
    deliveries = op.map_value("deliveries", processed, lambda done: change(done.delivery))
    if config.alerts_mode() == "inline":
        findings = op.map("findings", processed, lambda item: (KEY, item[1].findings))
        alerts = evaluate(config, runtime.alerts, findings, writer, lambda: None)
        records = op.map("alert_rows", alerts, lambda item: (shards[0], item[1]))
        deliveries = op.merge("all", deliveries, records)
    elif config.alerts_mode() == "topic":
        told = op.flat_map_value("partials", processed, lambda done: messages(done.findings))
        op.output("partials_topic", told, partials_topic(config, shards))
    store(runtime, shards, writer, deliveries, None if origin else gap_topic(config))
    return graph


def store(
    runtime: Runtime,
    shards: list[str],
    writer: DeadLetterWriter,
    deliveries: KeyedStream[Delivery],
    gaps: GapWriter | None = None,
) -> None:
    """Adds an output per store to a graph, and that of the dead letters; keys are `shards`."""
    config = runtime.config
    for name in SINKS:
        section = getattr(config.sinks, name)
        if section is not None:
            make = partial(_make, name, section, config.tier.generation, shards, writer, gaps)
            accounted = Accounted(
                name, shards, make, runtime.accounts, getattr(section, "noise", False), _report_difference
            )
            op.output(name, deliveries, accounted)
    op.output("dead_letter", deliveries, DeadLetterSink(writer, shards))


def _make(
    name: str,
    section: Any,
    generation: int,
    shards: list[str],
    writer: DeadLetterWriter,
    gaps: GapWriter | None,
    account: Account,
) -> FixedPartitionedSink[Delivery, Any]:
    made: FixedPartitionedSink[Delivery, Any] = sink(name).at(section, Site(generation, shards, account, writer, gaps))
    return made


def source(runtime: Runtime, shards: list[str]) -> FixedPartitionedSource[tuple[str, Chunk], Any]:
    """The source that the configuration names."""
    config = runtime.config
    if config.source.kafka:

        def lost(topic: str, partition: int, first: int, last: int) -> None:
            runtime.metrics.lost.labels(topic).inc(last - first)
            log.error(
                "messages were deleted before they were read; raise the topic's retention or add processes",
                extra={"topic": topic, "partition": partition, "from": first, "to": last},
            )

        return KafkaSource(config.source.kafka, shards, config.tier.shards, runtime.drain, lost)
    assert config.source.files is not None  # noqa: S101 - SourceConfig holds exactly one
    return FilesSource(config.source.files, runtime.drain, config.all_kinds())


def _report_difference(sink: str, shard: str, lines: dict[Partition, int]) -> None:
    log.error(
        "ledger does not balance in a sink",
        extra={"sink": sink, "shard": shard, "lines": {f"{topic}/{part}": n for (topic, part), n in lines.items()}},
    )


def flow() -> Dataflow:
    """The dataflow for `python -m bytewax.run flows.cluster:flow`, configured by the file in TAILRACE_CONFIG."""
    return build(Runtime(load(Path(os.environ.get("TAILRACE_CONFIG", "tailrace.toml")))))
