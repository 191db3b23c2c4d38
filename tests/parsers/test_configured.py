"""Kinds of a configuration: both speeds read the same, however lines are cut into batches."""

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import stored
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from flows.steps.kinds import Kinds, OwnKind
from parsers import clock
from parsers.clock import Stamp, Times
from parsers.configured import Event, Form, nameless, parser
from parsers.configured_columns import times
from parsers.configured_times import time_format
from parsers.record import Line, Record, Ref, Stream
from parsers.registry import Kind
from tests.chunks import APPENDED_MS, block_headers, chunk, tick

FORM = Form(
    head=r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (?:(?P<node>[a-z][a-z0-9-]*) )?(?P<level>[A-Z]+) +"
    r"\[(?P<process>[^\]/]*)(?:/(?P<pid>\d+))?\] ",
    time=time_format("%Y-%m-%d %H:%M:%S,%f"),
    levels={"bad": "error"},
    follows=True,
    events=(
        Event("nic_link", r"^port (?P<port>\d+) of (?P<hca>\S+) is down", "error", (("link_state", "down"),)),
        Event("gpu_xid", r"\bxid (?P<xid>\d+) on (?P<pci>\S+)"),
    ),
    noise=(("polled", "^polled"), ("idle", "idle$")),
    integers=frozenset({"port"}),
)
ALONE = Form(head=FORM.head, time=FORM.time, events=FORM.events, noise=FORM.noise)
HEADLESS = Form(events=(Event("oops", "(?i)error (?P<errno>-?\\d+)"),), integers=frozenset({"errno"}))
HEAD = b"2026-03-04 05:06:07,089 INFO  [poller/7] "


def kinds(form: Form) -> Kinds:
    return Kinds({"own": OwnKind(Kind(parser(form), "own", form.follows))})


def parsed(form: Form, lines: Sequence[bytes], tz: str | None = "Europe/Berlin") -> list[Record]:
    stream = parser(form).stream(Stream("own", times=Times(tz)))
    done = [record for n, raw in enumerate(lines) for record in stream.feed(Line(raw, (Ref(0, n),)))]
    return done + stream.flush()


def rows(form: Form, blocks: Sequence[Sequence[bytes]], tz: str = "Europe/Berlin") -> list[dict[str, Any]]:
    """What the tier makes of one stream in batches, without what tells of their cut."""
    pipeline = Pipeline(DecodeConfig(), kinds=kinds(form))
    found = []
    headers = block_headers("own", node="", tz=tz)
    chunks = [chunk([(headers, lines)], first_offset=n) for n, lines in enumerate(blocks)]
    for each in [*chunks, tick(APPENDED_MS, ended=True)]:
        found += [record.values for record in stored.records(pipeline.process(each)[0])]
    assert pipeline.unbalanced == 0
    found = [row for row in found if row["kind"] == "own"]
    found.sort(key=lambda row: (row["offset"], row["line"], row["part"]))
    return [{name: row[name] for name in row if name not in {"offset", "line", "spans", "owned"}} for row in found]


@pytest.mark.parametrize(
    ("form", "lines", "expected"),
    [
        (FORM, [HEAD + b"fine"], [{"message": "fine", "level": "info", "process": "poller", "pid": 7}]),
        (FORM, [HEAD + b"fine", b" more", b"", b"end"], [{"message": "fine\n more\n\nend"}]),
        (FORM, [b"before", HEAD + b"x"], [{"message": "before", "level": None}, {"message": "x"}]),
        (FORM, [HEAD.replace(b"INFO", b"BAD") + b"x"], [{"level": "error", "level_raw": "BAD"}]),
        (FORM, [HEAD.replace(b"INFO", b"ODD") + b"x"], [{"level": None, "level_raw": "ODD"}]),
        (
            FORM,
            [HEAD + b"port 12 of mlx5_0 is down"],
            [{"event": "nic_link", "port": 12, "hca": "mlx5_0", "level": "error", "link_state": "down"}],
        ),
        (FORM, [HEAD + b"an xid 79 on 0000:3B:00.0!"], [{"event": "gpu_xid", "xid": 79, "pci": None}]),
        (FORM, [HEAD + b"an xid 79 on 3B:00.0"], [{"event": "gpu_xid", "xid": 79, "pci": "0000:3b:00"}]),
        (FORM, [HEAD + b"polled 3"], [{"noise": "polled", "event": None}]),
        (FORM, [HEAD + b"polled: xid 7 on x"], [{"noise": None, "event": "gpu_xid"}]),
        (FORM, [HEAD + b"polled", b"more"], [{"noise": "polled", "message": "polled\nmore"}]),
        (FORM, [b"\x1b[31m" + HEAD + b"red\x1b[0m"], [{"message": "red", "level": "info"}]),
        (FORM, [HEAD.replace(b"[poller/7]", b"[]") + b"x"], [{"process": None, "pid": None}]),
        (ALONE, [HEAD + b"x", b"no head"], [{"message": "x"}, {"message": "no head"}]),
        (HEADLESS, [b"ERROR -5", b"", b"x"], [{"event": "oops", "errno": -5, "message": "ERROR -5"}, {"message": "x"}]),
        (Form(gate="disk", events=(Event("a", "full"),)), [b"disk full", b"full"], [{"event": "a"}, {"event": None}]),
    ],
)
def test_records_of_lines(form: Form, lines: list[bytes], expected: list[dict[str, Any]]) -> None:
    found = [record.fields for record in parsed(form, lines)]
    assert [{name: each.get(name) for name in wish} for wish, each in zip(expected, found, strict=True)] == expected


