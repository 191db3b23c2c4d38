"""Which lines make a record depends on Kafka's times, not on when and in which batches they were read."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from flows.batch import Chunk
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from tests.chunks import APPENDED_MS, block_headers, chunk, tick

HEAD = b"[2025-03-04T05:06:07.089] error: Nodes gpu-02 not responding"
REST = b"    the second line of the message"
OTHER = b"[2025-03-04T05:06:12.089] debug:  backfill: nothing to do"
Message = tuple[str, bytes, int]  # node, line, Kafka's time in ms after the first


def read(messages: list[Message], first_offset: int = 0) -> Chunk:
    """One chunk of one partition, made when its last message came."""
    made = chunk([(block_headers("slurmctld", node), [line]) for node, line, _ in messages], first_offset)
    made.appended_ms = APPENDED_MS + np.array([after for *_, after in messages], dtype=np.int64)
    made.now_ms = int(made.appended_ms[-1])
    return made


def records(chunks: list[Chunk]) -> list[bytes]:
    """The lines of each record of ctl-1, in the order of their places."""
    pipeline = Pipeline(DecodeConfig())
    parts = [part.rows for each in chunks for part in pipeline.process(each)[0].parts]
    rows = [row for rows in parts for row in rows.select(["node", "offset", "raw"]).to_pylist()]
    return [row["raw"] for row in sorted(rows, key=lambda row: row["offset"]) if row["node"] == "ctl-1"]


@pytest.mark.parametrize(("after_ms", "whole"), [(100, True), (1_900, True), (2_100, False)])
@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2]])
def test_a_batch_that_spans_much_time_tears_no_record(cuts: list[int], after_ms: int, whole: bool) -> None:
    messages = [("ctl-1", HEAD, 0), ("ctl-1", REST, after_ms), ("ctl-2", OTHER, 9_000)]
    edges = [0, *cuts, len(messages)]
    chunks = [read(messages[start:end], start) for start, end in itertools.pairwise(edges)]
    ended = tick(APPENDED_MS + 9_000, ended=True)
    assert records([*chunks, ended]) == ([HEAD + b"\n" + REST] if whole else [HEAD, REST])


def test_no_record_is_torn_while_the_rest_of_it_waits_to_be_read() -> None:
    first, rest = read([("ctl-1", HEAD, 0)]), read([("ctl-1", REST, 100)], 1)
    late = [replace(tick(APPENDED_MS + ms), behind=frozenset({("logs.job", 0)})) for ms in (5_000, 60_000)]
    ended = tick(APPENDED_MS + 60_100, ended=True)
    assert records([first, *late, rest, ended]) == [HEAD + b"\n" + REST]
