"""The pure steps together: every line is accounted for, and how lines were cut into batches does not matter."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.batch import Chunk
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from flows.steps.noise import NoiseConfig
from tests.chunks import APPENDED_MS, block_headers, chunk, tick

LINES = {
    "slurmctld": [
        b"[2025-03-04T05:06:07.089] sched: Allocate JobId=70011 NodeList=gpu-001 #CPUs=96 Partition=train",
        b"[2025-03-04T05:06:07.090] debug:  backfill: nothing to do",
        b"a line without a stamp continues the one before",
        b"[2025-03-04T05:06:08.000] _job_complete: JobId=70011 WEXITSTATUS 1",
        b"",
        b"\xff\x00\xfe",
    ],
    "kmsg": [
        b"6,11,2200000000000,-;usb 1-2: reset",
        b"3,340,80123456,-;mlx5_core 0000:4b:00.0 ens5np0: Link down",
        b" SUBSYSTEM=pci",
        b" DEVICE=+pci:0000:4b:00.0",
        b"3,341,80123999,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
        b"no kernel record at all",
        b"",
    ],
    "training": [
        b"step 41 loss 2.13",
        b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        b"gpu-a01:51:51 [0] NCCL INFO Using network IB",
        b"gpu-a01:4021:4388 [2] misc/socket.cc:49 NCCL WARN Connection closed by remote peer gpu-b02<41877>",
        b"",
        b"Traceback (most recent call last):",
        b'  File "/app/train.py", line 214, in <module>',
        b"ValueError: x",
        b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2Pgpu-a01:52:52 [1] a.h:1 NCCL WARN Cuda x",
        b"/IPC",
    ],
    "pod": [
        b"2025-03-04T05:06:07.123456789Z stdout F step 10 loss 2.1",
        b"2025-03-04T05:06:07.2Z stdout P gpu-a01:51:51 [0] NCCL INFO Using ",
        b"2025-03-04T05:06:07.3Z stderr F [rank0]: ValueError: x",
        b"2025-03-04T05:06:07.4Z stdout F network IB",
        b"2025-03-04T05:06:07.500000000Z stdout F gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        b"not CRI",
    ],
    "syslog": [
        b"Mar  4 05:06:05 gpu-a01 sshd[42]: session opened",
        b"<27>Mar  4 05:06:06 gpu-a01 slurmd[7]: error: x",
        b"2025-03-04T05:06:06.5Z gpu-a01 kernel: [12345.678901] mlx5_core 0000:4b:00.0 ens5np0: Link down",
        b"",
        b"no head",
        b"Mar  4 05:06:07 gpu-a01 CRON[9]: \xff",
    ],
    "journal": [
        b'{"__REALTIME_TIMESTAMP":"1741064766000001","_HOSTNAME":"gpu-a01","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"x"}',
        b'{"__REALTIME_TIMESTAMP":"1741064766000002","SYSLOG_IDENTIFIER":"slurmd","MESSAGE":"error: x"}',
        b'{"__REALTIME_TIMESTAMP":"1741064766000003","MESSAGE":[104,105]}',
        b"{",
    ],
    "no such kind": [b"any text", b"", b"\x00\xff"],
}


def as_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with `ts` in nanoseconds, which Python's datetime cannot hold."""
    at = table.schema.get_field_index("ts")
    return table.set_column(at, "ts", table["ts"].cast(pa.int64())).to_pylist()  # type: ignore[no-any-return]


def run(
    chunks: list[Chunk], noise: NoiseConfig | None = None
) -> tuple[Pipeline, list[dict[str, Any]], list[dict[str, Any]]]:
    """All chunks through one pipeline: (pipeline, rows, noise rows), rows in the order of their identity."""
    pipeline = Pipeline(DecodeConfig(), "gpu-west", noise or NoiseConfig())
    rows, dropped = [], []
    for each in chunks:
        delivery, _ = pipeline.process(each)
        for part in delivery.parts:
            rows += as_dicts(part.rows)
            dropped += as_dicts(part.noise)

    def place(row: dict[str, Any]) -> tuple[int, int, int]:
        return row["offset"], row["line"], row["part"]

    return pipeline, sorted(rows, key=place), sorted(dropped, key=place)


