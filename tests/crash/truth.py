"""What was produced: Kafka read back, line by line."""

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

Place = tuple[str, int]  # (topic, partition)


class Lines(NamedTuple):
    """All lines of one partition: where each stands, as `code`, and its bytes; `kinds` by message offset."""

    at: npt.NDArray[np.int64]
    raw: pa.LargeBinaryArray
    kinds: dict[int, str]


def code(offset: npt.NDArray[np.int64], line: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number per line that sorts in reading order."""
    return offset << 24 | line


def _places(consumer: Consumer, topics: list[str]) -> list[Place]:
    known = consumer.list_topics(timeout=10).topics
    return [(topic, partition) for topic in topics for partition in sorted(known[topic].partitions)]


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})


def lag(bootstrap: str, topics: list[str], group: str) -> int:
    """Messages that the group has not committed yet."""
    consumer = _consumer(bootstrap, group)
    try:
        places = [TopicPartition(*place) for place in _places(consumer, topics)]
        behind = 0
        for place in consumer.committed(places, timeout=10):
            low, high = consumer.get_watermark_offsets(place, timeout=10)
            behind += high - max(place.offset, low)
        return behind
    finally:
        consumer.close()


def produced(bootstrap: str, topics: list[str]) -> dict[Place, Lines]:
    """Every line of every partition."""
    consumer = _consumer(bootstrap, "truth")
    try:
        return {place: _read(consumer, place) for place in _places(consumer, topics)}
    finally:
        consumer.close()


def _read(consumer: Consumer, place: Place) -> Lines:
    low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=10)
    consumer.assign([TopicPartition(*place, low)])
    offsets: list[int] = []
    counts: list[int] = []
    lines: list[bytes] = []
    kinds: dict[int, str] = {}
    following, deadline = low, time.monotonic() + 60
    while following < high:
        assert time.monotonic() < deadline, f"{place} cannot be read back beyond {following} of {high}"
        for message in consumer.consume(500, timeout=0.05):  # waits until it has them all
            assert message.error() is None, message.error()
            headers = {name: bytes(value or b"") for name, value in message.headers() or ()}
            value = message.value() or b""
            texts = value.split(b"\n") if "v" in headers else [value]
            offsets.append(following := message.offset())
            kinds[following] = headers["kind"].decode()
            following += 1
            counts.append(len(texts))
            lines += texts
    of_message = np.array(counts, np.int64)
    starts = np.cumsum(of_message) - of_message
    at = code(np.repeat(np.array(offsets, np.int64), of_message), np.arange(len(lines)) - np.repeat(starts, of_message))
    return Lines(at, pa.array(lines, pa.large_binary()), kinds)
