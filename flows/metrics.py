"""Metrics of one process, as prometheus-client takes them.

All series are bounded: labels are sinks, fates, rules, reasons, topics and partitions, never values
from log lines; of owners of labels and of tenants so many are named as budgets keep apart. Counters begin
at 0 with the process, as Prometheus expects: after a kill the ledger goes back to its snapshot, which
`rate()` would take for a reset. The ledger itself, over all restarts, is a gauge.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flows.ledger import FATES, Accounts
from flows.pipeline import Counts, Pipeline

_MAX_PLACES = 1_000  # topics and partitions that have a series of their own


class Published(NamedTuple):
    """What one pipeline has counted so far."""

    counts: Counts
    held: int
    unbalanced: int
    evicted: int
    demoted: dict[tuple[str, str], int]
    active: dict[str, int]


@dataclass(slots=True)
class Metrics:
    """The process's metrics. Pipelines publish copies of their counts, accounts are read at scrape time."""

    accounts: Accounts
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry())
    published: dict[int, Published] = field(default_factory=dict)
    restored: dict[int, Published] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    last_epoch: float | None = None
    epochs: dict[int, float] = field(default_factory=dict)  # when each shard ended its last one
    lost: Counter = field(init=False)
    dead: Counter = field(init=False)
    batch_lines: Histogram = field(init=False)
    step_seconds: Counter = field(init=False)
    epoch_seconds: Gauge = field(init=False)

    def __post_init__(self) -> None:
        self.lost = Counter(
            "tailrace_lost_messages",
            "Kafka messages that were deleted before they were read.",
            ["topic"],
            registry=self.registry,
        )
        self.dead = Counter("tailrace_dead_letters", "Dead letters by reason.", ["reason"], registry=self.registry)
        self.batch_lines = Histogram(
            "tailrace_batch_lines",
            "Physical lines per dataflow item.",
            buckets=(1, 10, 100, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000),
            registry=self.registry,
        )
        self.step_seconds = Counter(
            "tailrace_pipeline_seconds", "Time spent in the pure steps.", registry=self.registry
        )
        self.epoch_seconds = Gauge(
            "tailrace_epoch_seconds", "Time between the last two snapshots.", registry=self.registry
        )
        self.registry.register(_LedgerCollector(self))

    def epoch_ended(self, shard: int = 0) -> None:
        """Called at each snapshot of each shard (any number of its own); health and readiness rest on it."""
        now = time.monotonic()
        if shard in self.epochs:
            self.epoch_seconds.set(now - self.epochs[shard])
        self.epochs[shard] = self.last_epoch = now

    def silent_s(self) -> float:
        """Seconds since the last epoch ended, or since the start."""
        return time.monotonic() - (self.started if self.last_epoch is None else self.last_epoch)

    def publish(self, pipeline: Pipeline) -> None:
        """Take a copy of the pipeline's counts: scrapes run in another thread. The first ones are the base."""
        counts = Counts()
        counts.add(pipeline.counts)
        held = sum(pipeline.streams.held().values())
        published = Published(
            counts,
            held,
            pipeline.unbalanced,
            pipeline.streams.evicted,
            dict(pipeline.budgets.overflow),
            pipeline.budgets.active,
        )
        self.restored.setdefault(id(pipeline), published)
        self.published[id(pipeline)] = published

    def totals(self) -> Published:
        """The published counts of all shards together, over all restarts."""
        return _together(list(self.published.values()))

    def before(self) -> Published:
        """The counts that this process began with."""
        return _together(list(self.restored.values()))


def _together(parts: Sequence[Published]) -> Published:
    whole = Counts()
    demoted: dict[tuple[str, str], int] = {}
    active: dict[str, int] = {}
    for part in parts:
        whole.add(part.counts)
        for key, records in part.demoted.items():
            demoted[key] = demoted.get(key, 0) + records
        for tenant, streams in part.active.items():
            active[tenant] = active.get(tenant, 0) + streams
    return Published(
        whole,
        sum(part.held for part in parts),
        sum(part.unbalanced for part in parts),
        sum(part.evicted for part in parts),
        demoted,
        active,
    )


