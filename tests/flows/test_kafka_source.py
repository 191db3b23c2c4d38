"""The Kafka source against a real broker: what it reads, where it starts, what it says of losses, how it ends."""

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.inputs import AbortExecution
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from flows.batch import Chunk
from flows.sources.broker import unreachable
from flows.sources.drain import Drain
from flows.sources.kafka import KafkaConfig, KafkaSource, check_topics
from flows.sources.kafka_part import KafkaPart, Positions
from flows.sources.trouble import Trouble
from flows.steps.decode import DecodeConfig, decode
from sinks.errors import Misconfigured
from tests.services.kafka import Kafka
from tests.services.process import free_port
from tests.services.table import needs_real

Headers = list[tuple[str, bytes]]
Losses = list[tuple[str, int, int, int]]

WAIT_S = 20.0


def send(kafka: Kafka, topic: str, *messages: tuple[int, bytes | None, Headers], key: bytes | None = b"gpu-1") -> None:
    """Send (partition, value, headers)."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "lz4"})
    for partition, value, headers in messages:
        producer.produce(topic, value, key, partition, headers=headers)
    assert producer.flush(WAIT_S) == 0


def numbered(first: int, last: int, partition: int = 0) -> list[tuple[int, bytes | None, Headers]]:
    return [(partition, b"%d" % number, []) for number in range(first, last)]


@pytest.fixture
def build(kafka: Kafka) -> Any:
    """Makes parts of a source and closes them."""
    parts: list[KafkaPart] = []

    def make(
        *topics: str,
        shard: int = 0,
        shards: int = 1,
        resume: Positions | None = None,
        drain: Drain | None = None,
        losses: Losses | None = None,
        **settings: Any,
    ) -> KafkaPart:
        config = KafkaConfig(bootstrap=kafka.bootstrap, topics=list(topics), **settings)
        told: Losses = [] if losses is None else losses
        source = KafkaSource(config, [f"{shard:04d}"], shards, drain or Drain(), lambda *loss: told.append(loss))
        part = source.build_part("source", f"{shard:04d}", resume)
        parts.append(part)
        return part

    yield make
    for part in parts:
        part.close()


def read(part: KafkaPart, messages: int) -> list[Chunk]:
    """Chunks until there are so many messages."""
    chunks: list[Chunk] = []
    until = time.monotonic() + WAIT_S
    while sum(len(chunk.values) for chunk in chunks) < messages:
        assert time.monotonic() < until, f"only {chunks} came"
        chunks += [chunk for _, chunk in part.next_batch() if chunk.values]
        time.sleep(0.005)
    return chunks


def eventually(condition: Callable[[], bool], part: KafkaPart) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        list(part.next_batch())
        time.sleep(0.01)


def values(chunks: Sequence[Chunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def committed(kafka: Kafka, group: str, *places: tuple[str, int]) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        return [found.offset for found in consumer.committed([TopicPartition(*place) for place in places], WAIT_S)]
    finally:
        consumer.close()


def test_messages_arrive_as_they_were_sent(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    block = b"\n".join(b"line %d" % number for number in range(500))
    envelope = b'{"host":"gpu-1","src":"slurmd","file":"/l","off":0,"line":"from rsyslog"}\n'
    before_ms = time.time() * 1000
    send(
        kafka,
        topic,
        (0, block, [("v", b"1"), ("kind", b"slurmd"), ("node", b"gpu-1")]),
        (0, b"one line\n", [("kind", b"slurmd")]),
        (0, envelope, []),
        (0, None, []),
        (0, b"", []),
        (0, b'{"broken', []),
    )
    chunks = read(build(topic), 6)
    assert [int(offset) for chunk in chunks for offset in chunk.offset] == list(range(6))
    assert chunks[0].keys[0] == b"gpu-1"
    assert chunks[0].headers[0] == (("v", b"1"), ("kind", b"slurmd"), ("node", b"gpu-1"))
    lines, empty = [], 0
    for chunk in chunks:
        result = decode(chunk, DecodeConfig(kinds={topic: "slurmd"}))
        empty += sum(result.empty.values())
        assert not result.dead
        for raw in result.raws:
            lines += raw.rows["raw"].to_pylist()
            assert abs(raw.rows["appended_at"].to_pylist()[0] - before_ms) < 60_000
            assert set(raw.rows["node"].to_pylist()) == {"gpu-1"}
    assert lines == [*block.split(b"\n"), b"one line", b"from rsyslog", b'{"broken']
    assert empty == 2


def test_shards_share_the_partitions_of_all_topics(kafka: Kafka, build: Any) -> None:
    counts = {kafka.topic(5): 5, kafka.topic(2): 2}
    places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
    for topic, partition in places:
        send(kafka, topic, (partition, f"{topic}/{partition}".encode(), []))
    for shard in range(3):
        expected = {f"{topic}/{partition}".encode() for topic, partition in places if partition % 3 == shard}
        chunks = read(build(*counts, shard=shard, shards=3), len(expected))
        assert set(values(chunks)) == expected
        for chunk in chunks:
            for number, partition, value in zip(chunk.topic, chunk.partition, chunk.values, strict=True):
                assert f"{chunk.topics[number]}/{partition}".encode() == value


def test_a_shard_without_partitions_only_ticks(kafka: Kafka, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.sources.kafka_part._TICK_S", 0.05)
    part = build(kafka.topic(1), shard=1, shards=2)
    ticks: list[Chunk] = []
    eventually(lambda: len(ticks) > 1 or ticks.extend(c for _, c in part.next_batch()) or False, part)
    assert all(not chunk.values and not chunk.ended for chunk in ticks)
    assert ticks[0].now_ms < ticks[1].now_ms


def test_batches_and_epochs_are_bounded(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic()
    send(kafka, topic, *((0, b"x" * 100_000, [("v", b"1")]) for _ in range(40)))
    part = build(topic, batch_bytes=400_000, epoch_bytes=1 << 20)
    chunks: list[Chunk] = []
    until = time.monotonic() + WAIT_S
    while len(values(chunks)) < 11 and time.monotonic() < until:
        chunks += [chunk for _, chunk in part.next_batch() if chunk.values]
        time.sleep(0.005)
    for _ in range(20):  # the epoch's budget is used up
        chunks += [chunk for _, chunk in part.next_batch() if chunk.values]
        time.sleep(0.005)
    assert 11 <= len(values(chunks)) <= 16
    assert max(sum(len(value or b"") for value in chunk.values) for chunk in chunks) <= 600_000
    part.snapshot()
    assert len(values(chunks + read(part, 1))) > len(values(chunks))


def test_the_recovery_store_comes_before_the_group_and_the_group_before_the_start(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        send(kafka, topic, *numbered(0, 10, partition))
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 8)], asynchronous=False)
    consumer.close()
    part = build(topic, group=topic, resume={(topic, 0): 4, ("a topic of before", 0): 9})
    chunks = read(part, 6 + 2 + 10)
    starts = {
        p: min(int(o) for c in chunks for o, q in zip(c.offset, c.partition, strict=True) if q == p) for p in range(3)
    }
    assert starts == {0: 4, 1: 8, 2: 0}
    assert part.snapshot() == {(topic, 0): 10, (topic, 1): 10, (topic, 2): 10}


def test_latest_skips_what_is_there_and_is_settled_at_once(kafka: Kafka, build: Any) -> None:
    needs_real(kafka, "where a topic ends: its watermarks lag")
    topic = kafka.topic()
    send(kafka, topic, *numbered(0, 10))
    part = build(topic, group=topic, start="latest")
    assert part.snapshot() == {(topic, 0): 10}
    send(kafka, topic, *numbered(10, 12))
    assert values(read(part, 2)) == [b"10", b"11"]


def test_a_snapshot_never_changes_after_it_was_taken(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic()
    send(kafka, topic, *numbered(0, 5))
    part = build(topic)
    read(part, 5)
    snapshot = part.snapshot()
    send(kafka, topic, *numbered(5, 9))
    read(part, 4)
    assert snapshot == {(topic, 0): 5}


def test_the_group_learns_offsets_only_after_their_epoch_is_committed(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic()
    send(kafka, topic, *numbered(0, 5))
    part = build(topic, group=topic)
    read(part, 5)
    part.snapshot()
    assert committed(kafka, topic, (topic, 0)) == [-1001]
    list(part.next_batch())
    eventually(lambda: committed(kafka, topic, (topic, 0)) == [5], part)


def test_deleted_messages_are_a_counted_loss_and_reading_goes_on(kafka: Kafka, build: Any) -> None:
    needs_real(kafka, "deleted records")
    topic = kafka.topic(2)
    send(kafka, topic, *numbered(0, 50), *numbered(0, 3, partition=1))
    admin = kafka.admin()
    for deleted in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        deleted.result(WAIT_S)
    losses: Losses = []
    part = build(topic, resume={(topic, 0): 5, (topic, 1): 0}, losses=losses)
    chunks = read(part, 33)
    assert losses == [(topic, 0, 5, 20)]
    assert sorted(int(v or b"") for c in chunks for v, p in zip(c.values, c.partition, strict=True) if p == 0) == list(
        range(20, 50)
    )
    assert part.snapshot() == {(topic, 0): 50, (topic, 1): 3}


def test_a_topic_made_anew_is_read_from_its_beginning(
    kafka: Kafka, build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    needs_real(kafka, "offsets out of range")
    topic = kafka.topic()
    send(kafka, topic, *numbered(0, 3))
    losses: Losses = []
    part = build(topic, resume={(topic, 0): 1000}, losses=losses)
    assert values(read(part, 3)) == [b"0", b"1", b"2"]
    assert losses == [(topic, 0, 1000, 1000)]
    assert "made anew" in caplog.text


def test_messages_of_the_largest_size_pass(kafka: Kafka, build: Any) -> None:
    topic = kafka.topic(max_message_bytes=str(2 << 20))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 3 << 20, "linger.ms": 0})
    value = bytes(range(256)) * 8000  # 2,048,000
    producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0
    assert values(read(build(topic, prefetch_bytes=8 << 20), 1)) == [value]


class Collect(FixedPartitionedSink[Chunk, None]):
    """Keeps the values of chunks, by shard."""

    def __init__(self, shards: list[str], kept: list[bytes | None], after: Callable[[], None]) -> None:
        self.shards, self.kept, self.after = shards, kept, after

    def list_parts(self) -> list[str]:
        return self.shards

    def part_fn(self, item_key: str) -> int:
        return self.shards.index(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "CollectPart":
        return CollectPart(self)


class CollectPart(StatefulSinkPartition[Chunk, None]):
    def __init__(self, sink: Collect) -> None:
        self.sink = sink

    def write_batch(self, values: list[Chunk]) -> None:
        for chunk in values:
            self.sink.kept += chunk.values
        self.sink.after()

    def snapshot(self) -> None:
        return None


def test_a_drained_run_ends_by_itself_and_the_next_repeats_nothing(kafka: Kafka, tmp_path: Path) -> None:
    topic, shards = kafka.topic(4), ["0000", "0001"]
    init_db_dir(tmp_path, 1)
    kept: list[bytes | None] = []

    def run(until: int) -> None:
        drain = Drain()
        config = KafkaConfig(bootstrap=kafka.bootstrap, topics=[topic], group=topic)
        flow = Dataflow("drained")
        chunks = op.input("source", flow, KafkaSource(config, shards, 2, drain, lambda *loss: pytest.fail(str(loss))))
        op.output("sink", chunks, Collect(shards, kept, lambda: drain.set() if len(kept) >= until else None))
        watchdog = threading.Timer(WAIT_S, drain.set)
        watchdog.start()
        cli_main(flow, epoch_interval=timedelta(seconds=0.2), recovery_config=RecoveryConfig(str(tmp_path)))
        watchdog.cancel()

    for partition in range(4):
        send(kafka, topic, *((partition, b"%d" % (1000 * partition + n), []) for n in range(100)))
    run(until=400)
    first = len(kept)
    assert first == 400
    assert committed(kafka, topic, *((topic, p) for p in range(4))) == [100] * 4
    for partition in range(4):
        send(kafka, topic, *((partition, b"%d" % (1000 * partition + n), []) for n in range(100, 150)))
    run(until=600)
    assert len(kept) == len(set(kept)) == 600


def test_a_draining_part_reads_no_more_and_waits_for_the_others(kafka: Kafka, build: Any) -> None:
    topic, drain = kafka.topic(2), Drain()
    send(kafka, topic, *numbered(0, 3), *numbered(0, 3, partition=1))
    one = build(topic, shard=0, shards=2, drain=drain, group=topic)
    other = build(topic, shard=1, shards=2, drain=drain, group=topic)
    read(one, 3)
    read(other, 3)
    drain.set()
    one.snapshot()
    send(kafka, topic, *numbered(3, 6), *numbered(3, 6, partition=1))
    assert list(one.next_batch()) == []
    read(other, 3)  # not asked yet: its epoch is still open
    assert list(one.next_batch()) == []
    other.snapshot()
    with pytest.raises(AbortExecution):
        list(other.next_batch())
    with pytest.raises(AbortExecution):
        list(one.next_batch())
    assert committed(kafka, topic, (topic, 0), (topic, 1)) == [3, 6]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topics": ["no.such.topic"]}, "no.such.topic does not exist.*tailrace topics"),
        ({"bootstrap": "nowhere"}, "no Kafka broker answers at 127.0.0.1:.*start it, or change bootstrap"),
        ({"settings": {"security.protocl": "ssl"}}, "security.protocl"),
        ({"settings": {"security.protocol": "ssl"}}, "no Kafka broker answers|TLS fails"),
        ({"settings": {"sasl.password": "env:NO_SUCH_NAME"}}, "NO_SUCH_NAME is not set"),
    ],
)
def test_a_wrong_configuration_ends_soon_with_what_to_change(
    kafka: Kafka, settings: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if settings.get("bootstrap"):
        settings = {"bootstrap": f"127.0.0.1:{free_port()}"}
    values = {"bootstrap": kafka.bootstrap, "topics": [kafka.topic()], **settings}
    capfd.readouterr()
    started = time.monotonic()
    with pytest.raises(Misconfigured, match=said) as raised:
        check_topics(KafkaConfig.model_validate(values))
    assert time.monotonic() - started < 10
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"settings": {"sasl.password": "hunter2"}}, "env:NAME or file:PATH"),
        ({"settings": {"enable.auto.commit": "true"}}, "enable.auto.commit is set by tailrace"),
        ({"topics": {"logs.kernel": "kmsgg"}}, "unknown kind kmsgg"),
        ({"topics": []}, "topics"),
        ({"topic": ["x"]}, "topic"),
    ],
)
def test_a_wrong_setting_is_refused_before_any_connection(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KafkaConfig.model_validate(wrong)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN], "no Kafka broker answers"),
        ([KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN], "refuses the login.*sasl"),
        ([KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN], "TLS fails.*ssl"),
    ],
)
def test_the_first_cause_is_named_when_no_broker_can_be_used(codes: list[int], said: str) -> None:
    assert re.search(said, unreachable("kafka:9092", [KafkaError(code) for code in codes]))


def test_trouble_is_logged_once_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble(logging.getLogger("test"), "kafka:9092")
    for _ in range(100):
        trouble.client(KafkaError(KafkaError._TRANSPORT))  # of one connection: not worth a line
        trouble.client(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        trouble.met("logs.job/0", "Unknown topic")
        trouble.commit(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), [])
    assert len(caplog.records) == 3
    for _ in range(100):
        trouble.reads()
        trouble.over("logs.job/0")
        trouble.commit(None, [])
    assert [record.getMessage() for record in caplog.records[3:]] == ["Kafka trouble is over"] * 3


def test_topics_may_name_the_kind_of_their_messages() -> None:
    config = KafkaConfig(topics={"logs.kernel": "kmsg"})
    assert DecodeConfig(kinds={"other": "slurmd"}).with_kinds(config.kinds).kinds == {
        "logs.kernel": "kmsg",
        "other": "slurmd",
    }
    assert KafkaConfig(topics=["logs.kernel"]).kinds == {}
