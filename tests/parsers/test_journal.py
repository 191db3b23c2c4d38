"""Entries of the journal: values of every form, the programs behind them, and both speeds."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.clock import Stamp, parse_rfc3339, text
from parsers.record import Record
from tests.parsers.kernel_records import record, shown
from tests.parsers.speeds import assert_same, event_texts, fast

_received = parse_rfc3339("2025-03-11T05:00:00Z")
assert _received is not None
RECEIVED: Stamp = _received
AT = {"__REALTIME_TIMESTAMP": "1741665906285060"}  # 2025-03-11T04:05:06.285060Z
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=x, GPU has fallen off the bus."
USUAL = {
    **AT, "__CURSOR": "s=0f;i=1;b=8f;m=1;t=6;x=9", "__MONOTONIC_TIMESTAMP": "12345678", "_BOOT_ID": "8f3c2a3b",
    "PRIORITY": "6", "_UID": "0", "_GID": "0", "_HOSTNAME": "gpu-001", "SYSLOG_FACILITY": "3", "_TRANSPORT": "syslog",
    "_PID": "4242", "SYSLOG_IDENTIFIER": "sshd", "_COMM": "sshd", "_SYSTEMD_UNIT": "ssh.service",
    "MESSAGE": "Accepted publickey for root", "_SOURCE_REALTIME_TIMESTAMP": "1741665906285000",
}  # fmt: skip
KERNEL = {**AT, "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "3", "SYSLOG_FACILITY": "0",
          "_SOURCE_MONOTONIC_TIMESTAMP": "12345678901", "_HOSTNAME": "n", "_BOOT_ID": "8f3c"}  # fmt: skip

ENTRIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (USUAL, {"app": "sshd", "pid": 4242, "uid": 0, "gid": 0, "process": "sshd", "unit": "ssh.service", "level": "info",
             "facility": "daemon", "boot_id": "8f3c2a3b", "message": "Accepted publickey for root"}),
    ({"MESSAGE": "x", "SYSLOG_PID": "7"}, {"pid": 7}),
    ({"MESSAGE": "x", "SYSLOG_PID": "7", "_PID": "8"}, {"pid": 8}),
    ({"MESSAGE": "x", "_PID": 8, "PRIORITY": 4}, {"pid": 8, "level": "warning"}),
    ({"MESSAGE": "x", "PRIORITY": "8", "SYSLOG_FACILITY": "24"}, {"level": None, "facility": None}),
    ({"MESSAGE": "x", "CODE_FILE": "a.c", "CODE_LINE": "7", "CODE_FUNC": "f", "TID": "9"},
     {"src_file": "a.c", "src_line": 7, "src_func": "f", "tid": 9}),
    ({"MESSAGE": "x", "_BOOT_ID": "0" * 32}, {"boot_id": None}),
    ({"MESSAGE": "x", "SYSLOG_IDENTIFIER": ["a", "b"]}, {"app": "a"}),
    ({"MESSAGE": [104, 105]}, {"message": "hi"}),
    ({"MESSAGE": ["a", "b"]}, {"message": "a\nb"}),
    ({"MESSAGE": [[104, 105], None, "x"]}, {"message": "hi\n\nx"}),
    ({"MESSAGE": []}, {"message": ""}),
    ({"MESSAGE": "\x1b[31mred\x1b[0m\r\n"}, {"message": "red"}),
    ({"MESSAGE": 7}, {"message": "7"}),
    ({"_CMDLINE": "no message"}, {"message": ""}),
    ({**KERNEL, "MESSAGE": XID},
     {"event": "gpu_xid", "xid": 79, "pci": "0000:3b:00", "monotonic_us": 12_345_678_901, "level": "error",
      "unit": None}),
    ({"_TRANSPORT": "kernel", "MESSAGE": XID}, {"event": "gpu_xid", "app": None}),
    ({"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "train", "MESSAGE": XID}, {"event": None, "xid": None}),
    ({**KERNEL, "MESSAGE": r"a \x0a b"}, {"message": r"a \x0a b"}),
    ({**KERNEL, "MESSAGE": "mlx5_core 0000:4b:00.0 ens5np0: Link down",
      "_KERNEL_SUBSYSTEM": "pci", "_KERNEL_DEVICE": "n4"},
     {"event": "nic_link", "netdev": "ens5np0", "kernel_dict": {"SUBSYSTEM": "pci", "DEVICE": "n4"}}),
    ({"SYSLOG_IDENTIFIER": "slurmctld", "PRIORITY": "6", "MESSAGE": "error: Nodes gpu-[003,007] not responding"},
     {"event": "node_not_responding", "nodes": ["gpu-003", "gpu-007"], "level": "error", "level_raw": "error"}),
    ({"SYSLOG_IDENTIFIER": "slurmd", "PRIORITY": "4", "MESSAGE": "x"}, {"level": "warning"}),
    ({"SYSLOG_IDENTIFIER": "slurmd", "MESSAGE": "x"}, {"level": "info"}),
    ({"_SYSTEMD_UNIT": "slurmd.service", "MESSAGE": "error: x"}, {"level": "error", "message": "x"}),
    ({"_SYSTEMD_UNIT": "slurmd.service", "SYSLOG_IDENTIFIER": "job", "MESSAGE": "error: x"},
     {"level": None, "message": "error: x"}),
    ({"SYSLOG_IDENTIFIER": "containerd", "PRIORITY": "6",
      "MESSAGE": 'level=error time="2025-03-11T04:05:05Z" msg="x" a=b'},
     {"level": "error", "message": "x", "attributes": {"a": "b"}}),
    ({"SYSLOG_IDENTIFIER": "python3", "_SYSTEMD_UNIT": "healthagent.service",
      "MESSAGE": "2025-03-11 04:05:05,089 - healthagent - CRITICAL - XID detected: 79  on gpu: 3"},
     {"event": "gpu_xid", "xid": 79, "gpu_index": 3, "level": "critical", "app": "healthagent"}),
    ({"SYSLOG_IDENTIFIER": "systemd-journald",
      "MESSAGE": "Missed 37 kernel messages"}, {"event": "log_loss", "lost": 37}),
]  # fmt: skip

TIMES = [
    ({**AT, "MESSAGE": "x"}, "2025-03-11T04:05:06.285060Z", "carrier"),
    (
        {**AT, "_SOURCE_REALTIME_TIMESTAMP": "1741665906000001", "MESSAGE": "x"},
        "2025-03-11T04:05:06.000001Z",
        "carrier",
    ),
    ({**AT, "_SOURCE_REALTIME_TIMESTAMP": "?", "MESSAGE": "x"}, "2025-03-11T04:05:06.285060Z", "carrier"),
    ({"__REALTIME_TIMESTAMP": "9" * 30, "MESSAGE": "x"}, "2025-03-11T05:00:00Z", "received"),
    ({**AT, "SYSLOG_IDENTIFIER": "slurmd", "MESSAGE": "[2025-03-11T04:00:00.1] x"}, "2025-03-11T04:00:00.1Z", "zone"),
    (
        {**AT, "SYSLOG_IDENTIFIER": "kubelet", "MESSAGE": "W0311 04:05:05.1 12 a.go:5] x"},
        "2025-03-11T04:05:05.1Z",
        "year",
    ),
    (
        {**AT, "SYSLOG_IDENTIFIER": "cat", "MESSAGE": "[2025-03-11T04:00:00.1] x"},
        "2025-03-11T04:05:06.285060Z",
        "carrier",
    ),
]


def line_of(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()


def one(line: bytes) -> Record:
    return record("journal", line, received="2025-03-11T05:00:00Z", tz="UTC")


@pytest.mark.parametrize(("entry", "wanted"), ENTRIES)
def test_an_entry_gives_its_fields_and_those_of_its_program(entry: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = one(line_of({**AT, **entry}))
    assert shown(found, wanted) == wanted
    assert found.flags == set()


@pytest.mark.parametrize(("entry", "ts", "source"), TIMES)
def test_time_of_an_entry(entry: dict[str, Any], ts: str, source: str) -> None:
    found = one(line_of({**entry, "__CURSOR": "s=1"}))
    assert found.ts is not None
    assert (text(found.ts), found.ts_source) == (ts, source)


@pytest.mark.parametrize(
    ("entry", "message", "flags"),
    [
        ({**AT, "MESSAGE": None}, "", {"truncated"}),
        ({**AT, "MESSAGE": [255, 254]}, "\ufffd\ufffd", {"invalid_utf8"}),
        ({**AT, "MESSAGE": "x", "CONTAINER_PARTIAL_MESSAGE": "true"}, "x", {"partial"}),
    ],
)
def test_flags_of_an_entry(entry: dict[str, Any], message: str, flags: set[str]) -> None:
    found = one(line_of(entry))
    assert (found.fields["message"], found.flags) == (message, flags)


@pytest.mark.parametrize("line", [b"text", b"[1]", b'{"a":1}', b'{"MESSAGE":', b'{"MESSAGE":"x"}{"MESSAGE":"y"}'])
def test_what_is_no_entry_is_kept_as_it_is(line: bytes) -> None:
    found = one(line)
    assert (found.fields["message"], found.flags) == (line.decode(), {"unparsed"})


def test_a_field_that_is_there_twice_is_named() -> None:
    found = one(b'{"__CURSOR":"s","MESSAGE":"x","MESSAGE":"y"}')
    assert (found.fields["message"], found.fields["duplicate_keys"]) == ("y", ["MESSAGE"])


# --- both speeds
def test_usual_entries_take_the_fast_side() -> None:
    entries = [
        USUAL,
        {**USUAL, "MESSAGE": 'quote " backslash \\ tab \t and two\nlines – é'},
        {**KERNEL, "MESSAGE": "usb 1-2: reset"},
        {**AT, "MESSAGE": "x"},
        {**USUAL, "CODE_FILE": "a.c", "CODE_LINE": "7", "CODE_FUNC": "f", "TID": "9", "_TRANSPORT": "journal"},
    ]
    assert assert_same("journal", [line_of(entry) for entry in entries], "UTC", RECEIVED) == len(entries)


def test_a_bad_entry_takes_no_other_entry_to_the_rich_side() -> None:
    good = line_of(USUAL)
    bad = [
        b"",
        b"{",
        good[:-1] + b',"MESSAGE":"again"}',
        good + good,
        b"\xff",
        good.replace(b"root", b"\xff"),
        line_of({"a": 1}),
    ]
    lines = [line for each in bad for line in (good, each)]
    assert [row is None for row in fast("journal", lines, "UTC", RECEIVED)] == [False, True] * len(bad)


def test_every_entry_that_is_an_event_passes_the_gate() -> None:
    entries = [entry for entry, wanted in ENTRIES if wanted.get("event")]
    entries += [{"SYSLOG_IDENTIFIER": app, "MESSAGE": message} for app, message in event_texts()]
    lines = [line_of({**AT, **entry}) for entry in entries]
    assert all(one(line).fields["event"] for line in lines)
    assert fast("journal", lines, "UTC", RECEIVED) == [None] * len(lines)


VALUES = st.sampled_from(
    ["x", "", "0", "7", "007", "-1", "123456789012345678901", "kernel", "slurmd", "kubelet", "slurmd.service",
     "slurmd@1.service", "1741665906285060", "error: x", "[12.5] x", "<3>x", "[x] y", "x\r", "x\t", "é",
     "\ud83d", "\x1b[1mx", "\x00x", 'a"b\\c', "a\nb", "2025-03-11 04:05:05,089 INFO     x",
     "message repeated 2 times: [ x]", "true", 3, None, [104, 105], ["a", "b"], [], True]
)  # fmt: skip
NAMES = st.sampled_from(
    ["MESSAGE", "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER", "SYSLOG_PID", "_PID", "_UID", "_COMM", "_HOSTNAME",
     "_BOOT_ID", "_SYSTEMD_UNIT", "_TRANSPORT", "CODE_LINE", "TID", "_SOURCE_REALTIME_TIMESTAMP",
     "_SOURCE_MONOTONIC_TIMESTAMP", "CONTAINER_PARTIAL_MESSAGE", "_SYSTEMD_USER_UNIT", "_KERNEL_DEVICE", "OTHER"]
)  # fmt: skip


ENTRY = st.tuples(st.sampled_from([USUAL, KERNEL, AT]), st.dictionaries(NAMES, VALUES, max_size=3))


@given(st.lists(ENTRY.map(lambda parts: {**parts[0], **parts[1]}), max_size=6), st.booleans())
@settings(max_examples=400)
def test_both_speeds_agree_on_every_entry_that_the_gate_leaves(entries: list[dict[str, Any]], ascii_only: bool) -> None:
    lines = [json.dumps(entry, ensure_ascii=ascii_only, separators=(",", ":")) for entry in entries]
    assert_same("journal", [line.encode(errors="surrogatepass") for line in lines], "UTC", RECEIVED)
