"""Partials: the same records counted, whatever batches they came in; nothing for what no rule wants."""

import pickle
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.detect.events import Partial, partial_from_json
from flows.detect.partials import Detector
from flows.detect.rules import DetectConfig, Rule
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from sinks.base import Delivery
from tests.chunks import block_headers, chunk
from tests.detect.scene import Scene, kmsg, rule, xid

OTHER = kmsg("usb 1-2: reset")
LINES = {
    "kmsg": [xid(79), xid(79), xid(31, pid=1), xid(31, pid=2), xid(45, "Ch 1 caused by previous Xid 31"),
             kmsg("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."), OTHER],
    "training": ["step 41 loss 2.13", "ValueError: x",
                 "[rank1]:[E304 05:06:07.8 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation "
                 "timeout: WorkNCCL(SeqNum=1) ran [repeated 7x across cluster]",
                 "gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"],
}  # fmt: skip
RULES = (
    rule(name="Xids", events=["gpu_xid", "gpu_lost"], group_by=["cluster", "node", "xid"], fold_by=["pid"]),
    rule(name="Criticals", events=["gpu_xid"], where={"severity": "critical"}, group_by=["pci"]),
    rule(name="Timeouts", events=["collective_timeout"], group_by=["namespace|host"]),
    rule(name="Losses", kinds=["training"], regex="loss [0-9]"),
    rule(name="Either", events=["gpu_lost"], group_by=["node"], also=[{"kinds": ["training"], "regex": "ValueError"}]),
)


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[str, str, list[str]]]:
    return [
        (
            kind := draw(st.sampled_from(sorted(LINES))),
            draw(st.sampled_from(["gpu-a01", "gpu-b02"])),
            draw(st.lists(st.sampled_from(LINES[kind]), min_size=1, max_size=8)),
        )
        for _ in range(draw(st.integers(1, 8)))
    ]


def deliveries(sent: list[tuple[str, str, list[str]]], cuts: list[int]) -> list[Delivery]:
    pipeline = Pipeline(DecodeConfig(), "west")
    whole = [
        (block_headers(kind, node, read_at=str(1_741_064_767 + number % 3)), [line.encode() for line in lines])
        for number, (kind, node, lines) in enumerate(sent)
    ]
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(whole)}), len(whole)]
    return [
        pipeline.process(chunk(whole[start:end], start, ended=end == len(whole)))[0] for start, end in pairwise(edges)
    ]


def recounted(rules: tuple[Rule, ...], delivered: list[Delivery]) -> "Counter[tuple[str, int, int, int]]":
    """(rule, offset, line, part) of all rows that match, row by row."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for delivery in delivered:
        for part in delivery.parts:
            rows = part.rows.set_column(
                part.rows.schema.get_field_index("ts"), "ts", part.rows["ts"].cast(pa.int64())
            ).to_pylist()
            for row in rows:
                event, text = row["event"], row["message"] or ""
                fits = {
                    "Xids": event in ("gpu_xid", "gpu_lost"),
                    # An Xid 45 counts as what caused it, here Xid 31, a warning.
                    "Criticals": event == "gpu_xid" and row["severity"] == "critical",
                    "Timeouts": event == "collective_timeout",
                    "Losses": "loss 2.13" in text,
                    "Either": event == "gpu_lost" or (part.kind == "training" and "ValueError" in row["raw"].decode()),
                }
                for name, fit in fits.items():
                    found[name, row["offset"], row["line"], row["part"]] += fit
    return +found


def places(partials: list[Partial]) -> "Counter[tuple[str, int, int, int]]":
    return Counter(
        (partial.rule, partial.offset, line + number, part)
        for partial in partials
        for line, part, count in partial.records
        for number in range(count)
    )


def unwound(partials: list[Partial]) -> "Counter[tuple[object, ...]]":
    """What each record is counted as."""
    return Counter(
        (
            partial.rule, partial.group, partial.second, partial.offset, line + number, part, partial.key,
            partial.weight, partial.follower,
        )
        for partial in partials
        for line, part, count in partial.records
        for number in range(count)
    )  # fmt: skip


@settings(max_examples=40)
@given(sent=blocks(), cuts=st.lists(st.integers(0, 8), max_size=6))
def test_any_batches_count_the_same_records_each_once(sent: list[tuple[str, str, list[str]]], cuts: list[int]) -> None:
    detector = Detector(RULES, DetectConfig(), "west")
    one, many = deliveries(sent, []), deliveries(sent, cuts)
    whole = [partial for delivery in one for partial in detector.partials(delivery)]
    pieces = [partial for delivery in many for partial in detector.partials(delivery)]
    assert places(whole) == recounted(RULES, one)
    assert max(places(whole).values(), default=1) == 1
    assert unwound(pieces) == unwound(whole)
    for partial in whole:
        assert partial_from_json(partial.to_json()) == partial
        assert pickle.loads(pickle.dumps(partial)) == partial


def test_a_storm_in_one_message_is_one_partial() -> None:
    scene = Scene()
    scene.send(0, "kmsg", *[xid(95)] * 400, OTHER, stamp=0)
    (partial,) = scene.partials
    assert partial.records == ((0, 0, 400),)
    assert len(partial.to_json()) < 1_000


@pytest.mark.parametrize(
    ("lines", "records"),
    [
        ([xid(95), OTHER, xid(95), xid(95), OTHER], ((0, 0, 1), (2, 0, 2))),
        ([OTHER, xid(95), OTHER], ((1, 0, 1),)),
    ],
)
def test_records_are_named_by_their_place(lines: list[str], records: tuple[tuple[int, int, int], ...]) -> None:
    scene = Scene()
    scene.send(0, "kmsg", *lines, stamp=0)
    assert [partial.records for partial in scene.partials] == [records]


def test_weight_role_and_folding_of_a_record_are_its_own() -> None:
    scene = Scene([rule(events=["gpu_xid"], group_by=["xid"], fold_by=["pid"])])
    scene.send(0, "kmsg", xid(31, pid=1), xid(45, "Ch 00000001 caused by previous Xid 31", pid=2), xid(31, pid=None))
    assert [(dict(one.group)["xid"], one.key, one.follower) for one in scene.partials] == [
        ("31", "1", False), ("31", "2", True), ("31", "", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"xid": 31}, 2),
        ({"xid": [31, 79]}, 3),
        ({"xid": "31", "pid": 4021}, 1),
        ({"channel": 8}, 2),  # a field that is no column of its own
        ({"from_kernel": True}, 3),
        ({"node": "gpu-b02"}, 0),
        ({"no_such_field": "x"}, 0),
    ],
)
def test_conditions_on_fields(where: dict[str, object], count: int) -> None:
    scene = Scene([rule(events=["gpu_xid"], where=where, group_by=["node"])])
    scene.send(0, "kmsg", xid(31), xid(31, pid=7), xid(79, "GPU has fallen off the bus."))
    assert sum(records[2] for partial in scene.partials for records in partial.records) == count


def test_what_is_no_partial_is_refused() -> None:
    for value in (b"", b"{}", b"[]", b'{"v":2}', b'{"v":1,"first":[]}', b"null"):
        with pytest.raises(ValueError, match=r"."):
            partial_from_json(value)
