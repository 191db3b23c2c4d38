"""Fills Kafka topics with the lines of `benchmarks.lines`, as blocks or one line per message."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Producer

from benchmarks.content import Content, note
from benchmarks.lines import UPTIME_S, Block, blocks, totals
from tests.services.kafka import MAX_MESSAGE_BYTES, Kafka

Headers = dict[str, str | bytes | None]

PARTITIONS = 4
SECONDS_PER_CYCLE = 5
KINDS = {"training": "job", "slurmctld": "slurm", "kmsg": "kernel"}
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Topics:
    """A full set of topics: name by kind, lines that are noise and others, bytes of all lines, messages.

    `content`: what Loki must get of each line, by its number; empty where nobody asks.
    """

    names: dict[str, str]
    noise: int
    other: int
    size: int
    messages: int
    content: Content

    @property
    def lines(self) -> int:
        return self.noise + self.other


class Writer:
    """Writes messages and counts them. `finish()` returns when the broker has them all."""

    def __init__(self, kafka: Kafka) -> None:
        self._used = kafka.used
        self.size = self.messages = 0
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "compression.type": "lz4",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "queue.buffering.max.kbytes": 256 << 10,
                "queue.buffering.max.messages": 1_000_000,
                "partitioner": "murmur2_random",
            }
        )

    def send(self, topic: str, key: str, value: bytes, headers: Headers | None) -> None:
        self.size += len(value) + 1
        self.messages += 1
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def finish(self) -> None:
        """Raises RuntimeError when the broker takes longer than a minute."""
        if left := self._producer.flush(_ANSWER_S):
            raise RuntimeError(f"{left} messages were not taken by {self._used} within {_ANSWER_S:.0f} s")


def topics_for(kafka: Kafka, names: Mapping[str, str], suffix: str) -> dict[str, str]:
    """A new topic for each kind, named after it and `suffix`."""
    return {
        kind: kafka.topic(PARTITIONS, stem=f"bench-{name}-{suffix}", message_timestamp_type="LogAppendTime")
        for kind, name in names.items()
    }


def start_of(cycles: int) -> int:
    """Time of the first block (s since the epoch), so that the last is not in the future."""
    return int(time.time()) - SECONDS_PER_CYCLE * cycles - 60


def fill(kafka: Kafka, cycles: int, *, single: bool) -> Topics:
    """Make topics and write `cycles` cycles into them.

    A block is keyed by its node and has the headers of the wire contract. With `single` every line is a
    message with a key and no header, as from an agent that can do no more.
    """
    names = topics_for(kafka, KINDS, "lines" if single else "blocks")
    writer, start_s = Writer(kafka), start_of(cycles)
    noise, other = totals(cycles)
    content = np.zeros(noise + other, np.uint32)
    for block in blocks(cycles, start_s):
        headers = None if single else headers_of(block, start_s)
        note(content, block, headers)
        for value in block.value.split(b"\n") if single else (block.value,):
            writer.send(names[block.kind], block.node, value, headers)
    writer.finish()
    return Topics(names, noise, other, writer.size, writer.messages, content)


def headers_of(block: Block, start_s: int) -> Headers:
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
