"""NVIDIA Fabric Manager: fabricmanager.log, and the same texts as they come through syslog.

    [Mar 04 2025 05:06:07] [ERROR] [tid 841] detected NVSwitch fatal error 20012 on fid 0 on NVSwitch pci bus id …

Source: samples of leptonai/gpud (fabric-manager). Both fatal and non-fatal errors of a switch are logged as ERROR.
"""

import re
from datetime import datetime

from parsers.clock import MONTHS, local
from parsers.gpu_catalogue import sxid_meaning
from parsers.json_lines import level_of, no_header
from parsers.kernel_rules import Fields, Rule, apply, by_word, rule
from parsers.nvidia import judge
from parsers.record import Line, Parser, Record
from parsers.stamped import StampedStream

_HEAD = re.compile(
    r"\[([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)(?:[.:,](\d{1,9}))?\] \[ *([A-Za-z]+) *\]"
    r"(?: \[tid (\d{1,10})\])?(?: |$)",
    re.ASCII,
)


def _switch(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    judge(fields, sxid_meaning(fields["sxid"]))


RULES: tuple[Rule, ...] = (
    rule(
        "nvswitch_sxid",
        "NVSwitch",
        r"\bNVSwitch (?P<reported_severity>(?:non-?)?fatal|correctable|corrected) error (?P<sxid>\d{1,9})\b"
        r"(?:.*?pci bus id (?P<pci>{BDF}))?(?:.*?physical id (?P<physical_id>\d{1,9}))?"
        r"(?:.*?\bport (?P<port>\d{1,9}))?",
        _switch,
    ),
    rule(
        None,
        "pci bus id|PCI bus id|physical id",
        r"(?i:pci bus id) (?P<pci>{BDF})(?:.*?physical id (?P<physical_id>\d{1,9}))?(?:.*?\bport (?P<port>\d{1,9}))?",
    ),
)
_BY_WORD = by_word(RULES)


def fabric_text(text: str, fields: Fields, flags: set[str]) -> None:
    """Add event and fields of a text of Fabric Manager to `fields`."""
    apply(_BY_WORD, text, fields, flags)


class FabricStream(StampedStream):
    """fabricmanager.log: local time with a year, whole seconds."""

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - contract
        head = _HEAD.match(text)
        if not head or head[1] not in MONTHS:
            return None
        year, day, hour, minute, second = (int(head[group]) for group in (3, 2, 4, 5, 6))
        try:
            naive = datetime(year, MONTHS[head[1]], day, hour, minute, second)  # noqa: DTZ001 - local time
        except ValueError:
            return None
        ts = local(naive, head[7] or "", self.times.tz, flags)
        fields: Fields = {"level": level_of(head[8]), "level_raw": head[8], "message": text[head.end() :]}
        if head[9]:
            fields["tid"] = int(head[9])
        return Record(fields, (), ts, "zone" if ts else None, flags)

    def finish(self, record: Record) -> None:
        fabric_text(record.fields["message"], record.fields, record.flags)


FABRIC_MANAGER = Parser(FabricStream, no_header)
