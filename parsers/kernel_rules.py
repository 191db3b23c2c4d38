"""What a rule of the kernel grammar is, and how its named groups become fields."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Fields = dict[str, Any]
Read = Callable[["re.Match[str]", Fields, set[str]], None]

BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"

_PCI = re.compile(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.[0-9a-fA-F]+)?")
_REPORTED = {
    "fatal": "fatal", "uncorrected (fatal)": "fatal", "uncorrectable (fatal)": "fatal",
    "nonfatal": "nonfatal", "non-fatal": "nonfatal",
    "uncorrected (non-fatal)": "nonfatal", "uncorrectable (non-fatal)": "nonfatal",
    "corrected": "corrected", "correctable": "corrected", "ce": "corrected",
    "recoverable": "recoverable",
}  # fmt: skip


class Rule(NamedTuple):
    """One kind of text. The first rule of a table that finds one of its `words` and whose pattern fits wins.

    `words` are literal, and one of them stands in every text that fits: they are the rule's part of the
    gate. Named groups of the pattern become fields (see `convert`), `fields` are constants, `read` adds
    what neither can say. `event` None: fields only.
    """

    event: str | None
    words: tuple[str, ...]
    pattern: "re.Pattern[str]"
    fields: Mapping[str, Any] = MappingProxyType({})
    read: Read | None = None


def rule(event: str | None, words: str, pattern: str, read: Read | None = None, **fields: Any) -> Rule:
    """A rule from text: `words` separated by `|`; `{BDF}` in the pattern stands for a PCI address."""
    compiled = re.compile(pattern.replace("{BDF}", BDF), re.ASCII)
    return Rule(event, tuple(words.split("|")), compiled, MappingProxyType(fields), read)


def by_word(rules: Iterable[Rule]) -> tuple[tuple[str, Rule], ...]:
    """The rules in their order, each once for every word, for `apply`."""
    return tuple((word, each) for each in rules for word in each.words)


def gate(rules: Iterable[Rule]) -> str:
    """RE2 text that finds one of the rules' words: what no rule fits can be left to the header."""
    return "|".join(sorted({re.escape(word) for each in rules for word in each.words}))


def apply(rules: Sequence[tuple[str, Rule]], text: str, fields: Fields, flags: set[str]) -> None:
    """Read `text` by the first rule that fits, if one does."""
    for word, each in rules:
        if word in text and (found := each.pattern.search(text)):
            if each.event:
                fields["event"] = each.event
            fields.update(each.fields)
            convert(found.groupdict(), fields)
            if each.read:
                each.read(found, fields, flags)
            return


def pci(text: str) -> str | None:
    """A PCI address as lower-case `dddd:bb:dd` without function: the domain has 4 digits unless it is larger.

    Also reads `bb:dd` and NVML's `00000000:3B:00.0`. None for anything else.
    """
    found = _PCI.fullmatch(text)
    if not found:
        return None
    domain, bus, device = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}" if bus < 256 and device < 32 else None


def serial(text: str) -> str | None:
    """A board's serial number; zeros mean that it has none."""
    return text if text.strip("0") else None


def _hex(text: str) -> int:
    return int(text, 16)


def _number(text: str) -> int | None:
    """Numbers beyond 64 bits are no numbers of a kernel."""
    return int(text) if len(text) < 19 else None


_CONVERT: dict[str, Callable[[str], Any]] = {
    "pci": pci,
    "pci_port": pci,
    "gpu_serial": serial,
    "pid": lambda text: _number(text) or None,
    "link_state": lambda text: "down" if text == "not ready" else text.lower(),
    "reported_severity": lambda text: _REPORTED.get(text.lower()),
    "requester_id": lambda text: f"0x{text.lower()}",
    "first": lambda _: True,
    "multiple": lambda _: True,
    "reset_ok": lambda text: text == "true",
    "containment": str.lower,
    "io_outcome": {"aborting": "abort", "reset": "reset", "will reset": "reset"}.get,
    **dict.fromkeys(("aer_status", "aer_mask", "channel", "recovery_from", "recovery_to"), _hex),
    **dict.fromkeys(
        (
            "seconds", "cpu", "uid", "qid", "lost", "suppressed", "return_code", "port", "src_line", "anon_rss_kb",
            "gpu_index", "gpu_instance", "compute_instance", "caused_by_xid", "gpc", "tpc", "sm", "link", "xc",
            "fb_partition", "fb_subpartition", "timeout_s", "gsp_index", "rpc_function", "rpc_sequence",
            "rate_limit_factor", "switch", "severity_code", "engine_instance", "subengine_instance", "temperature_c",
            "error_count", "hw_error_group", "xid", "sxid", "physical_id",
        ),
        _number,
    ),
}  # fmt: skip


def convert(groups: Mapping[str, str | None], fields: Fields) -> None:
    """Put the named groups of a match into `fields` by the value rules of the field dictionary.

    Groups whose name starts with `_` are for `Rule.read`.
    """
    for name, text in groups.items():
        if text is not None and name[0] != "_":
            fields[name] = _CONVERT[name](text) if name in _CONVERT else text
