"""What all sinks share: one Bytewax partition per shard of the source, so that a shard stays on one worker."""

from collections.abc import Sequence
from typing import TypeVar

from bytewax.outputs import FixedPartitionedSink

from sinks.base import Delivery

S = TypeVar("S")


class ShardedSink(FixedPartitionedSink[Delivery, S]):
    """Takes (shard name, Delivery). `shards` are the names of the source's partitions in this dataflow."""

    def __init__(self, shards: Sequence[str]) -> None:
        self._shards = sorted(shards)
        self._index = {shard: index for index, shard in enumerate(self._shards)}

    def list_parts(self) -> list[str]:
        return self._shards

    def part_fn(self, item_key: str) -> int:
        return self._index[item_key]
