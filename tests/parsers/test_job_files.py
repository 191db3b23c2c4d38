"""Batch scripts and environments of jobs: one record per line, and what a variable is."""

import pytest

from parsers.record import Line, Record, Ref, Stream
from parsers.registry import parser


def records(kind: str, raw: bytes, path: str | None = None) -> list[Record]:
    stream = parser(kind).stream(Stream(kind, path=path))
    return [
        record for number, line in enumerate(raw.split(b"\n")) for record in stream.feed(Line(line, (Ref(0, number),)))
    ]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (b"SLURM_JOB_ID=8001", "SLURM_JOB_ID", "8001"),
        (b"EMPTY=", "EMPTY", ""),
        (b"A=b=c d", "A", "b=c d"),
        (b'declare -x PATH="/bin:/usr/bin"', "PATH", "/bin:/usr/bin"),
        (b'declare -x A="say \\"x\\" \\$HOME"', "A", 'say "x" $HOME'),
        (b"export A='x y'", "A", "x y"),
        (b"export A=x", "A", "x"),
        (b"lower.name-1=x\r", "lower.name-1", "x"),
        (b'A="open', "A", '"open'),
    ],
)
def test_a_variable_has_a_name_and_a_value_in_every_form(line: bytes, name: str, value: str) -> None:
    (record,) = records("job_env", line)
    assert (record.fields["env_name"], record.fields["env_value"]) == (name, value)
    assert record.fields["message"] == line.decode().rstrip("\r")


@pytest.mark.parametrize(
    "line", [b"more of the value", b"  NAME=indented", b"}", b"BASH_FUNC_x%%=() {  echo", b"=x", b"1A=x"]
)
def test_other_lines_are_records_without_a_variable(line: bytes) -> None:
    (record,) = records("job_env", line)
    assert record.fields == {"message": line.decode()}


def test_variables_that_nuls_separate_share_their_line() -> None:
    found = records("job_env", b"\0A=1\0B=two\nlines\0\0C=3\0")
    assert [(r.fields["message"], r.refs[0].line, r.part) for r in found] == [
        ("A=1", 0, 0), ("B=two", 0, 1), ("lines", 1, 0), ("C=3", 1, 1),
    ]  # fmt: skip


def test_a_script_is_kept_line_by_line_with_the_job_of_its_name() -> None:
    found = records("job_script", b"#!/bin/bash\n\n  srun ./train   \nA=1\n", "/var/spool/archive/job_8001.sh")
    texts = ["#!/bin/bash", "  srun ./train   ", "A=1"]
    assert [record.fields for record in found] == [{"message": text, "job_id": 8001} for text in texts]
    assert [record.refs[0].line for record in found] == [0, 2, 3]


def test_bad_bytes_are_flagged() -> None:
    (record,) = records("job_env", b"A=\xff")
    assert (record.fields["env_value"], record.flags) == ("\ufffd", {"invalid_utf8"})
