"""Bounded reading of Kafka: ranges of offsets, of one or several partitions, then the end.

A range is `first` (included) to `stop` (excluded), and is cut to what the broker still has; what it has no more is
told as lost. Nothing is committed to a consumer group.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from bytewax.inputs import FixedPartitionedSource
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flows.batch import Chunk
from flows.sources.broker import START_S, connect, partitions, unreachable
from flows.sources.chunks import tick
from flows.sources.drain import Drain
from flows.sources.kafka import KafkaConfig, consumer_settings
from flows.sources.kafka_part import KafkaPart, Limits, Positions
from flows.sources.trouble import Trouble
from sinks.base import Partition
from sinks.errors import Misconfigured

log = logging.getLogger("tailrace.replay")

Bound = int | datetime | None  # an offset, a time of the broker's clock, or the end that there is


class Range(NamedTuple):
    """Messages of one partition: `first` is included, `stop` is not."""

    topic: str
    partition: int
    first: int
    stop: int


class Plan(NamedTuple):
    """What will be read, in order within a partition, and what the broker has no more."""

    ranges: tuple[Range, ...]
    lost: tuple[Range, ...]


def between(config: KafkaConfig, topics: Iterable[str], start: Bound, end: Bound) -> Plan:
    """The ranges of all partitions of some topics. Raises Misconfigured when one cannot be read."""
    consumer = _asking(config)
    try:
        found = []
        for topic, count in partitions(config, topics).items():
            for partition in range(count):
                low, high = _ends(consumer, config, topic, partition)
                first = _offset(consumer, config, topic, partition, start, low, high)
                stop = _offset(consumer, config, topic, partition, end, high, high)
                found.append(Range(topic, partition, first, stop))
        return _available(consumer, config, found)
    finally:
        consumer.close()


def available(config: KafkaConfig, wanted: Iterable[Range]) -> Plan:
    """Ranges cut to what the broker has; overlapping ones are joined. Raises Misconfigured as `between`."""
    consumer = _asking(config)
    try:
        joined: list[Range] = []
        for each in sorted(wanted):
            if joined and joined[-1][:2] == each[:2] and each.first <= joined[-1].stop:
                joined[-1] = joined[-1]._replace(stop=max(joined[-1].stop, each.stop))
            else:
                joined.append(each)
        return _available(consumer, config, joined)
    finally:
        consumer.close()


def _asking(config: KafkaConfig) -> Any:
    return connect(Consumer, consumer_settings(config, 1, Trouble(log, config.bootstrap)))


def _available(consumer: Any, config: KafkaConfig, wanted: Iterable[Range]) -> Plan:
    ranges, lost = [], []
    for each in wanted:
        low, high = _ends(consumer, config, each.topic, each.partition)
        if each.first < min(low, each.stop):
            lost.append(each._replace(stop=min(low, each.stop)))
        first, stop = max(each.first, low), min(each.stop, high)
        if first < stop:
            ranges.append(each._replace(first=first, stop=stop))
    return Plan(tuple(ranges), tuple(lost))


def _ends(consumer: Any, config: KafkaConfig, topic: str, partition: int) -> tuple[int, int]:
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=START_S, cached=False)
    except KafkaException as error:
        raise Misconfigured(f"{topic}/{partition}: {unreachable(config.bootstrap, [error.args[0]])}") from error
    return int(low), int(high)


def _offset(
    consumer: Any, config: KafkaConfig, topic: str, partition: int, bound: Bound, default: int, high: int
) -> int:
    """A bound as offset: a time is that of the first message that is not older."""
    if bound is None:
        return default
    if isinstance(bound, int):
        return bound
    asked = TopicPartition(topic, partition, int(bound.timestamp() * 1_000))
    try:
        (found,) = consumer.offsets_for_times([asked], timeout=START_S)
    except KafkaException as error:
        raise Misconfigured(unreachable(config.bootstrap, [error.args[0]])) from error
    return int(found.offset) if found.offset >= 0 else high


class RangeSource(FixedPartitionedSource[tuple[str, Chunk], Positions]):
    """Chunks of the ranges of a plan, as one shard; the last is `ended`. `read` is told the messages done so far."""

    def __init__(self, config: KafkaConfig, ranges: Sequence[Range], drain: Drain, read: Callable[[int], None]) -> None:
        self._config, self._ranges, self._drain, self._read = config, ranges, drain, read

    def list_parts(self) -> list[str]:
        return ["0000"]

    def build_part(self, step_id: str, for_part: str, resume_state: Positions | None) -> "RangePart":  # noqa: ARG002 - Bytewax's signature
        trouble = Trouble(log, self._config.bootstrap)
        settings = consumer_settings(self._config, 1, trouble) | {"enable.partition.eof": True}
        limits = Limits(*(getattr(self._config, name) for name in Limits._fields))
        return RangePart(
            self._ranges, resume_state or {}, limits, connect(Consumer, settings), trouble, self._drain, self._read
        )


class RangePart(KafkaPart):
    """Reads the ranges of all partitions side by side, those of one partition in their order."""

    def __init__(
        self,
        ranges: Sequence[Range],
        resume: Mapping[Partition, int],
        limits: Limits,
        consumer: Any,
        trouble: Trouble,
        drain: Drain,
        read: Callable[[int], None],
    ) -> None:
        self._all = ranges
        self._told, self._ended = read, False
        self._end_seen: Positions = {}  # offset after the last message of a partition, once it was met
        self._left: dict[Partition, list[Range]] = {}
        for each in ranges:
            place = (each.topic, each.partition)
            mine = self._left.setdefault(place, [])
            if each.stop > resume.get(place, 0):
                mine.append(each._replace(first=max(each.first, resume.get(place, 0))))
        starts = {place: mine[0].first for place, mine in self._left.items() if mine}
        topics = sorted({each.topic for each in ranges})
        super().__init__("0000", topics, limits, consumer, starts, trouble, drain, lambda *_: None)
        self._next = {**resume, **starts}

    def next_batch(self) -> Iterable[tuple[str, Chunk]]:
        """At most one chunk; StopIteration when all ranges are read."""
        if self._ended:
            self._drain.leave(self._shard)
            raise StopIteration
        batch = list(super().next_batch())
        if not self._draining and not any(self._left.values()):
            self._ended = True
            batch.append((self._shard, tick(self._topics, ended=True)))
        return batch

    def _read(self) -> Chunk | None:
        chunk = super()._read()
        if chunk is not None:
            chunk = self._cut(chunk)
        for place in [place for place, mine in self._left.items() if mine]:
            self._turn(place)
        self._told(sum(self._done(each) for each in self._all))
        return chunk

    def _cut(self, chunk: Chunk) -> Chunk | None:
        """The messages that belong to the ranges."""
        keep = np.zeros(len(chunk.values), dtype=np.bool_)
        for (topic, partition), mine in self._left.items():
            of_place = (chunk.topic == self._number[topic]) & (chunk.partition == partition)
            if mine:
                keep |= of_place & (chunk.offset >= mine[0].first) & (chunk.offset < mine[0].stop)
        if keep.all():
            return chunk
        if not keep.any():
            return None
        return replace(
            chunk,
            topic=chunk.topic[keep],
            partition=chunk.partition[keep],
            offset=chunk.offset[keep],
            appended_ms=chunk.appended_ms[keep],
            keys=list(compress(chunk.keys, keep)),
            headers=list(compress(chunk.headers, keep)),
            values=list(compress(chunk.values, keep)),
        )

    def _turn(self, place: Partition) -> None:
        """Go to the next range of a partition when one is read."""
        mine = self._left[place]
        if max(self._next[place], self._end_seen.get(place, 0)) < mine[0].stop:
            return
        self._next[place] = mine.pop(0).stop
        self._consumer.incremental_unassign([TopicPartition(*place)])
        if mine:
            self._next[place] = mine[0].first
            self._end_seen.pop(place, None)
            self._consumer.incremental_assign([TopicPartition(*place, mine[0].first)])

    def _done(self, each: Range) -> int:
        at = self._next.get((each.topic, each.partition), each.first)
        return min(max(at - each.first, 0), each.stop - each.first)

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        """The end of a partition is no error. Markers, which nobody gets, may follow its last message."""
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._end_seen[message.topic(), message.partition()] = message.offset()
        rest = [m for m in messages if m.error() is None or m.error().code() != KafkaError._PARTITION_EOF]
        return super()._without_errors(rest)

    def _tell_group(self, positions: Positions) -> None:
        """A replay has no group."""
