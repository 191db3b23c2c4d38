"""One log line when something goes wrong and one when it is over, however often a client repeats it."""

import logging
from typing import Any

from confluent_kafka import KafkaError

# What a client says of single connections: it retries them, and says when none is left.
_CONNECTION = frozenset({KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT})


class Trouble:
    """What is wrong at present with one consumer. Its methods are librdkafka's callbacks too."""

    def __init__(self, log: logging.Logger, bootstrap: str) -> None:
        self._log, self._bootstrap = log, bootstrap
        self._present: dict[str, str] = {}
        self.unanswered = 0  # commits without an answer yet

    def met(self, what: str, said: str) -> None:
        """Something is wrong with `what` (a topic/partition, the broker, the commits)."""
        if self._present.get(what) != said:
            self._present[what] = said
            self._log.warning("Kafka trouble; retrying", extra={"about": what, "error": said})

    def over(self, what: str) -> None:
        if self._present and self._present.pop(what, None) is not None:
            self._log.info("Kafka trouble is over", extra={"about": what})

    def reads(self) -> None:
        """Messages arrive."""
        self.over(self._bootstrap)

    def client(self, error: KafkaError) -> None:
        """librdkafka's error_cb."""
        if error.code() not in _CONNECTION:
            self.met(self._bootstrap, error.str())

    def commit(self, error: KafkaError | None, _offsets: list[Any]) -> None:
        """librdkafka's on_commit."""
        self.unanswered -= 1
        if error is None:
            self.over("commit of group offsets")
        else:
            self.met("commit of group offsets", error.str())
