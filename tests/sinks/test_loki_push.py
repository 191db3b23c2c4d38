"""What Loki reads from our push requests is what went in."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.loki_limits import Labels, cut, label_text, metadata_name
from sinks.loki_push import Block, body, encode, join, places
from tests.sinks.loki_rows import Entry, decoded, table


def pushed(
    rows: list[dict[str, Any]], streams: list[Labels], max_line: int = 262_144, record_id: bool = True
) -> list[tuple[str, list[Entry]]]:
    """Encode, cut into blocks by stream, compress, decode."""
    frame = table(rows)
    encoded = encode(frame, places(frame)[0], streams, max_line=max_line, record_id=record_id)
    ends = np.cumsum(encoded.rows["size"])
    blocks = []
    for number in np.unique(encoded.stream):
        own = np.flatnonzero(encoded.stream == number)
        data = bytes(encoded.data[int(ends[own[0]] - encoded.rows["size"][own[0]]) : int(ends[own[-1]])])
        blocks.append(Block(streams[number], data, encoded.rows[own]))
    return decoded(body([(label_text(block.labels, 15, 2048), block) for block in blocks]))


TYPED = {"level", "job_id", "host", "flags", "id"}
NS = st.integers(0, 4 * 10**18)
TEXT = st.text(max_size=300)
NAMES = st.text(min_size=1, max_size=20)
TIMED = st.tuples(st.integers(0, 50), st.binary(max_size=20))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "ts": NS,
            "raw": st.binary(max_size=400),
            "body": st.none() | st.binary(max_size=400),
            "stream": st.integers(0, 2),
            "offset": st.integers(0, 2**62),
            "line": st.integers(0, 2**31 - 1),
            "part": st.integers(0, 2**15 - 1),
            "level": st.none() | st.sampled_from(["info", "error"]),
            "job_id": st.none() | st.integers(-(2**63), 2**63 - 1),
            "host": st.none() | TEXT,
            "flags": st.none() | st.lists(st.sampled_from(["partial", "redacted"]), max_size=2, unique=True),
            "fields": st.none()
            | st.dictionaries(st.text(min_size=1, max_size=20), TEXT, max_size=4).map(lambda d: [*d.items()]),
        }
    ),
    min_size=1,
    max_size=30,
)


@given(ROWS)
def test_any_rows_come_out_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    streams: list[Labels] = [(("app", str(i)),) for i in range(3)]
    expected = []
    for number in sorted({row["stream"] for row in rows}):
        entries = []
        for row in sorted((row for row in rows if row["stream"] == number), key=lambda row: row["ts"]):
            names = {metadata_name(name).decode(): value for name, value in row["fields"] or ()}
            metadata = {name: value for name, value in names.items() if name and name != "app"}
            metadata |= {name: str(row[name]) for name in ("level", "job_id") if row[name] is not None}
            metadata |= {"host": cut((row["host"] or "").encode(), 256).decode(), "flags": ",".join(row["flags"] or ())}
            metadata["id"] = f"0:{row['offset']}:{row['line']}:{row['part']}"
            line = row["raw"] if row["body"] is None else row["body"]
            entries.append(Entry(row["ts"], line, {name: value for name, value in metadata.items() if value}))
        expected.append((f'{{app="{number}"}}', entries))
    found = pushed(rows, streams)
    assert [(labels, [(e.ts, e.line) for e in entries]) for labels, entries in found] == [
        (labels, [(e.ts, e.line) for e in entries]) for labels, entries in expected
    ]
    for (_, got), (_, want) in zip(found, expected, strict=True):
        for one, other in zip(got, want, strict=True):
            assert one.metadata.keys() == other.metadata.keys()
            # two names of `fields` may become alike; which of their values wins is of no matter here
            assert all(one.metadata[name] == other.metadata[name] for name in one.metadata if name in TYPED)


def test_every_typed_column_is_structured_metadata_and_nulls_are_absent() -> None:
    typed = {
        "level": "critical", "event": "xid", "job_id": 4711, "step_id": "0", "rank": 3, "host": "n1", "pid": 9,
        "pci": "0000:3b:00", "xid": 79, "sxid": 12, "exit_code": 137, "noise": "N02",
    }  # fmt: skip
    [(_, [full, empty])] = pushed(
        [{"ts": 1, "raw": b"a", **typed, "flags": ["partial", "rejoined"]}, {"ts": 2, "raw": b"b"}], [(("app", "x"),)]
    )
    assert full.metadata == {**{k: str(v) for k, v in typed.items()}, "flags": "partial,rejoined", "id": "0:7:0:0"}
    assert empty.metadata == {"id": "0:7:0:0"}


def test_metadata_that_is_a_label_of_the_stream_is_left_out_of_that_stream_only() -> None:
    rows = [{"ts": 1, "raw": b"a", "job_id": 1, "fields": [("unit", "u")], "stream": i} for i in range(2)]
    streams = pushed(rows, [(("job_id", "1"), ("unit", "u")), (("app", "x"),)], record_id=False)
    assert [entry.metadata for _, [entry] in streams] == [{}, {"job_id": "1", "unit": "u"}]


def test_a_long_line_is_cut_at_a_character_and_flagged() -> None:
    rows = [
        {"ts": 1, "raw": b"a" * 9 + "é".encode(), "flags": ["partial"]},
        {"ts": 2, "raw": b"a" * 10},
        {"ts": 3, "raw": b"\x80" * 20},
    ]
    [(_, entries)] = pushed(rows, [(("app", "x"),)], max_line=10, record_id=False)
    assert entries == [
        Entry(1, b"a" * 9, {"flags": "partial,truncated"}),
        Entry(2, b"a" * 10, {}),
        Entry(3, b"\x80" * 10, {"flags": "truncated"}),
    ]


def test_metadata_stays_below_the_limits_of_an_entry() -> None:
    many = [(f"k{i}", "v") for i in range(500)]
    large = [(f"k{i}", "é" * 10_000) for i in range(20)]
    [(_, entries)] = pushed(
        [{"ts": 1, "raw": b"", "fields": many}, {"ts": 2, "raw": b"", "fields": large, "host": "h" * 10**6}], [()]
    )
    for entry in entries:
        assert len(entry.metadata) <= 128
        assert sum(len(k.encode()) + len(v.encode()) for k, v in entry.metadata.items()) <= 64 * 1024


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.binary(max_size=20)), min_size=1, max_size=8), min_size=1, max_size=5
    )
)
def test_runs_are_joined_in_order_of_time_and_equal_times_keep_their_order(runs: list[list[tuple[int, bytes]]]) -> None:
    labels: Labels = (("app", "x"),)
    encoded = []
    for run in runs:
        frame = table([{"ts": ts, "raw": raw} for ts, raw in run])
        one = encode(frame, places(frame)[0], [labels], max_line=100, record_id=False)
        encoded.append((bytes(one.data), one.rows))
    block = join(labels, encoded)
    [(_, entries)] = decoded(body([(b"{}", block)]))
    ordered = sorted((one for run in runs for one in sorted(run, key=lambda one: one[0])), key=lambda one: one[0])
    assert [(entry.ts, entry.line) for entry in entries] == ordered
    assert [block.line(i) for i in range(len(block.rows))] == [line for _, line in ordered]
    middle = len(ordered) // 2 + 1
    parts = [part for part in (block.part(0, middle), block.part(middle, len(ordered))) if len(part.rows)]
    rejoined = [entry for part in parts for entry in decoded(body([(b"{}", part)]))[0][1]]
    assert rejoined == entries


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ((("app", "x"), ("node", "n1")), '{app="x", node="n1"}'),
        ((("1a", "x"), ("a.b", "y"), ("é", "z")), '{_="z", _1a="x", a_b="y"}'),
        ((("a", 'q"\\\n\t\0'),), '{a="q\\"\\\\\\u000a\\u0009\\u0000"}'),
        ((("a", ""), ("", "b")), "{}"),
        ((("a.b", "first"), ("a_b", "second")), '{a_b="first"}'),
        ((("a", "é" * 2000),), '{a="' + "é" * 1024 + '"}'),
        ((("a", "\ud800"),), '{a="?"}'),
        (tuple((f"l{i:02}", "v") for i in range(20)), "{" + ", ".join(f'l{i:02}="v"' for i in range(15)) + "}"),
    ],
)
def test_label_sets_are_made_acceptable(labels: Labels, text: str) -> None:
    assert label_text(labels, 15, 2048).decode() == text


@pytest.mark.parametrize(
    ("name", "clean"),
    [("job.id", "job_id"), ("0x", "key_0x"), ("...", ""), ("日本", ""), ("_", ""), ("", ""), ("é1", "_1")],
)
def test_metadata_names_are_made_acceptable(name: str, clean: str) -> None:
    assert metadata_name(name).decode() == clean


@given(st.text(max_size=50), st.integers(1, 60))
def test_a_cut_text_is_valid_and_as_long_as_can_be(text: str, limit: int) -> None:
    short = cut(text.encode(), limit)
    assert text.startswith(short.decode())
    assert limit - 4 < len(short) <= limit or len(short) == len(text.encode())


def test_places_number_topics_and_partitions_over_chunks() -> None:
    frame = pa.concat_tables(
        [
            table([{"topic": "a", "partition": 1}, {"topic": "b", "partition": 1}]),
            table([{"topic": "b", "partition": 1}]),
        ]
    )
    numbers, found = places(frame)
    assert [found[number] for number in numbers] == [("a", 1), ("b", 1), ("b", 1)]


def test_a_time_is_kept_to_the_nanosecond() -> None:
    ns = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp()) * 10**9 + 999_999_999
    [(_, [entry])] = pushed([{"ts": ns, "raw": b"x"}], [()])
    assert entry.ts == ns