kinds = st.sampled_from(sorted(LINES))


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[str, str, list[bytes]]]:
    """Blocks (kind, node, lines) of a few streams, in any order."""
    count = draw(st.integers(1, 12))
    return [
        (
            kind := draw(kinds),
            draw(st.sampled_from(["gpu-a01", "gpu-b02"])),
            draw(st.lists(st.sampled_from(LINES[kind]), min_size=1, max_size=8)),
        )
        for _ in range(count)
    ]


@settings(max_examples=60)
@given(blocks=messages(), cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_every_line_is_owned_once_and_batches_do_not_matter(
    blocks: list[tuple[str, str, list[bytes]]], cuts: list[bool]
) -> None:
    sent = [(block_headers(kind, node), lines) for kind, node, lines in blocks]
    whole = [chunk(sent, ended=True)]
    pieces, start = [], 0
    for end in [index + 1 for index, cut in enumerate(cuts[: len(sent)]) if cut] + [len(sent)]:
        if end > start:
            pieces.append(chunk(sent[start:end], first_offset=start))
            start = end
    pieces.append(tick(APPENDED_MS, ended=True))
    pipeline, rows, dropped = run(whole)
    cut_pipeline, cut_rows, cut_dropped = run(pieces)
    for tried, kept, noise in ((pipeline, rows, dropped), (cut_pipeline, cut_rows, cut_dropped)):
        assert tried.unbalanced == 0
        swallowed = tried.counts.dropped.get("empty", {})
        assert sum(row["owned"] for row in kept + noise) + sum(swallowed.values()) == tried.counts.read.total()
    assert [row["raw"] for row in cut_rows] == [row["raw"] for row in rows]
    for row, cut_row in zip(rows + dropped, cut_rows + cut_dropped, strict=True):
        differing = {name for name in row if row[name] != cut_row[name]} - {"stream"}
        assert not differing, (differing, row, cut_row)


def test_a_kernel_record_goes_on_in_the_next_batch_after_empty_lines() -> None:
    headers = block_headers("kmsg")
    first, last = b"6,11,2200000000000,-;usb 1-2: reset", b" SUBSYSTEM=pci"
    pieces = [chunk([(headers, [first, b"", b""])]), chunk([(headers, [last])], first_offset=1, ended=True)]
    pipeline, rows, _ = run(pieces)
    assert [row["raw"] for row in rows] == [first + b"\n" + last]
    assert pipeline.unbalanced == 0


def test_a_restart_from_the_snapshot_goes_on_where_it_stopped() -> None:
    sent = [(block_headers("training"), LINES["training"][4:7]), (block_headers("training"), LINES["training"][7:])]
    _, rows, _ = run([chunk(sent, ended=True)])
    before = Pipeline(DecodeConfig(), "gpu-west")
    first, _ = before.process(chunk(sent[:1]))
    after = Pipeline(DecodeConfig(), "gpu-west")
    after.restore(pickle.loads(pickle.dumps(before.state())))
    second, _ = after.process(chunk(sent[1:], first_offset=1, ended=True))
    raws = [row["raw"] for delivery in (first, second) for part in delivery.parts for row in as_dicts(part.rows)]
    assert sorted(raws) == sorted(row["raw"] for row in rows)
    assert after.unbalanced == 0


def test_noise_leaves_the_rows_and_is_counted_by_rule() -> None:
    quiet = NoiseConfig(summary_s=0)
    pipeline, rows, noise = run([chunk([(block_headers("training"), LINES["training"][:3])], ended=True)], quiet)
    assert [row["raw"] for row in rows] == [LINES["training"][0], LINES["training"][2]]
    assert [row["noise"] for row in noise] == ["N02"]
    assert pipeline.counts.dropped["N02"].total() == 1


def test_noise_that_no_sink_stores_is_counted_all_the_same() -> None:
    pipeline = Pipeline(DecodeConfig(), stores_noise=False)
    delivery, _ = pipeline.process(chunk([(block_headers("training"), LINES["training"][:3])], ended=True))
    assert not any(len(part.noise) for part in delivery.parts)
    assert delivery.dropped == {"N02": {("logs.job", 0): 1}}
    assert pipeline.unbalanced == 0


@pytest.mark.parametrize(
    ("noise", "headers", "kept"),
    [
        (NoiseConfig(), {}, 2),
        (NoiseConfig(drop=False), {}, 3),
        (NoiseConfig(keep=("N02",)), {}, 3),
        (NoiseConfig(), {"nccl_debug": "TRACE"}, 3),
        (NoiseConfig(), {"nccl_debug": "INFO"}, 2),
        (NoiseConfig(exempt={}), {"nccl_debug": "TRACE"}, 2),
    ],
)
def test_who_asked_for_trace_gets_it_all(noise: NoiseConfig, headers: dict[str, str], kept: int) -> None:
    _, rows, _ = run([chunk([(block_headers("training", **headers), LINES["training"][:3])], ended=True)], noise)
    assert len([row for row in rows if row["owned"]]) == kept


def test_a_held_line_is_released_after_its_age_by_the_clock_alone() -> None:
    pipeline = Pipeline(DecodeConfig())
    first, _ = pipeline.process(chunk([(block_headers("slurmctld"), LINES["slurmctld"][:1])]))
    assert [len(part.rows) for part in first.parts] == [0]
    early, _ = pipeline.process(tick(APPENDED_MS + 2_900))
    assert not early.parts
    late, _ = pipeline.process(tick(APPENDED_MS + 3_001))
    assert [part.rows["event"][0].as_py() for part in late.parts] == ["job_allocate"]


def test_labels_are_the_envelope_and_nothing_a_line_mentions() -> None:
    headers = block_headers("kmsg", cluster="", unit="u", job_id="70011", path="/dev/kmsg")
    pipeline = Pipeline(DecodeConfig(), "gpu-west")
    delivery, _ = pipeline.process(chunk([(headers, LINES["kmsg"][:1])], ended=True))
    (part,) = [part for part in delivery.parts if len(part.rows)]
    labels = dict(part.streams[part.rows["stream"][0].as_py()])
    assert labels == {
        "cluster": "gpu-west", "node": "gpu-a01", "unit": "u", "job_id": "70011", "job": "kmsg", "priority": "info",
    }  # fmt: skip


def test_a_flood_of_streams_is_flushed_early_and_counted() -> None:
    pipeline = Pipeline(DecodeConfig())
    pipeline.streams.max_streams = 10
    blocks = [(block_headers("slurmctld", f"ctl-{number}"), LINES["slurmctld"][:1]) for number in range(25)]
    delivery, _ = pipeline.process(chunk(blocks))
    assert len(pipeline.streams.streams) == 10
    assert pipeline.streams.evicted == 15
    assert sum(len(part.rows) for part in delivery.parts) == 15
    assert pipeline.unbalanced == 0


def test_kernel_lines_are_timed_from_boot_with_or_without_an_event() -> None:
    headers = block_headers("kmsg", boot_time="2025-03-01T00:00:00Z")
    lines = [
        b"6,11,2000000,-;usb 1-2: reset",
        b"3,12,3000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ]
    _, rows, _ = run([chunk([(headers, [*lines, lines[0]])], ended=True)])
    boot_ns = 1_740_787_200 * 10**9
    assert [(row["ts"] - boot_ns, row["ts_source"]) for row in rows] == [
        (2 * 10**9, "boot"), (3 * 10**9, "boot"), (2 * 10**9, "boot"),
    ]  # fmt: skip


@pytest.mark.parametrize(("said", "node"), [("", "n1"), ("gpu-a01", "gpu-a01")])
def test_a_line_that_no_gate_picks_has_the_year_of_its_receipt_and_the_host_it_names(said: str, node: str) -> None:
    lines = [b"Mar  4 05:06:05 n1 sshd[42]: plain", b"Mar  4 05:06:05 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, x"]
    _, rows, _ = run([chunk([(block_headers("syslog", node=said), lines)])])
    assert [row["event"] for row in rows] == [None, "gpu_xid"]
    for row, app in zip(rows, ("sshd", "kernel"), strict=True):
        assert (row["ts"], row["ts_source"], row["node"]) == (1_741_064_765_000_000_000, "year", node)
        assert dict(row["fields"])["app"] == app


def test_the_year_of_a_plain_line_comes_from_its_file_if_that_is_known() -> None:
    headers = block_headers("syslog", mtime="2019-01-01T00:00:00Z")
    _, (row,), _ = run([chunk([(headers, [b"Dec 31 23:59:58 n1 sshd[42]: plain"])])])
    assert row["ts"] == 1_546_300_798_000_000_000  # 2018-12-31T23:59:58Z
