"""Dead letters in a Kafka topic."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sinks.base import DeadLetter
from sinks.dead_letter import clipped
from sinks.errors import Misconfigured, RetryLater

log = logging.getLogger("tailrace.dead_letter")

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


class KafkaDeadLetters:
    """One message per letter: key `topic:partition`, value its bytes, the rest in headers (text).

    acks=all, idempotent, no timeout: a write waits for the brokers as long as they are away, and says so
    in the log. `settings` are librdkafka's; those that make the promise cannot be overridden. Raises
    Misconfigured when the topic refuses a letter for good, RetryLater for any other failure.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._trouble = "no answer"
        promise = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 0, "error_cb": self._remember}
        # batch.size: a broker measures whole batches, its default limit is 1 MiB. log_level: librdkafka writes 20
        # lines a second about a broker that is away; we say it ourselves.
        defaults = {"linger.ms": 5, "compression.type": "lz4", "batch.size": 256 << 10, "log_level": 2}
        try:
            self._producer = Producer({**defaults, **settings, **promise})
        except KafkaException as error:
            raise Misconfigured(f"Kafka settings for dead letters: {error.args[0].str()}") from error

    def check(self) -> None:
        """Raise Misconfigured unless the brokers answer and the topic is there."""
        try:
            found = self._producer.list_topics(self._topic, timeout=_CHECK_TIMEOUT_S).topics[self._topic]
        except KafkaException as error:
            self._producer.poll(0)  # calls _remember
            raise Misconfigured(
                f"Kafka does not answer for dead letters: {error.args[0].str()} ({self._trouble}); "
                "check the addresses and the credentials"
            ) from error
        if found.error is not None:
            raise Misconfigured(
                f"Kafka topic {self._topic} for dead letters: {found.error.str()}; create it with `tailrace topics`"
            )

    def write(self, letters: Sequence[DeadLetter]) -> None:
        with self._lock:
            failed: list[KafkaError] = []
            waiting = len(letters)

            def delivered(error: KafkaError | None, _message: Message) -> None:
                nonlocal waiting
                waiting -= 1
                if error is not None:
                    failed.append(error)

            for letter in map(clipped, letters):
                self._send(letter, delivered)
            said = time.monotonic()
            while waiting:
                self._producer.poll(1.0)
                if waiting and time.monotonic() - said > _SAY_EVERY_S:
                    log.warning("%d dead letters wait for Kafka topic %s: %s", waiting, self._topic, self._trouble)
                    said = time.monotonic()
        if failed:
            what = f"Kafka topic {self._topic} did not take {len(failed)} dead letters: {failed[0].str()}"
            if failed[0].code() in _PERMANENT:
                raise Misconfigured(f"{what}; check that it exists, its rights and its max.message.bytes")
            raise RetryLater(what)

    def _send(self, letter: DeadLetter, delivered: Any) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, str(getattr(letter, name)).encode())
            for name in ("reason", "detail", "topic", "partition", "offset", "line", "lines")
        ]
        key = f"{letter.topic}:{letter.partition}"
        while True:
            try:
                return self._producer.produce(
                    self._topic, value=letter.raw, key=key, headers=headers, on_delivery=delivered
                )
            except BufferError:  # its queue is full: wait for room
                self._producer.poll(1.0)

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows an error that says more
            self._trouble = error.str()
