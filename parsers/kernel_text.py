"""The grammar of kernel text, whatever carried it: /dev/kmsg, dmesg, syslog or the journal.

`clean` undoes the carrier, `take_stamp` takes a stamp off that stands in the text, `kernel_text` reads
the rest. A new event is one rule in `nvidia`, `kernel_hardware` or `kernel_host`.
"""

import re
from functools import lru_cache

from parsers import kernel_hardware, kernel_host, nvidia
from parsers.json_lines import CONTROLS, plain
from parsers.kernel_rules import BDF, Fields, Rule, apply, by_word, gate, pci

RULES: tuple[Rule, ...] = (
    *nvidia.RULES,
    *kernel_hardware.NIC,
    *kernel_hardware.PCIE,
    *kernel_hardware.MEMORY,
    *kernel_host.TASKS,
    *kernel_host.STORAGE,
    *kernel_host.LOSS,
)
_BY_WORD = by_word(RULES)
_MAX_REMEMBERED = 1024  # characters; printk cuts a record there

# `dev_printk` of Linux: driver and device stand first.
_DRIVER = re.compile(rf"[\w.-]+ ({BDF})[: ]", re.ASCII)
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_STAMP = re.compile(r"\[ *(\d{1,12})\.(\d{1,9})(?: *<[^>]*>)?\] ?", re.ASCII)
_CALLER = re.compile(r"\[ *([TC])(\d{1,10})\] ?", re.ASCII)

# RE2, on raw lines: every line that can get a field by a rule, and every line that may continue a record.
GATE = "|".join([r"^[ \t]", BDF, gate(RULES)])


def kernel_text(message: str, fields: Fields, flags: set[str]) -> None:
    """Add event, noise id and fields of a kernel message (carrier undone, stamp off) to `fields`.

    Values may be shared between records: do not change them in place.
    """
    read = _remembered if len(message) <= _MAX_REMEMBERED else _read
    found, marks = read(message)
    fields |= found
    flags |= marks


def _read(message: str) -> tuple[Fields, frozenset[str]]:
    fields: Fields = {}
    flags: set[str] = set()
    apply(_BY_WORD, message, fields, flags)
    if "pci" not in fields and "pci_port" not in fields and (device := _DRIVER.match(message)):
        fields["pci"] = pci(device[1])
    return fields, frozenset(flags)


# A storm repeats few texts: 800,000 lines of Xid 95 in a day had 29 (NVIDIA/NVSentinel#1120).
_remembered = lru_cache(maxsize=1024)(_read)


class Probed:
    """Old drivers print `The NVIDIA GPU … / (PCI ID …) … / fallen off the bus` as three records of one stream."""

    def __init__(self) -> None:
        self.pci: str | None = None  # GPU of the record before

    def see(self, message: str, fields: Fields) -> None:
        """Take the next record of kernel text; a lost GPU gets the address that the records before it named."""
        if fields.get("event") == "gpu_lost" and "pci" not in fields:
            fields["pci"] = self.pci
        if message.startswith("NVRM: The NVIDIA GPU "):
            self.pci = fields.get("pci")
        elif not message.startswith("NVRM: (PCI ID: "):
            self.pci = None


def unescape(text: str, flags: set[str]) -> str:
    r"""Undo `\xNN`, one byte each (kernel ABI, dev-kmsg), in one pass; bad UTF-8 becomes U+FFFD and is flagged."""
    if "\\x" not in text:
        return text
    raw = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())
    try:
        return raw.decode()
    except UnicodeDecodeError:
        flags.add("invalid_utf8")
        return raw.decode(errors="replace")


def clean(text: str) -> str:
    """Text without ANSI sequences, and without line feeds and control characters at its end."""
    return plain(text).rstrip(CONTROLS)


def take_stamp(text: str, fields: Fields) -> str:
    """Take `[12345.678901] ` and `[   T2178] ` off; `monotonic_us`, `caller_tid` and `caller_cpu` are theirs."""
    found = _STAMP.match(text)
    if not found:
        return text
    fields["monotonic_us"] = int(found[1]) * 1_000_000 + int(found[2].ljust(6, "0")[:6])
    return take_caller(text[found.end() :], fields)


def take_caller(text: str, fields: Fields) -> str:
    """Take the bracket of the caller off (CONFIG_PRINTK_CALLER): `T` and a thread, or `C` and a CPU."""
    found = _CALLER.match(text)
    if not found:
        return text
    fields["caller_tid" if found[1] == "T" else "caller_cpu"] = int(found[2])
    return text[found.end() :]