class _LedgerCollector(Collector):
    """The ledger as metrics, computed at scrape time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._lines()
        yield from self._labels()
        yield from self._sinks()
        yield from self._ledger()

    def _lines(self) -> Iterator[Metric]:
        now, before = self._metrics.totals(), self._metrics.before()
        read = CounterMetricFamily("tailrace_lines_read", "Physical lines read.", labels=["topic", "partition"])
        places = sorted(now.counts.read)
        if len(places) > _MAX_PLACES:  # the file source has a topic for every file
            read.add_metric(["", ""], now.counts.read.total() - before.counts.read.total())
        else:
            for topic, partition in places:
                lines = now.counts.read[topic, partition] - before.counts.read[topic, partition]
                read.add_metric([topic, str(partition)], lines)
        yield read
        dropped = CounterMetricFamily("tailrace_lines_dropped", "Lines dropped by a named rule.", labels=["rule"])
        for rule in sorted(now.counts.dropped):
            known = before.counts.dropped.get(rule)
            dropped.add_metric([rule], now.counts.dropped[rule].total() - (known.total() if known else 0))
        yield dropped
        for name, text, count in (
            ("lines_kept", "Lines kept by the noise rules.", now.counts.kept.total() - before.counts.kept.total()),
            (
                "messages_empty",
                "Messages without any line.",
                now.counts.messages_empty.total() - before.counts.messages_empty.total(),
            ),
            ("streams_evicted", "Streams flushed early for space.", now.evicted - before.evicted),
            (
                "ledger_unbalanced_lines",
                "Lines the pipeline cannot account for: above 0 is an error.",
                now.unbalanced - before.unbalanced,
            ),
        ):
            yield CounterMetricFamily(f"tailrace_{name}", text, value=count)
        yield GaugeMetricFamily("tailrace_lines_held", "Lines held for the rest of their record.", value=now.held)

    def _labels(self) -> Iterator[Metric]:
        now, before = self._metrics.totals(), self._metrics.before()
        demoted = CounterMetricFamily(
            "tailrace_label_demotions",
            "Records of which a label found no room, by label and owner (the worst 100 of each label by name).",
            labels=["label", "owner"],
        )
        for key, records in sorted(now.demoted.items()):
            # An owner that others displaced may be named again, with less than before.
            demoted.add_metric(key, max(records - before.demoted.get(key, 0), 0))
        streams = GaugeMetricFamily(
            "tailrace_streams_active", "Streams of the last hour that the budget counts, by tenant.", labels=["tenant"]
        )
        for tenant, number in sorted(now.active.items()):
            streams.add_metric([tenant], number)
        synthetic = CounterMetricFamily(
            "tailrace_records_synthetic", "Records that stand for no line, by kind.", labels=["kind"]
        )
        for kind, number in sorted(now.counts.synthetic.items()):
            synthetic.add_metric([kind], number - before.counts.synthetic[kind])
        yield from (demoted, streams, synthetic)

    def _sinks(self) -> Iterator[Metric]:
        fates = CounterMetricFamily("tailrace_sink_lines", "What became of lines, by sink.", labels=["sink", "fate"])
        gaps = GaugeMetricFamily("tailrace_sink_gap_lines", "Lines in the gap list of a sink.", labels=["sink"])
        in_flight = GaugeMetricFamily(
            "tailrace_ledger_in_flight_lines",
            "Lines offered to a sink and not yet answered for; above 0 after an epoch's end is an error.",
            labels=["sink"],
        )
        before = self._metrics.accounts.before()
        for sink, totals in self._metrics.accounts.totals().items():
            began = before.get(sink, {})
            for fate in ("offered", "delivered", "dropped", "dead"):
                fates.add_metric([sink, fate], totals.get(fate, 0) - began.get(fate, 0))
            gaps.add_metric([sink], totals["gapped"])
            in_flight.add_metric([sink], totals["difference"])
        yield from (fates, gaps, in_flight)

    def _ledger(self) -> Iterator[Metric]:
        ledger = GaugeMetricFamily(
            "tailrace_ledger_lines",
            "The ledger over all restarts: read = kept + dropped + dead + held, offered = sum of its fates.",
            labels=["sink", "fate"],
        )
        totals = self._metrics.totals()
        counts, held = totals.counts, totals.held
        pipeline = {
            "read": counts.read.total(),
            "kept": counts.kept.total(),
            "dropped": sum(lines.total() for lines in counts.dropped.values()),
            "dead": counts.dead.total(),
            "held": held,
        }
        for fate, lines in pipeline.items():
            ledger.add_metric(["", fate], lines)
        for sink, fates in self._metrics.accounts.totals().items():
            for fate in ("offered", *FATES, "dropped"):
                ledger.add_metric([sink, fate], fates.get(fate, 0))
        yield ledger
