"""NVIDIA Fabric Manager: fabricmanager.log, and the same texts as they come through syslog.

    [Mar 04 2025 05:06:07] [ERROR] [tid 841] detected NVSwitch fatal error 20012 on fid 0 on NVSwitch pci bus id …
    [Mar 04 2025 05:06:07] [ERROR] [tid 841] Fabric Manager detected GPU NVL Non Fatal error on :
    portNum : 61

Source: samples of leptonai/gpud (fabric-manager), phatut/nmx-c-analyzers and NVIDIA/nccl#1043. Fatal and non-fatal
errors are both logged as ERROR, and so is that there is no switch to manage (NVIDIA/gpu-operator#610).
"""

import re
from datetime import datetime

from parsers.clock import MONTHS, local
from parsers.json_lines import level_of
from parsers.kernel_rules import Fields, Rule, apply, by_word, gate, rule
from parsers.nvidia import judge, judge_sxid
from parsers.record import Line, Parser, Record
from parsers.stamped import CLOCK, YEAR, Heads, StampedStream, header

_HEAD = re.compile(
    r"\[([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)(?:[.:,](\d{1,9}))?\] \[ *([A-Za-z]+) *\]"
    r"(?: \[tid (\d{1,10})\])?(?: |$)",
    re.ASCII,
)
# First line of a run: month, day, year.
_OPENED = re.compile(
    r"[\w ]{0,40}\b[Ll]og initializing at: (\d{1,2})/(\d{1,2})/(\d{4}) (\d\d?):(\d\d):(\d\d)(?:\.(\d{1,9}))?$", re.ASCII
)
_PORT = re.compile(r"^portNum *: *(\d{1,9})$", re.ASCII | re.MULTILINE)
_STATUS = re.compile(r"^errorStatus *: *0x([0-9a-fA-F]{1,16})$", re.ASCII | re.MULTILINE)


def _switch(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    judge_sxid(fields)


def _nvlink(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    fields |= {"reported_severity": "nonfatal" if found["_non"] else "fatal", "fault_class": "nvlink"}
    judge(fields, None)
    if port := _PORT.search(found.string):
        fields["port"] = int(port[1])
    if status := _STATUS.search(found.string):
        fields["error_status"] = int(status[1], 16)


_WHERE = r"(?i:pci bus id) (?P<pci>{BDF})(?:.*?physical id (?P<physical_id>\d{1,9}))?(?:.*?\bport (?P<port>\d{1,9}))?"
RULES: tuple[Rule, ...] = (
    rule(
        "nvswitch_sxid",
        "NVSwitch",
        r"\bNVSwitch (?i:(?P<reported_severity>(?:non-?)?fatal|correctable|corrected) error) (?P<sxid>\d{1,9})\b"
        rf"(?:.*?{_WHERE})?",
        _switch,
    ),
    rule(None, "NVL", rf"\bNVL(?:ink)? (?i:(?P<_non>non[- ]?)?fatal error)\b(?:.*?{_WHERE})?", _nvlink),
    rule(None, "NV_WARN_NOTHING_TO_DO", "NV_WARN_NOTHING_TO_DO", noise="fm_nothing_to_do"),
    rule(None, "pci bus id|PCI bus id", _WHERE),
)
_BY_WORD = by_word(RULES)


def fabric_text(text: str, fields: Fields, flags: set[str]) -> None:
    """Add event and fields of a text of Fabric Manager to `fields`."""
    apply(_BY_WORD, text, fields, flags)


class FabricStream(StampedStream):
    """fabricmanager.log: local time with a year, whole seconds."""

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - contract
        head = _HEAD.match(text)
        found = head or _OPENED.match(text)
        if not found:
            return None
        month = MONTHS.get(found[1], 0) if head else int(found[1])
        day, year, hour, minute, second = (int(found[group]) for group in range(2, 7))
        try:
            naive = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - local time
        except ValueError:
            return None
        ts = local(naive, found[7] or "", self.times.tz, flags)
        fields: Fields = {"message": text[head.end() :] if head else text}
        if head:
            fields |= {"level": level_of(head[8]), "level_raw": head[8], "tid": int(head[9]) if head[9] else None}
        return Record(fields, (), ts, "zone" if ts else None, flags)

    def finish(self, record: Record) -> None:
        fabric_text(record.fields["message"], record.fields, record.flags)


_HEADS = Heads(
    rf"^(?P<head>\[(?P<time>(?:{'|'.join(MONTHS)}) (?:0[1-9]|[12][0-9]|3[01]) {YEAR} {CLOCK})\] "
    r"\[(?P<level>[A-Za-z]+)\] \[tid (?P<tid>0|[1-9][0-9]{0,9})\] )"
)

FABRIC_MANAGER = Parser(FabricStream, header(_HEADS), gate(RULES))
