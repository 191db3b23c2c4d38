"""Fabric Manager, DCGM, the device plugin, CycleCloud's agents, klog: both speeds agree, and so do all batches."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from parsers.clock import Stamp, parse_rfc3339
from tests.chunks import APPENDED_MS, block_headers, chunk, tick
from tests.parsers.kernel_records import records
from tests.parsers.speeds import assert_same, fast
from tests.recorded import CASES

_received = parse_rfc3339("2025-03-04T06:00:00.5Z")
assert _received is not None
RECEIVED: Stamp = _received
KINDS = ("dcgm", "device_plugin", "fabric_manager", "healthagent", "jetpack", "jetpackd", "klog")
INPUTS = {kind: [case["input"] for case in CASES if case["kind"] == kind and "input" in case] for kind in KINDS}

each_kind = pytest.mark.parametrize("kind", KINDS)

HEADS = {
    "fabric_manager": ["[Mar 04 2025 05:06:07] [ERROR] [tid 841] ", "[Mar 30 2025 02:30:00] [INFO] [tid 0] "],
    "dcgm": ["2025-03-04 05:06:07.089 ERROR [2201:2233] ", "2025-02-30 05:06:07.089 VERB  [0] "],
    "healthagent": ["2025-03-04 05:06:07,089 - healthagent - CRITICAL - ", "2025-10-26 02:30:00.000 - a.b - INFO - "],
    "jetpack": ["2025-03-04 05:06:07,089 INFO     ", "2025-03-04 05:06:07,089 CRITICAL "],
    "klog": ["I0304 05:06:07.123456    1234 kubelet.go:2345] ", "E0230 05:06:07.123456 0 a:1] "],
}
HEADS |= {"jetpackd": HEADS["jetpack"], "device_plugin": HEADS["klog"]}
PIECES = [
    "", " ", "  ", "x", "é", "\t", "\r", "\x1b[31m", "\\", "[", "]", "[7] ", "INFO", " - ", ": ",
    " [/w/a.cpp:410] [OnTick]", " [a:b:1]", " [:1]", '"Skipping pod"', '"a \\"b\\""', ' err="x \\n y"', " node=a",
    " k=", " k=<", ' é="ü"', ' pod="ml/train-0"', " a\\b=c", "XID detected: 79  on gpu: 3",
    "Updated health report for A: {'status': 'OK'}", "pci bus id 00000000:b7:00.0 port 3",
    "detected NVSwitch fatal error 20012 on fid 0", "Xid=48 on Device=GPU-aaaabbbb-0000", "unhealthy", " xid=48",
    "GPU NVL Fatal error on :", "NV_WARN_NOTHING_TO_DO",
]  # fmt: skip


@st.composite
def lines_of(draw: st.DrawFn, kind: str) -> list[str]:
    """Lines with a head of the kind, and a few without."""
    heads = st.sampled_from([*HEADS[kind] * 4, "", *(line for text in INPUTS[kind] for line in text.split("\n"))])
    tails = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
    return draw(st.lists(st.builds(str.__add__, heads, tails), min_size=1, max_size=8))


@each_kind
@pytest.mark.parametrize("tz", ["Europe/Berlin", None])
@given(data=st.data())
@settings(max_examples=150)
def test_both_speeds_agree_on_every_line_that_the_gate_leaves(kind: str, tz: str | None, data: st.DataObject) -> None:
    assert_same(kind, [line.encode() for line in data.draw(lines_of(kind))], tz, RECEIVED)


@pytest.mark.parametrize(
    ("kind", "line"),
    [(kind, line) for kind, heads in HEADS.items() for line in heads[:1]],
)
def test_a_usual_line_needs_no_python(kind: str, line: str) -> None:
    assert fast(kind, [f"{line}text {number}".encode() for number in range(3)], "UTC", RECEIVED)[1] is not None


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("klog", b"I0304 05:06:07.123456 1 kubelet\xe8go:2345] bytes that are no text"),
        ("klog", b"I0304 05:06:07.123456 1 kubelet.go:02345] a number that is printed otherwise"),
        ("klog", b"I0304 05:06:07.123456 1 kubelet.go:2345] \x1b[31mcolours"),
        ("fabric_manager", b"[Mar 04 2025 05:06:07] [INFO] [tid 007] a number that is printed otherwise"),
        ("fabric_manager", b"[Mar 30 2025 02:30:00] [INFO] [tid 7] an hour that there is not"),
        ("dcgm", b"2025-03-04 05:06:07.089 LOUD  [1:2] a level that is none"),
        ("jetpack", b"2025-02-30 05:06:07,089 INFO     a day that is none"),
        ("jetpack", b"2025-03-04 05:06:07,089 WARN a level that is not padded"),
        ("healthagent", b"2025-03-04 05:06:07,089 - healthagent - INFO -"),
    ],
)
def test_a_line_in_doubt_is_left_to_the_parser(kind: str, line: bytes) -> None:
    assert fast(kind, [line], "Europe/Berlin", RECEIVED) == [None]


def test_pairs_with_a_key_twice_are_left_to_the_parser_which_keeps_the_last() -> None:
    line = HEADS["klog"][0].encode() + b'"x" a=1 b="a=3" a=2'
    assert fast("klog", [line], "UTC", RECEIVED) == [None]
    assert records("klog", line)[0].fields["attributes"] == {"a": "2", "b": "a=3"}


@each_kind
def test_every_case_that_is_an_event_passes_the_gate(kind: str) -> None:
    events = 0
    for text in INPUTS[kind]:
        for found in records(kind, text, "2025-03-04T05:06:08Z", tz="UTC"):
            if {"event", "xid", "noise", "gpu_uuid", "reported_severity"} & found.fields.keys():
                lines = [text.split("\n")[ref.line].encode() for ref in found.refs]
                assert None in fast(kind, lines, "UTC", RECEIVED), text
                events += found.fields.get("event") is not None
    told = [each for case in CASES if case["kind"] == kind for each in case["expect"] if each.get("event")]
    assert events >= len(told)


def told(kind: str, pieces: list[list[str]], between: bool = False) -> list[dict[str, Any]]:
    """Rows, then noise, of what arrives in `pieces`, one batch each.

    `between`: lines of another node come in each batch too.
    """
    other = [(block_headers(kind, "gpu-b02"), [HEADS[kind][0].encode() + b"y", b"    more of it"])] if between else []
    batches = [[(block_headers(kind), [line.encode() for line in piece]), *other] for piece in pieces]
    chunks = [chunk(batch, number * len(batch)) for number, batch in enumerate(batches)]
    pipeline = Pipeline(DecodeConfig())
    parts = [part for one in [*chunks, tick(APPENDED_MS + 60_000)] for part in pipeline.process(one)[0].parts]
    tables = [part.rows for part in parts] + [part.noise for part in parts]
    times = [stamp for table in tables for stamp in table["ts"].cast(pa.int64()).to_pylist()]
    rows = [row for table in tables for row in table.drop_columns(["ts"]).to_pylist()]
    assert pipeline.unbalanced == 0
    place = ("topic", "partition", "offset", "line", "spans", "stream")
    return [
        {"ts": stamp, **{name: value for name, value in row.items() if name not in place}}
        for stamp, row in zip(times, rows, strict=True)
        if row["node"] == "gpu-a01"
    ]


def one_by_one(lines: list[str]) -> list[list[str]]:
    """One line each; an empty one comes with the line after it, since at the end of a message it would be none."""
    starts = [0, *(row + 1 for row, line in enumerate(lines[:-1]) if line)]
    return [lines[start:stop] for start, stop in pairwise([*starts, len(lines)])]


@each_kind
def test_a_record_is_the_same_in_whatever_batches_its_lines_arrive(kind: str) -> None:
    for text in INPUTS[kind]:
        lines = text.removesuffix("\n").split("\n")
        whole = told(kind, [lines])
        assert told(kind, one_by_one(lines), between=True) == whole
        assert [row["raw"].count(b"\n") for row in whole] == [
            len(found.refs) - 1 for found in records(kind, text, tz="UTC")
        ]


@each_kind
@given(data=st.data())
@settings(max_examples=25)
def test_how_lines_are_cut_into_batches_does_not_matter(kind: str, data: st.DataObject) -> None:
    lines = data.draw(lines_of(kind))
    cut = data.draw(st.integers(0, len(lines)))
    while cut and not lines[cut - 1]:
        cut -= 1
    assert told(kind, [piece for piece in (lines[:cut], lines[cut:]) if piece not in ([], [""])]) == told(kind, [lines])
