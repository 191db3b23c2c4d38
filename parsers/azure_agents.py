"""Agents of Azure CycleCloud, which log in the ways of Python.

    2025-03-04 05:06:07,089 - healthagent - ERROR - text                healthagent.log
    2025-03-04 05:06:07,089 INFO     text                               jetpack.log, jetpackd.log
    2025-03-04 05:06:07,089  context LEVEL: text                        azslurm and its kin

Source: Azure/cyclecloud-healthagent (logging.conf, reporter.py), Azure/cyclecloud-slurm. Local time. A report is the
repr of a Python dictionary, logged as INFO also when the node is bad.
"""

import re

from parsers.clock import local, parse_iso, parse_rfc3339
from parsers.gpu_catalogue import xid_meaning
from parsers.json_lines import level_of
from parsers.kernel_rules import Fields, Rule, apply, by_word, gate, rule
from parsers.nvidia import judge
from parsers.record import Line, Parser, Record
from parsers.stamped import ISO_MS, Heads, StampedStream, header

_LEVEL = "DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE|NOTSET"
_WIDTH = 8  # jetpack pads levels to it
_HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[,.]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)"
    rf"(?: - (?P<app>\S+) - (?P<level>{_LEVEL}) -(?: |$)| +(?P<bare>{_LEVEL})(?P<gap>: | +|:?$)"
    rf"|  ?(?P<context>\S+) (?P<colon>{_LEVEL}):(?: |$))",
    re.ASCII,
)
# Brackets and quoted texts of a dictionary's repr, a key with its value; a text that is cut ends with the line.
_TEXT = r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)"""
_TOKEN = re.compile(
    rf"(?P<open>[\[{{(])|(?P<close>[\]}})])|(?P<key>{_TEXT})(?:: (?P<value>{_TEXT}|\d{{1,9}}\b))?", re.ASCII
)


def _report(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    """Status and number of errors of a report; the reports of single GPUs inside it have such keys too."""
    depth, told = 0, dict[str, str]()
    for token in _TOKEN.finditer(found["_rest"]):
        depth += (token["open"] is not None) - (token["close"] is not None)
        if depth == 1 and token["value"]:
            told.setdefault(token["key"][1:-1], token["value"])
    if (status := told.get("status", "")).startswith(("'", '"')):
        fields["health_status"] = status.strip("'\"")
    if (errors := told.get("error_count", "")).isdigit():
        fields["error_count"] = int(errors)


def _xid(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    judge(fields, xid_meaning(fields["xid"]))


RULES: tuple[Rule, ...] = (
    rule(
        "health_report",
        "Updated health report for ",
        r"Updated health report for (?P<health_check>[\w./-]+): (?P<_rest>(?s:.*))",
        _report,
    ),
    rule(
        "gpu_xid", "XID detected: ", r"\bXID detected: (?P<xid>\d{1,9})\b(?: +on gpu: ?(?P<gpu_index>\d{1,9}))?", _xid
    ),
    rule("gpu_policy_violation", "Violation detected: ", r"^Violation detected: .* on gpu: ?(?P<gpu_index>\d{1,9})"),
)
_BY_WORD = by_word(RULES)


def _body(head: "re.Match[str]") -> int:
    """Where the text starts: blanks beyond those that pad the level are its own."""
    padding = max(_WIDTH - len(head["bare"] or ""), 0) + 1
    padded = head["bare"] and len(head["gap"]) >= padding and not head["gap"].startswith(":")
    return head.start("gap") + padding if padded else head.end()


def agent_text(text: str, fields: Fields, flags: set[str]) -> None:
    """Add event and fields of a text of healthagent to `fields`."""
    apply(_BY_WORD, text, fields, flags)


class AgentStream(StampedStream):
    """One file of an agent. Lines without a stamp (tracebacks) continue their record."""

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:  # noqa: ARG002 - contract
        head = _HEAD.match(text)
        parsed = parse_iso(head["time"]) if head else None
        if head is None or parsed is None:
            return None
        ts = parse_rfc3339(head["time"]) if parsed[2] else local(parsed[0], parsed[1], self.times.tz, flags)
        word = head["level"] or head["bare"] or head["colon"]
        fields: Fields = {"level": level_of(word), "level_raw": word, "message": text[_body(head) :]}
        if head["app"]:
            fields["app"] = head["app"]
        return Record(fields, (), ts, ("record" if parsed[2] else "zone") if ts else None, flags)

    def finish(self, record: Record) -> None:
        agent_text(record.fields["message"], record.fields, record.flags)


_TIME = rf"^(?P<head>(?P<time>{ISO_MS})"
_NAMED = Heads(rf"{_TIME} - (?P<app>\S+) - (?P<level>{_LEVEL}) - )")
_PADDED = Heads(rf"{_TIME} (?P<level>DEBUG {{4}}|INFO {{5}}|WARNING {{2}}|ERROR {{4}}|CRITICAL ))")

HEALTHAGENT = Parser(AgentStream, header(_NAMED), gate(RULES))
JETPACK = Parser(AgentStream, header(_PADDED), gate(RULES))
