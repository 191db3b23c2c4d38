"""Summaries of dropped noise: what they say, that they add up, and that no two are taken for one another."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.batch import Chunk
from flows.pipeline import Pipeline
from flows.steps import summaries
from flows.steps.decode import DecodeConfig
from flows.steps.noise import NoiseConfig
from tests.chunks import APPENDED_MS, block_headers, chunk, tick

N02 = b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"
N19 = b"gpu-a01:51:51 [0] NCCL INFO threadThresholds 8/8/64 | 256/8/64 | 512 | 512"
START_MS = APPENDED_MS // 60_000 * 60_000


def summed(pipeline: Pipeline, given: Chunk) -> list[dict[str, Any]]:
    """The summaries that a chunk brings, as rows with `labels` and `demoted`."""
    delivery, _ = pipeline.process(given)
    rows = []
    for part in delivery.parts:
        if part.kind == summaries.KIND:
            assert not len(part.noise)
            at = part.rows.schema.get_field_index("ts")
            for row in part.rows.set_column(at, "ts", part.rows["ts"].cast(pa.int64())).to_pylist():
                pairs = {"labels": part.streams[row["stream"]], "demoted": part.demoted[row["stream"]]}
                rows.append({**row, **{name: dict(values) for name, values in pairs.items()}})
    return rows


def rule_of(line: bytes) -> str:
    (part,) = Pipeline(DecodeConfig()).process(chunk([(block_headers("training"), [line])]))[0].parts
    return str(part.noise["noise"][0].as_py())


def test_a_window_is_summed_up_by_node_and_job_once_it_is_over_for_sure() -> None:
    pipeline = Pipeline(DecodeConfig(), "gpu-west")
    blocks = [
        (block_headers("training", "gpu-a01", job_id="4711"), [b"loss 2.1", N02, N02, N19]),
        (block_headers("training", "gpu-a01", job_id="4711"), [N02] * 1_200),
        (block_headers("training", "gpu-b02", namespace="ml", pod="train-0"), [N19]),
    ]
    assert summed(pipeline, chunk(blocks, first_offset=7, appended_ms=START_MS + 100)) == []
    assert summed(pipeline, tick(START_MS + 119_000)) == []
    a, b = sorted(summed(pipeline, tick(START_MS + 120_000)), key=lambda row: row["node"])
    assert a["message"] == f"N02 × 1,202, {rule_of(N19)} × 1 (gpu-a01, job 4711, 60 s)"
    assert a["raw"] == a["message"].encode()
    assert b["message"] == f"{rule_of(N19)} × 1 (gpu-b02, ml/train-0, 60 s)"
    assert (a["ts"], a["appended_at"], a["kind"], a["level"]) == (START_MS * 10**6, START_MS, "noise_summary", "info")
    assert dict(a["fields"]) == {"window_s": "60", "dropped": "1203"}
    assert (a["labels"], a["demoted"]) == (
        {"cluster": "gpu-west", "job": "noise-summary"},
        {"node": "gpu-a01", "job_id": "4711"},
    )
    assert (b["namespace"], b["pod"], b["owner_job"], b["cluster"]) == ("ml", "train-0", "", "gpu-west")
    assert [(row["offset"], row["line"], row["part"]) for row in (a, b)] == [(7, -2, 0), (9, -1, 0)]
    assert summed(pipeline, tick(START_MS + 900_000)) == []


def test_summaries_are_counted_apart_and_own_no_line() -> None:
    pipeline = Pipeline(DecodeConfig())
    delivery, counts = pipeline.process(chunk([(block_headers("training"), [N02, b"loss 2.1"])], ended=True))
    assert counts.synthetic == {"noise_summary": 1}
    assert pipeline.unbalanced == 0
    assert (counts.read.total(), counts.kept.total(), counts.dropped["N02"].total()) == (2, 1, 1)
    assert sum(sum(part.rows["owned"].to_pylist()) for part in delivery.parts) == 1


def test_zero_seconds_write_no_summaries() -> None:
    pipeline = Pipeline(DecodeConfig(), noise=NoiseConfig(summary_s=0))
    assert summed(pipeline, chunk([(block_headers("training"), [N02])], ended=True)) == []


def test_lines_that_come_when_their_window_is_closed_count_in_the_next_under_another_identity() -> None:
    pipeline = Pipeline(DecodeConfig())
    message = (block_headers("training"), [N02, N02])
    rows = summed(pipeline, chunk([message], first_offset=5, appended_ms=START_MS))
    rows += summed(pipeline, tick(START_MS + 180_000))
    rows += summed(pipeline, chunk([message], first_offset=6, appended_ms=START_MS + 1))
    rows += summed(pipeline, tick(START_MS + 600_000))
    assert [(row["offset"], row["line"], row["part"], row["ts"] // 10**6 - START_MS) for row in rows] == [
        (5, -1, 0, 0), (6, -1, 2, 120_000),
    ]  # fmt: skip


def test_a_flood_of_jobs_is_bounded_and_still_adds_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(summaries, "MAX_GROUPS", 10)
    pipeline = Pipeline(DecodeConfig())
    rows = summed(
        pipeline, chunk([(block_headers("training", job_id=str(job)), [N02]) for job in range(50)], ended=True)
    )
    assert len(rows) == 11
    assert sum(int(dict(row["fields"])["dropped"]) for row in rows) == 50
    assert [row["message"] for row in rows if not row["node"]] == ["N02 × 40 (60 s)"]
    assert len({(row["offset"], row["line"], row["part"]) for row in rows}) == 11


class Sent(NamedTuple):
    """A message: how long after the one before, its kind, node, job and lines."""

    after_ms: int
    kind: str
    node: str
    job: str
    lines: list[bytes]


LINES = [N02, N19, b"loss 2.1", b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2Pgpu-a01:5:5 [1] NCCL"]
sent = st.builds(
    Sent,
    st.sampled_from([0, 10, 40_000, 200_000]),
    st.sampled_from(["training", "job_stdout"]),
    st.sampled_from(["gpu-a01", "gpu-b02"]),
    st.sampled_from(["", "1"]),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=5),
)


def run(messages: Sequence[Sent], cuts: Sequence[int], crash_at: int = -1) -> tuple[Pipeline, list[dict[str, Any]]]:
    """All messages in chunks of one time each; before chunk `crash_at` the pipeline is made anew from its state."""
    pipeline = Pipeline(DecodeConfig())
    rows, at_ms, cut, offset = [], START_MS, set(cuts), 0
    chunks: list[tuple[int, list[Sent]]] = []
    for number, message in enumerate(messages):
        at_ms += message.after_ms
        if number in cut or not chunks or message.after_ms:
            chunks.append((at_ms, []))
        chunks[-1][1].append(message)
    for number, (now, part_of) in enumerate(chunks):
        if number == crash_at:
            state = pickle.dumps(pipeline.state())
            pipeline = Pipeline(DecodeConfig())
            pipeline.restore(pickle.loads(state))
        blocks = [(block_headers(each.kind, each.node, job_id=each.job), each.lines) for each in part_of]
        rows += summed(pipeline, chunk(blocks, first_offset=offset, appended_ms=now))
        offset += len(blocks)
    rows += summed(pipeline, tick(at_ms, ended=True))
    return pipeline, rows


@settings(max_examples=30)
@given(messages=st.lists(sent, min_size=1, max_size=12), data=st.data())
def test_summaries_add_up_are_told_apart_and_do_not_depend_on_batches_or_crashes(
    messages: list[Sent], data: st.DataObject
) -> None:
    pipeline, rows = run(messages, [])
    cuts = data.draw(st.lists(st.integers(1, len(messages)), max_size=6), label="cuts")
    _, again = run(messages, cuts, data.draw(st.integers(0, len(messages)), label="crash before"))

    def identity(row: dict[str, Any]) -> tuple[str, int, int, int, int]:
        return row["topic"], row["partition"], row["offset"], row["line"], row["part"]

    assert len({identity(row) for row in rows}) == len(rows)
    assert all(row["line"] < 0 for row in rows)
    plain = [sorted(({**row, "stream": None} for row in each), key=identity) for each in (rows, again)]
    assert plain[0] == plain[1]
    said: Counter[str] = Counter()
    for row in rows:
        for count in row["message"].partition(" (")[0].split(", "):
            rule, _, lines = count.partition(" × ")
            said[rule] += int(lines)
    dropped = {rule: lines.total() for rule, lines in pipeline.counts.dropped.items() if rule != "empty"}
    assert said == dropped
    assert pipeline.unbalanced == 0
