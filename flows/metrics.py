"""Metrics and health of one process, served with prometheus-client.

All series are bounded: labels are sinks, fates, rules, reasons, topics and partitions, never values
from log lines; of owners of labels and of tenants so many are named as budgets keep apart.
"""

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flows.ledger import Accounts
from flows.pipeline import Counts, Pipeline
from sinks.errors import Misconfigured


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
    started: float = field(default_factory=time.monotonic)
    last_epoch: float | None = None
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

    def epoch_ended(self) -> None:
        """Called at each snapshot; health and readiness rest on it."""
        now = time.monotonic()
        if self.last_epoch is not None:
            self.epoch_seconds.set(now - self.last_epoch)
        self.last_epoch = now

    def silent_s(self) -> float:
        """Seconds since the last epoch ended, or since the start."""
        return time.monotonic() - (self.started if self.last_epoch is None else self.last_epoch)

    def publish(self, pipeline: Pipeline) -> None:
        """Take a copy of the pipeline's counts: scrapes run in another thread."""
        counts = Counts()
        counts.add(pipeline.counts)
        held = sum(pipeline.streams.held().values())
        self.published[id(pipeline)] = Published(
            counts,
            held,
            pipeline.unbalanced,
            pipeline.streams.evicted,
            dict(pipeline.budgets.overflow),
            pipeline.budgets.active,
        )

    def totals(self) -> Published:
        """The published counts of all shards together."""
        whole = Counts()
        demoted: dict[tuple[str, str], int] = {}
        active: dict[str, int] = {}
        parts = list(self.published.values())
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
        counts, held, unbalanced, evicted, demotions, active = self._metrics.totals()
        read = CounterMetricFamily("tailrace_lines_read", "Physical lines read.", labels=["topic", "partition"])
        for (topic, partition), lines in sorted(counts.read.items()):
            read.add_metric([topic, str(partition)], lines)
        dropped = CounterMetricFamily("tailrace_lines_dropped", "Lines dropped by a named rule.", labels=["rule"])
        for rule, by_partition in sorted(counts.dropped.items()):
            dropped.add_metric([rule], by_partition.total())
        fates = CounterMetricFamily("tailrace_sink_lines", "What became of lines, by sink.", labels=["sink", "fate"])
        gaps = GaugeMetricFamily("tailrace_sink_gap_lines", "Lines in the gap list of a sink.", labels=["sink"])
        difference = GaugeMetricFamily(
            "tailrace_ledger_in_flight_lines",
            "Lines offered to a sink and not yet answered for; above 0 after an epoch's end is an error.",
            labels=["sink"],
        )
        for sink, totals in self._metrics.accounts.totals().items():
            for fate in ("offered", "delivered", "dropped", "dead"):
                fates.add_metric([sink, fate], totals.get(fate, 0))
            gaps.add_metric([sink], totals.get("gapped", 0))
            difference.add_metric([sink], totals["difference"])
        demoted = CounterMetricFamily(
            "tailrace_label_demotions",
            "Records of which a label found no room, by label and owner (the worst 100 of each label by name).",
            labels=["label", "owner"],
        )
        for key, records in sorted(demotions.items()):
            demoted.add_metric(key, records)
        streams = GaugeMetricFamily(
            "tailrace_streams_active", "Streams of the last hour that the budget counts, by tenant.", labels=["tenant"]
        )
        for tenant, number in sorted(active.items()):
            streams.add_metric([tenant], number)
        synthetic = CounterMetricFamily(
            "tailrace_records_synthetic", "Records that stand for no line, by kind.", labels=["kind"]
        )
        for kind, number in sorted(counts.synthetic.items()):
            synthetic.add_metric([kind], number)
        yield from (read, dropped, fates, gaps, difference, demoted, streams, synthetic)
        yield CounterMetricFamily("tailrace_lines_kept", "Lines kept by the noise rules.", value=counts.kept.total())
        yield CounterMetricFamily(
            "tailrace_messages_empty", "Messages without any line.", value=counts.messages_empty.total()
        )
        yield CounterMetricFamily("tailrace_streams_evicted", "Streams flushed early for space.", value=evicted)
        yield CounterMetricFamily(
            "tailrace_ledger_unbalanced_lines", "Lines the pipeline cannot account for.", value=unbalanced
        )
        yield GaugeMetricFamily("tailrace_lines_held", "Lines held for the rest of their record.", value=held)


Reason = Callable[[], str | None]


def check(host: str, port: int) -> None:
    """Raise Misconfigured unless the address can be listened on."""
    _listen(host, port, BaseHTTPRequestHandler).server_close()


def serve(host: str, port: int, metrics: Metrics, stuck: Reason, not_ready: Reason) -> ThreadingHTTPServer:
    """Serve /metrics, /healthz and /readyz until the process ends.

    `stuck` and `not_ready` give the reason for a 503 of /healthz and /readyz, or None. Raises Misconfigured
    when the address cannot be listened on.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(metrics.registry), CONTENT_TYPE_LATEST)
            elif self.path == "/healthz":
                self._judge("healthy", stuck())
            elif self.path == "/readyz":
                self._judge("ready", not_ready())
            else:
                self._answer(404, b"known paths: /metrics /healthz /readyz\n", "text/plain")

        def _judge(self, name: str, reason: str | None) -> None:
            body = json.dumps({name: reason is None, "reason": reason}).encode() + b"\n"
            self._answer(200 if reason is None else 503, body, "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no events."""

    server = _listen(host, port, Handler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _listen(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        known = {errno.EADDRINUSE: "something listens there already; end it, or change http.port"}
        advice = known.get(error.errno or 0, "set http.host to an address of this machine, or change http.port")
        raise Misconfigured(f"http: cannot listen on {host}:{port}: {error.strerror}; {advice}") from error
    server.daemon_threads = True
    return server
