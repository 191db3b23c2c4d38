"""Kafka without consumer groups: fixed shards, positions in the recovery store, offsets in the group for lag tools.

Shard i owns partition p of every topic when p % shards = i, with one consumer of its own. A position is
taken from the recovery store, else from the group's committed offsets, else from `start`. Offsets are
committed to the group only once their epoch is committed, so the group never runs ahead. Partitions
added to a topic are seen at the next start.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bytewax.inputs import FixedPartitionedSource
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import Field, ValidationInfo, field_validator

from flows.batch import Chunk
from flows.sources.broker import START_S, BrokerConfig, connect, partitions, unreachable
from flows.sources.drain import Drain
from flows.sources.kafka_part import KafkaPart, Limits, Lost, Positions
from flows.sources.trouble import Trouble
from flows.steps.kinds import require_kind
from sinks.errors import Misconfigured

log = logging.getLogger("tailrace.kafka")

__all__ = ["Drain", "KafkaConfig", "KafkaSource", "check_topics"]

_TAKING_OVER = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
_END, _BEGINNING = -1, -2  # timestamps of Kafka's ListOffsets that stand for the ends of a partition


class KafkaConfig(BrokerConfig):
    """Topics, and how much is read at a time."""

    topics: list[str] | dict[str, str] = Field(
        ["logs.kernel", "logs.slurm", "logs.job", "logs.system"],
        min_length=1,
        description="Topics to read; as a table, topic = kind of the messages that name none themselves.",
    )
    group: str = Field("tailrace", min_length=1, description="Consumer group that offsets are committed to.")
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a partition begins that neither the recovery store nor the group knows."
    )
    gaps_topic: str = Field(
        "tailrace.gaps",
        description="Topic that names what a store missed in an outage, for `tailrace replay --gaps`; empty: none.",
    )
    batch_lines: int = Field(80_000, ge=1, description="Lines of one batch, about.")
    batch_bytes: int = Field(16 << 20, ge=1024, description="Bytes of one batch, about.")
    linger_ms: int = Field(
        50, ge=0, le=1000, description="How long reading waits after a batch that was far from full; saves CPU."
    )
    epoch_bytes: int = Field(
        2 << 30, ge=1 << 20, description="Bytes a shard reads in one epoch at most; a small value throttles."
    )
    prefetch_bytes: int = Field(
        64 << 20, ge=8 << 20, description="Memory for messages that wait to be read, shared by the shards."
    )

    @field_validator("topics")
    @classmethod
    def _known_kinds(cls, topics: list[str] | dict[str, str], info: ValidationInfo) -> list[str] | dict[str, str]:
        for kind in topics.values() if isinstance(topics, dict) else ():
            require_kind(kind, info)
        return topics

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of topics that have one."""
        return self.topics if isinstance(self.topics, dict) else {}


def check_topics(config: KafkaConfig) -> dict[str, int]:
    """Number of partitions of each topic. Raises Misconfigured within about START_S when one cannot be read."""
    return partitions(config, config.topics)


class KafkaSource(FixedPartitionedSource[tuple[str, Chunk], Positions]):
    """Chunks keyed by shard. `own`: names of this process's shards, decimal numbers below `shards`.

    Raises Misconfigured when a broker, a topic or the group cannot be used. `lost` is told topic,
    partition, first and next offset of messages that were deleted before they could be read.
    """

    def __init__(self, config: KafkaConfig, own: Sequence[str], shards: int, drain: Drain, lost: Lost) -> None:
        self._config, self._own, self._shards, self._drain, self._lost = config, list(own), shards, drain, lost
        self._partitions = check_topics(config)

    def list_parts(self) -> list[str]:
        return self._own

    def build_part(self, step_id: str, for_part: str, resume_state: Positions | None) -> "KafkaPart":  # noqa: ARG002
        mine = [
            (topic, partition)
            for topic, count in self._partitions.items()
            for partition in range(count)
            if partition % self._shards == int(for_part)
        ]
        trouble = Trouble(log, self._config.bootstrap)
        consumer = connect(Consumer, consumer_settings(self._config, len(self._own), trouble))
        starts = _starts(consumer, self._config, mine, resume_state or {})
        limits = Limits(*(getattr(self._config, name) for name in Limits._fields))
        topics = list(self._config.topics)
        return KafkaPart(for_part, topics, limits, consumer, starts, trouble, self._drain, self._lost)


def consumer_settings(config: KafkaConfig, shards: int, trouble: Trouble) -> dict[str, Any]:
    """Settings of the consumer of one of `shards` shards of a process."""
    share = max(config.prefetch_bytes // max(shards, 1), 4 << 20)
    return {
        "fetch.queue.backoff.ms": 5,  # the default of 1000 cuts catching up to a third
        # Compressed, and NCCL output is a sixth of its size then: what one answer holds comes on top of the share.
        "fetch.max.bytes": min(share, 8 << 20),
        "max.partition.fetch.bytes": 1 << 20,
        "receive.message.max.bytes": 100 << 20,
        "queued.max.messages.kbytes": share >> 10,
        "queued.min.messages": 1_000_000,  # memory is bounded by bytes, not by their number
        **config.client(),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # a jump must be seen
        "error_cb": trouble.client,
        "on_commit": trouble.commit,
        "logger": logging.getLogger("tailrace.librdkafka"),
    }


def _starts(
    consumer: Any, config: KafkaConfig, mine: list[tuple[str, int]], resume: Mapping[tuple[str, int], int]
) -> Positions:
    """Where each partition begins, as a number: `latest` must not move on when a start is repeated."""
    starts = {place: offset for place, offset in resume.items() if place in set(mine)}
    if gone := sorted(resume.keys() - starts.keys()):
        log.warning("partitions of the recovery store are not read any more", extra={"partitions": gone})
    unknown = [TopicPartition(*place) for place in mine if place not in starts]
    if not unknown:
        return starts
    known_topics = {topic for topic, _ in resume}
    try:
        for found in _committed(consumer, unknown):
            if found.error is None and found.offset >= 0:
                starts[found.topic, found.partition] = found.offset
        # A partition that was added to a topic we read holds what we have not read.
        ends = [
            TopicPartition(*place, _END if config.start == "latest" and place[0] not in known_topics else _BEGINNING)
            for place in mine
            if place not in starts
        ]
        for found in consumer.offsets_for_times(ends, timeout=START_S) if ends else ():
            if found.error is not None:
                raise KafkaException(found.error)
            starts[found.topic, found.partition] = max(found.offset, 0)
    except KafkaException as error:
        raise Misconfigured(_refused(config, error.args[0])) from error
    return starts


def _committed(consumer: Any, places: list[TopicPartition]) -> list[TopicPartition]:
    """The group's offsets; asked again while the broker that keeps them is still taking over."""
    until = time.monotonic() + START_S
    while True:
        try:
            found: list[TopicPartition] = consumer.committed(places, timeout=START_S)
            return found
        except KafkaException as error:
            if error.args[0].code() not in _TAKING_OVER or time.monotonic() > until:
                raise
            time.sleep(0.2)


def _refused(config: KafkaConfig, error: KafkaError) -> str:
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return f"Kafka denies the consumer group {config.group}; allow this user to read it, or change group"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"Kafka denies reading {', '.join(config.topics)}: {error.str()}; allow this user to read them"
    return unreachable(config.bootstrap, [error])
