"""`tailrace replay` as a user runs it, against real Kafka."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.flows.tier import Tier, assert_balanced, committed, rows, tailrace, toml
from tests.services.kafka import Kafka
from tests.services.table import needs_real

START_MS = 1_764_547_200_000
BLOCK = [("v", b"1"), ("kind", b"kmsg")]


def fill(kafka: Kafka, messages: int, partitions: int = 2) -> str:
    """A topic of blocks of two kernel lines, `messages` per partition, one a second of the sender's clock."""
    topic = kafka.topic(partitions, stem="replay")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(messages):
        for partition in range(partitions):
            value = b"6,%d,1,-;first\n6,%d,2,-;second" % (2 * number, 2 * number + 1)
            headers = [*BLOCK, ("node", b"gpu-%d" % partition)]
            producer.produce(topic, value, b"gpu", partition, headers=headers, timestamp=START_MS + 1_000 * number)
    assert producer.flush(20) == 0
    return topic


def configured(tmp_path: Path, kafka: Kafka, topic: str, **sinks: Any) -> Path:
    file = tmp_path / "tailrace.toml"
    values = {
        "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic], "group": f"group-{topic}"}},
        "dead_letter": {"storage": {"url": str(tmp_path / "dead")}},
        "sinks": sinks,
        "tier": {"shards": 4, "processes": 2},
        "recovery": {"epoch_s": 0.5},
    }
    file.write_text(toml(values))
    return file


def printed(result: "subprocess.CompletedProcess[str]") -> list[tuple[int, int, int]]:
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return sorted((record["partition"], record["offset"], record["line"]) for record in found)


def test_a_range_of_offsets_comes_out_as_json_lines_each_once(tmp_path: Path, kafka: Kafka) -> None:
    topic = fill(kafka, 30)
    config = configured(tmp_path, kafka, topic)
    result = tailrace("replay", "--config", str(config), "--from", "10", "--to", "20")
    assert printed(result) == [(part, at, line) for part in range(2) for at in range(10, 20) for line in range(2)]
    ledger = json.loads(result.stderr.splitlines()[-1].removeprefix("tailrace replay: "))
    assert_balanced(ledger)
    assert ledger["read"] == 40
    audit = next(json.loads(line) for line in result.stderr.splitlines() if '"replay"' in line)
    assert audit["ranges"] == [[topic, 0, 10, 20], [topic, 1, 10, 20]]
    assert committed(kafka, f"group-{topic}", (topic, 0)) == [-1001]


def test_a_range_of_times_of_one_node_comes_out(tmp_path: Path, kafka: Kafka) -> None:
    topic = fill(kafka, 30)
    config = configured(tmp_path, kafka, topic)
    times = ["--from", "2025-12-01T00:00:05Z", "--to", "2025-12-01T00:00:08Z"]
    result = tailrace("replay", "--config", str(config), *times, "--node", "gpu-1")
    assert printed(result) == [(1, at, line) for at in (5, 6, 7) for line in range(2)]


def test_all_there_is_when_it_starts_is_read_and_no_more(tmp_path: Path, kafka: Kafka) -> None:
    topic = fill(kafka, 5)
    config = configured(tmp_path, kafka, topic)
    assert len(printed(tailrace("replay", "--config", str(config)))) == 20


def test_messages_that_kafka_has_no_more_are_named(tmp_path: Path, kafka: Kafka) -> None:
    needs_real(kafka, "deleted records")
    topic = fill(kafka, 10, partitions=1)
    admin = kafka.admin()
    for done in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(20)
    config = configured(tmp_path, kafka, topic)
    result = tailrace("replay", "--config", str(config), "--from", "0", "--to", "6")
    assert result.returncode == 1
    assert f"{topic}/0 has messages 0 to 3 no more" in result.stderr
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [4, 4, 5, 5]


def test_an_interrupted_replay_goes_on_where_it_was_and_to_the_same_end(tmp_path: Path, kafka: Kafka) -> None:
    topic = fill(kafka, 400)
    storage = {"storage": {"url": str(tmp_path / "live")}}
    config = configured(tmp_path, kafka, topic, parquet=storage)
    slow = config.read_text().replace('"kafka" = {', '"kafka" = {"batch_lines" = 20, "epoch_bytes" = 1048576, ')
    config.write_text(slow)
    command = ["--target", str(tmp_path / "again"), "--into", "parquet", "--state", str(tmp_path / "state")]
    with Tier(tmp_path / "home", {}, command="replay") as tier:
        tier.config.write_text(config.read_text())
        tier.arguments = command
        tier.start()
        landing = tmp_path / "again" / "landing"
        tier.until(lambda: landing.exists() and any(landing.rglob("*.parquet")))
        tier.signal(signal.SIGKILL)
        tier.wait()
        fresh = Producer({"bootstrap.servers": kafka.bootstrap})
        fresh.produce(topic, b"6,1,1,-;late", b"gpu", 0, headers=BLOCK)
        assert fresh.flush(20) == 0
        time.sleep(0.1)
        tier.start()
        assert tier.wait() == 0, tier.tail()
    found = rows(tmp_path / "again", "landing")
    assert sorted((row["partition"], row["offset"], row["line"]) for row in found) == [
        (part, at, line) for part in range(2) for at in range(400) for line in range(2)
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--into", "parquet"], "needs --target"),
        (["--into", "loki"], r"has no [sinks.loki]"),
        (["--from", "yesterday"], "neither an offset nor a time"),
        (["--topic", "no-such-topic"], "does not exist"),
    ],
)
def test_wrong_options_end_with_what_to_change(tmp_path: Path, kafka: Kafka, options: list[str], says: str) -> None:
    topic = fill(kafka, 1, partitions=1)
    config = configured(tmp_path, kafka, topic, parquet={"storage": {"url": str(tmp_path / "live")}})
    result = tailrace("replay", "--config", str(config), *options)
    assert result.returncode == 2
    assert says in result.stderr
