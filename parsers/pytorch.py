"""PyTorch's part of job output: c10 and glog headers, the watchdog's sentences, errors, torchrun.

    [rank1]:[E728 07:34:54.803881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught …   since 2.4
    [E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught …                                 up to 2.3
    I0821 11:40:43.585718 319407 ProcessGroupNCCL.cpp:482] text                             glog builds
    E0203 03:20:36.300000 4300 torch/distributed/elastic/multiprocessing/api.py:882] text   Python side

The date of c10 is month × 100 + day without padding, and its nine fraction digits belong to the monotonic
clock (pytorch c10/util/Logging.cpp), so they are dropped. Sentences of PyTorch 1.13 to 2.9
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, NCCLUtils.hpp, torch/distributed/elastic).
"""

import re
from typing import Any, NamedTuple

from parsers.clock import Stamp, Times, infer_year, local
from parsers.nccl import CODES

LEVELS = {"F": "critical", "E": "error", "W": "warning", "I": "info", "V": "debug"}
HEADER = re.compile(
    r"(?:\[(?P<bracket>[VIWEF])|(?P<letter>[VIWEF])(?=\d{3}))(?:(?P<date>\d{3,4}) (?P<time>\d\d:\d\d:\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?)? +(?:(?P<tid>\d{1,10}) )?"
    r"(?P<file>[\w./+<>-]{1,200}\.(?:cpp|hpp|cc|cu|cuh|h|py)):(?P<line>\d{1,7})\](?: |$)",
    re.ASCII,
)
# [Rank 3] | [PG 1 Rank 3] | [PG 0 (default_pg) Rank 3] | [PG ID 0 PG GUID 0(default_pg) Rank 3]
_TAG = re.compile(
    r"\[(?:PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(\]]+))? ?(?:\((?P<desc>[^()]*)\))? ?)?"
    r"Rank (?P<rank>\d{1,9})\] *"
)
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w+)(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?"
    r"(?:, Timeout\(ms\)=(\d{1,18}))?"
)
_NUMBERS = (
    ("seq_num", re.compile(r"(?:watchdog at work(?: sequence id)?|Timeout at NCCL work): (\d{1,18})")),
    ("last_enqueued", re.compile(r"last enqueued (?:NCCL )?work: (-?\d{1,18})")),
    ("last_completed", re.compile(r"last completed (?:NCCL )?work: (-?\d{1,18})")),
    ("ran_ms", re.compile(r"\bran for (\d{1,18}) milliseconds")),
    ("stuck_s", re.compile(r"watchdog got stuck for (\d{1,9}) ?seconds")),
    ("pending_work", re.compile(r"workMetaList_\.size\(\) ?= ?(\d{1,9})")),
)
# In this order, against the text after its tags.
_EVENTS = (
    (re.compile(r"Watchdog caught collective operation timeout"), "collective_timeout"),
    (re.compile(r".*watchdog thread terminated with exception"), "watchdog_exit"),
    (re.compile(r"Heartbeat monitor timed out|.*watchdog got stuck for "), "watchdog_stuck"),
    (re.compile(r"Received a (?:dump signal|global timeout)|Observed flight recorder dump signal"), "dump_signal"),
    (re.compile(r"Exception \(either an error or timeout\) detected by watchdog at work|failure detected by watchdog"
                r"|Timeout at NCCL work"), "watchdog_status"),
)  # fmt: skip
_SHUTDOWN = re.compile(
    r"process group has NOT been destroyed|destroy_process_group\(\) was not called"
    r"|NCCL communicator hasn't been destroyed"
)
_OPTIONS = re.compile(r"ProcessGroupNCCL (?:initialized with following options|initialization options|environments):")

EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\[[^\]]*\])?(?::(?: |$)|$)", re.ASCII)
_SURE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)$", re.ASCII)
_NCCL_ERROR = re.compile(r"^(nccl[A-Z]\w+): ?", re.MULTILINE)
_ABORT = re.compile(r"terminate called (?:after throwing an instance of '([^']+)'|recursively|without an active)")

_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,9}) \(pid: (\d{1,10})\) of (?:binary|fn)")
_CLOSING = re.compile(r"Sending process (\d{1,10}) closing signal (SIG[A-Z0-9]+)")
SIGNALS = {
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8,
    "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15,
}  # fmt: skip


class C10(NamedTuple):
    """A c10 or glog header: its fields, where the text starts, and the date as it stands."""

    fields: dict[str, Any]
    end: int
    date: tuple[str, str, str] | None


def read_header(text: str) -> C10 | None:
    """The c10 or glog header at the start of `text`."""
    found = HEADER.match(text)
    if not found:
        return None
    letter = found["bracket"] or found["letter"]
    fields: dict[str, Any] = {
        "level": LEVELS[letter], "level_raw": letter, "src_file": found["file"], "src_line": int(found["line"]),
    }  # fmt: skip
    if found["tid"]:  # the Python side prints its process
        fields["pid" if found["file"].endswith(".py") else "tid"] = int(found["tid"])
    date = None
    if found["date"]:
        # Nine digits are the monotonic clock's, six the wall clock's.
        fraction = found["fraction"] or ""
        date = (found["date"], found["time"], fraction if len(fraction) <= 6 else "")
    return C10(fields, found.end(), date)


