"""Metrics of detection. Bounded: labels are rules, replicas and outcomes, and at most MAX_XIDS places of faults.

Counters begin at 0 with the process, as those of flows.metrics do.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flows.detect.evaluator import Evaluator
from sinks.base import Delivery

MAX_XIDS = 10_000  # series of gpu_xid_total; beyond it the one longest without a line is dropped

Fault = tuple[str, str, str]  # node, pci, xid


class Seen(NamedTuple):
    """What an evaluator has counted so far."""

    groups: Mapping[str, int]
    firing: Mapping[str, int]
    forgotten: Mapping[str, int]
    repeated: int
    late: Mapping[str, int]


class AlertMetrics:
    """Thread-safe: an evaluator publishes copies, senders count from their threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.xids = XidCounts()
        self.began: Seen | None = None
        self.seen: Seen | None = None
        self.events = Counter("tailrace_alert_events", "Alert events by state.", ["state"], registry=registry)
        self.sendings = Counter(
            "tailrace_alertmanager_alerts",
            "Alerts told to Alertmanager, by replica and outcome.",
            ["replica", "outcome"],
            registry=registry,
        )
        self.lag = Gauge(
            "tailrace_evaluator_lag_seconds",
            "How far the slowest source partition's clock is behind this machine's.",
            registry=registry,
        )
        registry.register(_Evaluated(self))

    def outcome(self, replica: str, outcome: str, alerts: int) -> None:
        """Count what became of a request to Alertmanager."""
        self.sendings.labels(replica, outcome).inc(alerts)

    def publish(self, evaluator: Evaluator, firing: Mapping[str, int], now_ms: int) -> None:
        """Take a copy of an evaluator's counts: scrapes run in another thread. The first ones are the base."""
        self.seen = Seen(
            dict(evaluator.groups()),
            dict(firing),
            dict(evaluator.forgotten),
            evaluator.repeated.total(),
            dict(evaluator.late),
        )
        self.began = self.began or self.seen
        if evaluator.watermark:
            self.lag.set(max(now_ms / 1000 - evaluator.watermark, 0.0))


class XidCounts:
    """Records with an Xid by node, device and code."""

    def __init__(self) -> None:
        self.evicted = 0
        self._counts: OrderedDict[Fault, int] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, delivery: Delivery) -> None:
        """Count the records of a delivery: by columns, Python sees one row per distinct fault."""
        for part in delivery.parts:
            rows = part.rows
            if rows["xid"].null_count == len(rows):
                continue
            found = rows.select(["node", "pci", "xid"]).filter(rows["xid"].is_valid())
            found = found.set_column(0, "node", found["node"].cast(pa.string()))
            counted = found.group_by(["node", "pci", "xid"]).aggregate([([], "count_all")])
            self._add({(r["node"] or "", r["pci"] or "", str(r["xid"])): r["count_all"] for r in counted.to_pylist()})

    def read(self) -> tuple[dict[Fault, int], int]:
        """A copy of the counts, and how many series were dropped."""
        with self._lock:
            return dict(self._counts), self.evicted

    def _add(self, found: Mapping[Fault, int]) -> None:
        with self._lock:
            for fault, records in found.items():
                self._counts[fault] = self._counts.get(fault, 0) + records
                self._counts.move_to_end(fault)
            while len(self._counts) > MAX_XIDS:
                self._counts.popitem(last=False)
                self.evicted += 1


class _Evaluated(Collector):
    """Counts of the evaluator and of Xids, at scrape time."""

    def __init__(self, metrics: AlertMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        counts, evicted = self._metrics.xids.read()
        xids = CounterMetricFamily(
            "gpu_xid", "Kernel records with an Xid, by node, PCI address and code.", labels=["node", "pci", "xid"]
        )
        for fault, records in counts.items():
            xids.add_metric(fault, records)
        yield xids
        yield CounterMetricFamily(
            "tailrace_xid_series_evicted", "Series of gpu_xid_total dropped for want of room.", value=evicted
        )
        seen, began = self._metrics.seen, self._metrics.began
        if seen is None or began is None:
            return
        firing = GaugeMetricFamily("tailrace_alerts_firing", "Alerts that fire, by rule.", labels=["rule"])
        groups = GaugeMetricFamily("tailrace_evaluator_groups", "Groups that are counted, by rule.", labels=["rule"])
        late = CounterMetricFamily(
            "tailrace_evaluator_late", "Records older than the horizon, which page nobody, by rule.", labels=["rule"]
        )
        forgotten = CounterMetricFamily(
            "tailrace_evaluator_forgotten", "What the evaluator forgot early or could not count.", labels=["what"]
        )
        for gauge, values in ((firing, seen.firing), (groups, seen.groups)):
            for rule, number in sorted(values.items()):
                gauge.add_metric([rule], number)
        for counter, now, before in ((late, seen.late, began.late), (forgotten, seen.forgotten, began.forgotten)):
            for name, number in sorted(now.items()):
                counter.add_metric([name], number - before.get(name, 0))
        yield from (firing, groups, late, forgotten)
        yield CounterMetricFamily(
            "tailrace_evaluator_repeated",
            "Records that were counted before: after a restart, or found by two processes.",
            value=seen.repeated - began.repeated,
        )
