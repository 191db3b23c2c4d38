"""Our own Kafka topics: messages with acks=all by an idempotent producer, all acknowledged before an epoch ends."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from sinks.errors import Misconfigured, RetryLater

log = logging.getLogger("tailrace.kafka_topic")

_SAY_EVERY_S = 10.0
_CHECK_TIMEOUT_S = 5.0
# Answers to a message after which sending the same again is of no use.
_PERMANENT = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class Message(NamedTuple):
    """`key` says which messages stay in order."""

    key: bytes
    value: bytes | None  # None: a tombstone, where the topic is compacted
    headers: tuple[tuple[str, bytes], ...] = ()


class KafkaTopic:
    """A producer of one topic, for one thread.

    acks=all, idempotent, no timeout: messages wait for the brokers as long as they are away. `settings` are
    librdkafka's; those that make the promise cannot be overridden. `what` the messages are, for errors. Raises
    Misconfigured for settings that librdkafka refuses.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any], what: str) -> None:
        self._topic, self._what = topic, what
        self._waiting = 0
        self._failed: list[KafkaError] = []
        self._trouble = "no answer"
        promise = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 0, "error_cb": self._remember}
        # linger.ms: what is written is urgent. batch.size: a broker measures whole batches, its default limit is 1 MiB.
        # log_level: librdkafka writes 20 lines a second about a broker that is away; we say it ourselves.
        defaults = {"linger.ms": 1, "compression.type": "lz4", "batch.size": 256 << 10, "log_level": 2}
        defaults["queue.buffering.max.kbytes"] = 64 << 10
        try:
            self._producer = Producer({**defaults, **settings, **promise})
        except KafkaException as error:
            raise Misconfigured(f"Kafka settings for {what}: {error.args[0].str()}") from error

    def check(self) -> None:
        """Raise Misconfigured unless the brokers answer and the topic is there."""
        try:
            found = self._producer.list_topics(self._topic, timeout=_CHECK_TIMEOUT_S).topics[self._topic]
        except KafkaException as error:
            self._producer.poll(0)  # calls _remember
            raise Misconfigured(
                f"Kafka does not answer for {self._what}: {error.args[0].str()} ({self._trouble}); "
                "check the addresses and the credentials"
            ) from error
        if found.error is not None:
            raise Misconfigured(
                f"Kafka topic {self._topic} for {self._what}: {found.error.str()}; create it with `tailrace topics`"
            )

    def send(self, message: Message) -> None:
        """Hand a message to the producer; blocks only while its buffer is full."""
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    on_delivery=self._delivered,
                )
            except BufferError:  # wait for room
                self._producer.poll(1.0)
                continue
            self._waiting += 1
            self._producer.poll(0)
            return

    def flush(self) -> None:
        """Return when all messages so far are acknowledged.

        Raises Misconfigured when the topic refuses one for good, RetryLater for any other failure.
        """
        said = time.monotonic()
        while self._waiting:
            self._producer.poll(1.0)
            if self._waiting and time.monotonic() - said > _SAY_EVERY_S:
                log.warning(
                    "messages wait for Kafka",
                    extra={"topic": self._topic, "messages": self._waiting, "error": self._trouble},
                )
                said = time.monotonic()
        if self._failed:
            failed, self._failed = self._failed, []
            what = f"Kafka topic {self._topic} did not take {len(failed)} {self._what}: {failed[0].str()}"
            if failed[0].code() in _PERMANENT:
                raise Misconfigured(f"{what}; check that it exists, its rights and its max.message.bytes")
            raise RetryLater(what)

    def _delivered(self, error: KafkaError | None, _message: KafkaMessage) -> None:
        self._waiting -= 1
        if error is not None:
            self._failed.append(error)

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows an error that says more
            self._trouble = error.str()


class KafkaTopicSink(FixedPartitionedSink[Message, None]):
    """Takes (part, Message). At least once: a redone epoch is sent again.

    Each part has a producer of its own, so that parts do not wait for each other.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any], what: str, parts: Sequence[str]) -> None:
        self._topic = topic, dict(settings), what
        self._parts = sorted(parts)
        self._index = {part: index for index, part in enumerate(self._parts)}

    def list_parts(self) -> list[str]:
        return self._parts

    def part_fn(self, item_key: str) -> int:
        return self._index[item_key]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "KafkaTopicPart":  # noqa: ARG002 - Bytewax's signature
        return KafkaTopicPart(KafkaTopic(*self._topic))

    def check(self) -> None:
        """Raise Misconfigured unless the topic is there."""
        KafkaTopic(*self._topic).check()


class KafkaTopicPart(StatefulSinkPartition[Message, None]):
    """One producer."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic

    def write_batch(self, values: list[Message]) -> None:
        for message in values:
            self._topic.send(message)

    def snapshot(self) -> None:
        """Return when the topic has everything."""
        self._topic.flush()
