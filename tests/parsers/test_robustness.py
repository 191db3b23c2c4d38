"""What every stream parser promises, whatever bytes it is fed: parsers.record.StreamParser."""

import json
import pickle
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.parse import as_object
from parsers import launcher
from parsers.clock import Times, parse_rfc3339
from parsers.record import MAX_HELD_LINES, Line, Record, Ref, Stream
from parsers.registry import KINDS, parser
from tests.recorded import CASES

SEEDS = sorted({line.encode() for case in CASES for line in case.get("input", "").split("\n")})
STREAMS = [
    Stream("", times=Times("Europe/Berlin", boot_ns=1_700_000_000 * 10**9)),
    Stream("", "n1", "c1", "/var/log/pods/ml_train-0_4f/worker/0.log"),
]
JOB_OUTPUT = ("training", "job_stdout", "job_stderr", "srun")
RECEIVED = parse_rfc3339("2025-03-04T06:00:00.5Z")

each_kind = pytest.mark.parametrize("kind", KINDS)


@st.composite
def physical_lines(draw: st.DrawFn) -> list[bytes]:
    """Lines of recorded cases (whole, cut, glued, with bytes changed) between random ones."""

    def line() -> bytes:
        made = draw(st.sampled_from(SEEDS))
        how = draw(st.integers(0, 9))
        if how == 0:
            made = draw(st.binary(max_size=60))
        elif how == 1:
            made = made[: draw(st.integers(0, len(made)))]
        elif how == 2:
            made = made[draw(st.integers(0, len(made))) :]
        elif how == 3:
            made += draw(st.sampled_from(SEEDS))
        elif how == 4:
            at = draw(st.integers(0, len(made)))
            made = made[:at] + draw(st.binary(max_size=4)) + made[at + draw(st.integers(0, 4)) :]
        elif how == 5:
            made = draw(st.sampled_from([b"", b"", b"\r", b"\0\0", b" ", b"\t", b"\x1b[0m"]))
        return made.replace(b"\n", b"")

    return [line() for _ in range(draw(st.integers(0, 25)))]


def wrapped(kind: str, lines: list[bytes]) -> list[bytes]:
    """Lines as the carrier of the kind would hold them, most of the time: else no inner grammar is ever met."""
    choose = random.Random(len(lines))
    if kind == "pod":
        return [
            raw if choose.random() < 0.2 else b"2025-03-04T05:06:07.%dZ std%s %s %s" % (
                number, choose.choice([b"out", b"err"]), choose.choice([b"F", b"F", b"F", b"P"]), raw,
            )
            for number, raw in enumerate(lines)
        ]  # fmt: skip
    if kind == "docker":
        return [
            raw if choose.random() < 0.2 else json.dumps(
                {"log": raw.decode(errors="replace") + choose.choice(["\n", "\n", "\n", ""]),
                 "stream": choose.choice(["stdout", "stderr"]), "time": "2025-03-04T05:06:07Z"}
            ).encode()
            for raw in lines
        ]  # fmt: skip
    programs = ["kernel", "slurmctld[7]", "kubelet", "nv-fabricmanager", "nv-hostengine", "healthagent", "sshd[42]"]
    if kind == "syslog":
        return [
            raw if choose.random() < 0.2 else b"Mar  4 05:06:07 n1 %s: %s" % (choose.choice(programs).encode(), raw)
            for raw in lines
        ]
    if kind == "journal":
        return [
            raw if choose.random() < 0.2 else json.dumps(
                {"__REALTIME_TIMESTAMP": "1741064767123456", "SYSLOG_IDENTIFIER": choose.choice(programs).split("[")[0],
                 "MESSAGE": choose.choice([raw.decode(errors="replace"), list(raw)])}
            ).encode()
            for raw in lines
        ]  # fmt: skip
    return lines


def may_be_swallowed(kind: str, raw: bytes) -> bool:
    """Empty lines make no record of their own, except in a carrier's file. Control and ANSI bytes are no text,
    nor is a launcher's prefix alone."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", raw.decode(errors="replace"))
    if kind in JOB_OUTPUT:
        text = text[launcher.strip(text, launcher.Prefix(), set()) :]
    return kind not in ("pod", "docker") and all(char.isspace() or not char.isprintable() for char in text)


@each_kind
@given(lines=physical_lines(), stream=st.sampled_from(STREAMS), cut=st.integers(0, 25))
def test_every_line_is_owned_state_pickles_and_cuts_do_not_matter(kind, lines, stream, cut):
    lines = wrapped(kind, lines)
    whole = parser(kind).stream(stream)
    pickled = pickle.loads(pickle.dumps(parser(kind).stream(stream)))
    records: list[Record] = []
    again: list[Record] = []
    for number, raw in enumerate(lines):
        line = Line(raw, (Ref(7, number),), RECEIVED)
        records += whole.feed(line)
        if number == cut:
            pickled = pickle.loads(pickle.dumps(pickled))
        again += pickled.feed(line)

        owned = {ref for record in records for ref in record.refs}
        lost = {Ref(7, at) for at in range(number + 1)} - owned - set(whole.held)
        assert all(may_be_swallowed(kind, lines[ref.line]) for ref in lost)
        assert set(whole.held) <= {Ref(7, at) for at in range(number + 1)}

    records += whole.flush()
    again += pickled.flush()
    assert not whole.held
    assert whole.flush() == []
    assert again == records

    owned = {ref for record in records for ref in record.refs}
    assert all(may_be_swallowed(kind, raw) for number, raw in enumerate(lines) if Ref(7, number) not in owned), (
        "a line without a record"
    )
    places = [(record.refs[0], record.part) for record in records]
    assert len(set(places)) == len(places), "two records with one identity"
    for record in records:
        assert list(record.refs) == sorted(set(record.refs))
        assert (record.ts is None) == (record.ts_source is None)
        printed = json.dumps(as_object(record, stream), ensure_ascii=False, allow_nan=False)
        assert json.loads(printed.encode())["lines"] == len(record.refs)


@each_kind
@pytest.mark.parametrize(
    "opening",
    [
        b"2025-03-04T05:06:07.1Z stdout P piece ",
        b'{"log":"piece ","stream":"stdout","time":"2025-03-04T05:06:07.1Z"}',
        b"Traceback (most recent call last):",
        b'  File "train.py", line 1, in <module>',
        b"I0304 05:06:07.1 1 a.go:1] ",
        b"[2025-03-04T05:06:07.089] error: text",
        b"6,1,1,-;text",
        b" KEY=value",
        b"gpu-01:1:2 [0] NCCL INFO " + b"x" * (128 - 25),
        b"gpu-01:1:2 [0] init.cc:1 NCCL WARN x",
        b"",
        b"\x00",
    ],
    ids=range(12),
)
def test_what_is_held_stays_bounded(kind, opening):
    stream = parser(kind).stream(STREAMS[0])
    for number in range(MAX_HELD_LINES + 500):
        raw = opening if number % 2 or kind in ("pod", "docker") else b"    continued " + opening
        stream.feed(Line(raw, (Ref(0, number),), RECEIVED))
        if number % 100 == 0 or number > MAX_HELD_LINES:
            assert len(stream.held) <= MAX_HELD_LINES
    stream.flush()
    assert not stream.held
