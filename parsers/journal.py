"""Entries of the systemd journal as `journalctl -o json` prints them, one JSON object per line.

    {"__REALTIME_TIMESTAMP":"1741064767123456","_HOSTNAME":"gpu-001","PRIORITY":"3","MESSAGE":"text",…}

Values are text, or an array of numbers (the bytes of a value that is no text), or null (too large to print), or an
array of these (a field with several values). Source: systemd.journal-fields(7), systemd docs/JOURNAL_EXPORT_FORMATS.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parsers.clock import Stamp, bounded
from parsers.dmesg import FACILITIES, LEVEL_NAMES, MAX_US
from parsers.json_lines import placed, read_object, unparsed
from parsers.programs import GATE, Programs
from parsers.record import Line, Parser, Record, Ref, Stream, decode

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

# Fields of the dictionary, each with the names that give it, the trusted one first.
_TEXTS = {
    "app": ("SYSLOG_IDENTIFIER",),
    "unit": ("_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT"),
    "process": ("_COMM",),
    "src_file": ("CODE_FILE",),
    "src_func": ("CODE_FUNC",),
}
_NUMBERS = {
    "pid": ("_PID", "SYSLOG_PID"),
    "tid": ("TID",),
    "uid": ("_UID",),
    "gid": ("_GID",),
    "src_line": ("CODE_LINE",),
    "monotonic_us": ("_SOURCE_MONOTONIC_TIMESTAMP",),
}
_DEVICE = {"SUBSYSTEM": "_KERNEL_SUBSYSTEM", "DEVICE": "_KERNEL_DEVICE"}
_TIMES = ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP")
_OWN = frozenset({"MESSAGE", "__REALTIME_TIMESTAMP", "__CURSOR", "_BOOT_ID"})
# Fields that few entries have: those entries take the stream parser.
_RARE = ("CONTAINER_PARTIAL_MESSAGE", "_KERNEL_SUBSYSTEM", "_KERNEL_DEVICE", "_SYSTEMD_USER_UNIT")
_UNIT = re.compile(r"(.+?)(?:@.*)?\.service")


class JournalStream:
    """Holds nothing: an entry is one line."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        self.programs = Programs(stream.times)

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = decode(line.raw, flags)
        if not text.strip():
            return []
        found = read_object(text)
        if found is None or not found.pairs.keys() & _OWN:
            return [unparsed(line)]
        pairs = found.pairs
        record = Record(_fields(pairs, flags), line.refs, flags=flags, node=_first(pairs, ("_HOSTNAME",)))
        if found.duplicate_keys:
            record.fields["duplicate_keys"] = found.duplicate_keys
        record.ts = _time(pairs)
        record.ts_source = "carrier" if record.ts else None
        if pairs.get("MESSAGE", "") is None:
            flags.add("truncated")
        unit = _UNIT.fullmatch(record.fields["unit"] or "")
        app = "kernel" if _first(pairs, ("_TRANSPORT",)) == "kernel" else record.fields["app"]
        message = _text(pairs.get("MESSAGE"), flags)
        self.programs.read(app, message, record, line, unit=unit[1] if unit else None, escaped=False)
        return [placed(record, line)]

    def flush(self) -> list[Record]:
        return []


def _fields(pairs: dict[str, Any], flags: set[str]) -> dict[str, Any]:
    """What the fields of an entry beside its message say."""
    fields: dict[str, Any] = {name: _first(pairs, names) for name, names in _TEXTS.items()}
    fields |= {name: _number(_first(pairs, names)) for name, names in _NUMBERS.items()}
    fields["pid"] = fields["pid"] or None
    level, facility = _number(_first(pairs, ("PRIORITY",))), _number(_first(pairs, ("SYSLOG_FACILITY",)))
    fields["level"] = LEVEL_NAMES[level] if level is not None and level < 8 else None
    fields["facility"] = FACILITIES[facility] if facility is not None and facility < len(FACILITIES) else None
    boot_id = _first(pairs, ("_BOOT_ID",))
    fields["boot_id"] = boot_id if boot_id and boot_id.strip("0-") else None
    if device := {name: _first(pairs, (key,)) for name, key in _DEVICE.items() if pairs.get(key)}:
        fields["kernel_dict"] = device
    if _first(pairs, ("CONTAINER_PARTIAL_MESSAGE",)) == "true":
        flags.add("partial")  # conmon and Docker cut long lines
    return fields


def _text(value: Any, flags: set[str]) -> str:
    """A value as text; of several values each is a line."""
    if isinstance(value, list):
        if value and all(isinstance(each, int) and 0 <= each < 256 for each in value):
            return decode(bytes(value), flags)
        return "\n".join(_text(each, flags) for each in value)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _first(pairs: dict[str, Any], names: Sequence[str]) -> str | None:
    """The first of these fields that has a value; of several values the first."""
    for name in names:
        value = pairs.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, list) and value and not isinstance(value[0], int):
            value = value[0]
        if text := value if isinstance(value, str) else _text(value, set()):
            return text
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_US else None


def _time(pairs: dict[str, Any]) -> Stamp | None:
    """The time at which the program logged, else the time of receipt by the journal; both are µs."""
    for name in _TIMES:
        micros = _number(_first(pairs, (name,)))
        if micros and (stamp := bounded(micros * 1_000, 6)):
            return stamp
    return None


def header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
    """Columns of entries as journalctl prints them; see `journal_columns`."""
    from parsers.journal_columns import columns  # here, so that reading a file does not wait for the column libraries

    return columns(lines, tz)


JOURNAL = Parser(JournalStream, header, "|".join([*_RARE, GATE]))
