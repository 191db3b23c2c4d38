"""Metrics and health over HTTP, from a running tier and of a worker that stands still."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from flows import run
from flows.cluster import Runtime
from flows.config import HttpConfig, validate
from flows.metrics import _MAX_PLACES, Metrics
from flows.pipeline import Pipeline
from flows.serving import serve
from flows.steps.decode import DecodeConfig
from tests.flows.tier import WAIT_S, Tier, committed
from tests.services.kafka import Kafka
from tests.services.process import free_port

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def get(address: str, path: str) -> tuple[int, str]:
    answer = urllib3.request("GET", f"http://{address}{path}", timeout=10, retries=False)
    return answer.status, answer.data.decode()


def samples(text: str) -> Samples:
    """Prometheus text by its own parser; a series that comes twice is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def scrape(address: str) -> Samples:
    status, text = get(address, "/metrics")
    assert status == 200
    return samples(text)


def value(found: Samples, name: str, **labels: str) -> float:
    return sum(
        number for (known, pairs), number in found.items() if known == name and labels.items() <= dict(pairs).items()
    )


class Running:
    """A tier on a topic of its own, with metrics, and lines to send to it."""

    def __init__(self, kafka: Kafka, home: Path) -> None:
        self.kafka, self.topic = kafka, kafka.topic()
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap})
        storage = {"url": str(home / "archive")}
        self.tier = Tier(
            home,
            {
                "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [self.topic], "group": self.topic}},
                "sinks": {"parquet": {"storage": storage}},
                "dead_letter": {"storage": storage},
                "recovery": {"dir": str(home / "recovery"), "epoch_s": 0.3},
                "http": {"port": free_port()},
            },
        )

    def send(self, *messages: tuple[bytes | None, dict[str, str]]) -> None:
        """Send blocks and wait until they are committed."""
        for value, headers in messages:
            pairs = [(name, text.encode()) for name, text in headers.items()]
            self._producer.produce(self.topic, value, headers=pairs)
        assert self._producer.flush(WAIT_S) == 0
        self.sent += len(messages)
        self.tier.until(lambda: committed(self.kafka, self.topic, (self.topic, 0)) == [self.sent])


@pytest.fixture
def running(kafka: Kafka, tmp_path: Path) -> Iterator[Running]:
    running = Running(kafka, tmp_path)
    with running.tier:
        running.tier.start()
        yield running


BLOCK = {"v": "1", "kind": "training", "node": "gpu-1"}


def test_a_running_tier_tells_what_it_does_and_counts_from_zero_after_a_kill(running: Running) -> None:
    tier = running.tier
    running.send((b"one\ntwo\n\ngpu-1:1:1 [0] NCCL INFO Using network IB", BLOCK), (None, {}), (b"x", {"v": "9"}))
    found = scrape(tier.address)
    assert value(found, "tailrace_lines_read_total", topic=running.topic, partition="0") == 5
    assert value(found, "tailrace_lines_dropped_total", rule="empty") == 1
    assert value(found, "tailrace_messages_empty_total") == 1
    assert value(found, "tailrace_dead_letters_total", reason="bad_version") == 1
    assert value(found, "tailrace_ledger_unbalanced_lines_total") == 0
    assert value(found, "tailrace_sink_lines_total", sink="parquet", fate="delivered") == 3
    assert value(found, "tailrace_ledger_in_flight_lines", sink="parquet") == 0
    assert value(found, "tailrace_batch_lines_count") > 0
    assert value(found, "tailrace_ledger_lines", sink="", fate="read") == 5
    tier.signal(signal.SIGKILL)
    assert tier.wait() == -signal.SIGKILL
    tier.start()
    running.send((b"three", BLOCK))
    tier.until(lambda: value(scrape(tier.address), "tailrace_lines_read_total") == 1)
    found = scrape(tier.address)
    assert value(found, "tailrace_ledger_lines", sink="", fate="read") == 6
    assert value(found, "tailrace_sink_lines_total", sink="parquet", fate="delivered") == 1
    assert value(found, "tailrace_ledger_lines", sink="parquet", fate="delivered") == 4


