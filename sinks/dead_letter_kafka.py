"""Dead letters in a Kafka topic."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sinks.base import DeadLetter
from sinks.dead_letter import clipped
from sinks.kafka_topic import KafkaTopic, Message

_HEADERS = ("reason", "detail", "topic", "partition", "offset", "line", "lines")


class KafkaDeadLetters:
    """One message per letter: key `topic:partition`, value its bytes, the rest in headers (text).

    A write waits for the brokers as long as they are away, and says so in the log. `settings` and errors are
    those of KafkaTopic.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self._topic = KafkaTopic(topic, settings, "dead letters")
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise Misconfigured unless the brokers answer and the topic is there."""
        self._topic.check()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        with self._lock:
            for letter in map(clipped, letters):
                headers = tuple((name, str(getattr(letter, name)).encode()) for name in _HEADERS)
                self._topic.send(Message(f"{letter.topic}:{letter.partition}".encode(), letter.raw, headers))
            self._topic.flush()
