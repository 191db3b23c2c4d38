"""A message for one of our topics is there when the epoch's snapshot returns, or the epoch does not end."""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from sinks.errors import Misconfigured
from sinks.kafka_topic import KafkaTopicSink, Message
from tests.services.kafka import MAX_MESSAGE_BYTES, Kafka
from tests.services.process import free_port
from tests.services.table import needs_real


def sink(kafka: Kafka, topic: str, **settings: str) -> KafkaTopicSink:
    return KafkaTopicSink(topic, {"bootstrap.servers": kafka.bootstrap, **settings}, "partials", ["0000", "0001"])


def ends(kafka: Kafka, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    try:
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30) for n in range(partitions)]
        return sum(high for _, high in marks)
    finally:
        consumer.close()


def test_all_messages_are_in_the_topic_when_the_snapshot_returns(kafka: Kafka) -> None:
    needs_real(kafka, "where a topic ends")
    topic = kafka.topic(partitions=3)
    parts = sink(kafka, topic)
    for shard in parts.list_parts():
        part = parts.build_part("partials", shard, None)
        part.write_batch([Message(f"logs.kernel/{n % 7}".encode(), json.dumps(n).encode()) for n in range(1_000)])
        part.snapshot()
    assert ends(kafka, topic, 3) == 2_000


def test_messages_of_one_key_stay_in_order(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    part = sink(kafka, topic).build_part("partials", "0000", None)
    part.write_batch([Message(b"logs.kernel/4", str(n).encode()) for n in range(200)])
    part.snapshot()
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        read = [message.value() for message in consumer.consume(200, timeout=30)]
    finally:
        consumer.close()
    assert read == [str(n).encode() for n in range(200)]


def test_a_message_that_is_refused_for_good_is_told(kafka: Kafka) -> None:
    needs_real(kafka, "limits of size")
    topic = kafka.topic(max_message_bytes="1000")
    part = sink(kafka, topic).build_part("partials", "0000", None)
    part.write_batch([Message(b"k", bytes(range(256)) * (MAX_MESSAGE_BYTES // 1024))])
    with pytest.raises(Misconfigured, match=r"did not take 1 partials: .*check that it exists, its rights and its max"):
        part.snapshot()


def test_the_check_names_a_missing_topic_and_an_absent_broker(kafka: Kafka) -> None:
    needs_real(kafka, "a missing topic")
    with pytest.raises(Misconfigured, match=r"not-made for partials: .*`tailrace topics`"):
        sink(kafka, "not-made").check()
    nobody = KafkaTopicSink("t", {"bootstrap.servers": f"127.0.0.1:{free_port()}"}, "partials", ["0"])
    with pytest.raises(Misconfigured, match=r"Kafka does not answer for partials: .*Connection refused"):
        nobody.check()