def test_health_and_readiness_of_a_running_tier(running: Running) -> None:
    address = running.tier.address
    assert get(address, "/healthz") == (200, '{"healthy": true, "reason": null}\n')
    running.tier.until(lambda: get(address, "/readyz")[0] == 200)
    running.tier.until(lambda: value(scrape(address), "tailrace_epoch_seconds") > 0.1)
    status, text = get(address, "/nothing")
    assert status == 404
    assert "/metrics /healthz /readyz" in text


def test_only_this_machine_is_answered_unless_configured(running: Running) -> None:
    host, _, port = running.tier.address.partition(":")
    assert host == "127.0.0.1" == HttpConfig().host
    with pytest.raises(ConnectionRefusedError):  # what listens on all addresses would answer here
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)


def test_nothing_in_lines_or_headers_makes_a_series(running: Running) -> None:
    running.send((b"a line", BLOCK), (b"x", {"v": "2"}))
    before = set(scrape(running.tier.address))
    running.send(
        *((b"line %d" % n, {"v": "1", "node": f"n{n}", "pod": f"p{n}", "path": f"/{n}.out"}) for n in range(200)),
        *((b"x", {"v": f"{n}"}) for n in range(2, 20)),
        *((b"x", {"v": "1", "kind": f"kind{n}", f"header{n}": "x"}) for n in range(20)),
    )
    running.tier.until(lambda: value(scrape(running.tier.address), "tailrace_lines_read_total") == 240)
    assert set(scrape(running.tier.address)) == before


def test_many_files_share_one_series() -> None:
    runtime = Runtime(validate({"source": {"files": {}}}, "test"))
    pipeline = Pipeline(DecodeConfig())
    runtime.metrics.publish(pipeline)
    pipeline.counts.read.update({(f"/log/{number}.out", 0): 2 for number in range(_MAX_PLACES + 1)})
    runtime.metrics.publish(pipeline)
    found = samples(exposed(runtime.metrics))
    read = {pairs: number for (name, pairs), number in found.items() if name == "tailrace_lines_read_total"}
    assert read == {(("partition", ""), ("topic", "")): 2 * (_MAX_PLACES + 1)}


def exposed(metrics: Metrics) -> str:
    server = serve("127.0.0.1", 0, metrics.registry, lambda: None, lambda: None)
    try:
        return get(f"127.0.0.1:{server.server_port}", "/metrics")[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def still() -> Iterator[tuple[Runtime, str]]:
    """The server of a process whose worker ends epochs only when the test says so; epochs of 10 s."""
    runtime = Runtime(validate({"source": {"files": {}}, "recovery": {"epoch_s": 10.0}}, "test"))
    server = serve(
        "127.0.0.1", 0, runtime.metrics.registry, lambda: run._stuck(runtime), lambda: run._not_ready(runtime)
    )
    yield runtime, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def judged(address: str, path: str) -> tuple[int, Any]:
    status, text = get(address, path)
    return status, json.loads(text)["reason"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_worker_that_stands_still_is_told_with_the_reason(still: tuple[Runtime, str], path: str) -> None:
    runtime, address = still
    runtime.metrics.epoch_ended()
    assert judged(address, path) == (200, None)
    runtime.metrics.last_epoch = time.monotonic() - 119  # of 120: twelve epochs
    assert judged(address, path)[0] == 200
    runtime.metrics.last_epoch = time.monotonic() - 121
    assert judged(address, path) == (503, "no epoch has ended for 121 s")
    runtime.metrics.epoch_ended()
    assert judged(address, path) == (200, None)


def test_a_start_is_not_ready_yet_but_healthy_for_a_while(still: tuple[Runtime, str]) -> None:
    runtime, address = still
    assert judged(address, "/readyz") == (503, "no epoch has ended yet")
    assert judged(address, "/healthz") == (200, None)
    runtime.metrics.started -= 121
    assert judged(address, "/healthz") == (503, "no epoch has ended for 121 s")
