"""A tier with Azure Monitor Logs as its store."""

import json
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.flows.tier import Tier, assert_balanced, tailrace
from tests.services.kafka import Kafka
from tests.sinks.azure_receiver import SECRET, Azure, Fault, azure

SECRETS = {"AZURE_TEST_SECRET": SECRET}


def lines_of(service: Azure) -> set[tuple[str, str]]:
    return {(stream, row["RecordId"]) for stream, rows in service.rows.items() for row in rows}


def test_each_kind_fills_its_table_and_a_killed_tier_repeats_the_same_rows(tmp_path: Path, kafka: Kafka) -> None:
    topic = kafka.topic(1, stem="azure")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    xid = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    for number in range(200):
        for kind, line in ((b"kmsg", b"4,%d,%d,-;%s" % (number, number, xid)), (b"pod", b"no CRI %d" % number)):
            headers = [("v", b"1"), ("kind", kind), ("node", b"gpu-1")]
            producer.produce(topic, line, b"gpu-1", headers=headers)
    assert producer.flush(20) == 0
    with azure(tmp_path) as service:
        service.faults.extend([Fault(403)] * 3)
        config = {
            "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic], "batch_lines": 20}},
            "sinks": {"azure": service.settings(pause_s=0.1, flush_s=0.1, barrier_s=15.0)},
            "dead_letter": {"storage": {"url": tmp_path / "dead"}},
            "recovery": {"dir": tmp_path / "recovery", "epoch_s": 0.3},
        }
        with Tier(tmp_path, config, SECRETS).start() as tier:
            tier.until(lambda: len(service.rows) > 1 and "Custom-tailrace_alert_CL" in service.rows)
            tier.signal(signal.SIGKILL)
            tier.wait()
            tier.start()
            tier.until(lambda: len(tier.events("started")) == 2)
            tier.until(lambda: len([1 for stream, _ in lines_of(service) if "alert" not in stream]) == 400)
            assert tier.drain() == 0, tier.tail()
            assert_balanced(tier.ledger)
            assert SECRET not in tier.log.read_text()
    for stream in ("Custom-tailrace_kmsg_CL", "Custom-tailrace_pod_CL"):
        by_record: dict[str, set[str]] = {}
        for row in service.rows[stream]:
            by_record.setdefault(row["RecordId"], set()).add(json.dumps(row, sort_keys=True))
        assert len(by_record) == 200
        assert all(len(contents) == 1 for contents in by_record.values()), "a repeat has other content"
    assert {row["Xid"] for row in service.rows["Custom-tailrace_kmsg_CL"]} == {79}


@pytest.mark.parametrize(("secret", "status"), [(SECRET, 0), ("another", 2)], ids=["granted", "denied"])
def test_the_check_asks_for_a_token(tmp_path: Path, secret: str, status: int) -> None:
    (tmp_path / "kmsg").write_text("6,1,1,-;x\n")
    with azure(tmp_path) as service:
        tier = Tier(
            tmp_path,
            {
                "source": {"files": {"paths": [tmp_path / "kmsg"]}},
                "sinks": {"azure": service.settings()},
                "dead_letter": {"storage": {"url": tmp_path / "dead"}},
            },
        )
        result = tailrace("check", "--config", str(tier.config), environment={"AZURE_TEST_SECRET": secret})
    assert result.returncode == status, result.stderr
    assert secret not in result.stderr
    if status:
        assert "Azure gives no token" in result.stderr
