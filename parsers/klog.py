"""Kubernetes node components: klog text, klog JSON, and the logfmt of containerd and its kin.

klog text (kubernetes/klog klog.go, internal/serialize): `Lmmdd hh:mm:ss.uuuuuu PPPPPPP file:line] text`, no
year, no zone; structured: `"message" key="quoted" key=plain key=<` + tab-indented lines + ` >`. Only Go
programs write klog, so inside pods its source file must end in `.go`; glog of C++ has the same shape
and belongs to the training parser.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from parsers.clock import Stamp, Times, infer_year, local, parse_iso
from parsers.json_lines import CONTROLS, object_record, placed, plain, read_object, unparsed
from parsers.logfmt import logfmt, logfmt_record, unquote
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, NO_LINE, Line, Parser, Record, Ref, Stream, decode

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

LETTERS = {"F": "critical", "E": "error", "W": "warning", "I": "info"}

# E0304 05:06:07.123456    1234 kubelet.go:2345] "Skipping pod" err="network down"
_HEAD = re.compile(
    r"([IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) +(\d{1,10}) ([^\s:\]]+):(\d{1,7})\](?: |$)", re.ASCII
)
# 2020/08/10 19:09:42 XidCriticalError: Xid=69 on Device=GPU-…
_GO_HEAD = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: |$)", re.ASCII)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?= |\n|$)')
_PAIR = re.compile(r'[ \n]*([^\s="]+)=(?:"((?:[^"\\]|\\.)*)"|<\n((?:\t.*\n)*) >|([^\s"<]\S*|<(?!\n)\S*)?)(?=[ \n]|$)')


def _pairs(text: str) -> dict[str, str] | None:
    """klog's key/value list; None when any of the text is something else."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if not found:
            return None if text[at:].strip() else pairs
        key, quoted, block, bare = found.groups()
        if quoted is not None:
            pairs[key] = unquote(quoted)
        elif block is not None:
            pairs[key] = "\n".join(line[1:] for line in block.split("\n")[:-1])
        else:
            pairs[key] = bare or ""
        at = found.end()
    return pairs


def klog_time(head: "re.Match[str]", near: Stamp | None, times: Times, flags: set[str]) -> Stamp | None:
    """The stamp of a klog header; its year is the nearest to the file's time, else to `near`. None without a zone."""
    near_ns = times.mtime_ns if times.mtime_ns is not None else near.ns if near else None
    month, day, hour, minute, second = (int(head[group]) for group in range(2, 7))
    naive = infer_year(month, day, (hour, minute, second), near_ns, times.tz) if times.tz else None
    return local(naive, head[7], times.tz, flags) if naive else None


def klog_record(text: str, line: Line, times: Times, flags: set[str]) -> Record | None:
    """The record of klog text (all its lines, joined by line feeds); None when there is no klog header."""
    head = _HEAD.match(text)
    if not head:
        return None
    body = plain(text[head.end() :]).rstrip(CONTROLS)
    fields: dict[str, Any] = {
        "level": LETTERS[head[1]],
        "level_raw": head[1],
        "pid": int(head[8]) or None,
        "src_file": head[9],
        "src_line": int(head[10]),
        "message": body,
    }
    quoted = _QUOTED.match(body)
    attributes = _pairs(body[quoted.end() :]) if quoted else None
    if quoted and attributes is not None:
        fields["message"] = unquote(quoted[1]).rstrip(CONTROLS)
        if attributes:
            fields["attributes"] = attributes
    ts = klog_time(head, line.received, times, flags)
    return placed(Record(fields, line.refs, ts, "year" if ts else None, flags), line)


def go_record(text: str, line: Line, times: Times, flags: set[str]) -> Record | None:
    """The record of a line of Go's own package `log`, as old device plugins and many libraries use it."""
    head = _GO_HEAD.match(text)
    found = parse_iso(f"{head[1]}-{head[2]}-{head[3]} {head[4]}") if head else None
    if head is None or found is None:
        return None
    ts = local(found[0], found[1], times.tz, flags)
    fields = {"message": plain(text[head.end() :]).rstrip(CONTROLS)}
    return placed(Record(fields, line.refs, ts, "zone" if ts else None, flags), line)


def starts_go(text: str) -> bool:
    """Whether a line of a container begins a klog text record of a Go program."""
    head = _HEAD.match(text)
    return bool(head and head[9].endswith(".go"))


def starts(text: str) -> bool:
    """Whether a line of kind `klog` begins a record."""
    if _HEAD.match(text) or _GO_HEAD.match(text) or read_object(text) is not None:
        return True
    return logfmt(plain(text).strip()) is not None


def joined_record(texts: Sequence[str], line: Line, times: Times, flags: set[str]) -> Record:
    """The record of a first line and the lines that continue it; `line` has the refs of all."""
    whole = "\n".join(texts)
    record = klog_record(whole, line, times, flags) or go_record(whole, line, times, flags)
    if record:
        return record
    record = object_record(texts[0], line, times, flags, klog=True) or logfmt_record(texts[0], line, times, flags)
    if record and len(texts) > 1:
        record.fields["message"] = plain("\n".join([record.fields["message"], *texts[1:]])).rstrip(CONTROLS)
    return record or placed(Record({"message": plain(whole).rstrip(CONTROLS)}, line.refs, flags=flags), line)


class KlogStream:
    """Stream parser of kind `klog`: a line that starts no record continues the one before it.

    `opens` says what starts one; in a container that is klog text of a Go program only.
    """

    def __init__(self, stream: Stream, opens: Callable[[str], bool] = starts) -> None:
        self.times = stream.times
        self.opens = opens
        self.first: Line | None = None
        self.texts: list[str] = []
        self.refs: list[Ref] = []
        self.flags: set[str] = set()
        self.size = 0

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = plain(decode(line.raw, flags)).rstrip("\r")
        done: list[Record] = []
        opens = self.opens(text)
        full = len(self.refs) + len(line.refs) > MAX_HELD_LINES or self.size + len(line.raw) > MAX_HELD_BYTES
        if self.first and (opens or full):
            done = self.flush()
            if not opens:
                done[0].flags.add("partial")
                flags.add("partial")
        if not (self.first or opens or done):
            return [unparsed(line)] if text else []
        self.first = self.first or line
        self.texts.append(text)
        self.refs += line.refs
        self.flags |= flags
        self.size += len(line.raw)
        return done

    def flush(self) -> list[Record]:
        if self.first is None:
            return []
        line = self.first._replace(refs=tuple(self.refs))
        record = joined_record(self.texts, line, self.times, self.flags)
        self.first, self.texts, self.refs, self.flags, self.size = None, [], [], set(), 0
        return [record]

    @property
    def held(self) -> Sequence[Ref]:
        return self.refs


def header(lines: "pa.LargeBinaryArray", tz: str | None, near: "pa.Array | None" = None) -> "Header":
    """Columns of klog text; see `klog_columns`."""
    from parsers.klog_columns import columns  # here, so that reading a file does not wait for the column libraries

    return columns(lines, tz, near)


KLOG = Parser(KlogStream, header, NO_LINE, near=True)
