"""Job output as the stream parser reads it: torn lines, records of several lines, prefixes, bounds."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.clock import Times, parse_rfc3339
from parsers.clock import text as shown
from parsers.record import MAX_HELD_LINES, Line, Record, Ref, Stream
from parsers.training import PATIENCE, TrainingStream

H = "gpu-a01:51:52 [0] "
INFO = H + "NCCL INFO "
WARN = H + "net.cc:7 NCCL WARN "
TWO_STAMPS = "2031-02-03 04:05:06.789 +08:00 [2031-02-02 20:05:05] " + WARN + "x"  # a collector's and its own
FRAMES = "Exception raised from f at x.cpp:1 (most recent call first):\nframe #0: a\nframe #1: b\n\n"


def feed(text: str, received: str | None = None, tz: str | None = None, path: str | None = None) -> list[Record]:
    """All records of a text, in reading order."""
    stream = TrainingStream(Stream("training", path=path, times=Times(tz)))
    stamp = parse_rfc3339(received) if received else None
    lines = text.removesuffix("\n").split("\n")
    records = [
        record
        for number, line in enumerate(lines)
        for record in stream.feed(Line(line.encode(), (Ref(0, number),), stamp))
    ]
    records += stream.flush()
    assert not stream.held
    return sorted(records, key=lambda record: (record.refs[0], record.part))


def messages(text: str) -> list[str]:
    return [record.fields["message"] for record in feed(text)]


PIECE = "gpu-dev-0a1b2c3d:1898:1898 [3] NCCL INFO Init timings - ncclCommInitRankConfig: rank 3 nranks 8 total 3.71 "
PIECE += "(kernels 0.32, alloc "  # 128 bytes

# name: (text, message and flags of every record)
TORN: dict[str, tuple[str, list[tuple[str, set[str]]]]] = {
    "a tail completes the piece in front of another header": (
        f"{INFO}Connected all rgpu-a01:61:61 [1] NCCL INFO Using network IB\nings",
        [("Connected all rings", {"rejoined"}), ("Using network IB", set())],
    ),
    "a piece without tail stays partial": (
        f"{INFO}Connected all rgpu-a01:61:61 [1] NCCL INFO Using network IB",
        [("Connected all r", {"partial"}), ("Using network IB", set())],
    ),
    "a new line of the same process gives its piece up": (
        f"{INFO}Connected all rgpu-a01:61:61 [1] NCCL INFO Using network IB\n{INFO}Using network IB\nings",
        [("Connected all r", {"partial"}), ("Using network IB", set()), ("Using network IB", set()), ("ings", set())],
    ),
    "libc's 128 bytes are a piece": (
        f"{PIECE}\n2.35, rest 0.03)",
        [(PIECE.partition("NCCL INFO ")[2] + "2.35, rest 0.03)", {"rejoined"})],
    ),
    "srun's line feed after a chunk": (
        f"03: {INFO}NET/IB : Using [0]mlx5_0:1/IB [1]mlx\n03: 5_1:1/IB [RO]; OOB eth0:192.0.2.3<0>",
        [("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:192.0.2.3<0>", {"rejoined"})],
    ),
    "torchrun's tag in mid-line, also in plain text": (
        "[default0]:step 1 lo[default1]:step 2\n[default0]:ss 3",
        [("step 1 loss 3", {"rejoined"}), ("step 2", set())],
    ),
    "a stamp that Open MPI tore off": (
        f"[1,2]<stdout>:[[1,3]<stdout>:{INFO}Using network IB\n[1,2]<stdout>:2031-02-03 04:05:06] {WARN}x",
        [("x", {"rejoined"}), ("Using network IB", set())],
    ),
    "c10 behind a progress bar": (
        "Train:  32%|###  | 210/640 [02:33<04:45,  1.37it/s][E ProcessGroupNCCL.cpp:475] [Rank 2] text",
        [("Train:  32%|###  | 210/640 [02:33<04:45,  1.37it/s]", set()), ("[Rank 2] text", set())],
    ),
    "a header behind a repaint is not lost": (
        f"\r 50%|##  | 1/2 [00:01<00:01,  1.0it/s]{WARN}x\r100%|####| 2/2 [00:02<00:00,  1.0it/s]",
        [
            (" 50%|##  | 1/2 [00:01<00:01,  1.0it/s]", set()),
            ("x", set()),
            ("100%|####| 2/2 [00:02<00:00,  1.0it/s]", set()),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), TORN.values(), ids=list(TORN))
def test_torn_lines(text: str, expected: list[tuple[str, set[str]]]) -> None:
    assert [(record.fields["message"], record.flags) for record in feed(text)] == expected


# name: (text, number of physical lines of every record)
SEVERAL: dict[str, tuple[str, list[int]]] = {
    "a chain of exceptions": (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a"\n[rank0]: KeyError: 1\n\n'
        "[rank0]: During handling of the above exception, another exception occurred:\n\n"
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a"\n[rank0]: ValueError: 2\nstep 3',
        [9, 1],
    ),
    "an exception group": (
        '  + Exception Group Traceback (most recent call last):\n  |   File "a"\n  | ExceptionGroup: two\n'
        "  +-+---------------- 1 ----------------\n    | ValueError: 1\n    +-----\nstep 3",
        [6, 1],
    ),
    "c10 with frames, then the abort that repeats it": (
        f"[rank1]:[E728 07:34:54.8 P.cpp:6] [Rank 1] watchdog thread terminated with exception: x\n{FRAMES}"
        f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  x\n{FRAMES}step 3",
        [5, 6, 1],
    ),
    "NCCL's error block inside a c10 record": (
        "[E P.cpp:6] [Rank 1] x: NCCL error: unhandled system error, NCCL version 2.21.5\nncclSystemError: a\n"
        f"Last error:\nConnect failed\n{FRAMES}",
        [8],
    ),
    "the NVLS warning and its two lines": (f"\n{WARN}Failed to bind NVLink SHARP x\na\nb\n{INFO}a.cc:4 -> 1", [4, 1]),
    "a row of equal signs is no box": ("==========\nstep 3", [1, 1]),
    "an empty line between two warnings is the second's": (f"{WARN}a\n\n{WARN}b", [1, 2]),
    "an empty line behind a warning is its own": (f"{WARN}a\n\nstep 3", [2, 1]),
    "empty lines make no record": ("\n\nstep 3\n\n", [1]),
    "call paths of two threads": (
        "h:1:10 [0] NCCL INFO a.cc:1 -> 6\nh:1:11 [0] NCCL INFO a.cc:1 -> 6\nh:1:10 [0] NCCL INFO b.cc:1 -> 6",
        [2, 1],
    ),
    "nccl-tests": (
        "gpu-a01: Test NCCL failure x.cu:4 'remote process exited'\n .. gpu-a01 pid 4: Test failure x.cu:7",
        [2],
    ),
    "text inside a traceback": (
        'Traceback (most recent call last):\nstep 3\n  File "a"\nValueError: x',
        [3, 1],
    ),
}


@pytest.mark.parametrize(("text", "lines"), SEVERAL.values(), ids=list(SEVERAL))
def test_records_of_several_lines(text: str, lines: list[int]) -> None:
    assert [len(record.refs) for record in feed(text)] == lines


# text: fields of its one record
FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("NCCL version 2.20.5+cuda12.4", {"event": "nccl_version", "nccl_version": "2.20.5", "cuda_version": "12.4"}),
    ("h:1:2 [0] init.cc:8 NCCL ABORT", {"level": "critical", "message": "", "src_line": 8}),
    ("h:1:2 [32767] NCCL INFO Using network IB", {"network": "IB", "host": "h"}),
    (f"{WARN}Call to ibv_modify_qp failed with error Connection timed out", {"event": "nccl_qp_error", "errno": 110}),
    (
        f"{INFO}Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, local GID index 3, "
        "local GID fe80::1, remote GID fe80::2, retrying 3/34 after 300 msec",
        {"errno": 110, "hca": "mlx5_2", "hca_port": 1, "gid_index": 3, "remote_gid": "fe80::2", "retry_attempt": 3},
    ),
    (f"{WARN}NET/IB : mlx5_0:1 Got async event : port error", {"async_event": "port_error", "hca_port": 1}),
    (f"{WARN}NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local work queue error", {"async_event": "qp_error"}),
    (f"{WARN}socketStartConnect: Connect to 192.0.2.1<40> failed : Connection refused", {"errno": 111}),
    (f"{WARN}Cuda failure 719 'x'", {"event": "nccl_cuda_failure", "cuda_error": 719}),
    ("(A pid=9) (B pid=4, ip=192.0.2.1) x [repeated 7x across cluster]", {"actors": ["A", "B"], "pid": 4, "repeat": 7}),
    ("[rank7]:[F728 06:24:46.4 P.cpp:1] [PG 0 Rank 7] watchdog got stuck for 600 seconds", {"stuck_s": 600}),
    ("[E P.cpp:1] [PG 0 (dp) Rank 7] Heartbeat monitor timed out! workMetaList_.size()=8", {"pending_work": 8}),
    ("[E P.cpp:1] [PG ID 0 PG GUID 3f(dp) Rank 7] Observed flight recorder dump signal", {"event": "dump_signal"}),
    (
        "E0203 03:20:36.3 4300 a/api.py:882] failed (exitcode: -9) local_rank: 3 (pid: 44) of binary: p",
        {"event": "elastic_failure", "exit_code": -9, "signal": 9, "local_rank": 3, "pid": 44},
    ),
    ("ERROR:a.b:Sending process 6 closing signal SIGTERM", {"level": "error", "app": "a.b", "signal": 15, "pid": 6}),
    ("[2031-05-01 12:00:00,123] [INFO] [x.py:69:f] ready", {"level": "info", "message": "[x.py:69:f] ready"}),
    ("  3: step 4", {"task_id": 3, "rank": 3, "message": "step 4"}),
    ("[pod/a-1/main] hello", {"pod": "a-1", "container": "main", "message": "hello"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fields"), FIELDS)
def test_fields(text: str, fields: dict[str, Any]) -> None:
    (record,) = feed(text)
    assert {name: record.fields.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("text", "tz", "expected", "source"),
    [
        ("[2031-05-04 18:45:17] " + WARN + "x", "Europe/Berlin", "2031-05-04T16:45:17Z", "zone"),
        ("[2031-05-04 18:45:17] " + WARN + "x", None, "2031-05-04T20:00:00Z", "received"),
        (TWO_STAMPS, None, "2031-02-02T20:05:06.789Z", "record"),
        (TWO_STAMPS, "UTC", "2031-02-02T20:05:05Z", "zone"),
        ("1796071752.882 " + INFO + "x", None, "2026-11-30T20:49:12.882Z", "record"),
        ("[E504 07:34:54.803881913 P.cpp:6] x", "UTC", "2031-05-04T07:34:54Z", "year"),
        ("[E504 07:34:54.803881913 P.cpp:6] x", None, "2031-05-04T20:00:00Z", "received"),
        ("E0504 07:34:54.803881 44 a/api.py:6] x", "UTC", "2031-05-04T07:34:54.803881Z", "year"),
    ],
)  # fmt: skip
def test_the_innermost_stamp_that_can_be_placed_wins(text: str, tz: str | None, expected: str, source: str) -> None:
    (record,) = feed(text, received="2031-05-04T20:00:00Z", tz=tz)
    assert record.ts is not None
    assert (shown(record.ts), record.ts_source) == (expected, source)


def test_fractions_of_nccl_2_26_2_do_not_count() -> None:
    stamped = "2031-05-06T20:49:12.696Z " + INFO + "Using network IB"
    _, record = feed(f"NCCL version 2.26.2+cuda12.2\n{stamped}")
    assert record.ts is not None
    assert shown(record.ts) == "2031-05-06T20:49:12Z"


def test_the_summary_box_tells_the_root_cause() -> None:
    blocks = [
        f"[{n}]:\n  time      : x\n  host      : h{n}\n  rank      : {n} (local_rank: 2)\n  exitcode  : {code} (pid: 7)"
        for n, code in ((1, -15), (0, -9))
    ]
    edge = "=" * 60
    box = f"{edge}\nt.py FAILED\nFailures:\n{blocks[0]}\nRoot Cause (first observed failure):\n{blocks[1]}\n{edge}"
    (record,) = feed(box)
    wanted = {"event": "elastic_failure", "host": "h0", "rank": 0, "exit_code": -9, "signal": 9}
    assert {name: record.fields[name] for name in wanted} == wanted


def test_call_paths_are_noise_until_the_process_starts_another_communicator() -> None:
    comm = INFO + "comm 0x5 rank 0 nranks 2 cudaDev 0 - "
    path = INFO + "a.cc:1 -> 3"
    records = feed("\n".join([path, comm + "Abort COMPLETE", path, comm + "Init START", path]))
    assert [record.fields.get("noise") for record in records] == [None, None, "N26", None, None]


def test_a_glued_header_takes_a_host_seen_before() -> None:
    assert messages(f"{INFO}x\n{INFO}all rings{H}NCCL INFO y") == ["x", "all rings", "y"]
    assert messages("rgpu-a01:1:2 [0] NCCL INFO x") == ["x"]


def test_the_job_is_named_by_the_path() -> None:
    assert feed("hi", path="/out/slurm-77.out")[0].fields["job_id"] == 77


def test_a_piece_waits_for_a_bounded_number_of_lines() -> None:
    stream = TrainingStream(Stream("training"))
    torn = f"{INFO}Connected all rgpu-a01:61:61 [1] NCCL INFO Using network IB".encode()
    stream.feed(Line(torn, (Ref(0, 0),)))
    done = [
        record
        for number in range(1, PATIENCE + 2)
        for record in stream.feed(Line(b"2031-03-09 17:03:02 text", (Ref(0, number),)))
    ]
    assert not stream.held
    assert [record.flags for record in done if record.refs[0].line == 0] == [{"partial"}]


def test_a_traceback_without_end_is_given_up() -> None:
    stream = TrainingStream(Stream("training"))
    done = stream.feed(Line(b"Traceback (most recent call last):", (Ref(0, 0),)))
    for number in range(1, MAX_HELD_LINES + 1):
        done += stream.feed(Line(b'  File "a", line 1', (Ref(0, number),)))
    assert not stream.held
    assert [(len(record.refs), record.flags) for record in done] == [(MAX_HELD_LINES + 1, {"partial"})]


LINES = [
    "", "step 1", INFO + "Using network IB", WARN + "x", INFO + "a.cc:1 -> 6", PIECE, "ings", "=" * 20, "t.py FAILED",
    "Traceback (most recent call last):", '  File "a"', "ValueError: x", "[rank0]: ValueError: x", "Last error:",
    "[E P.cpp:6] [Rank 1] NCCL error: x, NCCL version 2.1.5", "Exception raised from x", "frame #0: y", "  what():  z",
    "terminate called after throwing an instance of 'e'", f"{INFO}Conn{H}NCCL INFO x", "[default0]:a[default1]:b",
    "[default0]:c", "03: " + INFO + "NET/IB : Using [0", "03: rest", "\r 50%|# | 1/2 [00:01<?, ?it/s]", "  | bar",
    INFO + "Enabled NCCL Func/Proto/Algo Matrix:", "  + Exception Group Traceback (most recent call last):", " a | b",
    INFO + "comm 0x5 rank 0 nranks 2 cudaDev 0 - Abort COMPLETE", "slurmstepd: error: x", "Fatal Python error: Aborted",
]  # fmt: skip


@given(st.lists(st.sampled_from(LINES).map(str.encode) | st.binary(max_size=30), max_size=25), st.integers(0, 25))
def test_every_line_is_in_a_record_and_a_snapshot_changes_nothing(lines: list[bytes], at: int) -> None:
    def run(snapshot: int | None) -> list[Record]:
        stream = TrainingStream(Stream("training"))
        records: list[Record] = []
        for number, line in enumerate(lines):
            if number == snapshot:
                stream = pickle.loads(pickle.dumps(stream))
            before = {*stream.held, Ref(0, number)}
            new = stream.feed(Line(line, (Ref(0, number),)))
            assert {ref for record in new for ref in record.refs} <= before
            assert set(stream.held) <= before
            records += new
        return records + stream.flush()

    records = run(None)
    assert run(at) == records
    used = {ref.line for record in records for ref in record.refs}
    unused = [line for number, line in enumerate(lines) if number not in used]
    assert all(not line.strip(bytes(range(32)) + b"\x7f") or line.startswith((b"\x1b", b"0", b" ")) for line in unused)
    assert len({(record.refs[0], record.part) for record in records}) == len(records)
    for record in records:
        assert list(record.refs) == sorted(set(record.refs))
