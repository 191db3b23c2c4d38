"""NVIDIA DCGM: the log of nv-hostengine, what `dcgmi policy` prints, and dcgm-exporter.

    2025-03-04 05:06:07.089 ERROR [2201:2233] text [/w/DcgmHealth.cpp:410] [OnTick]
    Timestamp: Tue Mar  4 05:06:07 2025
    XID error 79 detected.
    time=2025-03-04T05:06:07.089Z level=ERROR msg="Failed to write response."

Source: NVIDIA/DCGM common/DcgmLoggingImpl.h, DcgmLogging.cpp (names of levels), dcgmi/Policy.cpp (two to four lines
for each violation); NVIDIA/dcgm-exporter (logrus up to 3, slog since 4, or JSON).
"""

import re
from datetime import datetime

from parsers.clock import MONTHS, local, parse_iso, parse_rfc3339
from parsers.gpu_catalogue import xid_meaning
from parsers.json_lines import level_of, object_record
from parsers.kernel_rules import Fields
from parsers.klog import go_record, klog_record
from parsers.logfmt import logfmt_record
from parsers.nvidia import judge
from parsers.record import NO_LINE, Line, Parser, Record
from parsers.stamped import ISO_MS, Heads, StampedStream, header

_ENGINE = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?) +([A-Z]{4,9}) +"
    r"\[(\d{1,10})(?::(\d{1,10}))?\] ?",
    re.ASCII,
)
_AT_END = r" ?\[(?P<src_file>[^\[\]:]*):(?P<src_line>0|[1-9][0-9]{0,6})\](?: \[(?P<src_func>[^\[\]]*)\])?$"
_PLACE = re.compile(_AT_END)
_HEADS = Heads(
    rf"^(?P<head>(?P<time>{ISO_MS}) +(?P<level>[A-Z]{{4,9}}) +"
    r"\[(?P<pid>[0-9]{1,10})(?::(?P<tid>0|[1-9][0-9]{0,9}))?\] ?)",
    _AT_END,
)
_POLICY = re.compile(
    r"Timestamp: (?:(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})"
    r"|Not \w{1,20}|Insufficient permission)$",
    re.ASCII,
)
_POLICY_LINES = 4
_POLICY_ENDS = re.compile(
    r"(?i:XID) error \d+ detected\.|(?:DBE error|PCIe replay|DBE page retirement) count: \d+"
    r"|NVLink Counter value: \d+|(?:Temperature|Power): \d+",
    re.ASCII,
)
_XID = re.compile(r"\bXID error (\d{1,9})\b", re.IGNORECASE | re.ASCII)
_TEMPERATURE = re.compile(r"\bTemperature: (\d{1,4})\b", re.ASCII)


def engine_text(text: str, fields: Fields) -> None:
    """Take source file, line and function off the end of a text of nv-hostengine."""
    fields["message"] = text
    if place := _PLACE.search(text):
        fields |= {"src_file": place[1] or None, "src_line": int(place[2]), "src_func": place[3] or None}
        fields["message"] = text[: place.start()]


class DcgmStream(StampedStream):
    """All three in one: each line tells which it is."""

    form = ""  # of the record that is held
    _found = ""  # of the one that `start` found

    def full(self) -> bool:
        if self.form != "policy":
            return False
        return len(self.refs) >= _POLICY_LINES or _POLICY_ENDS.fullmatch(self.texts[-1]) is not None

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:
        for form, read in (("engine", self._engine), ("policy", self._policy), ("exporter", self._exporter)):
            if record := read(text, line, flags):
                self._found = form
                return record
        return None

    def _hold(self, record: Record, line: Line) -> None:
        self.form = self._found
        super()._hold(record, line)

    def _engine(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - as the others
        head = _ENGINE.match(text)
        level = level_of(head[2]) if head else None
        if not head or (level is None and head[2] != "NONE"):
            return None
        fields: Fields = {"level": level, "level_raw": head[2], "pid": int(head[3]) or None}
        if head[4]:
            fields["tid"] = int(head[4])
        fields["message"] = text[head.end() :]
        found = parse_iso(head[1])
        if found is None:
            return None
        ts = parse_rfc3339(head[1]) if found[2] else local(found[0], found[1], self.times.tz, flags)
        return Record(fields, (), ts, ("record" if found[2] else "zone") if ts else None, flags)

    def _policy(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - as the others
        head = _POLICY.match(text)
        if not head:
            return None
        if head[1] is None:  # DCGM does not know when
            return Record({"message": ""}, (), None, None, flags)
        day, hour, minute, second, year = (int(head[group]) for group in range(2, 7))
        try:
            naive = datetime(year, MONTHS.get(head[1], 0), day, hour, minute, second)  # noqa: DTZ001 - local time
        except ValueError:
            return None
        ts = local(naive, "", self.times.tz, flags)
        return Record({"message": ""}, (), ts, "zone" if ts else None, flags)

    def _exporter(self, text: str, line: Line, flags: set[str]) -> Record | None:
        times = self.times
        return (
            object_record(text, line, times, flags)
            or logfmt_record(text, line, times, flags)
            or klog_record(text, line, times, flags)
            or go_record(text, line, times, flags)
        )

    def finish(self, record: Record) -> None:
        fields, message = record.fields, record.fields["message"]
        if self.form == "policy":
            fields |= {"event": "gpu_policy_violation", "message": message.lstrip("\n")}
            if found := _XID.search(message):
                fields["xid"] = int(found[1])
                judge(fields, xid_meaning(fields["xid"]))
            if found := _TEMPERATURE.search(message):
                fields["temperature_c"] = int(found[1])
        elif self.form == "engine":
            engine_text(message, fields)


DCGM = Parser(DcgmStream, header(_HEADS), NO_LINE)
