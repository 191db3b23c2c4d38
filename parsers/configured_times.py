"""Times of configured kinds: one format, read alike line by line and by columns.

A format is `iso` (`2025-03-04T05:06:07.089+01:00`, blank for T, fraction and zone optional), `epoch` (a number: s, ms,
µs or ns by its size) or a pattern of strftime's: %Y %m %b %d %e %H %M %S %f (1 to 9 digits) %z (Z, +01:00, +0100).
Without %Y the year is that nearest to the change of the file or to the receipt.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from parsers.clock import MONTHS, NS, Stamp, Times, bounded, epoch_ns, fraction, infer_year, local, offset
from parsers.stamped import YEAR

if TYPE_CHECKING:
    import pyarrow as pa

_ZONE = r"(?P<zone>Z|(?P<sign>[+-])(?P<zone_hour>[01][0-9]|2[0-3]):?(?P<zone_minute>[0-5][0-9]))"
_DIRECTIVES = {
    "Y": f"(?P<year>{YEAR})",
    "m": "(?P<month>0[1-9]|1[0-2])",
    "b": f"(?P<name>{'|'.join(MONTHS)})",
    "d": "(?P<day>0[1-9]|[12][0-9]|3[01])",
    "e": "(?P<day> ?[1-9]|[12][0-9]|3[01])",
    "H": "(?P<hour>[01][0-9]|2[0-3])",
    "M": "(?P<minute>[0-5][0-9])",
    "S": "(?P<second>[0-5][0-9])",
    "f": "(?P<fraction>[0-9]{1,9})",
    "z": _ZONE,
    "%": "%",
}
_ISO = "%Y-%m-%d[T ]%H:%M:%S(?:[.,]%f)?(?: ?%z)?"
_EPOCH = r"(?P<epoch>[0-9]{1,18})(?:\.(?P<fraction>[0-9]{1,9}))?"
# Numbers below the first are of the unit, which shows so many digits of a second (clock.from_number).
UNITS = ((10**11, NS, 0), (10**14, 10**6, 3), (10**17, 10**3, 6), (10**19, 1, 9))


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """`regex`: RE2 and Python text of a whole stamp; its groups are those of the directives."""

    regex: str

    @property
    def yearless(self) -> bool:
        """Whether the year must be inferred."""
        return "(?P<year>" not in self.regex and "(?P<epoch>" not in self.regex

    def read(self, text: bytes, times: Times, received: Stamp | None, flags: set[str]) -> tuple[Stamp, str] | None:
        """Time and its `ts_source`; None when `text` is no such time, or its zone is not known."""
        found = compiled(self.regex).fullmatch(text)
        if not found:
            return None
        said = {name: (value or b"").decode() for name, value in found.groupdict().items()}
        digits = said.get("fraction", "")
        if "epoch" in said:
            stamp = _of_number(int(said["epoch"]), digits)
            return None if stamp is None else (stamp, "record")
        month = int(said["month"]) if "month" in said else MONTHS[said["name"]]
        day, clock = int(said["day"]), (int(said["hour"]), int(said["minute"]), int(said.get("second", 0)))
        if self.yearless:
            near = times.mtime_ns if times.mtime_ns is not None else received.ns if received else None
            naive, source = infer_year(month, day, clock, near, times.tz), "year"
        else:
            naive, source = _date(int(said["year"]), month, day, clock), "zone"
        if naive is None:
            return None
        if said.get("zone"):
            ns, shown = fraction(digits)
            return Stamp(epoch_ns(naive.replace(tzinfo=offset(said["zone"]))) + ns, shown), "record"
        stamp = local(naive, digits, times.tz, flags)
        return None if stamp is None else (stamp, source)


class Timed(NamedTuple):
    """Columns of times: int64 ns, null where there is none; schema.CODE; mask of those in a DST gap or fold."""

    ts: "pa.Array"
    ts_source: "pa.Array"
    doubtful: "pa.Array"


def time_format(text: str) -> TimeFormat:
    """The format that a configuration names. Raises ValueError with what is wrong with it."""
    if text == "iso":
        return TimeFormat(re.sub("%(.)", lambda found: _DIRECTIVES[found[1]], _ISO))
    if text == "epoch":
        return TimeFormat(_EPOCH)
    used = re.findall("%(.?)", text, re.DOTALL)
    for name in used:
        if name not in _DIRECTIVES:
            known = " ".join(f"%{each}" for each in _DIRECTIVES)
            raise ValueError(f"%{name} is not known; use iso, epoch, or a pattern of {known}")
    for names in (("m", "b"), ("d", "e"), ("H",), ("M",)):
        if sum(used.count(name) for name in names) != 1:
            raise ValueError(f"needs {' or '.join(f'%{name}' for name in names)} once; else use iso or epoch")
    if double := {name for name in used if used.count(name) > 1 and name != "%"}:
        raise ValueError(f"has %{min(double)} twice")
    if "z" in used and "Y" not in used:
        raise ValueError("has a zone but no year (%Y)")
    parts = re.findall("(?s)%.|[^%]+", text)
    return TimeFormat("".join(_DIRECTIVES[part[1]] if part[0] == "%" else re.escape(part) for part in parts))


@cache
def compiled(regex: str) -> re.Pattern[bytes]:
    """RE2 text as a pattern over bytes, which is how Arrow matches binary columns."""
    return re.compile(regex.encode())


def _of_number(whole: int, digits: str) -> Stamp | None:
    unit, shown = next((unit, shown) for limit, unit, shown in UNITS if whole < limit)
    ns, more = fraction(digits)
    return bounded(whole * unit + ns * unit // NS, min(9, shown + more))


def _date(year: int, month: int, day: int, clock: tuple[int, int, int]) -> datetime | None:
    try:
        return datetime(year, month, day, *clock)  # noqa: DTZ001 - the zone is chosen by the caller
    except ValueError:
        return None
