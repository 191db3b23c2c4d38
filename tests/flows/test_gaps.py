"""What Loki misses in an outage is handed over to the topic of gaps, and comes back by `tailrace replay --gaps`."""

import json
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer

from flows.demo.loki_receiver import Receiver
from flows.gaps import GapTopic, open_gaps
from flows.sources.kafka import KafkaConfig
from sinks.base import Gap
from tests.flows.tier import Tier, assert_balanced, tailrace
from tests.services.kafka import Kafka

PATIENCE_S = 40.0


def produce(kafka: Kafka, topic: str, first: int, last: int) -> None:
    """Messages of one line each, numbered from `first` to before `last`."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(first, last):
        producer.produce(topic, b"line %d" % number + b" x" * 500, b"gpu-1", headers=[("node", b"gpu-1")])
    assert producer.flush(20) == 0


def test_an_outage_stops_nothing_and_is_refilled_to_the_last_line(tmp_path: Path, kafka: Kafka) -> None:
    topic = kafka.topic(1, stem="outage")
    gaps_topic = kafka.topic(2, stem="gaps", **{"cleanup.policy": "compact"})
    source = {"bootstrap": kafka.bootstrap, "topics": {topic: "pod"}, "gaps_topic": gaps_topic, "batch_lines": 200}
    with Receiver() as loki:
        patience = {"barrier_s": 0.1, "outage_s": 0.3, "max_buffer_bytes": 1 << 20, "retry_max_s": 0.2}
        config = {
            "source": {"kafka": source},
            "sinks": {"loki": {"url": loki.url, **patience}},
            "recovery": {"dir": tmp_path / "recovery", "epoch_s": 0.3},
            "dead_letter": {"storage": {"url": tmp_path / "dead"}},
        }
        reader = KafkaConfig(bootstrap=kafka.bootstrap, gaps_topic=gaps_topic)
        with Tier(tmp_path, config).start() as tier:
            produce(kafka, topic, 0, 500)
            tier.until(lambda: loki.lines == 500)
            loki.stop()
            produce(kafka, topic, 500, 5_000)
            deadline = time.monotonic() + PATIENCE_S
            while not open_gaps(reader, "loki"):
                assert time.monotonic() < deadline, tier.tail()
            loki.start()
            produce(kafka, topic, 5_000, 5_100)
            tier.until(lambda: any(entry.line.startswith("line 5099 ") for entry in loki.entries()))
            assert tier.drain() == 0
            assert_balanced(tier.ledger)
            missed = tier.ledger["sinks"]["loki"]["gapped"]
        assert missed > 0
        gaps = open_gaps(reader, "loki")
        assert sum(gap.lines for gap in gaps.values()) == missed

        result = tailrace("replay", "--config", str(tier.config), "--gaps", "loki")

        assert result.returncode == 0, result.stderr
        assert open_gaps(reader, "loki") == {}
        seen = Counter(entry.line.split(" x")[0] for entry in loki.entries())
        assert seen.keys() == {f"line {number}" for number in range(5_100)}
        refilled = json.loads(result.stderr.splitlines()[-1].removeprefix("tailrace replay: "))
        assert_balanced(refilled)
        labels = {labels for labels in loki.streams() if ("replay", "true") in labels}
        assert labels, "what was refilled cannot be told from live lines"
        assert tailrace("replay", "--config", str(tier.config), "--gaps", "loki").returncode == 0


def test_a_gap_stays_open_while_the_store_is_down(tmp_path: Path, kafka: Kafka) -> None:
    topic = kafka.topic(1, stem="outage")
    gaps_topic = kafka.topic(1, stem="gaps", **{"cleanup.policy": "compact"})
    produce(kafka, topic, 0, 10)
    reader = KafkaConfig(bootstrap=kafka.bootstrap, gaps_topic=gaps_topic)
    GapTopic(reader, 1).publish("loki", "0000", [Gap(topic, 0, 0, 9, 10)])
    with Receiver() as loki:
        config = {
            "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic], "gaps_topic": gaps_topic}},
            "sinks": {"loki": {"url": loki.url}},
            "dead_letter": {"storage": {"url": tmp_path / "dead"}},
        }
        tier = Tier(tmp_path, config)
    result = tailrace("replay", "--config", str(tier.config), "--gaps", "loki", "--patience", "1")
    assert result.returncode == 75
    assert "the store has not taken 10 lines; the gaps stay open" in result.stderr
    assert len(open_gaps(reader, "loki")) == 1


def test_messages_that_are_no_gaps_are_passed_over(kafka: Kafka) -> None:
    gaps_topic = kafka.topic(1, stem="gaps", **{"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for key, value in [
        (b"loki/a/b", b"{}"), (b"loki/t/0/1-2", b"no json"), (b"azure/t/0/1-2", b'{"lines":1}'), (b"", b""),
        (b"loki/t/0/5-9", b'{"lines":4}'), (b"loki/t/0/7-7", b'{"lines":1}'), (b"loki/t/0/7-7", None), (b"\xff", b"x"),
    ]:  # fmt: skip
        producer.produce(gaps_topic, value, key)
    assert producer.flush(20) == 0
    reader = KafkaConfig(bootstrap=kafka.bootstrap, gaps_topic=gaps_topic)
    assert open_gaps(reader, "loki") == {b"loki/t/0/5-9": Gap("t", 0, 5, 9, 4)}
