"""A line in Kafka becomes an alert in Alertmanager, in the stores and in the topic of alerts, and resolves."""

import json
import signal
import time
import tomllib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3
from confluent_kafka import Consumer, Producer

from tests.flows.tier import Tier, assert_balanced, rows, tailrace
from tests.services.alertmanager import Alertmanager, check_metrics
from tests.services.kafka import Kafka
from tests.services.process import free_port
from tests.services.table import needs_real

XID_79 = "NVRM: Xid (PCI:0000:{pci}:00): 79, pid=1234, name=python, GPU has fallen off the bus."
PAGER = Path(__file__).parents[2] / "deploy" / "configs" / "pager.toml"
LOG_APPEND = {"message_timestamp_type": "LogAppendTime"}
# A rule that resolves while a test waits; the default one does after five minutes.
QUICK_RULE = {
    "name": "GpuXidCritical",
    "events": ["gpu_xid"],
    "where": {"severity": "critical"},
    "group_by": ["cluster", "node", "pci", "xid"],
    "window_s": 4,
    "severity": "critical",
    "annotations": {"summary": "GPU {pci} of {node}: Xid {xid}"},
}


class Node:
    """Writes kernel lines as a forwarder does: one block per call."""

    def __init__(self, kafka: Kafka, topic: str, name: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
        self._topic, self.name, self._seq = topic, name, 0

    def kernel(self, *texts: str, kind: str = "kmsg") -> None:
        lines = []
        for text in texts:
            self._seq += 1
            lines.append(f"3,{self._seq},{self._seq * 1000},-;{text}")
        headers = {"v": "1", "kind": kind, "node": self.name}
        self._producer.produce(self._topic, "\n".join(lines), self.name, headers=list(headers.items()))
        assert self._producer.flush(30) == 0


def values(kafka: Kafka, topic: str, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with a cluster name of its own: Alertmanager is shared."""
    config: dict[str, Any] = {
        "tier": {"cluster": uuid.uuid4().hex},
        "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic], "group": topic}},
        "dead_letter": {"storage": {"url": "dead"}},
        "sinks": {"parquet": {"storage": {"url": "archive"}}},
        "recovery": {"dir": "recovery", "epoch_s": 1.0},
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section} if isinstance(section, Mapping) else section
    return config


def messages(kafka: Kafka, topic: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The values of a topic from its beginning, as soon as there are enough."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex} | {"auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    try:
        while not enough(found):
            assert time.monotonic() < deadline, found
            found += [json.loads(message.value() or b"") for message in consumer.consume(100, timeout=0.2)]
    finally:
        consumer.close()
    return found


def test_an_xid_line_is_an_alert_at_once_and_resolves_later(
    tmp_path: Path, kafka: Kafka, alertmanager: Alertmanager, promtool: Path
) -> None:
    needs_real(kafka, "log append time")
    needs_real(alertmanager, "notifications")
    topic, alerts_topic = kafka.topic(**LOG_APPEND), kafka.topic()
    config = values(
        kafka,
        topic,
        sinks={
            "parquet": {"storage": {"url": "archive"}},
            "alertmanager": {"urls": [alertmanager.url], "resend_s": 1.0},
        },
        alerts={"alerts_topic": alerts_topic},
        http={"port": free_port()},
    ) | {"rules": [QUICK_RULE]}
    cluster = config["tier"]["cluster"]
    with Tier(tmp_path, config).start() as tier:
        node = Node(kafka, topic, "gpu-a07")
        address = tier.address
        node.kernel("usb 1-1: new device", XID_79.format(pci="3b"))
        tier.until(lambda: len(alertmanager.pages.of(cluster=cluster)) >= 1)
        scraped = urllib3.request("GET", f"http://{address}/metrics").data
        tier.until(lambda: len(alertmanager.pages.of(cluster=cluster)) >= 2)
        assert tier.drain() == 0
        assert_balanced(tier.ledger)
    first, last = alertmanager.pages.of(cluster=cluster)
    assert (first[1], last[1]) == ("firing", "resolved")
    alert = first[2]
    assert alert["labels"].items() >= {"alertname": "GpuXidCritical", "node": "gpu-a07", "xid": "79"}.items()
    assert alert["annotations"]["summary"] == "GPU 0000:3b:00 of gpu-a07: Xid 79"
    assert "fallen off the bus" in alert["annotations"]["evidence"]
    assert alert["annotations"]["evidence_at"] == f"{topic}/0@0:1"
    told = messages(kafka, alerts_topic, lambda found: len(found) >= 2)
    assert [event["state"] for event in told] == ["firing", "resolved"]
    assert {(event["fingerprint"], event["starts_at"]) for event in told} == {
        (told[0]["fingerprint"], told[0]["starts_at"])
    }
    kept = [row for row in rows(tmp_path / "archive", "landing") if row["kind"] == "alert"]
    assert [(row["event"], row["job"], row["node"], row["xid"], row["owned"]) for row in kept] == [
        ("alert", "alerts", "gpu-a07", 79, 0)
    ] * 2
    assert json.loads(kept[0]["raw"])["evidence"][0]["offset"] == 0
    assert check_metrics(promtool, scraped) == ""
    assert b'gpu_xid_total{node="gpu-a07",pci="0000:3b:00",xid="79"} 1.0' in scraped
    assert b'tailrace_alerts_firing{rule="GpuXidCritical"} 1.0' in scraped


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_keeps_the_alert_and_pages_nobody_again(
    tmp_path: Path, kafka: Kafka, alertmanager: Alertmanager, killed: bool
) -> None:
    needs_real(kafka, "log append time")
    needs_real(alertmanager, "notifications")
    topic = kafka.topic(**LOG_APPEND)
    config = values(kafka, topic, sinks={"alertmanager": {"urls": [alertmanager.url], "resend_s": 0.5}})
    cluster = config["tier"]["cluster"]
    with Tier(tmp_path, config).start() as tier:
        Node(kafka, topic, "gpu-a07").kernel(XID_79.format(pci="3b"))
        tier.until(lambda: len(alertmanager.alerts(cluster=cluster)) == 1)
        if killed:  # perhaps before the epoch ended: then the line is read and told again
            tier.signal(signal.SIGKILL)
            assert tier.wait() == -signal.SIGKILL
        else:
            assert tier.drain() == 0
        [before] = alertmanager.alerts(cluster=cluster)
        tier.start()
        tier.until(lambda: alertmanager.alerts(cluster=cluster)[0]["endsAt"] > before["endsAt"])
        assert tier.drain() == 0
    assert alertmanager.alerts(cluster=cluster)[0]["startsAt"] == before["startsAt"]
    assert [status for _, status, _ in alertmanager.pages.of(cluster=cluster)] == ["firing"]


def test_the_evaluator_of_its_own_joins_what_two_processes_saw(
    tmp_path: Path, kafka: Kafka, alertmanager: Alertmanager, promtool: Path
) -> None:
    needs_real(kafka, "log append time")
    needs_real(alertmanager, "its API")
    topic, partials, alerts_topic = kafka.topic(2, **LOG_APPEND), kafka.topic(2), kafka.topic()
    rule = {
        "name": "ManyFaults",
        "events": ["gpu_xid"],
        "group_by": ["cluster"],
        "threshold": 1,
        "annotations": {"summary": "{count} faults on {hosts}"},
    }
    config = values(
        kafka,
        topic,
        alerts={
            "partials_topic": partials,
            "alerts_topic": alerts_topic,
            "group": partials,
            "http": {"port": free_port()},
            "recovery": {"dir": "state", "epoch_s": 1.0},
        },
        sinks={
            "parquet": {"storage": {"url": str(tmp_path / "archive")}},
            "alertmanager": {"urls": [alertmanager.url]},
        },
    ) | {"rules": [rule]}
    config["tier"] |= {"shards": 2, "processes": 2}
    cluster = config["tier"]["cluster"]
    second = config | {"tier": config["tier"] | {"process": 1}}
    with (
        Tier(tmp_path / "0", config).start() as one,
        Tier(tmp_path / "1", second).start() as two,
        Tier(tmp_path / "e", config, command="alerts").start() as evaluator,
    ):
        for number in range(8):  # over both partitions by their keys
            Node(kafka, topic, f"gpu-{number}").kernel(XID_79.format(pci="3b"))
        evaluator.until(lambda: len(alertmanager.alerts(cluster=cluster, alertname="ManyFaults")) == 1)
        evaluator.until(lambda: len(alertmanager.alerts(cluster=cluster, alertname="GpuXidCritical")) == 8)
        scraped = urllib3.request("GET", f"http://{evaluator.address}/metrics").data
        assert [tier.drain() for tier in (one, two, evaluator)] == [0, 0, 0]
        assert_balanced(evaluator.ledger)
    assert check_metrics(promtool, scraped) == ""
    assert b"tailrace_evaluator_lag_seconds" in scraped
    told = messages(kafka, partials, lambda found: sum("rule" in one for one in found) >= 16)
    assert {one["topic"] for one in told} == {topic}
    kept = [row for row in rows(tmp_path / "archive", "landing") if row["kind"] == "alert"]
    assert len({(row["offset"], row["line"], row["part"]) for row in kept}) == 9


def test_a_tier_that_waits_for_its_archive_delays_no_alert_of_one_without_stores(
    tmp_path: Path, kafka: Kafka, alertmanager: Alertmanager
) -> None:
    """Both read the kernel's lines; what the second finds is a repeat, whichever of them it is."""
    needs_real(kafka, "log append time")
    needs_real(alertmanager, "its API")
    topic, partials = kafka.topic(**LOG_APPEND), kafka.topic()
    alerts = {"partials_topic": partials, "alerts_topic": ""}
    archiving = values(kafka, topic, alerts=alerts | {"mode": "topic"})
    cluster = archiving["tier"]["cluster"]
    pager = tomllib.loads(PAGER.read_text(encoding="utf-8"))
    pager["tier"]["cluster"] = cluster
    pager["source"]["kafka"] |= {"bootstrap": kafka.bootstrap, "topics": [topic], "group": f"{topic}-pager"}
    pager["alerts"] |= alerts | {"group": partials, "recovery": {"dir": "state"}, "http": {"port": free_port()}}
    pager["sinks"]["alertmanager"]["urls"] = [alertmanager.url]
    pager |= {"recovery": {"dir": "recovery"}, "http": {"port": free_port()}}
    with (
        Tier(tmp_path / "archiving", archiving).start() as slow,
        Tier(tmp_path / "pager", pager).start() as quick,
        Tier(tmp_path / "evaluator", pager, command="alerts").start() as evaluator,
    ):
        slow.until(lambda: bool(slow.events("started")))
        slow.signal(signal.SIGSTOP)
        Node(kafka, topic, "gpu-a07").kernel(XID_79.format(pci="3b"))
        evaluator.until(lambda: len(alertmanager.alerts(cluster=cluster)) == 1)
        slow.signal(signal.SIGCONT)
        metrics, repeated = f"http://{evaluator.address}/metrics", b"tailrace_evaluator_repeated_total 1.0"
        evaluator.until(lambda: repeated in urllib3.request("GET", metrics).data)
        assert [tier.drain() for tier in (slow, quick, evaluator)] == [0, 0, 0]
    [alert] = alertmanager.alerts(cluster=cluster)
    assert alert["annotations"]["description"].startswith("1 faults in 1 lines.")


@pytest.mark.parametrize(
    ("alerts", "status", "said"),
    [
        ({"mode": "off"}, 2, "alerts.mode is off, so there is nothing to read; set it to topic"),
        ({"mode": "topic", "partials_topic": "never-made"}, 2, "never-made does not exist"),
    ],
)
def test_the_evaluator_says_why_it_cannot_start(
    tmp_path: Path, kafka: Kafka, alerts: dict[str, str], status: int, said: str
) -> None:
    needs_real(kafka, "a missing topic")
    tier = Tier(tmp_path, values(kafka, kafka.topic(), alerts=alerts))
    done = tailrace("alerts", "--config", str(tier.config))
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