@pytest.mark.parametrize("size", [10, 300_000])
def test_long_lines_are_read_as_short_ones_are(size: int) -> None:
    form = Form(r"(?P<app>\w+): ", events=(Event("bad", "error.*(?P<port>[0-9]+)"),), noise=(("ok", "fine.*end"),))
    texts = [b"error " * size + b"7", b"error " * size, b"fine " * size + b"end"]
    found = [record.fields for record in parsed(form, [b"a: " + text for text in texts])]
    assert [(each["app"], each.get("event"), each.get("port"), each.get("noise")) for each in found] == [
        ("a", "bad", "7", None),
        ("a", None, None, None),
        ("a", None, None, "ok"),
    ]
    assert [each["message"].encode() for each in found] == texts


def test_what_has_no_head_is_unparsed() -> None:
    assert [record.flags for record in parsed(ALONE, [HEAD + b"x", b"no head"])] == [set(), {"unparsed"}]


@pytest.mark.parametrize(
    ("form", "text", "tz", "expected"),
    [
        ("iso", "2025-03-04T05:06:07.1Z", None, ("2025-03-04T05:06:07.1Z", "record", set())),
        ("iso", "2025-03-04 05:06:07,089 +0130", None, ("2025-03-04T03:36:07.089Z", "record", set())),
        ("iso", "2025-03-04T05:06:07", "Europe/Berlin", ("2025-03-04T04:06:07Z", "zone", set())),
        ("iso", "2025-03-04T05:06:07", None, None),
        ("iso", "2025-02-30T05:06:07Z", None, None),
        ("iso", "9999-01-01T00:00:00Z", None, None),
        ("%Y-%m-%d %H:%M:%S", "2025-03-30 02:30:00", "Europe/Berlin", ("2025-03-30T01:30:00Z", "zone", {"dst_gap"})),
        ("%Y-%m-%d %H:%M:%S", "2025-10-26 02:30:00", "Europe/Berlin", ("2025-10-26T00:30:00Z", "zone", {"dst_fold"})),
        ("%d/%b/%Y:%H:%M:%S %z", "04/Mar/2025:05:06:07 -0500", "UTC", ("2025-03-04T10:06:07Z", "record", set())),
        ("%Y%m%d %H%M", "20250304 0506", "UTC", ("2025-03-04T05:06:00Z", "zone", set())),
        ("%b %e %H:%M:%S.%f", "Mar  4 05:06:07.5", "UTC", ("2025-03-04T05:06:07.5Z", "year", set())),
        ("%b %e %H:%M:%S", "Dec 31 23:59:59", "UTC", ("2024-12-31T23:59:59Z", "year", set())),
        ("%b %e %H:%M:%S", "Dec 31 23:59:59", None, None),
        ("epoch", "1741064767", None, ("2025-03-04T05:06:07Z", "record", set())),
        ("epoch", "1741064767.25", None, ("2025-03-04T05:06:07.25Z", "record", set())),
        ("epoch", "1741064767089", None, ("2025-03-04T05:06:07.089Z", "record", set())),
        ("epoch", "1741064767089001", None, ("2025-03-04T05:06:07.089001Z", "record", set())),
        ("epoch", "99999999999", None, None),
    ],
)
def test_times_are_read_alike_at_both_speeds(
    form: str, text: str, tz: str | None, expected: tuple[str, str, set[str]] | None
) -> None:
    read, flags = time_format(form), set[str]()
    near = clock.parse_rfc3339("2025-03-01T00:00:00Z")
    assert near
    found = read.read(text.encode(), Times(tz), near, flags)
    assert (None if found is None else (clock.text(found[0]), found[1], flags)) == expected
    columns = times(pa.array([text.encode()], pa.large_binary()), read, tz, pa.array([near.ns]))
    assert columns.doubtful[0].as_py() == bool(flags)
    if not flags:
        assert columns.ts[0].as_py() == (None if found is None else found[0].ns)
        assert columns.ts_source[0].as_py() == (None if found is None else found[1])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("%Y-%m-%d", "needs %H once"),
        ("%d.%m. %H:%M %p", "%p is not known; use iso, epoch, or a pattern of"),
        ("%b %d %H:%M %z", "has a zone but no year"),
        ("%Y %Y %m %d %H:%M", "has %Y twice"),
        ("%d %e %m %H:%M", "needs %d or %e once"),
    ],
)
def test_a_format_that_gives_no_time_is_refused(form: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        time_format(form)


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("(?P<a>x)|(?P<b>y)", "(?:x)|(?:y)"),
        (r"\(?P<a>x", r"\(?P<a>x"),
        (r"\\(?P<a>x)", r"\\(?:x)"),
        ("[(?P<a>]", "[(?P<a>]"),
        ("[^](?P<a>]", "[^](?P<a>]"),
    ],
)
def test_names_leave_a_pattern_and_nothing_else_does(regex: str, expected: str) -> None:
    assert nameless(regex) == expected


