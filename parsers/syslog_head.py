r"""What stands before the text of a syslog line: priority, stamp, host, tag.

    <27>Mar  4 05:06:07 gpu-001 slurmd[4321]: text                RFC 3164; no year, no zone
    2025-03-11T04:05:06.123456+00:00 node-a kernel: text          rsyslog's file format, journalctl -o short-iso
    <165>1 2025-03-04T05:06:07Z gpu-001 nvdm 8710 ID47 [ex@32473 k="v"] text            RFC 5424
    [12345.678901] node-a kernel: text                            journalctl -o short-monotonic
    Mar 11 04:05:06 node-a kern.warn kernel: text                 busybox

Priority, host and tag may be missing, and the stamp where there is a priority. A length in front of a priority is
RFC 6587's. A word that ends in a colon is a tag; two blanks behind the host stand around an empty tag.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from parsers.clock import MONTHS, Stamp, Times, infer_year, local, parse_iso, parse_rfc3339
from parsers.dmesg import FACILITIES, priority
from parsers.json_lines import LEVELS
from parsers.kernel_text import take_stamp

MAX_PRIORITY = 191  # local7.debug

_COUNT = re.compile(r"\d{1,8} (?=<\d{1,3}>)", re.ASCII)
_PRI = re.compile(r"<(\d{1,3})>", re.ASCII)
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_LOGGER = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3}| - )"
_STAMP = re.compile(
    rf"(?P<logger>{_LOGGER})|(?P<iso>{_ISO})"
    rf"|(?P<month>{'|'.join(MONTHS)}) (?P<day>[ 0-3]?\d) (?:(?P<year>\d{{4}}) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<digits>\d{1,9}))?(?=[ :]|$)",
    re.ASCII,
)
_V1 = re.compile(rf"1 (?:-|(?P<iso>{_ISO})) (?P<host>\S+) (?P<app>\S+) (?P<pid>\S+) (?P<msgid>\S+)(?: |$)", re.ASCII)
_ELEMENT = re.compile(r'\[([^\s="\]]+)((?: +[^\s="\]]+="(?:[^"\\\]]|\\.)*")*) *\]', re.DOTALL)
_PARAMETER = re.compile(r'([^\s="\]]+)="((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
# `postfix/smtpd[12]:`, `(udev-worker)[12]:`, `app[web][12]:`, `docker/image:1.2[12]:`
# A driver is no program: its name begins the kernel's text.
_TAG = re.compile(
    r"""(?!NVRM:|nvidia-nvswitch\d+:)(?P<app>[^\s\["'{}<>=,;:][^\s"'{}<>=,;]*?)"""
    r"(?:\[(?P<pid>[^\s\]]{0,64})\]: ?|:(?: |$))"
)
_ADDRESS = re.compile(r"[0-9a-fA-F.:]*::")  # an IPv6 address that ends like a tag
_BUSYBOX = re.compile(rf"({'|'.join(filter(None, FACILITIES))})\.(emerg|alert|crit|err|warn|notice|info|debug) ")
_REPEATED = re.compile(r"(?:--- )?last message repeated \d")


@dataclass(slots=True)
class Head:
    """`text` follows the head; `ts` is None where the stamp gives no usable time, else `source` is its ts_source."""

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    node: str | None = None
    ts: Stamp | None = None
    source: str | None = None


def read_head(line: str, times: Times, received: Stamp | None, flags: set[str]) -> Head | None:
    """The head of a line; None when it has neither a priority nor a stamp."""
    head = Head(line)
    if pri := _PRI.match(line, count.end() if (count := _COUNT.match(line)) else 0):
        head.text = line[pri.end() :]
        if int(pri[1]) <= MAX_PRIORITY:
            head.fields |= priority(int(pri[1]))
    if _version_1(head, pri is not None, times, flags):
        return head
    stamp = _STAMP.match(head.text)
    if stamp and stamp["logger"]:
        return head  # of Python's logging module; its SysLogHandler writes nothing but a priority before it
    if stamp and _read(stamp, head, times, received, flags):
        rest = head.text[stamp.end() :]
        head.text = rest[1:]
        _host(head)
    elif pri:
        _tag(head, head.text)
    elif not _monotonic(head):
        return None
    return head


def _read(stamp: "re.Match[str]", head: Head, times: Times, received: Stamp | None, flags: set[str]) -> bool:
    """Read the time of a stamp; False when it is no date."""
    if stamp["iso"]:
        return _iso(stamp["iso"], head, times, flags)
    day, hour, minute, second = (int(stamp[name]) for name in ("day", "hour", "minute", "second"))
    near = times.mtime_ns if times.mtime_ns is not None else received.ns if received else None
    try:
        # 2000 has a 29th of February; a leap second is none to Python.
        naive: datetime | None = datetime(int(stamp["year"] or 2000), MONTHS[stamp["month"]], day, hour, minute, second)  # noqa: DTZ001
    except ValueError:
        return False
    head.source = "zone"
    if not stamp["year"]:
        naive = infer_year(MONTHS[stamp["month"]], day, (hour, minute, second), near, times.tz)
        head.source = "year"
    head.ts = local(naive, stamp["digits"] or "", times.tz, flags) if naive else None
    return True


def _iso(text: str, head: Head, times: Times, flags: set[str]) -> bool:
    found = parse_iso(text)
    if found is None:
        return False
    head.ts = parse_rfc3339(text) if found[2] else local(found[0], found[1], times.tz, flags)
    head.source = "record" if found[2] else "zone"
    return True


def _version_1(head: Head, certain: bool, times: Times, flags: set[str]) -> bool:
    """Read the rest of an RFC 5424 head. Without a priority (`not certain`) it must show a time."""
    found = _V1.match(head.text)
    if not found or not (certain or found["iso"]) or (found["iso"] and not _iso(found["iso"], head, times, flags)):
        return False
    host, app, pid, msgid = (None if found[name] == "-" else found[name] for name in ("host", "app", "pid", "msgid"))
    head.node = host
    head.fields |= {"app": app, "pid": _pid(pid), "msgid": msgid}
    rest = head.text[found.end() :]
    elements: dict[str, dict[str, str]] = {}
    if rest == "-" or rest.startswith("- "):
        rest = rest[1:]
    else:
        while element := _ELEMENT.match(rest):
            pairs = _PARAMETER.findall(element[2])
            elements.setdefault(element[1], {}).update((name, _ESCAPED.sub(r"\1", value)) for name, value in pairs)
            rest = rest[element.end() :]
    if elements:
        head.fields["structured_data"] = elements
    head.text = rest.removeprefix(" ").removeprefix("\ufeff")
    return True


def _pid(text: str | None) -> int | None:
    return int(text) or None if text and text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _host(head: Head) -> None:
    """Read host and tag behind a stamp."""
    text = head.text
    if text.startswith(" ") or _REPEATED.match(text):
        _tag(head, text.lstrip(" "))
        return
    first = _TAG.match(text)
    if first and not _ADDRESS.fullmatch(text, 0, first.end("app") + 1):
        _tag(head, text)
        return
    host, _, rest = text.partition(" ")
    head.node, head.text = host or None, rest
    if rest.startswith(" "):
        head.text = rest[1:]
        return
    if facility := _BUSYBOX.match(rest):
        head.fields |= {"facility": facility[1], "level": LEVELS[facility[2]], "level_raw": facility[2]}
        rest = rest[facility.end() :]
    _tag(head, rest)


def _tag(head: Head, text: str) -> bool:
    """Read the tag that `text` starts with, if it does."""
    found = None if _REPEATED.match(text) else _TAG.match(text)
    head.text = text[found.end() :] if found else text
    if found:
        head.fields |= {"app": found["app"], "pid": _pid(found["pid"])}
    return found is not None


def _monotonic(head: Head) -> bool:
    fields: dict[str, Any] = {}
    text = take_stamp(head.text, fields)
    if text == head.text or "caller_tid" in fields or "caller_cpu" in fields:
        return False
    host, _, rest = text.partition(" ")
    if not host or not (rest.startswith("kernel: ") or ((tag := _TAG.match(rest)) and tag["pid"])):
        return False  # dmesg's own rendering
    head.node = host
    head.fields |= fields
    return _tag(head, rest)