def stamp(date: tuple[str, str, str], times: Times, near: Stamp | None, flags: set[str]) -> Stamp | None:
    """The time of a header; None without a zone, or without a time that tells the year."""
    near_ns = times.mtime_ns if times.mtime_ns is not None else near.ns if near else None
    if times.tz is None or near_ns is None:
        return None
    hour, minute, second = (int(part) for part in date[1].split(":"))
    if hour > 23 or minute > 59 or second > 59:
        return None
    naive = infer_year(int(date[0][:-2]), int(date[0][-2:]), (hour, minute, second), near_ns, times.tz)
    return local(naive, date[2], times.tz, flags) if naive else None


def text_fields(message: str, fields: dict[str, Any], flags: set[str]) -> None:
    """Add event, noise id and numbers of a c10 record's text (all its lines) to `fields`."""
    at = 0
    while found := _TAG.match(message, at):
        fields.setdefault("rank_in_pg", int(found["rank"]))
        for name, group in (("pg_id", "pg"), ("pg_guid", "guid"), ("pg_desc", "desc")):
            if found[group]:
                fields.setdefault(name, found[group])
        at = found.end()
    text = message[at:].lstrip()
    event = next((name for pattern, name in _EVENTS if pattern.match(text)), None)
    if event:
        fields["event"] = event
    if _SHUTDOWN.search(text):
        fields["noise"] = "torch_shutdown"
    elif _OPTIONS.search(text):
        fields["noise"] = "torch_options"
    if work := _WORK.search(text):
        fields |= {"seq_num": int(work[1]), "op": work[2]}
        for name, value in zip(("numel_in", "numel_out", "timeout_ms"), work.groups()[2:], strict=True):
            if value:
                fields[name] = int(value)
        if ")" not in text[work.end() : work.end() + 1]:
            flags.add("truncated")
    for name, pattern in _NUMBERS:
        if number := pattern.search(text):
            fields[name] = int(number[1])
    elastic_fields(text, fields)
    error_fields(message, fields, flags)


def elastic_fields(text: str, fields: dict[str, Any]) -> None:
    """torchrun's agent: a worker that failed, or a closing signal."""
    if found := _FAILED.search(text):
        fields |= {
            "event": "elastic_failure", "exit_code": int(found[1]), "local_rank": int(found[2]), "pid": int(found[3]),
        }  # fmt: skip
        if fields["exit_code"] < 0:
            fields["signal"] = -fields["exit_code"]
    elif found := _CLOSING.search(text):
        fields |= {"event": "elastic_signal", "pid": int(found[1])}
        if found[2] in SIGNALS:
            fields["signal"] = SIGNALS[found[2]]
    elif "death signal, shutting down workers" in text:
        fields["event"] = "elastic_signal"


def error_fields(message: str, fields: dict[str, Any], flags: set[str]) -> None:
    """What NCCL's error text inside a record tells, and the number of frames."""
    if "rror" in message and "NCCL" in message:
        if found := re.search(r"NCCL version (\d+(?:\.\d+)+)", message):
            fields["nccl_version"] = found[1]
        if found := _NCCL_ERROR.search(message):
            fields["nccl_error"] = found[1]
        if found := re.search(r"^Last error: *\n(.*\S.*)$", message, re.MULTILINE):
            fields["last_error"] = found[1].rstrip()
        if "NCCL error" in message:
            for words, code in CODES.items():
                if words in message:
                    fields["nccl_code"] = code
                    break
    if re.search(r"Connection closed by remote peer", message):
        flags.add("secondary")
    if "\n" in message and (frames := len(re.findall(r'^(?:[ |]*  File "|frame #\d)', message, re.MULTILINE))):
        fields["frames"] = frames


def exception_class(line: str, *, sure: bool = False) -> str | None:
    """Class of a traceback's last line `Class: text`. `sure`: only names that cannot be anything else."""
    found = EXCEPTION.match(line)
    if not found:
        return None
    name = found[1]
    if sure or not line[found.end(1) :]:
        return name if _SURE.match(name) or ("." in name and name.rpartition(".")[2][0].isupper()) else None
    return name if "." in name or name[0].isupper() else None


def abort_fields(message: str, fields: dict[str, Any], flags: set[str]) -> bool:
    """`terminate called …` of the C++ runtime; False when `message` is none."""
    found = _ABORT.match(message)
    if not found:
        return False
    text_fields(re.sub(r"^.*\n\s*what\(\):\s*", "", message, count=1), fields, flags)
    fields["event"] = "process_abort"
    if found[1]:
        fields["error_class"] = found[1]
    return True


def box_fields(message: str, fields: dict[str, Any]) -> None:
    """torchrun's summary box: the root cause's rank, host and exit."""
    fields |= {"event": "elastic_failure", "level": "error"}
    _, found, root = message.partition("Root Cause")
    text = root if found else message
    for pattern, names in (
        (r"^ +host +: (\S+)", ("host",)),
        (r"^ +rank +: (\d{1,9}) \(local_rank: (-?\d{1,9})\)", ("rank", "local_rank")),
        (r"^ +exitcode +: (-?\d{1,9}) \(pid: (\d{1,10})\)", ("exit_code", "pid")),
        (r"^ +traceback +: Signal (\d{1,3}) ", ("signal",)),
    ):
        if hit := re.search(pattern, text, re.MULTILINE):
            for name, value in zip(names, hit.groups(), strict=True):
                fields[name] = value if name == "host" else int(value)
    if "signal" not in fields and fields.get("exit_code", 0) < 0:
        fields["signal"] = -fields["exit_code"]
