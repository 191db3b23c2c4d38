"""The renderings of kernel records by dmesg (util-linux up to 2.41) and Talos: what stands before the text.

[12345.678901] [   T2178] TEXT          monotonic, with the caller
[  +0.000123] TEXT                      relative to the line before: no time
[Tue Mar 11 04:05:06 2025] TEXT         -T: local time, in the words of the locale
2025-03-11T04:05:06,285060+00:00 TEXT   --time-format iso
[Mar11 04:05] TEXT                      reltime: local time, without year and seconds
kern  :warn  : [12345.678901] TEXT      -x
<4>[12345.678901] TEXT                  -r
{"pri": 4, "time": 12345.678901, "msg": "TEXT"}   -J; dmesg itself prints an object on several lines
10.9.8.7: kern: warning: [2025-04-22T21:27:51.291213998Z]: TEXT   Talos
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from parsers.clock import MONTHS, Stamp, Times, infer_year, local, parse_iso, parse_rfc3339
from parsers.json_lines import LEVELS, read_object
from parsers.kernel_text import take_caller, take_stamp

FACILITIES = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    None, None, None, None, *(f"local{number}" for number in range(8)),
)  # fmt: skip
LEVEL_NAMES = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")
MAX_US = 2**63 - 1
NEXT_OBJECT = "},{"
# Lines of `dmesg -J` that hold no key.
JSON_FRAME = ("{", '"dmesg": [', NEXT_OBJECT, "}", "]")

_WORDS = re.compile(
    r"(?:(?P<node>[^\s\[]+): )?"
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]) *: ?"
    r"(?P<level>emerg|alert|crit|err|warn|notice|info|debug|error|warning) *:(?: |$)"
)
_PRI = re.compile(r"<(\d{1,3})>", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]{1,64})\](?:: | |$)")
_DELTA = re.compile(r" *<? *\+? *\d{1,12}\.\d{1,9} *>?", re.ASCII)
_RELATIVE = re.compile(r"([A-Za-z]{3}) ?(\d{1,2}) (\d\d):(\d\d)", re.ASCII)
_CTIME = re.compile(r"\S+ +(\S+) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})(?: *<[^>]*>)?")


@dataclass(slots=True)
class Rendering:
    """What stood before the text; `width` is its length, by which dmesg indents the lines that follow."""

    text: str
    width: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    ts: Stamp | None = None
    ts_source: str | None = None
    node: str | None = None
    stamped: bool = False


def priority(number: int) -> dict[str, Any]:
    """`facility` and `level` of `facility * 8 + level`."""
    facility = number >> 3
    return {
        "level": LEVEL_NAMES[number & 7],
        "facility": FACILITIES[facility] if facility < len(FACILITIES) else None,
    }


def rendering(line: str, times: Times, received: Stamp | None, flags: set[str]) -> Rendering:
    """Read what stands before the text of a line. A line without stamp is text as a whole."""
    if line.startswith("{") and (found := json_rendering(line)):
        return found
    head = Rendering(line)
    if words := _WORDS.match(line):
        head.node = words["node"]
        head.fields |= {
            "facility": words["facility"],
            "level": LEVELS[words["level"]],
            "level_raw": words["level"],
        }
        head.text = line[words.end() :]
    elif pri := _PRI.match(line):
        head.fields |= priority(int(pri[1]))
        head.text = line[pri.end() :]
    _stamp(head, times, received, flags)
    if head.stamped and "monotonic_us" in head.fields and head.text.startswith("kernel: "):
        head.fields["app"] = "kernel"  # journalctl -o short-monotonic, which Debian keeps as /var/log/dmesg
        head.text = head.text.removeprefix("kernel: ")
    head.width = len(line) - len(head.text)
    return head


def _stamp(head: Rendering, times: Times, received: Stamp | None, flags: set[str]) -> None:
    rest = take_stamp(head.text, head.fields)
    if len(rest) < len(head.text):
        head.text, head.stamped = rest, True
        return
    if iso := _ISO.match(head.text):
        shown, end = iso[0], iso.end()
        if not head.text.startswith(" ", end):
            return
        end += 1
    elif bracket := _BRACKET.match(head.text):
        shown, end = bracket[1], bracket.end()
    else:
        return
    if not _read(shown, head, times, received, flags):
        return
    head.stamped = True
    head.text = take_caller(head.text[end:], head.fields)


def _read(shown: str, head: Rendering, times: Times, received: Stamp | None, flags: set[str]) -> bool:
    """Read a stamp; False when it is none. A stamp may be one and still give no time (locale, no zone)."""
    if iso := parse_iso(shown):
        head.ts = parse_rfc3339(shown) if iso[2] else local(iso[0], iso[1], times.tz, flags)
        head.ts_source = "record" if iso[2] else "zone"
    elif found := _CTIME.fullmatch(shown):
        day, hour, minute, second, year = map(int, found.groups()[1:])
        month = MONTHS.get(found[1])
        try:
            naive = datetime(year, month, day, hour, minute, second) if month else None  # noqa: DTZ001 - local time
        except ValueError:
            naive = None
        head.ts = local(naive, "", times.tz, flags) if naive else None
        head.ts_source = "zone"
    elif (found := _RELATIVE.fullmatch(shown)) and found[1] in MONTHS:
        near = times.mtime_ns if times.mtime_ns is not None else received and received.ns
        day, hour, minute = map(int, found.groups()[1:])
        naive = infer_year(MONTHS[found[1]], day, (hour, minute, 0), near, times.tz)
        head.ts = local(naive, "", times.tz, flags) if naive else None
        head.ts_source = "year"
    else:
        return _DELTA.fullmatch(shown) is not None
    return True


def json_rendering(line: str) -> Rendering | None:
    """An object of `dmesg -J`; `time` counts seconds since boot."""
    found = read_object(line)
    pairs = found.pairs if found else {}
    text, pri, time = pairs.get("msg"), pairs.get("pri"), pairs.get("time")
    if not isinstance(text, str):
        return None
    head = Rendering(text, stamped=True)
    if isinstance(pri, int) and 0 <= pri < 1 << 31:
        head.fields |= priority(pri)
    if isinstance(time, int | Decimal) and 0 <= time <= MAX_US // 1_000_000:
        head.fields["monotonic_us"] = int(time * 1_000_000)
    if isinstance(pairs.get("caller"), str):
        take_caller(f"[{pairs['caller']}]", head.fields)
    return head
