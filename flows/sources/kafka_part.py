"""One shard of the Kafka source: reads batches, moves positions, notices losses, drains."""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from bytewax.inputs import AbortExecution, StatefulSourcePartition
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as _Message

from flows.batch import Chunk, Headers
from flows.sources.broker import START_S
from flows.sources.chunks import about_lines, now_ms, tick
from flows.sources.drain import Drain
from flows.sources.trouble import Trouble
from sinks.base import Partition

log = logging.getLogger("tailrace.kafka")

Positions = dict[tuple[str, int], int]  # (topic, partition) -> offset to read next
Lost = Callable[[str, int, int, int], None]

Message: Any = _Message  # its types allow for messages that were not consumed

_CONSUME = 500  # messages a call takes out of librdkafka; cheapest per message at 100 to 500
_FIRST_BYTES = 128 << 10  # what a message is taken for before the first is seen
_SHARE_BELOW = 4096  # bytes of a message; larger ones are blocks, each with headers of its own
_MAX_SEEN = 65_536
_FILL_S = 0.05  # longest time one batch is filled
_TICK_S = 1.0
_MARKER_S = 30.0  # after so long without a message, what is behind the last one is taken for a marker
_GOODBYE_S = 2.0  # for the last commit of offsets


class Limits(NamedTuple):
    """Bounds of a batch and of an epoch; see KafkaConfig."""

    batch_lines: int
    batch_bytes: int
    epoch_bytes: int
    linger_ms: int


