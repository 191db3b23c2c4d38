"""NCCL and RCCL log lines: the header, and what the text says.

    gpu-a01:4021:4388 [2] NCCL INFO Using network IB
    gpu-a01:4021:4388 [2] misc/socket.cc:49 NCCL WARN text        since 2.30.7 `misc/socket.cc:49 (func)`
    gpu-a01:51:77 [3] 1523.004417 func:88 NCCL TRACE text
    gpu-a01:51:51 NCCL CALL ncclAllReduce(…)
    NCCL version 2.20.5+cuda12.4                                  no header

`[2]` is the CUDA device of the thread, never the rank. Shapes of NCCL 2.4 to 2.30 (NVIDIA/nccl
src/debug.cc, src/transport/net_ib*, src/misc/socket.cc) and of plugins, which put a function name or a C
file of their own in the place of the source file (aws/aws-ofi-nccl#889).
"""

import re
from typing import Any, NamedTuple

HEADER = re.compile(
    r"(?P<host>(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[(?P<dev>-?\d{1,10})\] )?"
    r"(?:(?P<ms>\d+\.\d{6}) )?"
    r"(?:(?P<file>[^\s:\[\]]+):(?P<line>\d{1,6}) (?:\((?P<func>[\w~:<>]+)\) )?)?"
    r"NCCL (?P<lvl>INFO|WARN|TRACE|CALL|ABORT)(?: |$)",
    re.ASCII,
)
LEVELS = {"INFO": "info", "WARN": "warning", "TRACE": "debug", "CALL": "debug", "ABORT": "critical", "VERSION": "info"}
VERSION = re.compile(r"(?:NCCL|RCCL) (?:git )?version \S", re.ASCII)
MAX_DEVICE = 1023  # larger numbers are uninitialised memory (NCCL up to 2.22)
PATH = re.compile(r"([\w./+-]+\.(?:cc|cu|c|cpp|h|hpp|hh):\d{1,6}) -> (-?\d{1,6})\b", re.ASCII)
DONE = ("destroy_complete", "abort_complete")

# Words of ncclGetErrorString (src/init.cc) and their codes.
CODES = {
    "unhandled cuda error": 1, "unhandled system error": 2, "internal error": 3, "invalid argument": 4,
    "invalid usage": 5, "remote process exited or there was a network error": 6, "NCCL operation in progress": 7,
}  # fmt: skip


class Head(NamedTuple):
    """The parts of a header as they stand, None where they are missing; `end` is where the message starts."""

    host: str
    pid: str
    tid: str
    device: str | None
    milliseconds: str | None
    file: str | None
    line: str | None
    function: str | None
    level: str
    end: int

    @property
    def process(self) -> str:
        return f"{self.host}:{self.pid}:"

    @property
    def thread(self) -> str:
        return f"{self.host}:{self.pid}:{self.tid}"


def read_head(found: "re.Match[str]") -> Head:
    """The parts of a match of HEADER; `end` counts from its start."""
    return Head(*found.groups(), found.end() - found.start())  # type: ignore[call-arg, arg-type]


def header_fields(head: Head) -> dict[str, Any]:
    """Fields of a header."""
    fields: dict[str, Any] = {
        "level": LEVELS[head.level], "level_raw": head.level, "host": head.host, "tid": int(head.tid),
    }  # fmt: skip
    if pid := int(head.pid):
        fields["pid"] = pid
    if head.device and 0 <= (device := int(head.device)) <= MAX_DEVICE:
        fields["cuda_dev"] = device
    if head.milliseconds:
        fields["trace_ms"] = float(head.milliseconds)
    if head.file and head.line:
        fields |= {"src_file": head.file, "src_line": int(head.line)}
    if head.function:
        fields["src_func"] = head.function
    return fields


def version_fields(message: str, fields: dict[str, Any]) -> None:
    """`NCCL version 2.28.9+cuda13.0`; the git form names no number."""
    fields["event"] = "nccl_version"
    if found := re.match(r"\w+ version (\d+(?:\.\d+)+)(?:[^+\s]*)(?:\+cuda(\d+(?:\.\d+)*))?", message):
        fields["nccl_version"] = found[1]
        if found[2]:
            fields["cuda_version"] = found[2]
