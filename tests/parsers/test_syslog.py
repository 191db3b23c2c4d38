"""Syslog lines: heads, times, the programs behind the tags, and both speeds."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.clock import Stamp, parse_rfc3339, text
from parsers.record import Record
from parsers.registry import parser
from parsers.syslog import unescape
from tests.parsers.kernel_records import record, records, shown
from tests.parsers.speeds import assert_same, cases, event_texts, fast

_received = parse_rfc3339("2025-03-11T05:00:00Z")
assert _received is not None
RECEIVED: Stamp = _received
BSD = "Mar 11 04:05:06 "
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=x, GPU has fallen off the bus."

HEADS: list[tuple[str, dict[str, Any]]] = [
    (BSD + "node-a systemd[1]: Started x.", {"node": "node-a", "app": "systemd", "pid": 1, "message": "Started x."}),
    ("<38>" + BSD + "node-a sshd[4242]: Accepted publickey for root",
     {"level": "info", "facility": "auth", "app": "sshd", "pid": 4242, "message": "Accepted publickey for root"}),
    ("<78>" + BSD + "n CRON[991]: (root) CMD (   cd / )",
     {"facility": "cron", "app": "CRON", "message": "(root) CMD (   cd / )"}),
    ("<86>" + BSD + "n login: x", {"facility": "authpriv", "level": "info"}),
    ("<191>" + BSD + "n a: x", {"facility": "local7", "level": "debug"}),
    ("<192>" + BSD + "n a: x", {"facility": None, "level": None, "app": "a", "message": "x"}),
    (BSD + "n run-parts(/etc/cron.daily)[9]: x", {"app": "run-parts(/etc/cron.daily)", "pid": 9}),
    (BSD + "n postfix/smtpd[77]: connect from unknown[10.0.0.9]",
     {"app": "postfix/smtpd", "pid": 77, "message": "connect from unknown[10.0.0.9]"}),
    (BSD + "n (udev-worker)[77]: x: y", {"app": "(udev-worker)", "pid": 77, "message": "x: y"}),
    (BSD + "n app[web][12]: x", {"app": "app[web]", "pid": 12}),
    (BSD + "n docker/registry:5000/img:1.2[12]: x", {"app": "docker/registry:5000/img:1.2", "pid": 12}),
    (BSD + "n app[worker]: x", {"app": "app", "pid": None, "message": "x"}),
    (BSD + "n app[0]: x", {"app": "app", "pid": None}),
    (BSD + "2001:db8::7 a: x", {"node": "2001:db8::7", "app": "a"}),
    (BSD + "fe80:: a: x", {"node": "fe80::", "app": "a"}),
    (BSD + "10.1.2.3 a: x", {"node": "10.1.2.3", "app": "a"}),
    (BSD + "gpu-001.cluster.example.com a: x", {"node": "gpu-001.cluster.example.com", "app": "a"}),
    (BSD + "a[5]: x", {"node": None, "app": "a", "pid": 5, "message": "x"}),
    (BSD + "n  kernel: x", {"node": "n", "app": None, "message": "kernel: x"}),
    (BSD + " a: x", {"node": None, "app": "a", "message": "x"}),
    (BSD + "n no tag here", {"node": "n", "app": None, "message": "no tag here"}),
    (BSD + 'n 10.1.1.1 - - [x] "GET / HTTP/1.1"', {"app": None, "message": '10.1.1.1 - - [x] "GET / HTTP/1.1"'}),
    (BSD + "n a:   two more blanks stay", {"message": "  two more blanks stay"}),
    (BSD + "n kern.warn kernel: [   12.345678] x",
     {"node": "n", "app": "kernel", "facility": "kern", "level": "warning", "monotonic_us": 12_345_678}),
    (BSD.rstrip(), {"node": None, "message": ""}),
    ("<13>a[7]: x", {"level": "notice", "facility": "user", "app": "a", "pid": 7, "node": None, "message": "x"}),
    ("<13>only text", {"level": "notice", "app": None, "message": "only text"}),
    ("120 <6>" + BSD + "gpu-001 fmd: ready", {"node": "gpu-001", "app": "fmd", "message": "ready"}),
    ("<190>Mar 11 2025 04:05:06: %LINK-3-UPDOWN: up", {"node": None, "app": "%LINK-3-UPDOWN", "message": "up"}),
    ("[12345.678901] node-a systemd[1]: x", {"node": "node-a", "app": "systemd", "monotonic_us": 12_345_678_901}),
    ("<14>1 - - - - - only text", {"level": "info", "node": None, "app": None, "msgid": None, "message": "only text"}),
    ("<14>1 - n a 7 - -", {"node": "n", "app": "a", "pid": 7, "message": ""}),
    ("<14>1 - n a - - [x@1 k=\"1\" l=\"\"] \ufeffx", {"structured_data": {"x@1": {"k": "1", "l": ""}}, "message": "x"}),
    ("<14>1 2025-03-11T04:05:06Z n a name ID - x", {"pid": None, "msgid": "ID", "message": "x"}),
    ("<14>1 2025-03-11T04:05:06Z n a 7 ID [broken x", {"msgid": "ID", "message": "[broken x"}),
    ("1 2025-03-11T04:05:06Z n a 7 - - x", {"node": "n", "app": "a", "level": None, "message": "x"}),
    (BSD + "n a: one#012two#011three#015", {"message": "one\ntwo\tthree"}),
    (BSD + "n a: #033[31mred#033[0m, issue #123", {"message": "red, issue #123"}),
]  # fmt: skip

PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    (f"n kernel: [12345.678901] [   T2178] {XID}",
     {"event": "gpu_xid", "xid": 79, "pci": "0000:3b:00", "caller_tid": 2178, "monotonic_us": 12_345_678_901}),
    (f"n kernel: <3>[12345.6] {XID}", {"event": "gpu_xid", "level": "error", "facility": "kern"}),
    (f"n {XID}", {"node": "n", "event": "gpu_xid", "app": None, "message": XID}),
    (f"n root: {XID}", {"event": None, "xid": None, "app": "root"}),
    (f"n kernel: message repeated 2 times: [ {XID}]", {"event": "gpu_xid", "xid": 79, "repeat": 2, "message": XID}),
    ("n sshd[12]: message repeated 2 times: [ Failed password for root]",
     {"event": None, "repeat": 2, "message": "Failed password for root"}),
    ("n last message repeated 5 times", {"node": "n", "app": None, "repeat": 5}),
    ("last message repeated 5 times", {"node": None, "repeat": 5, "message": "last message repeated 5 times"}),
    ("n rsyslogd: imuxsock lost 150 messages from pid 7 due to rate-limiting", {"event": "log_loss", "lost": 150}),
    ("n rsyslogd: imuxsock[pid: 7, name: /bin/x]: 77 messages lost due to rate-limiting (200 allowed within 5 seconds)",
     {"event": "log_loss", "lost": 77}),
    ("n rsyslogd: imjournal: begin to drop messages due to rate-limiting", {"event": "log_loss", "lost": None}),
    ("n systemd-journald[5]: Suppressed 12 messages from slurmd.service", {"event": "log_loss", "lost": 12, "pid": 5}),
    ("n systemd-journald[5]: /dev/kmsg buffer overrun, some messages lost.", {"event": "log_loss"}),
    ("n systemd-journald[5]: Forwarding to syslog missed 3 messages.", {"event": "log_loss", "lost": 3}),
    ("n systemd-networkd[5]: ens1: Lost carrier", {"event": "nic_link", "netdev": "ens1", "link_state": "down"}),
    ("n kernel: audit: type=1400 audit(1741665906.285:1): x",
     {"event": None, "message": "audit: type=1400 audit(1741665906.285:1): x"}),
    ("n audit[42]: ANOM_ABEND auid=1 pid=42", {"app": "audit", "pid": 42, "event": None}),
    ("n kernel: Out of memory: Killed process 966 (python3) total-vm:1kB, anon-rss:2kB, UID:0",
     {"event": "oom_kill", "pid": 966, "process": "python3", "anon_rss_kb": 2, "oom_scope": "global"}),
    ("n slurmctld[9]: _slurm_rpc_submit_batch_job: JobId=70011 InitPrio=1 usec=812",
     {"event": "job_submit", "job_id": 70011, "level": "info", "pid": 9}),
    ("n slurmstepd[9]: [70011.batch] done with step", {"event": "step_done", "job_id": 70011, "step_id": "batch"}),
    ("n slurmd-n1[9]: error: Nodes n2 not responding", {"event": None, "level": "error"}),
    ("n /usr/sbin/slurmctld[9]: error: Nodes n2 not responding", {"event": "node_not_responding", "nodes": ["n2"]}),
    ('n kubelet[1]: E0311 04:05:05.123456    12 kubelet.go:5] "Skipping pod" err="down"',
     {"level": "error", "level_raw": "E", "src_file": "kubelet.go", "message": "Skipping pod"}),
    ('n containerd[1]: time="2025-03-11T04:05:05Z" level=warning msg="cleaning up" id=ab',
     {"level": "warning", "message": "cleaning up", "attributes": {"id": "ab"}}),
    ("n dockerd[1]: plain words", {"level": None, "message": "plain words"}),
    ("n nv-fabricmanager: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:b7:00.0 port 12",
     {"event": "nvswitch_sxid", "sxid": 20034, "pci": "0000:b7:00", "port": 12}),
    ("n nv-hostengine: 2025-03-11 04:05:05.089 ERROR [2201:2233] bad [/w/a.cpp:4] [Main]",
     {"level": "error", "pid": 2201, "tid": 2233, "src_line": 4, "message": "bad"}),
    ("n healthagent: 2025-03-11 04:05:05,089 - healthagent - CRITICAL - XID detected: 79  on gpu: 3",
     {"event": "gpu_xid", "xid": 79, "gpu_index": 3, "level": "critical"}),
]  # fmt: skip

TIMES = [
    ("Mar 11 05:05:06 n a: x", "Europe/Berlin", "2025-03-11T04:05:06Z", "year", set()),
    ("Mar 11 04:05:06.285060 n a: x", "UTC", "2025-03-11T04:05:06.285060Z", "year", set()),
    ("Mar  9 2024 04:05:06 n a: x", "UTC", "2024-03-09T04:05:06Z", "zone", set()),
    ("Dec 31 23:59:58 n a: x", "UTC", "2024-12-31T23:59:58Z", "year", set()),
    ("Mar 30 02:30:00 n a: x", "Europe/Berlin", "2025-03-30T01:30:00Z", "year", {"dst_gap"}),
    ("Oct 27 02:30:00 n a: x", "Europe/Berlin", "2024-10-27T00:30:00Z", "year", {"dst_fold"}),
    ("2025-03-11T05:05:06.1+01:00 n a: x", "UTC", "2025-03-11T04:05:06.1Z", "record", set()),
    ("2025-03-11T05:05:06+0100 n a: x", None, "2025-03-11T04:05:06Z", "record", set()),
    ("2025-03-11T05:05:06 n a: x", "Europe/Berlin", "2025-03-11T04:05:06Z", "zone", set()),
    ("2025-03-11 05:05:06 n a: x", "Europe/Berlin", "2025-03-11T04:05:06Z", "zone", set()),
    ("Mar 11 05:05:06 n a: x", None, "2025-03-11T05:00:00Z", "received", set()),
    ("<14>1 - n a 7 - - x", "UTC", "2025-03-11T05:00:00Z", "received", set()),
    ("Mar 11 04:05:06 n slurmd[1]: [2025-03-11T04:00:00.1] x", "UTC", "2025-03-11T04:00:00.1Z", "zone", set()),
    ("Mar 11 04:05:06 n slurmd[1]: [2025-03-11T04:00:00.1] x", None, "2025-03-11T05:00:00Z", "received", set()),
    ("<14>2025-03-11 04:05:05,089 INFO     x", "UTC", "2025-03-11T04:05:05.089Z", "zone", set()),
]  # fmt: skip


def one(line: str, tz: str | None = "UTC") -> Record:
    return record("syslog", line, received="2025-03-11T05:00:00Z", tz=tz)


@pytest.mark.parametrize(("line", "wanted"), HEADS + [(BSD + line, wanted) for line, wanted in PROGRAMS])
def test_a_syslog_line_gives_its_head_and_the_fields_of_its_program(line: str, wanted: dict[str, Any]) -> None:
    found = one(line)
    assert {**shown(found, wanted), **({"node": found.node} if "node" in wanted else {})} == wanted
    assert "unparsed" not in found.flags


@pytest.mark.parametrize(("line", "tz", "ts", "source", "flags"), TIMES)
def test_time_of_a_syslog_line(line: str, tz: str | None, ts: str, source: str, flags: set[str]) -> None:
    found = one(line, tz)
    assert found.ts is not None
    assert (text(found.ts), found.ts_source, found.flags) == (ts, source, flags)


def test_the_year_comes_from_the_file_before_the_time_of_receipt() -> None:
    mtime = parse_rfc3339("2019-01-01T00:00:00Z")
    assert mtime is not None
    found = record("syslog", "Dec 31 23:00:00 n a: x", received="2025-03-11T05:00:00Z", tz="UTC", mtime_ns=mtime.ns)
    assert found.ts is not None
    assert text(found.ts) == "2018-12-31T23:00:00Z"


def test_without_a_usable_stamp_kernel_text_has_the_time_since_boot() -> None:
    found = record("syslog", BSD + "n kernel: [    1.500000] x", boot_ns=1_741_665_906_000_000_000)
    assert found.ts is not None
    assert (text(found.ts), found.ts_source) == ("2025-03-11T04:05:07.500000Z", "boot")


@pytest.mark.parametrize(
    "line",
    ["no head", "Mar 11 25:05:06 n a: x", "Feb 30 04:05:06 n a: x", "2025-13-01T00:00:00Z n a: x", "<abc>x",
     "[12345.678901] usb 1-2: reset"],
)  # fmt: skip
def test_a_line_without_a_head_is_kept_as_it_is(line: str) -> None:
    found = one(line)
    assert (found.fields["message"], found.flags) == (line, {"unparsed"})


@pytest.mark.parametrize("head", ["11/03/2025 n kernel: [  1.5] ", "[12345.678901] ", "kernel: "])
def test_an_xid_behind_an_unknown_head_is_seen(head: str) -> None:
    found = one(head + XID)
    assert (found.fields["event"], found.fields["xid"], found.flags) == ("gpu_xid", 79, {"unparsed"})


def test_a_gpu_lost_in_three_records_has_the_address_of_the_first() -> None:
    lines = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
             "NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    found = records("syslog", "\n".join(f"{BSD}n kernel: {line}" for line in lines))
    assert (found[2].fields["event"], found[2].fields["pci"]) == ("gpu_lost", "0000:b3:00")


def test_a_kernel_record_says_the_same_by_syslog_as_by_kmsg() -> None:
    carrier = {"level", "facility", "seq", "printk_flags", "from_kernel", "app", "monotonic_us", "kernel_dict",
               "caller_tid", "caller_cpu"}  # fmt: skip
    compared = 0
    for case in cases("kmsg"):
        for found in records("kmsg", case["input"]):
            if "unparsed" in found.flags or "\\x" in case["input"] or not found.fields["from_kernel"]:
                continue
            said = one(f"<4>{BSD}n kernel: {found.fields['message']}")
            wanted = {name: value for name, value in found.fields.items() if name not in carrier}
            assert shown(said, wanted) == wanted
            compared += 1
    assert compared > 10


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [("#012", "\n"), ("#011", "\t"), ("#013", "\r"), ("#015", "\r"), ("#009", "\t"), ("#177", "\x7f"),
     ("#040", "#040"), ("#12", "#12"), ("a#", "a#")],
)  # fmt: skip
def test_escapes_of_rsyslog(escaped: str, plain: str) -> None:
    assert unescape(escaped) == plain


# --- both speeds
def test_every_line_that_is_an_event_passes_the_gate() -> None:
    lines = [BSD + line for line, wanted in PROGRAMS if wanted.get("event")]
    lines += [f"{BSD}n {app}: {message}" for app, message in event_texts()]
    assert all(one(line).fields["event"] for line in lines)
    assert fast("syslog", [line.encode() for line in lines], "UTC", RECEIVED) == [None] * len(lines)


def test_usual_lines_take_the_fast_side() -> None:
    usual = [
        BSD + "node-a systemd[1]: Started x.",
        "<38>Mar  1 04:05:06 10.1.2.3 sshd[4242]: Accepted publickey for root",
        "2025-03-11T05:05:06.123456+01:00 n.example.com CRON[9]: (root) CMD (x)",
        "2025-03-11T05:05:06Z 2001:db8::7 kernel: [    1.500000] usb 1-2: reset",
        "<6>" + BSD + "n kernel: usb 1-2: reset",
        BSD + "n a: ",
    ]
    assert assert_same("syslog", [line.encode() for line in usual], "Europe/Berlin", RECEIVED) == len(usual)


def test_rows_without_a_year_take_the_nearest_of_each_line() -> None:
    lines = pa.array([b"Dec 31 23:59:58 n a: x", b"Feb 29 00:00:00 n a: x"], pa.large_binary())
    near = [parse_rfc3339(text) for text in ("2026-01-01T00:00:03Z", "2024-07-01T00:00:00Z")]
    header = parser("syslog").header(lines, "UTC", pa.array([stamp.ns for stamp in near if stamp], pa.int64()))
    shown_times = [str(value) for value in header.ts.cast(pa.timestamp("ns")).to_pylist()]
    assert shown_times == ["2025-12-31 23:59:58", "2024-02-29 00:00:00"]
    assert header.ts_source.to_pylist() == ["year", "year"]
    assert not pc.any(header.rich).as_py()


PIECES = st.sampled_from(
    [
        "<13>", "<4>", "<999>", "12 ", "1 ", "- ", BSD, "Feb 29 23:59:59 ", "Feb 30 00:00:00 ", "Mar 30 02:30:00 ",
        "Oct 26 02:30:00 ", "Dec  1 00:00:00 ", "Mar 00 00:00:00 ", "Apr 31 00:00:00 ", "2025-03-11T04:05:06Z ",
        "2025-02-30T04:05:06Z ", "2025-03-11T04:05:06.123456789+05:30 ", "2025-03-11 04:05:06,089 ", "n ",
        "node-a.x ", "10.1.2.3 ", "2001:db8::7 ", "fe80:: ", "kernel: ", "sshd[42]: ", "sshd[0]: ", "sshd[042]: ",
        "slurmd[7]: ", "kubelet: ", "a/b: ", "kern.warn ", "NVRM: ", "last message ", "message repeated 3 times: [ ",
        "]", "[   12.345678] ", "[1.5] ", "[12345.678901 <    0.1>] ", "[ T12] ", "[C1] ", "x", "text ", "é", "\t",
        "\r", "\x1b[31m", "#012", "#123", "\\x0a", " ", ":", "[", "error: ", "2025-", "<3>", "JobId=5",
    ]
)  # fmt: skip


@given(
    st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=1, max_size=8),
    st.sampled_from(["UTC", "Europe/Berlin", None]),
)
@settings(max_examples=400)
def test_both_speeds_agree_on_every_line_that_the_gate_leaves(lines: list[str], tz: str | None) -> None:
    assert_same("syslog", [line.encode() for line in lines], tz, RECEIVED)


STAMPS = st.sampled_from([BSD, "<13>" + BSD, "2025-03-11T04:05:06Z "])


@given(
    st.lists(st.tuples(STAMPS, st.lists(PIECES, max_size=4).map("".join)), min_size=1, max_size=8),
    st.sampled_from(["UTC", "Europe/Berlin", None]),
)
@settings(max_examples=300)
def test_both_speeds_agree_on_what_follows_a_usual_head(lines: list[tuple[str, str]], tz: str | None) -> None:
    assert_same("syslog", [f"{stamp}n a: {more}".encode() for stamp, more in lines], tz, RECEIVED)
