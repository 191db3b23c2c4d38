"""The topic of gaps: what a store lacks, one message for each range, until a refill has sent it.

Key `STORE/TOPIC/PARTITION/FIRST-LAST`, value `{"lines": …, "generation": …, "shard": …}`, a tombstone if it is filled.
The topic is compacted, so what it holds is what is open. A tier hands a range over when an epoch ends, and forgets it.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flows.config import Config
from flows.sources.broker import connect, partitions
from flows.sources.kafka import KafkaConfig, consumer_settings
from flows.sources.trouble import Trouble
from sinks.base import Gap
from sinks.errors import Misconfigured
from sinks.kafka_topic import KafkaTopic, Message

log = logging.getLogger("tailrace.gaps")

_SILENT_S = 30.0


class GapTopic:
    """Writes to the topic. For one thread; waits for the brokers as long as they are away."""

    def __init__(self, kafka: KafkaConfig, generation: int) -> None:
        self._topic = KafkaTopic(kafka.gaps_topic, kafka.client(), "gaps")
        self._generation = generation

    def publish(self, store: str, shard: str, gaps: Sequence[Gap]) -> None:
        """Hand gaps over; durable on return."""
        for gap in gaps:
            value = {"lines": gap.lines, "generation": self._generation, "shard": shard}
            self._topic.send(Message(key_of(store, gap), orjson.dumps(value)))
        self._topic.flush()

    def settle(self, keys: Sequence[bytes]) -> None:
        """Say that these gaps are filled."""
        for key in keys:
            self._topic.send(Message(key, None))
        self._topic.flush()


def key_of(store: str, gap: Gap) -> bytes:
    return f"{store}/{gap.topic}/{gap.partition}/{gap.first}-{gap.last}".encode()


def gap_topic(config: Config) -> GapTopic | None:
    """The topic of a tier; None where there is none: gaps then stay in the recovery store, and nothing refills them."""
    kafka = config.source.kafka
    if kafka is None or not kafka.gaps_topic:
        return None
    if kafka.gaps_topic not in partitions(kafka, None):
        log.warning(
            "there is no topic of gaps: what a store misses in an outage stays in the recovery store and is not "
            "refilled; make it with `tailrace topics --apply`",
            extra={"topic": kafka.gaps_topic},
        )
        return None
    return GapTopic(kafka, config.tier.generation)


def open_gaps(kafka: KafkaConfig, store: str) -> dict[bytes, Gap]:
    """All gaps of a store, by key. Raises Misconfigured when the topic cannot be read."""
    topic, found = kafka.gaps_topic, dict[bytes, Gap]()
    count = partitions(kafka, [topic])[topic]
    settings = consumer_settings(kafka, 1, Trouble(log, kafka.bootstrap)) | {
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer: Any = connect(Consumer, settings)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
        left, heard = set(range(count)), time.monotonic()
        while left:
            messages = consumer.consume(500, 1.0)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENT_S:
                raise Misconfigured(f"Kafka topic {topic} at {kafka.bootstrap} cannot be read to its end; try again")
            for message in messages:
                error = message.error()
                if error is None:
                    _take(found, store, message.key() or b"", message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
    except KafkaException as error:
        raise Misconfigured(f"Kafka topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return found


def _take(found: dict[bytes, Gap], store: str, key: bytes, value: bytes | None) -> None:
    """One message of the topic; what is none of ours is passed over, and named."""
    if not key.startswith(f"{store}/".encode()):
        return
    if value is None:
        found.pop(key, None)
        return
    try:
        _, topic, partition, span = key.decode().rsplit("/", 3)
        first, last = span.split("-")
        found[key] = Gap(topic, int(partition), int(first), int(last), int(orjson.loads(value)["lines"]))
    except (ValueError, KeyError, TypeError):
        log.warning(
            "a message of the topic of gaps is not understood", extra={"key": key[:200].decode(errors="replace")}
        )