class KafkaPart(StatefulSourcePartition[tuple[str, Chunk], Positions]):
    """One shard."""

    def __init__(
        self,
        shard: str,
        topics: list[str],
        limits: Limits,
        consumer: Any,
        starts: Positions,
        trouble: Trouble,
        drain: Drain,
        lost: Lost,
    ) -> None:
        self._shard, self._limits, self._consumer = shard, limits, consumer
        self._trouble, self._drain, self._lost = trouble, drain, lost
        self._topics = topics
        self._number = {topic: number for number, topic in enumerate(self._topics)}
        self._next = starts
        self._in_group: Positions = {}
        self._closed: Positions | None = None  # positions of the epoch that waits for its commit
        self._epoch_bytes = 0
        self._message_bytes = float(_FIRST_BYTES)  # mean of the latest messages
        self._seen: dict[Headers, Headers] = {}
        self._draining = False
        self._jumps: set[tuple[str, int]] = set()
        self._wake_after_s = 0.0
        self._last_chunk = self._last_read = time.monotonic()
        self._reading_s = 0.0  # time spent reading; a dataflow that stands still does not count
        self._moved = dict.fromkeys(starts, 0.0)  # `_reading_s` when a partition's last message was read
        drain.enter(shard)
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def next_batch(self) -> Iterable[tuple[str, Chunk]]:
        """At most one chunk; never waits for the broker, except to find where to go on after a loss."""
        if self._closed is not None:
            self._committed(self._closed)
            self._closed = None
        if self._draining:
            if self._drain.finished:
                raise AbortExecution
            self._wake_after_s = 0.005
            return []
        for place in sorted(self._jumps):
            self._jump(*place)
        if self._epoch_bytes >= self._limits.epoch_bytes:
            self._wake_after_s = 0.01
            return []
        chunk = self._read()
        if chunk is None and time.monotonic() - self._last_chunk < _TICK_S:
            return []
        self._last_chunk = time.monotonic()
        return [(self._shard, tick(self._topics, behind=self._behind()) if chunk is None else chunk)]

    def next_awake(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=self._wake_after_s) if self._wake_after_s else None

    def snapshot(self) -> Positions:
        self._closed = dict(self._next)
        self._epoch_bytes = 0
        self._draining = self._drain.is_set()
        return self._closed

    def close(self) -> None:
        self._consumer.close()

    def _read(self) -> Chunk | None:
        """What librdkafka has fetched, up to a full batch. Sets when to look again: sooner after a fuller one."""
        topics: list[str] = []
        partition: list[int] = []
        offset: list[int] = []
        appended: list[int] = []
        keys: list[bytes | None] = []
        headers: list[Headers] = []
        values: list[bytes | None] = []
        lines = size = 0
        now = time.monotonic()
        self._reading_s, self._last_read = self._reading_s + min(now - self._last_read, _TICK_S), now
        until = now + _FILL_S
        while lines < self._limits.batch_lines and size < self._limits.batch_bytes and time.monotonic() < until:
            room = int((self._limits.batch_bytes - size) / self._message_bytes) + 1
            messages = self._consumer.consume(min(room, _CONSUME), 0)
            if not messages:
                break
            if any(map(Message.error, messages)):
                messages = self._without_errors(messages)
                if not messages:
                    continue
            read = list(map(Message.value, messages))
            values += read
            topics += map(Message.topic, messages)
            partition += map(Message.partition, messages)
            offset += map(Message.offset, messages)
            appended += map(itemgetter(1), map(Message.timestamp, messages))
            keys += map(Message.key, messages)
            headers += self._headers(messages)
            length = sum(map(len, filter(None, read)))
            size += length
            self._message_bytes = max(length / len(messages), 1.0)
            lines += about_lines(read, length)
        full = max(lines / self._limits.batch_lines, size / self._limits.batch_bytes)
        self._wake_after_s = max(1 - full, 0.0) * self._limits.linger_ms / 1000
        if not values:
            return None
        self._epoch_bytes += size
        if len(self._topics) == 1:
            topic = np.zeros(len(topics), dtype=np.int32)
        else:
            topic = np.fromiter(map(self._number.__getitem__, topics), np.int32, len(topics))
        chunk = Chunk(
            self._topics,
            topic,
            np.array(partition, dtype=np.int32),
            np.array(offset, dtype=np.int64),
            np.array(appended, dtype=np.int64),
            keys,
            headers,
            values,
            now_ms(),
        )
        self._advance(chunk)
        chunk.behind = self._behind()
        return chunk

    def _behind(self) -> frozenset[Partition]:
        """Partitions whose end, as the broker told with its last answer, is not reached.

        Behind the last message there may be a transaction's marker, which is never read: one that reading
        does not get past is taken for the end after a while.
        """
        late = []
        for place, moved in self._moved.items():
            if self._reading_s - moved < _MARKER_S:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                if high < 0 or self._next[place] < high:
                    late.append(place)
        return frozenset(late)

    def _headers(self, messages: list[Any]) -> Iterable[Headers]:
        """Headers as tuples; small messages that say the same share them, which spares the garbage collector."""
        said = [tuple(given) if given else () for given in map(Message.headers, messages)]
        if self._message_bytes > _SHARE_BELOW or not any(said):
            return said
        if len(self._seen) > _MAX_SEEN:
            self._seen.clear()
        return map(self._seen.setdefault, said, said)

    def _advance(self, chunk: Chunk) -> None:
        """Move the positions: messages come in runs of one partition, and the last of a run counts."""
        place = chunk.topic.astype(np.int64) << 32 | chunk.partition
        last = np.append(np.flatnonzero(np.diff(place)), len(place) - 1)
        topic, partition, offset = (
            chunk.topic[last].tolist(),
            chunk.partition[last].tolist(),
            chunk.offset[last].tolist(),
        )
        for number, index, at in zip(topic, partition, offset, strict=True):
            self._next[self._topics[number], index] = at + 1
            self._moved[self._topics[number], index] = self._reading_s
            self._trouble.over(f"{self._topics[number]}/{index}")
        self._trouble.reads()

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        for message in messages:
            error = message.error()
            if error is None:
                continue
            place = (message.topic(), message.partition())
            if error.code() == KafkaError._AUTO_OFFSET_RESET and place in self._next:
                self._jumps.add(place)
            else:
                self._trouble.met(f"{place[0]}/{place[1]}", error.str())
        return [message for message in messages if message.error() is None]

    def _jump(self, topic: str, partition: int) -> None:
        """The offset to read next is not there any more: report the loss, go on at the first message there is."""
        place = TopicPartition(topic, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=START_S, cached=False)
        except KafkaException as error:
            self._trouble.met(f"{topic}/{partition}", error.args[0].str())
            return
        self._jumps.discard((topic, partition))
        first = self._next[topic, partition]
        if first > high:
            log.error(
                "a partition ends before the offset to read next: the topic was made anew, or the broker lost "
                "messages; reading it from its beginning",
                extra={"topic": topic, "partition": partition, "offset": first, "end": high},
            )
        self._lost(topic, partition, first, max(first, low))
        self._next[topic, partition] = low
        # librdkafka refuses to seek a partition whose fetching has failed.
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([TopicPartition(topic, partition, low)])

    def _committed(self, positions: Positions) -> None:
        """An epoch is committed: tell the group, and leave if the run is to end."""
        self._tell_group(positions)
        if self._draining:
            self._consumer.unassign()
            until = time.monotonic() + _GOODBYE_S
            while self._trouble.unanswered and time.monotonic() < until:
                self._consumer.poll(0.02)
            self._drain.leave(self._shard)

    def _tell_group(self, positions: Positions) -> None:
        moved = [
            TopicPartition(*place, offset) for place, offset in positions.items() if self._in_group.get(place) != offset
        ]
        self._in_group = positions
        if moved:
            self._trouble.unanswered += 1
            try:
                self._consumer.commit(offsets=moved, asynchronous=True)
            except KafkaException as error:
                self._trouble.commit(error.args[0], [])
