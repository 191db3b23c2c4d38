"""Slurm's texts of every era become events and fields; both speeds agree on what both can read."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import record as records
from parsers.clock import Stamp, Times, parse_rfc3339, text
from parsers.record import Line, Parser, Record, Ref, Stream
from parsers.slurm import SLURM_SCHED, SLURMCTLD, SLURMD
from parsers.slurm_text import RULES, cgroup_fields, daemon_line, job_of_path, stepd_line

STAMP = "[2025-03-04T05:06:07.089] "
RECEIVED = parse_rfc3339("2025-03-04T05:06:09Z")
SAMPLES = [json.loads(line) for line in (Path(__file__).parent / "slurm_texts.jsonl").read_text("utf-8").splitlines()]
TEXTS = [sample for sample in SAMPLES if sample["kind"] != "srun"]
CLIENT = [sample for sample in SAMPLES if sample["kind"] == "srun"]
KINDS: dict[str, Parser] = {"slurmctld": SLURMCTLD, "slurmd": SLURMD, "slurm_sched": SLURM_SCHED}


def read(
    *lines: str | bytes, kind: str = "slurmctld", received: Stamp | None = None, times: Times | None = None
) -> list[Record]:
    stream = KINDS[kind].stream(Stream(kind, times=times or Times("UTC")))
    done: list[Record] = []
    for number, line in enumerate(lines):
        raw = line if isinstance(line, bytes) else line.encode()
        done += stream.feed(Line(raw, (Ref(0, number),), received))
    return done + stream.flush()


def only(message: str, kind: str = "slurmctld") -> dict[str, Any]:
    (record,) = read(STAMP + message, kind=kind)
    return record.fields


def fast(lines: list[bytes], kind: str, tz: str | None = "UTC") -> Iterator[dict[str, Any] | None]:
    """What the tier has for each line at header speed; None for a line of the rich side."""
    array = pa.array(lines, pa.large_binary())
    header = KINDS[kind].header(array, tz)
    picked = pc.or_(header.rich, pc.match_substring_regex(array, KINDS[kind].gate)).to_pylist()
    columns = {"level": header.level, "message": header.message, **header.columns}
    for row, rich in enumerate(picked):
        ts = header.ts[row].as_py() if header.ts is not None else None
        source = header.ts_source[row].as_py() if header.ts_source is not None else None
        plain = {name: column[row].as_py() for name, column in columns.items()}
        yield None if rich else {"ts": ts, "ts_source": source, **plain}


# --- events
@pytest.mark.parametrize("sample", TEXTS, ids=lambda sample: sample["text"][:60])
def test_a_text_becomes_its_event_and_passes_the_gate(sample: dict[str, Any]) -> None:
    fields = only(sample["text"], sample["kind"])
    assert {name: fields.get(name) for name in sample["expect"]} == sample["expect"]
    assert list(fast([(STAMP + sample["text"]).encode()], sample["kind"])) == [None]


@pytest.mark.parametrize("sample", CLIENT, ids=lambda sample: sample["text"][:60])
def test_a_line_of_slurmstepd_or_srun_in_job_output_is_recognised(sample: dict[str, Any]) -> None:
    fields: dict[str, Any] = {}
    assert stepd_line(sample["text"], fields, set())
    assert {name: fields.get(name) for name in sample["expect"]} == sample["expect"]


@pytest.mark.parametrize("line", ["srun -n 8 python train.py", "loss: error: 1", "node-a: slurmstepd: error: x", ""])
def test_other_output_is_left_alone(line: str) -> None:
    fields: dict[str, Any] = {}
    assert not stepd_line(line, fields, set())
    assert fields == {}


def test_every_rule_has_a_sample() -> None:
    messages = []
    for sample in [*TEXTS, *CLIENT]:
        fields: dict[str, Any] = {}
        daemon_line(sample["text"], fields, set())
        messages.append(fields["message"])
    unused = [rule for rule in RULES if not any(rule.word in text and rule.pattern.search(text) for text in messages)]
    assert unused == []


def test_what_only_the_controller_can_report_is_not_believed_elsewhere() -> None:
    forged = [sample["text"] for sample in TEXTS if sample["kind"] == "slurmctld" and sample["expect"].get("event")]
    open_to_all = {rule.event for rule in RULES if not rule.controller}
    for message in forged:
        assert only(message)["event"]
        assert only(message, "slurmd").get("event") in {None, *open_to_all}
    assert only("error: Nodes gpu-[001-900] not responding, setting DOWN", "slurmd") == {
        "level": "error",
        "level_raw": "error",
        "message": "Nodes gpu-[001-900] not responding, setting DOWN",
    }


def test_a_cut_node_list_is_flagged() -> None:
    (record,) = read(STAMP + "error: Nodes gpu-[001-0 not responding")
    assert record.flags == {"truncated"}


# --- ids, levels, prefixes
STEPD = {"daemon": "slurmstepd"}


@pytest.mark.parametrize(
    ("spelling", "ids"),
    [
        ("JobId=70011", {"job_id": 70011}),
        ("JobId=70010_3(70014)", {"job_id": 70014, "array_job_id": 70010, "array_task_id": 3}),
        ("JobId=70010_3", {"array_job_id": 70010, "array_task_id": 3}),
        ("JobId=70010_*", {"array_job_id": 70010, "array_task_expr": "*"}),
        ("JobId=70020+1(70021)", {"job_id": 70021, "het_job_id": 70020, "het_offset": 1}),
        ("JobId=70011 SLUID=s5T0M9KQ2ZC7XA", {"job_id": 70011, "sluid": "s5T0M9KQ2ZC7XA"}),
        ("SLUID=s5T0M9KQ2ZC7XA", {"sluid": "s5T0M9KQ2ZC7XA"}),
        ("JobId=Invalid SLUID=Invalid", {"job_id_state": "invalid"}),
        ("JobId=CORRUPT", {"job_id_state": "corrupt"}),
        ("StepId=CORRUPT", {"job_id_state": "corrupt"}),
        ("StepId=70011.batch", {"job_id": 70011, "step_id": "batch"}),
        ("StepId=70020.0+1", {"job_id": 70020, "step_id": "0", "het_component": 1}),
        ("JobId=70011 StepId=Extern", {"job_id": 70011, "step_id": "extern"}),
        ("JobId=70010_3(70014) StepId=0", {"job_id": 70014, "array_job_id": 70010, "array_task_id": 3, "step_id": "0"}),
        ("StepId=70011.TBD", {"job_id": 70011, "step_id": "TBD"}),
        ("StepId=s5T0M9KQ2ZC7XA.0", {"sluid": "s5T0M9KQ2ZC7XA", "step_id": "0"}),
        ("[job 70011]", {"job_id": 70011}),
        ("step 70011.0", {"job_id": 70011, "step_id": "0"}),
        ("JobId=123456789012", {}),
    ],
)
def test_ids_in_every_spelling(spelling: str, ids: dict[str, Any]) -> None:
    assert only(f"debug:  some text for {spelling} here") == {
        "level": "debug", "level_raw": "debug", "message": f"some text for {spelling} here", **ids,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("", {"level": "info"}),
        ("fatal: ", {"level": "critical", "level_raw": "fatal"}),
        ("internal error: ", {"level": "error", "level_raw": "internal error"}),
        ("warning: ", {"level": "warning", "level_raw": "warning"}),
        ("debug:  ", {"level": "debug", "level_raw": "debug"}),
        ("debug5: ", {"level": "debug", "level_raw": "debug5"}),
        ("error: sched: ", {"level": "error", "level_raw": "error", "subsystem": "sched"}),
        ("[70011.extern stepmgr] ", {"level": "info", "job_id": 70011, "step_id": "extern", **STEPD, "stepmgr": True}),
        ("[70020.0+1] ", {"level": "info", "job_id": 70020, "step_id": "0", "het_component": 1, **STEPD}),
        ("[s5T0M9KQ2ZC7XA.0] ", {"level": "info", "sluid": "s5T0M9KQ2ZC7XA", "step_id": "0", **STEPD}),
        ("slurmscriptd: error: ", {"level": "error", "level_raw": "error", "daemon": "slurmscriptd"}),
    ],
)  # fmt: skip
def test_heads_in_every_spelling(head: str, expected: dict[str, Any]) -> None:
    assert only(head + "sample text 7") == {"message": "sample text 7", **expected}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/slurm/uid_41007/job_70011/step_batch/task_0", {"job_id": 70011, "step_id": "batch", "task_id": 0}),
        ("/system.slice/slurmstepd.scope/job_70011/step_0/user/task_3",
         {"job_id": 70011, "step_id": "0", "task_id": 3}),
        ("/system.slice/gpu-004_slurmstepd.scope/job_70011", {"job_id": 70011}),
        ("/system.slice/slurmstepd.scope/s5T0M9KQ2ZC7XA/step_0/user/task_1",
         {"sluid": "s5T0M9KQ2ZC7XA", "step_id": "0", "task_id": 1}),
        ("/kubepods.slice/kubepods-burstable.slice", {}),
    ],
)  # fmt: skip
def test_a_cgroup_path_names_job_step_and_task(path: str, fields: dict[str, Any]) -> None:
    assert cgroup_fields(path) == fields


@pytest.mark.parametrize(
    ("path", "job"),
    [("/shared/job_70011.err", 70011), ("slurm-70011.out", 70011), ("/var/log/imex_prolog_70011.log", 70011),
     ("/var/log/slurmctld.log", None), ("job_70011/other", None)],
)  # fmt: skip
def test_a_file_name_names_its_job(path: str, job: int | None) -> None:
    assert job_of_path(path) == job


# --- stamps and records
@pytest.mark.parametrize(
    ("stamp", "tz", "ts", "source"),
    [
        ("[2025-03-04T05:06:07.089] ", "UTC", "2025-03-04T05:06:07.089Z", "zone"),
        ("[2025-03-04T05:06:07] ", "America/Chicago", "2025-03-04T11:06:07Z", "zone"),
        ("[2025-03-04T05:06:07.089] ", None, "2025-03-04T05:06:09Z", "received"),
        ("[2025-03-04T05:06:07.089-05:30] ", None, "2025-03-04T10:36:07.089Z", "record"),
        ("[2025-03-04T05:06:07+01:00] ", "UTC", "2025-03-04T04:06:07Z", "record"),
        ("[Mar 04 05:06:07] ", "UTC", "2025-03-04T05:06:07Z", "year"),
        ("[Mar 04 05:06:07] ", None, "2025-03-04T05:06:09Z", "received"),
        ("[Mar 04 05:06:07.123    20345 rpc-7        0x7f12aa00b700] ", "UTC", "2025-03-04T05:06:07.000123Z", "year"),
        ("Mar 04 05:06:07.123    20345 rpc-7        0x7f12aa00b700: ", "UTC", "2025-03-04T05:06:07.000123Z", "year"),
        ("[30912345] ", "UTC", "2025-03-04T05:06:09Z", "received"),
        ("sched: [2025-03-04T05:06:07.089] ", "UTC", "2025-03-04T05:06:07.089Z", "zone"),
        ("", "UTC", "2025-03-04T05:06:09Z", "received"),
    ],
)
def test_every_stamp_format_is_read(stamp: str, tz: str | None, ts: str, source: str) -> None:
    (record,) = read(stamp + "sample text 7", received=RECEIVED, times=Times(tz))
    assert record.ts is not None
    assert (text(record.ts), record.ts_source, record.fields["message"]) == (ts, source, "sample text 7")


def test_a_stamp_gives_pid_thread_and_cpu_time() -> None:
    (named,) = read("[Mar 04 05:06:07.123    20345 rpc-7        0x7f12aa00b700] x")
    (blank,) = read("[Mar 04 05:06:07.45     20345              0x7f12aa00b700] x")
    (clock,) = read("[30912345] x")
    assert (named.fields["pid"], named.fields["thread"]) == (20345, "rpc-7")
    assert (blank.fields["pid"], blank.fields["thread"]) == (20345, None)
    assert clock.fields["cpu_clock_us"] == 30912345


def test_the_year_comes_from_the_file_before_the_time_of_receipt() -> None:
    mtime = parse_rfc3339("2019-01-01T00:00:00Z")
    assert mtime is not None
    (record,) = read("[Dec 31 23:00:00] x", received=RECEIVED, times=Times("UTC", mtime_ns=mtime.ns))
    assert record.ts is not None
    assert text(record.ts) == "2018-12-31T23:00:00Z"


@pytest.mark.parametrize(("hour", "flag"), [("02", "dst_gap"), ("01", None)])
def test_a_time_in_a_gap_is_flagged_and_left_to_the_rich_side(hour: str, flag: str | None) -> None:
    line = f"[2025-03-30T{hour}:30:00.000] x"
    (record,) = read(line, times=Times("Europe/Berlin"))
    assert record.flags == ({flag} if flag else set())
    (row,) = fast([line.encode()], "slurmctld", "Europe/Berlin")
    assert (row is None) == bool(flag)


def test_lines_without_stamp_continue_the_record_before_them() -> None:
    first, second = read(
        STAMP + "error: prolog failed: rc:1 output:line 1",
        "[70011] line 2",
        "",
        "JobId=5",
        "",
        STAMP + "x",
        kind="slurmd",
    )
    assert first.fields["message"] == "prolog failed: rc:1 output:line 1\n[70011] line 2\n\nJobId=5"
    assert first.refs == tuple(Ref(0, line) for line in range(4))
    assert "job_id" not in first.fields
    assert second.refs == (Ref(0, 5),)


def test_lines_before_the_first_stamp_are_records_of_their_own() -> None:
    result = read("slurmd: error: early", "Node reconfigured", STAMP + "x", "more", kind="slurmd")
    assert [record.fields["message"] for record in result] == ["early", "Node reconfigured", "x\nmore"]


def test_a_clock_file_takes_every_number_in_brackets_as_stamp() -> None:
    assert len(read("[100] x", "[200] y")) == 2
    assert len(read(STAMP + "x", "[200] y")) == 1


def test_an_endless_record_is_cut_and_its_rest_marked() -> None:
    result = read(STAMP + "x", *["y"] * (records.MAX_HELD_LINES + 10))
    assert [record.flags for record in result] == [{"partial"}, {"partial"}]
    assert sum(len(record.refs) for record in result) == records.MAX_HELD_LINES + 11


def test_a_held_record_survives_a_snapshot() -> None:
    stream = SLURMCTLD.stream(Stream("slurmctld", times=Times("UTC")))
    stream.feed(Line(f"{STAMP}error: prolog failed: rc:1 output:a".encode(), (Ref(0, 0),)))
    stream = pickle.loads(pickle.dumps(stream))
    assert stream.held == [Ref(0, 0)]
    stream.feed(Line(b"b", (Ref(0, 1),)))
    (record,) = stream.flush()
    assert record.fields["message"] == "prolog failed: rc:1 output:a\nb"
    assert stream.held == []


def test_bad_bytes_controls_and_colours_are_cleaned() -> None:
    (record,) = read(b"\0\0\0" + STAMP.encode() + b"error: \x1b[31musu\xe1rio\x1b[0m failed\r")
    assert (record.fields["message"], record.flags) == ("usu\N{REPLACEMENT CHARACTER}rio failed", {"invalid_utf8"})


# --- both speeds
def test_the_fast_side_reads_level_job_step_and_message() -> None:
    lines = [
        STAMP + "debug:  sched: JobId=70011 beginning of a test",
        "[2025-07-04T23:06:07.120] [70011.batch] error: Unable to resume task – JobId=5",
        STAMP + "fatal: x",
        STAMP,
    ]
    rows = list(fast([line.encode() for line in lines], "slurmctld", "America/Chicago"))
    assert rows == [
        {"ts": 1741086367089000000, "ts_source": "zone", "level": "debug", "job_id": 70011, "step_id": None,
         "message": "JobId=70011 beginning of a test"},
        {"ts": 1751688367120000000, "ts_source": "zone", "level": "error", "job_id": 70011, "step_id": "batch",
         "message": "Unable to resume task – JobId=5"},
        {"ts": 1741086367089000000, "ts_source": "zone", "level": "critical", "job_id": None, "step_id": None,
         "message": "x"},
        {"ts": 1741086367089000000, "ts_source": "zone", "level": "info", "job_id": None, "step_id": None,
         "message": ""},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["", "x", "[2025-02-29T05:06:07.089] x", "[2025-13-01T05:06:07.089] x", "[2025-03-04T24:06:07.089] x",
     "[2025-03-04T05:06:60.089] x", "[2025-03-04T05:06:07:089] x", "[2025-03-04T05:06:07.089]", STAMP + "x\r",
     STAMP + "slurmd: error: x", STAMP + "[s5T0M9KQ2ZC7XA.0] x"],
)  # fmt: skip
def test_a_line_that_does_not_fit_is_left_to_the_rich_side(line: str) -> None:
    assert list(fast([line.encode()], "slurmd")) == [None]


def test_the_fast_side_reads_the_mark_of_the_scheduler_log() -> None:
    rows = list(fast([b"sched: " + STAMP.encode() + b"Running job scheduler", STAMP.encode() + b"x"], "slurm_sched"))
    assert [row and row["message"] for row in rows] == ["Running job scheduler", "x"]


def test_a_line_without_stamp_takes_the_line_before_it_to_the_rich_side() -> None:
    rows = list(fast([STAMP.encode() + b"x", STAMP.encode() + b"y", b"more", STAMP.encode() + b"z"], "slurmctld"))
    assert [row is None for row in rows] == [False, True, True, False]


def test_the_fast_side_reads_slices_and_empty_batches() -> None:
    array = pa.array([b"\xff", STAMP.encode() + b"x", STAMP.encode() + b"y"], pa.large_binary()).slice(1)
    assert SLURMCTLD.header(array, "UTC").message.to_pylist() == ["x", "y"]
    assert len(SLURMCTLD.header(array.slice(0, 0), "UTC").rich) == 0


PIECES = st.sampled_from(
    [
        STAMP, "[2024-02-29T23:59:59.999] ", "[70011.0] ", "[70011.batch] ", "[x] ", "error: ", "debug:  ", "debug: ",
        "debug2: ", "sched: ", "JobId=70011", "JobId=70010_3(70014)", "JobId=123456789012", "StepId=70011.0",
        "SLUID=s5T0M9KQ2ZC7XA", "JobId=Invalid", " JobId=70012 ",
        "job 5", "step 7.1", " ", "x", "é", "\t", "\r", "\x1b[31m", "_job_complete: ", "Nodes gpu-[1-3] not responding",
        "task 3 (5) exited", "Node", "srun: ", "slurmd-n: ", "…JobId=3", "_JobId=3", "12", ":", "[", "]",
    ]
)  # fmt: skip


@given(st.lists(st.lists(PIECES, max_size=7).map("".join), max_size=6), st.sampled_from(list(KINDS)))
@settings(max_examples=300)
def test_both_speeds_agree_on_every_line_that_the_gate_leaves(lines: list[str], kind: str) -> None:
    mark = "sched: " if kind == "slurm_sched" else ""
    raw = [(mark + STAMP + line).encode() for line in lines]
    rich = read(*raw, kind=kind)
    for record, row in zip(rich, fast(raw, kind) if raw else [], strict=True):
        if row is None:
            continue
        assert "event" not in record.fields
        assert record.ts is not None
        fields = {name: record.fields.get(name) for name in ("level", "message", "job_id", "step_id")}
        assert row == {"ts": record.ts.ns, "ts_source": record.ts_source, **fields}


@given(st.lists(st.binary(max_size=60) | PIECES.map(str.encode), max_size=30), st.sampled_from(list(KINDS)))
def test_any_bytes_are_kept_and_each_line_belongs_to_one_record(lines: list[bytes], kind: str) -> None:
    done = read(*lines, kind=kind, received=RECEIVED)
    used = [ref for record in done for ref in record.refs]
    assert used == sorted(set(used))
    missing = {ref.line for ref in used} ^ set(range(len(lines)))
    assert all(
        not lines[line].decode(errors="replace").strip("".join(map(chr, [*range(32), 127])) + " ")
        or b"\x1b" in lines[line]
        for line in missing
    )
