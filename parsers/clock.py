"""Stamps: reading them, choosing between them, printing them. No function here asks the machine's clock.

A stamp is nanoseconds since the epoch together with the number of fraction digits its source showed,
so that `.1` and `.100000000` are printed as they came. Zones: a local time inside a spring gap takes
the offset before the jump, a local time that occurs twice the first reading; both are flagged.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

NS = 1_000_000_000
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stamp(NamedTuple):
    """`ns` since the epoch (UTC); `digits` of the fraction as the source showed it, 0 to 9."""

    ns: int
    digits: int = 9


def bounded(ns: int, digits: int) -> Stamp | None:
    """A stamp inside int64 nanoseconds (1677 to 2262), which is what the schemas hold; None outside."""
    return Stamp(ns, digits) if -(2**63) < ns < 2**63 else None


@dataclass(frozen=True, slots=True)
class Times:
    """What helps to place a stamp: zone name (IANA) for local times, boot time (ns), file time (ns)."""

    tz: str | None = None
    boot_ns: int | None = None
    mtime_ns: int | None = None


@cache
def zone(name: str) -> ZoneInfo:
    """The zone of an IANA name. Raises ValueError for an unknown one."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"unknown time zone {name!r}; use an IANA name such as Europe/Berlin") from error


def epoch_ns(when: datetime) -> int:
    """Exact nanoseconds of an aware datetime."""
    delta = when - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * NS + delta.microseconds * 1_000


def fraction(digits: str) -> tuple[int, int]:
    """Fraction text to (ns, digits); more than nine digits are cut."""
    digits = digits[:9]
    return (int(digits.ljust(9, "0")) if digits else 0), len(digits)


_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))? ?(Z|[+-]\d\d:?\d\d)?$", re.ASCII)


def parse_iso(text: str) -> tuple[datetime, str, str | None] | None:
    """ISO 8601 text to (naive datetime without fraction, fraction digits, zone text or None)."""
    found = _ISO.match(text)
    if not found:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    try:
        naive = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - the zone is the caller's to choose
    except ValueError:
        return None
    return naive, found[7] or "", found[8]


def offset(text: str) -> timezone:
    """`Z`, `+0530` or `+05:30` as a zone."""
    if text == "Z":
        return UTC
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:4])))


def parse_rfc3339(text: str) -> Stamp | None:
    """RFC 3339 text with a zone to a stamp; None when it is not one."""
    found = parse_iso(text)
    if not found:
        return None
    naive, digits, zone_text = found
    if zone_text is None:
        return None
    ns, shown = fraction(digits)
    try:
        return bounded(epoch_ns(naive.replace(tzinfo=offset(zone_text))) + ns, shown)
    except (ValueError, OverflowError):
        return None


def local(naive: datetime, digits: str, tz: str | None, flags: set[str]) -> Stamp | None:
    """A local date and time in zone `tz`; None when no zone is known. Flags `dst_gap` and `dst_fold`."""
    if tz is None or not 1 < naive.year < 9999:
        return None
    first = naive.replace(tzinfo=zone(tz))
    if first.utcoffset() != naive.replace(tzinfo=zone(tz), fold=1).utcoffset():
        back = first.astimezone(UTC).astimezone(zone(tz)).replace(tzinfo=None)
        flags.add("dst_fold" if back == naive else "dst_gap")
    ns, shown = fraction(digits)
    return bounded(epoch_ns(first.astimezone(UTC)) + ns, shown)


def infer_year(
    month: int, day: int, time: tuple[int, int, int], near_ns: int | None, tz: str | None
) -> datetime | None:
    """The date without year that lies nearest to `near_ns`, as local time in `tz` (None: in UTC)."""
    if near_ns is None:
        return None
    near = (_EPOCH + timedelta(microseconds=near_ns // 1_000)).astimezone(zone(tz) if tz else UTC).replace(tzinfo=None)
    candidates = []
    for year in range(near.year - 1, near.year + 2):
        try:
            candidates.append(datetime(year, month, day, *time))  # noqa: DTZ001 - local time
        except ValueError:
            continue
    return min(candidates, key=lambda when: abs(when - near), default=None)


def from_number(value: float | int | str) -> Stamp | None:
    """A JSON number (also as text): below 1e11 s, below 1e14 ms, below 1e17 µs, else ns."""
    found = re.fullmatch(r"(\d{1,19})(?:\.(\d+))?", str(value).strip())
    if not found:
        return None
    whole = int(found[1])
    for limit, unit, shown in ((10**11, NS, 0), (10**14, 10**6, 3), (10**17, 10**3, 6)):
        if whole < limit:
            ns, digits = fraction(found[2] or "")
            return bounded(whole * unit + ns * unit // NS, min(9, shown + digits))
    return bounded(whole, 9)


def text(stamp: Stamp) -> str:
    """RFC 3339 in UTC with the digits that the source showed."""
    seconds, ns = divmod(stamp.ns, NS)
    base = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{base}.{ns:09d}"[: 20 + stamp.digits] + "Z" if stamp.digits else base + "Z"


def boot(monotonic_us: int, times: Times, digits: int = 6) -> Stamp | None:
    """Boot time plus the kernel's clock (µs, stands still in suspend); None when no boot time is known."""
    return None if times.boot_ns is None else bounded(times.boot_ns + monotonic_us * 1_000, digits)
