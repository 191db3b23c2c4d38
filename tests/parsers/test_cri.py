"""CRI files and Docker's json-file: stamps, tags, pieces, streams, inner grammars, and both speeds."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.clock import Times, parse_rfc3339, text
from parsers.container import MAX_OTHERS, place
from parsers.cri import DOCKER, MAX_TEXT, POD
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Record, Ref, Stream

AT = b"2025-03-04T05:06:07.123456789Z "
RECEIVED = parse_rfc3339("2025-03-04T06:00:00Z")


def fed(stream, lines: list[bytes]) -> list[Record]:
    records = [
        record for number, raw in enumerate(lines) for record in stream.feed(Line(raw, (Ref(0, number),), RECEIVED))
    ]
    return sorted(records + stream.flush(), key=lambda record: (record.refs[0], record.part))


def pod(*lines: bytes, path: str | None = None, tz: str | None = None) -> list[Record]:
    return fed(POD.stream(Stream("pod", path=path, times=Times(tz))), list(lines))


def docker(*entries: dict) -> list[Record]:
    return fed(DOCKER.stream(Stream("docker")), [json.dumps(entry).encode() for entry in entries])


@pytest.mark.parametrize(
    ("stamp", "printed"),
    [
        ("2025-03-04T05:06:07Z", "2025-03-04T05:06:07Z"),
        ("2025-03-04T05:06:07.1Z", "2025-03-04T05:06:07.1Z"),
        ("2025-03-04T05:06:07.100000000Z", "2025-03-04T05:06:07.100000000Z"),
        ("2025-03-04T05:06:07.123456789+00:00", "2025-03-04T05:06:07.123456789Z"),
        ("2025-03-04T05:06:07.12-03:30", "2025-03-04T08:36:07.12Z"),
    ],
)
def test_the_stamp_keeps_the_digits_it_shows(stamp, printed):
    (record,) = pod(f"{stamp} stderr F x".encode())
    assert (text(record.ts), record.ts_source, record.fields["stream"]) == (printed, "carrier", "stderr")


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"F text", "text"),
        (b"F", ""),
        (b"F ", ""),
        (b"F  two blanks", " two blanks"),
        (b"F:meta:more x y", "x y"),
        (b"[info] no tag", "[info] no tag"),
        (b"Full stop", "Full stop"),
        (b"", ""),
    ],
)
def test_tags_are_taken_off_and_nothing_else(tail, message):
    (record,) = pod(AT + b"stdout " + tail)
    assert record.fields["message"] == message
    assert not record.flags


@pytest.mark.parametrize(
    "raw",
    [
        b"text without a stamp",
        b"2025-03-04T05:06:07Z",
        b"2025-03-04T05:06:07 stdout F no zone",
        b"2025-02-30T05:06:07Z stdout F no such day",
        b"2025-03-04T05:06:07Z stdlog F no such stream",
        b"9999-12-31T23:59:59Z stdout F outside of nanoseconds",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_line_that_is_no_cri_line_is_kept_as_it_is(raw):
    (record,) = pod(raw)
    assert "unparsed" in record.flags
    assert record.fields["message"] == raw.decode(errors="replace")
    assert (record.ts, record.ts_source) == (RECEIVED, "received")


def test_pieces_are_joined_per_stream_and_take_the_first_stamp():
    out, err = pod(
        b"2025-03-04T05:06:07.1Z stdout P one ",
        b"2025-03-04T05:06:07.2Z stderr P three ",
        b"2025-03-04T05:06:07.3Z stdout P and ",
        b"2025-03-04T05:06:07.4Z stderr F four",
        b"2025-03-04T05:06:07.5Z stdout F two",
    )
    assert (out.fields["message"], text(out.ts), [ref.line for ref in out.refs]) == (
        "one and two", "2025-03-04T05:06:07.1Z", [0, 2, 4],
    )  # fmt: skip
    assert (err.fields["message"], text(err.ts), [ref.line for ref in err.refs]) == (
        "three four", "2025-03-04T05:06:07.2Z", [1, 3],
    )  # fmt: skip
    assert out.flags == err.flags == {"rejoined"}


def test_a_character_cut_by_the_carrier_is_whole_again():
    euro = "€".encode()
    (record,) = pod(AT + b"stdout P 5 " + euro[:1], AT + b"stdout F " + euro[1:])
    assert record.fields["message"] == "5 €"
    assert record.flags == {"rejoined"}


def test_a_piece_whose_rest_never_comes_is_partial():
    (record,) = pod(AT + b"stdout P the pod was killed he")
    assert record.fields["message"] == "the pod was killed he"
    assert record.flags == {"partial"}


@pytest.mark.parametrize(("size", "count"), [(16, MAX_HELD_LINES * 2 + 3), (16 * 1024, 2_000), (MAX_HELD_BYTES + 1, 3)])
def test_a_line_that_never_ends_is_cut_at_the_limit(size, count):
    stream = POD.stream(Stream("pod"))
    records, text_in_parts = [], 0
    for number in range(count):
        records += stream.feed(Line(AT + b"stdout P " + b"x" * size, (Ref(0, number),)))
        text_in_parts = size * (number + 1) - sum(len(record.fields["message"]) for record in records)
        assert text_in_parts <= MAX_HELD_BYTES
        assert len(stream.held) <= MAX_HELD_LINES
    cut = list(records)
    records += stream.flush()
    assert cut
    assert all({"partial", "truncated"} <= record.flags for record in cut)
    assert all("partial" in record.flags for record in records)
    assert [ref.line for record in records for ref in record.refs] == list(range(count))
    assert sum(len(record.fields["message"]) for record in records) == size * count


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/log/pods/ml_train-0_4f1c-22/worker/0.log", ("ml", "train-0", "worker")),
        ("/var/log/pods/ml_train-0_4f1c-22/worker/0.log.20250304-050607", ("ml", "train-0", "worker")),
        ("/host/var/log/containers/train-0_ml_log-agent-" + "0f" * 32 + ".log", ("ml", "train-0", "log-agent")),
        ("/var/log/syslog", None),
        ("", None),
        (None, None),
    ],
)
def test_namespace_pod_and_container_come_from_the_path(path, expected):
    names = ("namespace", "pod", "container")
    assert place(path) == (dict(zip(names, expected, strict=True)) if expected else {})


def test_every_record_of_a_pod_names_it():
    path = "/var/log/pods/ml_train-0_4f1c/worker/0.log"
    for record in pod(b"no cri", AT + b'stdout F {"msg":"x"}', AT + b"stdout F x", AT + b"stderr P x", path=path):
        assert (record.fields["namespace"], record.fields["pod"], record.fields["container"]) == (
            "ml",
            "train-0",
            "worker",
        )


def test_a_json_object_is_read_by_the_rules_of_json_and_its_own_time_wins():
    (record,) = pod(AT + b'stdout F {"time":"2025-03-04T05:06:06.5+00:00","level":"WARN","msg":"slow","rank":3,"k":1}')
    assert (text(record.ts), record.ts_source) == ("2025-03-04T05:06:06.5Z", "record")
    assert {name: record.fields[name] for name in ("level", "level_raw", "message", "rank", "attributes")} == {
        "level": "warning", "level_raw": "WARN", "message": "slow", "rank": 3, "attributes": {"k": 1},
    }  # fmt: skip
    assert record.body == '{"time":"2025-03-04T05:06:06.5+00:00","level":"WARN","msg":"slow","rank":3,"k":1}'


def test_json_without_a_usable_time_takes_the_carrier_s():
    (record,) = pod(AT + b'stdout F {"time":"2025-03-04 05:06:06","msg":"local time, no zone"}')
    assert (text(record.ts), record.ts_source) == ("2025-03-04T05:06:07.123456789Z", "carrier")
    assert record.fields["attributes"] == {"time": "2025-03-04 05:06:06"}


def test_klog_of_a_go_program_is_joined_by_its_headers():
    first, second, third = pod(
        AT + b"stderr F I0304 05:06:06.123456       1 main.go:388] ",
        AT + b"stderr F Running with config:",
        AT + b"stderr F ",
        AT + b"stderr F   version: v1",
        AT + b'stderr F E0304 05:06:06.2       1 main.go:391] "Failed" err="no \\"GPU\\""',
        AT + b'stderr F time="2025-03-04T05:06:06Z" level=info msg="logfmt ends it"',
    )
    assert first.fields["message"] == "\nRunning with config:\n\n  version: v1"
    assert (first.ts_source, len(first.refs)) == ("carrier", 4)
    assert (second.fields["message"], second.fields["level"], second.fields["attributes"]) == (
        "Failed", "error", {"err": 'no "GPU"'},
    )  # fmt: skip
    assert (third.fields["message"], third.ts_source) == ("logfmt ends it", "record")


def test_klog_takes_its_year_from_the_carrier_when_a_zone_is_given():
    (record,) = pod(b"2025-01-01T00:00:01Z stderr F I1231 23:59:59.5       1 main.go:388] x", tz="UTC")
    assert (text(record.ts), record.ts_source) == ("2024-12-31T23:59:59.5Z", "year")


def test_an_empty_line_is_a_record():
    records = pod(AT + b"stdout F ", AT + b"stdout F x", AT + b"stdout F ")
    assert [record.fields["message"] for record in records] == ["", "x", ""]
    assert [record.ts_source for record in records] == ["carrier"] * 3


def test_a_traceback_is_given_up_when_its_writer_has_turned_to_json():
    stream = POD.stream(Stream("pod"))
    lines = [
        b"Traceback (most recent call last):",
        b'  File "a.py", line 1, in <module>',
        *[b'{"msg":"x"}'] * MAX_OTHERS,
    ]
    for number, raw in enumerate(lines):
        stream.feed(Line(AT + b"stderr F " + raw, (Ref(0, number),)))
    assert not stream.held


def test_docker_pieces_are_logs_without_a_line_feed():
    at = "2025-03-04T05:06:07.1Z"
    whole, joined, unfinished = docker(
        {"log": "{\n", "stream": "stdout", "time": at},
        {"log": "AA", "stream": "stdout", "time": at},
        {"log": "BB\n", "stream": "stdout", "time": "2025-03-04T05:06:08Z"},
        {"log": "CC", "stream": "stderr", "time": at},
    )
    assert (whole.fields["message"], whole.flags) == ("{", set())
    assert (joined.fields["message"], text(joined.ts), joined.flags) == ("AABB", at, {"rejoined"})
    assert (unfinished.fields["message"], unfinished.flags) == ("CC", {"partial"})


@pytest.mark.parametrize("raw", [b"plain", b'{"stream":"stdout"}', b'{"log":5}', b'{"log":"x', b"[]", b"{}"])
def test_a_line_that_is_no_docker_line_is_kept_as_it_is(raw):
    (record,) = fed(DOCKER.stream(Stream("docker")), [raw])
    assert (record.fields["message"], record.flags) == (raw.decode(), {"unparsed"})


def test_a_docker_line_without_a_usable_time_takes_the_time_of_receipt():
    (record,) = docker({"log": "x\n", "stream": "stdout", "time": "yesterday"})
    assert (record.ts, record.ts_source) == (RECEIVED, "received")


CHANNEL = "gpu-01:51:52 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/IPC"


def test_noise_is_found_in_whole_cri_lines_only():
    lines = [
        f"2025-03-04T05:06:07.123456789Z stdout F {CHANNEL}",
        f"2025-03-04T05:06:07.12Z stderr F {CHANNEL}",
        f"2025-03-04T05:06:07.123456789+05:30 stdout F {CHANNEL}",
        f"2025-03-04T05:06:07.123456789Z stdout P {CHANNEL}",
        f"2025-03-04T05:06:07.123456789Z stdout F x{CHANNEL} | {CHANNEL}",
        "2025-03-04T05:06:07.123456789Z stdout F text",
        "",
    ]
    noise = POD.noise(pa.array([line.encode() for line in lines], pa.large_binary()))
    assert noise.to_pylist() == ["N02", "N02", "N02", None, None, None, None]


def test_noise_is_found_in_whole_docker_lines_only():
    def entry(log: str) -> bytes:
        line = json.dumps({"log": log, "stream": "stdout", "time": "2025-03-04T05:06:07Z"}, separators=(",", ":"))
        return line.replace(">", r"\u003e").encode()  # as moby's jsonlog writes it

    lines = [entry(CHANNEL + "\n"), entry(CHANNEL), entry("text\n"), b"no json"]
    assert DOCKER.noise(pa.array(lines, pa.large_binary())).to_pylist() == ["N02", None, None, None]


words = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12)
stamps = st.sampled_from(
    [
        "2025-03-04T05:06:07Z",
        "2025-03-04T05:06:07.123456789Z",
        "2025-03-04T05:06:07.12+05:30",
        "2025-02-30T05:06:07Z",
        "x",
    ]
)
texts = st.one_of(
    words,
    st.sampled_from(
        [CHANNEL, "step 10 loss 2.1", '{"msg":"x"}', "I0304 05:06:07.1 1 main.go:1] x", "level=info msg=x",
         "[rank0]: x", "[2025-03-04 13:06:07] INFO ok", "Traceback (most recent call last):", "é" * 3, "x" * MAX_TEXT]
    ),
)  # fmt: skip
cri_lines = st.tuples(stamps, st.sampled_from(["stdout", "stderr"]), st.sampled_from(["F", "F:x", "P"]), texts).map(
    lambda parts: " ".join(parts).encode()
)


@given(st.lists(st.one_of(cri_lines, st.binary(max_size=40)), max_size=30))
def test_the_columns_of_a_plain_line_say_what_the_stream_parser_says(lines):
    array = pa.array([line.replace(b"\n", b"") for line in lines], pa.large_binary())
    header = POD.header(array, None)
    rich = pc.or_(header.rich, pc.match_substring_regex(array, POD.gate)).to_pylist()
    for row, raw in enumerate(array.to_pylist()):
        if rich[row]:
            continue
        (record,) = fed(POD.stream(Stream("pod")), [raw])
        assert header.ts[row].as_py() == record.ts.ns
        assert header.ts_source[row].as_py() == record.ts_source
        assert header.message[row].as_py() == record.fields["message"]
        assert raw[header.body[row].as_py() :].decode() == record.body
        assert (None if header.level is None else header.level[row].as_py()) == record.fields.get("level")
        assert not record.flags
