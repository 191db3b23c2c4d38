"""The carriers of kernel records, kmsg and dmesg, at both speeds."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import clock
from parsers.record import MAX_HELD_LINES, Line, Record, Ref, Stream
from parsers.registry import parser
from tests.parsers.kernel_records import record, records, shown

Row = tuple[str, dict[str, Any]]
BOOT = 1_741_665_906_000_000_000  # 2025-03-11T04:05:06Z

KMSG: list[Row] = [
    ("6,11,2200000000000,-;usb 1-2: reset",
     {"level": "info", "facility": "kern", "from_kernel": True, "seq": 11, "monotonic_us": 2_200_000_000_000,
      "printk_flags": "-", "message": "usb 1-2: reset"}),
    ("0,18446744073709551615,1,-;x", {"level": "emergency", "seq": 2**64 - 1}),
    ("6,9,50,-;cmd: a=1; b=2, c=3;d", {"message": "cmd: a=1; b=2, c=3;d"}),
    ("6,9,50;before 3.6 there were no flags", {"message": "before 3.6 there were no flags", "printk_flags": None}),
    ("6,9,50,c;usb 1-1: new", {"printk_flags": "c"}),
    ("3,9,50,-,caller=T2178;x", {"caller_tid": 2178, "caller_cpu": None, "message": "x"}),
    ("3,9,50,-,new=1,caller=C12,x=y;x", {"caller_cpu": 12, "caller_tid": None, "message": "x"}),
    ("30,9,100,-;systemd[1]: x",
     {"level": "info", "facility": "daemon", "from_kernel": False, "app": "systemd", "pid": 1,
      "message": "systemd[1]: x"}),
    ("12,1503,99000001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
     {"event": "gpu_xid", "from_kernel": False, "facility": "user", "level": "warning"}),
    ("188,1,1,-;x", {"facility": "local7", "level": "warning"}),
    ("999999999,1,1,-;x", {"facility": None, "level": "debug", "from_kernel": False}),
    (r"4,21,777,-;usb: product \xc3\x9cbung\x5cX\x09end", {"message": "usb: product Übung\\X\tend"}),
    (r"4,21,777,-;one\x0atwo\x0a", {"message": "one\ntwo"}),
    (r"4,21,777,-;a \x5cx41 is no letter", {"message": "a \\x41 is no letter"}),
    (r"4,21,777,-;\x1b[31mred\x1b[0m  ", {"message": "red  "}),
    ("\0\0" + "6,11,22,-;x\0y", {"seq": 11, "message": "x\0y"}),
]  # fmt: skip

DMESG: list[Row] = [
    ("[12345.678901] TEXT", {"monotonic_us": 12_345_678_901, "message": "TEXT", "level": None}),
    ("[    2.757687] TEXT", {"monotonic_us": 2_757_687, "message": "TEXT"}),
    ("[91011.1] TEXT", {"monotonic_us": 91_011_100_000, "message": "TEXT"}),
    ("[12345.678901] [   T2178] TEXT", {"monotonic_us": 12_345_678_901, "caller_tid": 2178, "message": "TEXT"}),
    ("[12345.678901] [ C12] TEXT", {"caller_cpu": 12, "message": "TEXT"}),
    ("[12345.678901 <    0.000012>] TEXT", {"monotonic_us": 12_345_678_901, "message": "TEXT"}),
    ("[  +0.000123] TEXT", {"monotonic_us": None, "message": "TEXT"}),
    ("[<    0.000012>] TEXT", {"monotonic_us": None, "message": "TEXT"}),
    ("kern  :warn  : [12345.678901] TEXT",
     {"facility": "kern", "level": "warning", "level_raw": "warn", "monotonic_us": 12_345_678_901, "message": "TEXT"}),
    ("daemon:info  : [    5.000000] TEXT", {"facility": "daemon", "level": "info", "monotonic_us": 5_000_000}),
    ("<4>[12345.678901] TEXT", {"facility": "kern", "level": "warning", "monotonic_us": 12_345_678_901}),
    ("<30>[   12.000000] TEXT", {"facility": "daemon", "level": "info", "message": "TEXT"}),
    ("[Do Mär 27 04:05:06 2025] TEXT", {"message": "TEXT"}),
    ("[    1.000000] kernel: TEXT", {"message": "TEXT", "app": "kernel"}),
    ("[drm] not a stamp", {"message": "[drm] not a stamp"}),
    ("\x1b[32m[    1.500000] \x1b[0m\x1b[33musb 1-2: \x1b[0mreset",
     {"monotonic_us": 1_500_000, "message": "usb 1-2: reset"}),
    ('{"pri": 4, "time":  12345.678901, "caller": "T7", "msg": "TEXT"}',
     {"level": "warning", "facility": "kern", "monotonic_us": 12_345_678_901, "caller_tid": 7, "message": "TEXT"}),
    ('{"pri": -1, "time": 1e999999, "msg": "TEXT"}', {"level": None, "monotonic_us": None, "message": "TEXT"}),
    ('{"no": "record"}', {"message": '{"no": "record"}'}),
    ("TEXT", {"monotonic_us": None, "message": "TEXT", "level": None}),
]  # fmt: skip

STAMPS = [
    ("[Tue Mar 11 05:05:06 2025] x", {"tz": "Europe/Berlin"}, "2025-03-11T04:05:06Z", "zone"),
    ("[Tue Mar 11 05:05:06 2025] x", {}, "2025-03-12T00:00:00.5Z", "received"),
    ("[Sun Mar 30 02:30:00 2025] x", {"tz": "Europe/Berlin"}, "2025-03-30T01:30:00Z", "zone"),
    ("2025-03-11T04:05:06,285060+00:00 x", {}, "2025-03-11T04:05:06.285060Z", "record"),
    ("2025-03-11T05:05:06,285060+01:00 x", {"boot_ns": 0}, "2025-03-11T04:05:06.285060Z", "record"),
    ("[Mar11 04:05] x", {"tz": "UTC"}, "2025-03-11T04:05:00Z", "year"),
    ("10.9.8.7: kern: warning: [2025-04-22T21:27:51.291213998Z]: x", {}, "2025-04-22T21:27:51.291213998Z", "record"),
    ("[    1.500000] x", {"boot_ns": BOOT}, "2025-03-11T04:05:07.500000Z", "boot"),
    ("[    1.500000] x", {}, "2025-03-12T00:00:00.5Z", "received"),
    ("[  +0.000123] x", {"boot_ns": BOOT}, "2025-03-12T00:00:00.5Z", "received"),
    ("x", {"boot_ns": BOOT}, "2025-03-12T00:00:00.5Z", "received"),
]


@pytest.mark.parametrize(("line", "wanted"), KMSG)
def test_kmsg_record(line: str, wanted: dict[str, Any]) -> None:
    found = record("kmsg", line)
    assert shown(found, wanted) == wanted
    assert found.flags == set()
    assert found.body == found.fields["message"]


@pytest.mark.parametrize(("line", "wanted"), DMESG)
def test_dmesg_rendering(line: str, wanted: dict[str, Any]) -> None:
    found = record("dmesg", line)
    assert shown(found, wanted) == wanted
    assert found.flags == set()


@pytest.mark.parametrize(("line", "times", "ts", "source"), STAMPS)
def test_time_of_a_dmesg_line(line: str, times: dict[str, Any], ts: str, source: str) -> None:
    found = record("dmesg", line, received="2025-03-12T00:00:00.5Z", **times)
    assert found.ts is not None
    assert (clock.text(found.ts), found.ts_source) == (ts, source)


def test_a_stamp_without_any_help_gives_no_time() -> None:
    for kind, line in (("kmsg", "6,1,1500000,-;x"), ("dmesg", "[    1.500000] x"), ("dmesg", "[Mar11 04:05] x")):
        found = record(kind, line)
        assert (found.ts, found.ts_source) == (None, None)


def test_kmsg_time_is_boot_time_plus_monotonic_time() -> None:
    found = record("kmsg", "6,1,1500000,-;x", received="2025-03-12T00:00:00Z", boot_ns=BOOT)
    assert (found.ts, found.ts_source) == (clock.Stamp(BOOT + 1_500_000_000, 6), "boot")


def test_a_local_time_inside_a_gap_is_flagged() -> None:
    assert record("dmesg", "[Sun Mar 30 02:30:00 2025] x", tz="Europe/Berlin").flags == {"dst_gap"}


def test_talos_names_the_node() -> None:
    found = record("dmesg", "10.9.8.7: kern: warning: [2025-04-22T21:27:51.29Z]: x")
    assert (found.node, found.fields["level"], found.fields["message"]) == ("10.9.8.7", "warning", "x")


def test_dictionary_lines_belong_to_the_record_before_them() -> None:
    text = "3,1,1,-;x\n SUBSYSTEM=pci\n\n DEVICE=+pci:0000:4b:00.0\n KEY=a=\\x5c\n6,2,2,-;y\n"
    first, second = records("kmsg", text)
    assert first.fields["kernel_dict"] == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:4b:00.0", "KEY": "a=\\"}
    assert first.refs == (Ref(0, 0), Ref(0, 1), Ref(0, 3), Ref(0, 4))
    assert second.refs == (Ref(0, 5),)


@pytest.mark.parametrize(
    "line", ["no prefix", "6,1;x", "6,1,1,-", " SUBSYSTEM=pci", f"6,{2**64},1,-;x", f"6,1,{2**63},-;x", "-6,1,1,-;x"]
)
def test_a_line_that_is_no_kmsg_record_is_kept_whole(line: str) -> None:
    found, following = records("kmsg", f"{line}\n DEVICE=x\n")
    assert (found.fields["message"], found.flags, found.body) == (line, {"unparsed"}, None)
    assert following.flags == {"unparsed"}


def test_the_payload_is_found_although_the_carrier_is_another() -> None:
    found = record("kmsg", "[    1.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert (found.fields["xid"], found.flags) == (79, {"unparsed"})


def test_indented_lines_continue_a_dmesg_record() -> None:
    text = "[ 1943.408145] one\n               two\n\n                 three\n  [ 1943.408146] four\nfive\n  six\n"
    first, second, third = records("dmesg", text)
    assert first.fields["message"] == "one\ntwo\n  three"
    assert [ref.line for ref in first.refs] == [0, 1, 3]
    assert (second.fields["message"], second.fields["monotonic_us"]) == ("four", 1_943_408_146)
    assert third.fields["message"] == "five\n  six"


def test_dmesg_json_gives_one_record_per_object() -> None:
    text = """{
   "dmesg": [
      {
         "pri": 6,
         "time":     0.000000,
         "msg": "Linux version 6.8.0"
      },{
         "pri": 3,
         "time": 12345.678901,
         "caller": "T2178",
         "msg": "NVRM: Xid (PCI:0000:3b:00): 43, Ch 00000008\\n  indented"
      }
   ]
}
"""
    first, second = records("dmesg", text)
    wanted = {"message": "Linux version 6.8.0", "level": "info", "facility": "kern", "monotonic_us": 0}
    assert shown(first, wanted) == wanted
    wanted = {"xid": 43, "level": "error", "caller_tid": 2178, "monotonic_us": 12_345_678_901}
    assert shown(second, wanted) == wanted
    assert (len(first.refs), len(second.refs)) == (7, 7)
    assert first.flags == second.flags == set()


def test_broken_json_of_dmesg_is_kept_whole() -> None:
    found, following = records("dmesg", '{\n   "dmesg": [\n      {\n         "pri": 6,\n[    1.000000] x\n')
    assert found.flags == {"unparsed"}
    assert found.fields["message"].startswith("{")
    assert following.fields["monotonic_us"] == 1_000_000


def test_an_indented_line_at_the_start_of_a_file_is_a_record_of_its_own() -> None:
    assert record("dmesg", "   text").fields["message"] == "   text"


def test_bytes_that_are_no_utf8_are_replaced_and_flagged() -> None:
    for line in (b"6,1,1,-;a\xffb", rb"6,1,1,-;a\xffb"):
        found = record("kmsg", line)
        assert (found.fields["message"], found.flags) == ("a\ufffdb", {"invalid_utf8"})


def test_what_a_record_holds_is_bounded() -> None:
    text = "3,1,1,-;x\n" + " KEY=value\n" * (MAX_HELD_LINES + 5)
    first, *rest = records("kmsg", text)
    assert len(first.refs) == MAX_HELD_LINES
    assert first.flags == {"partial"}
    assert len(rest) == 6


def test_a_held_record_survives_pickling() -> None:
    stream = parser("kmsg").stream(Stream("kmsg"))
    assert stream.feed(Line(b"3,1,1,-;x", (Ref(0, 0),))) == []
    copy = pickle.loads(pickle.dumps(stream))
    assert list(copy.held) == [Ref(0, 0)]
    assert copy.flush() == stream.flush()
    assert list(copy.held) == []


CASES = [
    case
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text("utf-8").splitlines())
    if case["kind"] in ("kmsg", "dmesg")
]
KMSG_LINES = [line for line, _ in KMSG] + [
    "6,1,1,-;usb 1-2: new", "3,2,2,-;mlx5_core 0000:4b:00.0: Link up", " SUBSYSTEM=pci", "", " ", "7,5,9,-; a ; b",
    "6,12345678901234567890,1,-;x", "6,1,9223372036854775808,-;x", "6,1,1,-;", "8,1,1,-;user", "garbage", "6,1,1,-;ü",
    "6,1,1,-;x\r", "\t", "6,1,1,-;message from NVRM: no Xid", "66,1,1;x", "6,1,1,;x",
]  # fmt: skip
DMESG_LINES = [line for line, _ in DMESG] + [line for line, *_ in STAMPS] + [
    "[    1.000000] usb 1-2: new", "[    2.000000]  indented text", "               more", "", "  ", "[    3.000000] ",
    "[    3.000000]x", "[    3.0000] x", "[12345678901.000000] x", "[    4.000000] [drm] x", "[    4.000000] [T1] x",
    "{", '   "dmesg": [', '         "pri": 6,', '         "msg": "x"', "      },{", "      }", "}",
    "[    5.000000] a\\x0ab", "[    5.000000] kernel: kernel: x", "[    6.000000] x\t", "[    6.000000] \x1b[1mx",
]  # fmt: skip


def _fast(kind: str, lines: list[bytes]) -> tuple[list[bool], list[dict[str, Any]]]:
    """Which lines the stream parser must get, and the columns of all lines as rows."""
    parsing = parser(kind)
    column = pa.array(lines, pa.large_binary())
    header = parsing.header(column, None)
    rich = pc.or_(pc.match_substring_regex(column, parsing.gate), header.rich).to_pylist()
    columns = {"level": header.level, "message": header.message, **header.columns}
    values = {name: column.to_pylist() for name, column in columns.items() if column is not None}
    return rich, [{name: values[name][row] for name in values} for row in range(len(lines))]


def _slow(kind: str, lines: list[bytes]) -> dict[int, Record]:
    return {found.refs[0].line: found for found in records(kind, b"\n".join(lines) + b"\n")}


_CARRIER = {"message", "level", "facility", "from_kernel", "seq", "monotonic_us", "printk_flags", "app",
            "caller_tid", "caller_cpu"}  # fmt: skip


@pytest.mark.parametrize("kind", ["kmsg", "dmesg"])
@given(data=st.data())
def test_a_line_outside_the_gate_reads_the_same_at_both_speeds(kind: str, data: st.DataObject) -> None:
    known = st.sampled_from(KMSG_LINES if kind == "kmsg" else DMESG_LINES).map(str.encode)
    lines = data.draw(st.lists(known | st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), min_size=1))
    rich, rows = _fast(kind, lines)
    slow = _slow(kind, lines)
    for place, row in enumerate(rows):
        if rich[place]:
            continue
        found = slow[place]
        assert found.refs == (Ref(0, place),)
        assert found.flags == set()
        assert found.fields.keys() <= _CARRIER
        assert row == {name: found.fields.get(name) for name in row}


@pytest.mark.parametrize("kind", ["kmsg", "dmesg"])
@given(data=st.data())
def test_rich_lines_alone_give_the_same_records(kind: str, data: st.DataObject) -> None:
    known = st.sampled_from(KMSG_LINES if kind == "kmsg" else DMESG_LINES).map(str.encode)
    lines = data.draw(st.lists(known, min_size=1))
    rich, _ = _fast(kind, lines)
    rich[-1] = True  # the tier holds the last line of a batch
    stream = parser(kind).stream(Stream(kind))
    alone: list[Record] = []
    for place, raw in enumerate(lines):
        # A line that is not rich starts a record of its own and so ends the one held.
        alone += stream.feed(Line(raw, (Ref(0, place),))) if rich[place] else stream.flush()
    alone += stream.flush()
    slow = _slow(kind, lines)
    assert alone == [slow[place] for place in sorted(slow) if rich[place]]


def test_the_fast_side_reads_most_plain_lines() -> None:
    rich, rows = _fast("kmsg", [b"6,1,1,-;usb 1-2: new", b"6,2,5,-,caller=T1;x; y", b"3,3,9,-;z"])
    assert rich == [False, False, False]
    assert rows[1] == {"level": "info", "message": "x; y", "seq": 2, "monotonic_us": 5}
    rich, rows = _fast("dmesg", [b"[    1.000000] usb 1-2: new", b"[12345.678901]  x"])
    assert rich == [False, False]
    assert rows[1] == {"message": " x", "monotonic_us": 12_345_678_901}


def test_kmsg_body_starts_after_the_prefix() -> None:
    line = b"6,2,5,-,caller=T1;x; y"
    body = parser("kmsg").header(pa.array([line], pa.large_binary()), None).body
    assert line[body[0].as_py() :] == b"x; y"


def test_the_line_before_a_continuation_is_rich() -> None:
    assert _fast("kmsg", [b"6,1,1,-;a", b"6,2,1,-;b", b"", b" K=v", b"6,3,1,-;c"])[0] == [
        False,
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_case_with_an_event_or_a_noise_id_passes_its_gate(case: dict[str, Any]) -> None:
    data = base64.b64decode(case["input_b64"]) if "input_b64" in case else case["input"].encode()
    lines = data.removesuffix(b"\n").split(b"\n")
    rich, _ = _fast(case["kind"], lines)
    for found, wanted in zip(records(case["kind"], data), case["expect"], strict=True):
        carried = {"kind", "message", "ts", "ts_source", "node", "lines", "flags", "level", "facility", "seq",
                   "monotonic_us", "from_kernel", "printk_flags"}  # fmt: skip
        if any(value is not None for name, value in wanted.items() if name not in carried):
            assert rich[found.refs[0].line]
