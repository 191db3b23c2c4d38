"""Chunks for tests: blocks of lines as a forwarder sends them."""

from collections.abc import Sequence

import numpy as np

from flows.batch import Chunk, Headers

APPENDED_MS = 1_741_064_767_000


def block_headers(kind: str, node: str = "gpu-a01", **more: str) -> Headers:
    """Headers of a block message."""
    said = {"v": "1", "kind": kind, "node": node, "tz": "UTC", **more}
    return tuple((name, value.encode()) for name, value in said.items())


def chunk(
    blocks: Sequence[tuple[Headers, Sequence[bytes]]],
    first_offset: int = 0,
    topic: str = "logs.job",
    partition: int = 0,
    appended_ms: int = APPENDED_MS,
    ended: bool = False,
) -> Chunk:
    """One message per block, with rising offsets."""
    count = len(blocks)
    return Chunk(
        topics=[topic],
        topic=np.zeros(count, dtype=np.int32),
        partition=np.full(count, partition, dtype=np.int32),
        offset=np.arange(first_offset, first_offset + count, dtype=np.int64),
        appended_ms=np.full(count, appended_ms, dtype=np.int64),
        keys=[None] * count,
        headers=[headers for headers, _ in blocks],
        values=[b"\n".join(lines) for _, lines in blocks],
        now_ms=appended_ms,
        ended=ended,
    )


def tick(now_ms: int, ended: bool = False) -> Chunk:
    """A chunk without messages that only carries the time."""
    return chunk([], appended_ms=now_ms, ended=ended)