def test_a_record_goes_on_after_a_restart() -> None:
    stream = parser(FORM).stream(Stream("own", times=Times("UTC")))
    assert stream.feed(Line(HEAD + b"port 7 of mlx5_0", (Ref(0, 0),))) == []
    stream = pickle.loads(pickle.dumps(stream))
    assert stream.feed(Line(b"is up", (Ref(1, 0),))) == []
    (record,) = stream.flush()
    assert (record.fields["message"], record.fields["level"]) == ("port 7 of mlx5_0\nis up", "info")


def test_a_record_goes_on_in_the_next_batch_and_noise_waits_for_its_end() -> None:
    found = rows(FORM, [[HEAD + b"fine", HEAD + b"polled"], [b"more"], [b"of it", HEAD + b"x"]])
    assert [(row["message"], row["dropped"]) for row in found] == [
        ("fine", False),
        ("polled\nmore\nof it", True),
        ("x", False),
    ]


TEXTS = [
    b"fine", b"polled 3 ports", b"all idle", b"port 7 of mlx5_1 is down", b"xid 31 on 0000:3b:00", b"idle xid 1 on x",
    b"", "größe".encode(), b"\xff\xfe", b"nul \0 inside", b"cr\r", b"\x1b[1mbold\x1b[0m", b"xid 99999999999 on x",
]  # fmt: skip
HEADS = [
    HEAD, b"2026-03-29 02:30:00,000 BAD [x/0] ", b"2026-10-25 02:30:00,000 ODD [] ",
    b"2026-02-30 01:00:00,000 INFO [y] ", b"2026-03-04 05:06:07,089 gpu-a01 WARN [z] ", b"", b"  ",
    "2026-03-04 05:06:07,089 INFO [grö".encode(),
]  # fmt: skip
# No line is empty: at the end of a message it would be none. A carriage return is as good as nothing.
LINES = st.lists(
    st.tuples(st.sampled_from(HEADS), st.sampled_from(TEXTS)).map(lambda parts: b"".join(parts) or b"\r"),
    min_size=1,
    max_size=12,
)
any_form = pytest.mark.parametrize("form", [FORM, ALONE, HEADLESS], ids=["follows", "alone", "headless"])


@any_form
@settings(max_examples=150)
@given(lines=LINES, cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_batches_do_not_matter(form: Form, lines: list[bytes], cuts: list[bool]) -> None:
    blocks, block = [], []
    for line, cut in zip(lines, cuts, strict=False):
        block.append(line)
        if cut:
            blocks.append(block)
            block = []
    blocks += [block] if block else []
    whole = rows(form, [lines])
    joined = rows(form, blocks)
    assert [row["raw"] for row in joined] == [row["raw"] for row in whole]
    for row, other in zip(joined, whole, strict=True):
        # Of noise the archive has the line; at a batch's end, where more of the record might follow, its head as well.
        names = {"noise", "dropped"} if other["dropped"] else row.keys() | other.keys()
        assert {name: row.get(name) for name in names} == {name: other.get(name) for name in names}


@any_form
@settings(max_examples=150)
@given(lines=LINES)
def test_the_tier_reads_what_parse_prints(form: Form, lines: list[bytes]) -> None:
    for record, row in zip(parsed(form, lines), rows(form, [lines]), strict=True):
        assert row.get("noise") == record.fields.get("noise")
        if row["dropped"]:
            continue
        shown = {name: row.get(name) for name in record.fields}
        # A number that its column does not hold is null there, and all of the map are texts.
        assert {name: str(value) for name, value in shown.items()} == {
            name: str(value) for name, value in record.fields.items()
        }
        assert row.get("flags", []) == sorted(record.flags)
        assert row.get("node") == record.node
        if record.ts is not None:
            assert clock.parse_rfc3339(row["ts"]) == Stamp(record.ts.ns, 9)
            assert row["ts_source"] == record.ts_source


@any_form
@settings(max_examples=100)
@given(lines=st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")), max_size=20))
def test_every_line_of_any_bytes_is_in_one_record(form: Form, lines: list[bytes]) -> None:
    refs = [ref.line for record in parsed(form, lines) for ref in record.refs]
    assert refs == sorted(set(refs))
    for line in set(range(len(lines))) - set(refs):
        assert not lines[line].decode(errors="replace").strip("".join(map(chr, [*range(32), 127])) + "\x00")
