"""JSON lines, klog and logfmt: what is lifted, what stays, and what broken writers print."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.parse import as_object, ordered
from parsers.clock import Times, parse_rfc3339, text
from parsers.json_lines import JSON, MAX_DEPTH, read_object
from parsers.klog import KLOG
from parsers.logfmt import logfmt, unquote
from parsers.plain import PLAIN
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Record, Ref, Stream

RECEIVED = parse_rfc3339("2025-03-04T06:00:00Z")


def parsed(kind: str, *lines: str, tz: str | None = None) -> list[Record]:
    stream = {"json": JSON, "klog": KLOG, "other": PLAIN}[kind].stream(Stream(kind, times=Times(tz)))
    return list(ordered(stream, [Line(raw.encode(), (Ref(0, at),), RECEIVED) for at, raw in enumerate(lines)]))


def fields(line: str, kind: str = "json") -> dict:
    (record,) = parsed(kind, line)
    return {name: value for name, value in record.fields.items() if value is not None}


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("1741064767", "2025-03-04T05:06:07Z"),
        ("1741064767.5", "2025-03-04T05:06:07.5Z"),
        ("1.741064767e9", "2025-03-04T05:06:07Z"),
        ("1741064767123", "2025-03-04T05:06:07.123Z"),
        ("1741064767123.25", "2025-03-04T05:06:07.12325Z"),
        ("1741064767123456", "2025-03-04T05:06:07.123456Z"),
        ("1741064767123456789", "2025-03-04T05:06:07.123456789Z"),
        ('"1741064767123"', "2025-03-04T05:06:07.123Z"),
        ('"2025-03-04T06:06:07.10+01:00"', "2025-03-04T05:06:07.10Z"),
        ('"2025-03-04 05:06:07,089Z"', "2025-03-04T05:06:07.089Z"),
    ],
)
@pytest.mark.parametrize("key", ["ts", "time", "timestamp"])
def test_a_time_is_lifted(key, value, printed):
    (record,) = parsed("json", f'{{"{key}":{value},"k":1}}')
    assert (text(record.ts), record.ts_source) == (printed, "record")
    assert record.fields["attributes"] == {"k": 1}


@pytest.mark.parametrize(
    "value",
    [
        "true",
        "null",
        "-5",
        '"now"',
        '"2025-03-04T05:06:07"',
        "1e400",
        "1e-400",
        "9" * 30,
        "NaN",
        '"0001-01-01T00:00:00Z"',
    ],
)
def test_what_is_no_usable_time_stays_an_attribute(value):
    (record,) = parsed("json", f'{{"ts":{value}}}')
    assert (record.ts, record.ts_source) == (RECEIVED, "received")
    assert "ts" in record.fields["attributes"]


def test_a_local_time_takes_the_given_zone():
    (record,) = parsed("json", '{"asctime":"x","time":"2025-03-04 06:06:07,089"}', tz="Europe/Berlin")
    assert (text(record.ts), record.ts_source) == ("2025-03-04T05:06:07.089Z", "zone")


def test_the_first_usable_time_is_taken_and_the_others_stay():
    (record,) = parsed("json", '{"timestamp":1,"time":"soon","ts":null}')
    assert text(record.ts) == "1970-01-01T00:00:01Z"
    assert record.fields["attributes"] == {"time": "soon", "ts": None}


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ('"INFO"', "info"), ('"Warn"', "warning"), ('"error"', "error"), ('"fatal"', "critical"), ('"TRACE"', "debug"),
        ('"notice"', "notice"), ('"ERROR+2"', "error"), ('"loud"', None), ("30", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["level", "severity"])
def test_a_level_word_is_lifted_and_kept_as_printed(key, word, level):
    found = fields(f'{{"{key}":{word}}}')
    assert (found.get("level"), found["level_raw"]) == (level, word.strip('"'))


def test_text_rank_and_step_are_lifted_and_the_rest_are_attributes():
    assert fields('{"msg":"saved\\n","rank":3,"step":"120","loss":2.5,"tags":["a",1.5],"message":"m"}') == {
        "message": "saved", "rank": 3, "step": 120, "attributes": {"loss": 2.5, "tags": ["a", 1.5], "message": "m"},
    }  # fmt: skip


@pytest.mark.parametrize("value", ["-1", "true", "1.5", '"x"', str(2**31), "null"])
def test_a_rank_that_is_none_stays_an_attribute(value):
    assert fields(f'{{"rank":{value}}}')["attributes"].keys() == {"rank"}


@pytest.mark.parametrize(("value", "number"), [("7", 7), ('"7"', 7), ("7.0", 7), ("7e2", 700), ("0", 0)])
def test_a_step_is_an_integer_however_it_is_written(value, number):
    assert fields(f'{{"step":{value}}}')["step"] == number


def test_without_a_text_the_line_is_the_message():
    assert fields('{"loss": 2.5}')["message"] == '{"loss": 2.5}'
    assert fields('{"msg": 5}') == {"message": '{"msg": 5}', "attributes": {"msg": 5}}
    assert fields("{}") == {"message": "{}"}


def test_keys_seen_twice_are_named_and_the_last_wins():
    assert fields('{"a":1,"b":{"c":1,"c":2},"a":3,"msg":"x","msg":"y"}') == {
        "message": "y", "attributes": {"a": 3, "b": {"c": 2}}, "duplicate_keys": ["c", "a", "msg"],
    }  # fmt: skip


def test_numbers_that_are_not_finite_become_text_and_are_named():
    assert fields('{"loss":NaN,"a":[1,-Infinity],"b":{"c":Infinity},"d":1e999,"e":-1e999}') == {
        "message": '{"loss":NaN,"a":[1,-Infinity],"b":{"c":Infinity},"d":1e999,"e":-1e999}',
        "attributes": {
            "loss": "NaN", "a": [1, "-Infinity"], "b": {"c": "Infinity"}, "d": "Infinity", "e": "-Infinity",
        },
        "non_finite": ["loss", "a", "c", "d", "e"],
    }  # fmt: skip


def test_lone_surrogates_and_raw_control_characters_are_read():
    assert fields('{"msg":"bad \\ud83d","\\ud83d":"tab\there"}') == {
        "message": "bad \ufffd", "attributes": {"\ufffd": "tab\there"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ['{"msg":"abc', "[1,2]", "5", '"x"', '{"a":1} tail', "{'a': 1}", "text", '{"a":' * 3000 + "1" + "}" * 3000,
     '{"a":' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}", '{"a":' + "9" * 5000 + "}"],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_object_is_kept_as_text(line):
    (record,) = parsed("json", line)
    assert (record.fields["message"], record.flags) == (line, {"unparsed"})


def test_klog_json_has_its_level_in_its_keys():
    for kind in ("json", "klog"):
        error = fields('{"ts":1741064767123.25,"caller":"kubelet/kubelet.go:77","msg":"Skipping","err":"x"}', kind)
        assert (error["level"], error["src_file"], error["src_line"]) == ("error", "kubelet/kubelet.go", 77)
        assert error["attributes"] == {"err": "x"}
        assert fields('{"ts":1,"caller":"a.go:7","v":0,"msg":"m","err":"x"}', kind)["level"] == "info"
    assert "level" not in fields('{"ts":1,"caller":"train.py:7","err":"x"}')


KLOG_LINE = (
    'E0304 05:06:07.123456    1234 kubelet.go:2345] "Skipping pod" err="network \\"x\\" down" n=3 e= s="(MISSING)"'
)


def test_klog_text_gives_its_header_and_pairs():
    (record,) = parsed("klog", KLOG_LINE, tz="Europe/Berlin")
    assert (text(record.ts), record.ts_source) == ("2025-03-04T04:06:07.123456Z", "year")
    assert record.fields == {
        "level": "error", "level_raw": "E", "pid": 1234, "src_file": "kubelet.go", "src_line": 2345,
        "message": "Skipping pod",
        "attributes": {"err": 'network "x" down', "n": "3", "e": "", "s": "(MISSING)"},
    }  # fmt: skip


def test_klog_without_a_zone_takes_the_time_of_receipt():
    (record,) = parsed("klog", KLOG_LINE)
    assert (record.ts, record.ts_source) == (RECEIVED, "received")


def test_klog_blocks_are_values():
    (record,) = parsed("klog", 'I0304 05:06:07.1 1 a.go:1] "m" a=<', "\tone", "\t two", " > b=c")
    assert record.fields["message"] == "m"
    assert record.fields["attributes"] == {"a": "one\n two", "b": "c"}
    assert len(record.refs) == 4


@pytest.mark.parametrize("tail", ['"m" a="b', '"m" tail', '"m', '"m"x', "a=b", '"m" =b'])
def test_klog_text_that_is_not_structured_stays_whole(tail):
    assert fields(f"I0304 05:06:07.1 1 a.go:1] {tail}", "klog") == {
        "level": "info", "level_raw": "I", "pid": 1, "src_file": "a.go", "src_line": 1, "message": tail,
    }  # fmt: skip


def test_a_klog_line_without_header_continues_the_record_before_it_but_not_at_the_start():
    lone, klog, logged, obj = parsed(
        "klog",
        "goroutine 1 [running]:",
        "F0304 05:06:07.1 1 a.go:1] panic",
        "goroutine 7 [running]:",
        "",
        'time="2025-03-04T05:06:07Z" level=error msg="x"',
        "  more",
        '{"ts":1741064767123,"msg":"y","v":0}',
    )
    assert (lone.fields["message"], lone.flags) == ("goroutine 1 [running]:", {"unparsed"})
    assert (klog.fields["message"], klog.fields["level"], len(klog.refs)) == (
        "panic\ngoroutine 7 [running]:", "critical", 3,
    )  # fmt: skip
    assert (logged.fields["message"], logged.fields["level"]) == ("x\n  more", "error")
    assert (obj.fields["message"], obj.fields["level"]) == ("y", "info")


@pytest.mark.parametrize(("size", "count"), [(1, MAX_HELD_LINES + 500), (MAX_HELD_BYTES // 4, 9)])
def test_a_klog_record_without_end_is_cut_at_the_limit_and_goes_on(size, count):
    records = parsed("klog", "I0304 05:06:07.1 1 a.go:1] dump", *["x" * size] * count)
    assert len(records) > 1
    assert all(record.flags == {"partial"} for record in records)
    assert all(len(record.refs) <= MAX_HELD_LINES for record in records)
    assert [ref.line for record in records for ref in record.refs] == list(range(count + 1))
    assert sum(record.fields["message"].count("x") for record in records) == size * count


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ('time="a b" level=info msg="say \\"hi\\""', {"time": "a b", "level": "info", "msg": 'say "hi"'}),
        ("level=info msg=x flag", {"level": "info", "msg": "x", "flag": ""}),
        ("msg=x", None),
        ("loss=2 level=3", None),
        ('level=info msg="unterminated', None),
        ("INFO: level=info msg=x", None),
    ],
)
def test_logfmt_is_a_line_of_pairs_with_a_text_and_a_level_or_a_time(line, pairs):
    assert logfmt(line) == pairs


def test_go_escapes_are_undone_once():
    assert unquote(r"a\tb\\n\"\x41\101é\U0001f600\xff\ud800\q") == 'a\tb\\n"AAé😀\ufffd\ufffd\\q'


@given(st.text(st.characters(codec="utf-8")))
def test_any_string_survives_go_quoting(value):
    quoted = json.dumps(value)[1:-1]  # what JSON escapes, Go escapes alike, but for characters beyond U+FFFF
    if all(ord(char) < 0x10000 for char in value):
        assert unquote(quoted) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["ts", "time", "level", "msg", "rank", "step", "v", "caller", "a"]), json_values)
)
def test_any_object_prints_as_strict_json(value):
    (record,) = parsed("json", json.dumps(value))
    printed = json.dumps(as_object(record, Stream("json")), ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(printed)["kind"] == "json"
    assert "unparsed" not in record.flags


@given(st.text())
def test_reading_an_object_never_raises(line):
    read_object("{" + line + "}")


def test_lines_of_an_unknown_kind_are_kept_by_columns():
    lines = pa.array([b"plain", "größe".encode(), b"", b"bad \xff byte"], pa.large_binary())
    header = PLAIN.header(lines, None)
    assert header.message.to_pylist() == ["plain", "größe", "", None]
    assert header.columns["flags"].to_pylist() == [["unparsed"]] * 4
    assert header.rich.to_pylist() == [False, False, False, True]
    (record,) = parsed("other", "plain")
    assert (record.fields, record.flags) == ({"message": "plain"}, {"unparsed"})


@given(st.lists(st.binary(max_size=12), max_size=40))
def test_columns_and_rich_parser_agree_on_lines_of_an_unknown_kind(lines):
    import pyarrow.compute as pc

    array = pa.array([line.replace(b"\n", b"") for line in lines], pa.large_binary())
    header = PLAIN.header(array, None)
    gated = pc.match_substring_regex(array, PLAIN.gate).to_pylist()
    for row, raw in enumerate(array.to_pylist()):
        if gated[row] or (header.rich is not None and header.rich[row].as_py()):
            continue
        (record,) = PLAIN.stream(Stream("other")).feed(Line(raw, (Ref(0, row),)))
        assert header.message[row].as_py() == record.fields["message"]
        assert record.flags == {"unparsed"}
