"""Stamps in front of Slurm lines, for every LogTimeFormat.

    [2025-03-04T05:06:07.089]                                        iso8601_ms (default), iso8601
    [2025-03-04T05:06:07.089-05:30]                                  rfc5424_ms, rfc5424, rfc3339
    [Mar 04 05:06:07]                                                short
    [Mar 04 05:06:07.123    20345 rpc-7        0x7f12aa00b700]       thread_id: 123 µs, pid, thread, pointer
    [30912345]                                                       clock: CPU time of the process in µs
    sched: [2025-03-04T05:06:07.089]                                 SlurmSchedLogFile

Source: SchedMD/slurm src/common/log.c (`_set_idbuf`, `set_idbuf`) and src/common/xstring.c; manual page of
slurm.conf, LogTimeFormat. On stderr, thread_id had no brackets up to 24.11.
"""

import re
from dataclasses import dataclass
from typing import Any

from parsers.clock import MONTHS, Stamp, Times, infer_year, local, parse_iso, parse_rfc3339

_DATE = rf"(?P<month>{'|'.join(MONTHS)}) (?P<day>[ \d]\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_THREAD = r"\.(?P<micros>\d{1,6}) +(?P<pid>\d{1,10}) (?P<thread>.{0,16}?) *(?:0x[0-9a-fA-F]+|\(nil\))"
_STAMP = re.compile(
    r"(?P<sched>sched: )?(?:\[(?:(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[+-]\d\d:\d\d|Z)?)"
    rf"|{_DATE}(?:{_THREAD})?|(?P<clock>\d{{1,18}}))\](?: |$)"
    rf"|{_DATE.replace('?P<', '?P<bare_')}{_THREAD.replace('?P<', '?P<bare_')}: )",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A stamp of `length` characters; `ts` None when it gives no usable time, else `source` is its ts_source."""

    length: int
    ts: Stamp | None
    source: str | None
    fields: dict[str, Any]


def read_stamp(text: str, times: Times, received: Stamp | None, flags: set[str]) -> Found | None:
    """The stamp at the start of `text`; None without one (or with an impossible date).

    A stamp without year takes the one nearest to the file's time, else to the time of receipt; one
    without zone is local time in `times.tz` and unusable when that is not known. CPU time is no time.
    """
    found = _STAMP.match(text)
    if not found:
        return None
    fields: dict[str, Any] = {"subsystem": "sched"} if found["sched"] else {}
    if found["clock"]:
        return Found(found.end(), None, None, fields | {"cpu_clock_us": int(found["clock"])})
    if found["iso"]:
        parsed = parse_iso(found["iso"])
        if parsed is None:
            return None
        naive, digits, zone = parsed
        ts = parse_rfc3339(found["iso"]) if zone else local(naive, digits, times.tz, flags)
        source = "record" if zone else "zone"
        return Found(found.end(), ts, source if ts else None, fields)
    name = "bare_{}" if found["bare_month"] else "{}"
    month, day, hour, minute, second, micros, pid, thread = (
        found[name.format(key)] for key in ("month", "day", "hour", "minute", "second", "micros", "pid", "thread")
    )
    if micros is not None:
        fields |= {"pid": int(pid) or None, "thread": thread.strip() or None}
    near = times.mtime_ns if times.mtime_ns is not None else received.ns if received else None
    if int(day) not in range(1, 32) or int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    naive_short = infer_year(MONTHS[month], int(day), (int(hour), int(minute), int(second)), near, times.tz)
    if naive_short is None:
        return Found(found.end(), None, None, fields)
    # Microseconds are printed without leading zeros: `.123` is 123 µs.
    ts = local(naive_short, "" if micros is None else micros.zfill(6), times.tz, flags)
    return Found(found.end(), ts, "year" if ts else None, fields)
