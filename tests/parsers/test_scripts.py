"""Logs of prolog and epilog: both speeds say the same, dumps stay whole, a file's name tells the job."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from parsers.clock import Stamp
from tests.chunks import block_headers, chunk
from tests.parsers.kernel_records import records
from tests.parsers.speeds import assert_same, fast

RECEIVED = Stamp(1_741_068_000 * 10**9)
HEADS = [
    "2025-03-04T05:06:07Z INFO archive.sh:47 ", "2025-03-04T05:06:07Z ERROR ", "2024-12-31T23:59:59Z WARN: /a/b.sh:7: ",
    "2025-02-29T05:06:07Z INFO a.sh:1 ", "2025-03-04T05:06:07Z INFO a.sh:01 ", "2025-03-04 05:06:07.5 [WARN] ", "+ ",
    "",
]  # fmt: skip
PIECES = [
    "", " ", "x", "é", "\t", "\r", "\x1b[31m", "\0", "12:30 ", "a:5", ":", "ERROR", "ERROR: ", "[INFO] ", "DEBUG", "[",
    "2025-03-04T05:06:07Z", "JobId=70011", " job 70011", "step 7.1", "NodeList=gpu-[001-002]", "prolog.sh", "epilog",
    " ret:  1 job:  8001 nodename:  gpu-1", "prolog failed: rc:1 output:x", "srun: error: ", "slurmd-é: ", "started",
]  # fmt: skip
LINES = st.builds(str.__add__, st.sampled_from(HEADS), st.lists(st.sampled_from(PIECES), max_size=5).map("".join))


@given(lines=st.lists(LINES, min_size=1, max_size=8))
@settings(max_examples=400)
def test_both_speeds_agree_on_every_line_that_the_gate_leaves(lines: list[str]) -> None:
    assert_same("prolog", [line.encode() for line in lines], "Europe/Berlin", RECEIVED)


@pytest.mark.parametrize(
    "line",
    ["2025-03-04T05:06:07Z INFO archive_prolog.sh:47 archived", "2025-03-04T05:06:07Z ERROR no space",
     "+ nvidia-smi -pm 1", "++ systemctl stop nvidia-imex", "VM_SIZE: Standard_ND96isr_H100_v5"],
)  # fmt: skip
def test_a_usual_line_needs_no_python(line: str) -> None:
    assert fast("epilog", [line.encode()], None, RECEIVED) != [None]


def rows(kind: str, lines: list[str], **headers: str) -> list[dict[str, Any]]:
    """What the tier makes of a file's lines."""
    block = (block_headers(kind, **headers), [line.encode() for line in lines])
    delivery, _ = Pipeline(DecodeConfig()).process(chunk([block], ended=True))
    return [row for part in delivery.parts for row in part.rows.to_pylist()]


def test_a_dump_of_hundreds_of_kilobytes_stays_whole() -> None:
    dump = json.dumps([{"name": f"gpu-{number:05}", "job": "[" * 90} for number in range(6_000)])
    line = f"DEBUG: json:  {dump} ret:  6000 job:  70011 nodename:  gpu-00000"
    assert len(line) > 700_000

    for row in rows("prolog", [line, f"+ output='{dump}'"]):
        assert row["raw"].decode().endswith(row["message"])
        assert len(row["message"]) > len(dump)
        assert row["flags"] is None
    (record,) = records("prolog", line)
    assert (record.fields["job_id"], record.fields["nodes"], record.fields["level"]) == (70011, ["gpu-00000"], "debug")


@pytest.mark.parametrize("kind", ["prolog", "epilog", "srun", "job_stderr"])
def test_the_job_of_a_file_is_that_of_each_line_that_names_none(kind: str) -> None:
    found = rows(kind, ["+ exit 0", "srun: error: job 5 failed"], path="/var/log/slurm/imex_prolog_70011.log")
    assert [row["job_id"] for row in found] == [70011, 5]


def test_a_file_of_daemons_has_no_job_in_its_name() -> None:
    assert rows("slurmctld", ["[2025-03-04T05:06:07.089] x"], path="/var/log/slurmctld_7.log")[0]["job_id"] is None
