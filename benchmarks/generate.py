"""Fills Kafka topics with the lines of `benchmarks.lines`, as blocks or one line per message."""

import time
from dataclasses import dataclass

from confluent_kafka import Producer

from benchmarks.lines import UPTIME_S, Block, blocks, totals
from tests.services.kafka import Kafka

Headers = dict[str, str | bytes | None]

PARTITIONS = 4
SECONDS_PER_CYCLE = 5
_KINDS = {"training": "job", "slurmctld": "slurm", "kmsg": "kernel"}
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Topics:
    """A full set of topics: name by kind, lines that are noise and others, bytes of all lines, messages."""

    names: dict[str, str]
    noise: int
    other: int
    size: int
    messages: int
    single: bool

    @property
    def lines(self) -> int:
        return self.noise + self.other


def fill(kafka: Kafka, cycles: int, *, single: bool) -> Topics:
    """Make topics and write `cycles` cycles into them; returns when the broker has all of it.

    A block is keyed by its node and has the headers of the wire contract. With `single` every line is a
    message with a key and no header, as from an agent that can do no more.
    """
    suffix = "lines" if single else "blocks"
    names = {
        kind: kafka.topic(PARTITIONS, stem=f"bench-{name}-{suffix}", message_timestamp_type="LogAppendTime")
        for kind, name in _KINDS.items()
    }
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 256 << 10,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )
    start_s = int(time.time()) - SECONDS_PER_CYCLE * cycles - 60
    size = messages = 0
    for block in blocks(cycles, start_s):
        headers = None if single else _headers(block, start_s)
        values = block.value.split(b"\n") if single else (block.value,)
        for value in values:
            _produce(producer, names[block.kind], block.node, value, headers)
        size += len(block.value) + 1
        messages += len(values)
    left = producer.flush(_ANSWER_S)
    if left:
        raise RuntimeError(f"{left} messages were not taken by {kafka.used} within {_ANSWER_S:.0f} s")
    noise, other = totals(cycles)
    return Topics(names, noise, other, size, messages, single)


def _produce(producer: Producer, topic: str, key: str, value: bytes, headers: Headers | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key, headers=headers)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def _headers(block: Block, start_s: int) -> Headers:
    """What a forwarder says of a block."""
    said: Headers = {
        "v": "1", "kind": block.kind, "node": block.node, "tz": "UTC",
        "read_at": str(start_s + block.second), "file_id": "259:1:81001", "file_gen": "0", "run": "1764547200",
    }  # fmt: skip
    if block.kind == "kmsg":
        return said | {
            "path": "/dev/kmsg",
            "boot_id": "5f2c1a9e7d314c0b9e550a7d4b1c6e02",
            "boot_time": str(start_s - UPTIME_S),
        }
    if block.kind == "slurmctld":
        return said | {"path": "/var/log/slurm/slurmctld.log", "unit": "slurmctld.service"}
    return said | {"path": "/shared/logs/job_81001.out", "job_id": "81001", "nccl_debug": "INFO", "team": "pretrain"}
