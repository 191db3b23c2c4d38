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
from typing import Any

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


def header_fields(found: "re.Match[str]") -> dict[str, Any]:
    """Fields of a match of HEADER."""
    fields: dict[str, Any] = {
        "level": LEVELS[found["lvl"]], "level_raw": found["lvl"], "host": found["host"], "tid": int(found["tid"]),
    }  # fmt: skip
    if pid := int(found["pid"]):
        fields["pid"] = pid
    if found["dev"] and 0 <= int(found["dev"]) <= MAX_DEVICE:
        fields["cuda_dev"] = int(found["dev"])
    if found["ms"]:
        fields["trace_ms"] = float(found["ms"])
    if found["file"]:
        fields |= {"src_file": found["file"], "src_line": int(found["line"])}
    if found["func"]:
        fields["src_func"] = found["func"]
    return fields


def version_fields(message: str, fields: dict[str, Any]) -> None:
    """`NCCL version 2.28.9+cuda13.0`; the git form names no number."""
    fields["event"] = "nccl_version"
    if found := re.match(r"\w+ version (\d+(?:\.\d+)+)(?:[^+\s]*)(?:\+cuda(\d+(?:\.\d+)*))?", message):
        fields["nccl_version"] = found[1]
        if found[2]:
            fields["cuda_version"] = found[2]
