"""What a rule of the Slurm grammar is, and how its named groups become fields."""

import re
import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from parsers import hostlist
from parsers.slurm_ids import step_name

_SIGNALS = {name: number for number in signal.valid_signals() if (name := signal.strsignal(number))}
# `*` not responding, `~` powered off, `#` powering up, `%` powering down, `$` maintenance, `@` `^` reboot,
# `!` power-down pending, `-` planned, `+` cloud (manual page of sinfo, NODE STATE CODES).
_STATE = re.compile(r"(.*?)([*~#!%$@^+-]*)")


class Rule(NamedTuple):
    """One kind of text. The first rule of a table whose `word` stands in the text and whose pattern fits wins.

    `word` is literal and stands in every text that fits: it is the rule's part of the gate. Named groups
    of the pattern become fields (see `convert`), `fields` are constants. Only the controller writes texts
    of a `controller` rule; elsewhere they are forged (any user can place text in slurmd's log with
    `scontrol notify`) and get no event. `event` None: fields only.
    """

    event: str | None
    word: str
    pattern: re.Pattern[str]
    fields: Mapping[str, Any] = MappingProxyType({})
    controller: bool = False


def rule(event: str | None, word: str, pattern: str, **fields: Any) -> Rule:
    """A rule from pattern text; `{H}` stands for a host list and `{N}` for a number, `{S}` for a 32-bit one."""
    text = pattern.replace("{H}", hostlist.HOSTS).replace("{N}", r"\d{1,18}").replace("{S}", r"\d{1,9}")
    return Rule(event, word, re.compile(text, re.ASCII), MappingProxyType(fields))


def controller_only(*rules: Rule) -> tuple[Rule, ...]:
    return tuple(rule._replace(controller=True) for rule in rules)


def signal_number(text: str) -> int | None:
    """`Terminated`, `Unknown signal 53` or `9` as a number."""
    if text in _SIGNALS:
        return _SIGNALS[text]
    found = re.search(r"(?:^|signal )(\d{1,3})$", text, re.ASCII)
    return int(found[1]) if found else None


def _wait_status(text: str) -> dict[str, Any]:
    """wait(2) status: 256 is exit code 1, 9 is signal 9."""
    status = int(text)
    return {"signal": status & 0x7F} if status & 0x7F else {"exit_code": status >> 8 & 0xFF}


def _state(text: str) -> dict[str, Any]:
    found = _STATE.fullmatch(text)
    return {"state": found[1], "state_flags": list(found[2])} if found else {"state": text}


def _epoch(name: str) -> Callable[[str], dict[str, Any]]:
    def convert(text: str) -> dict[str, Any]:
        # 0 is "never": the controller has not heard of the node since it started.
        return {name: datetime.fromtimestamp(int(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if int(text) else None}

    return convert


def _null(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda text: {name: None if text == "(null)" else text}


_TEXT = ("cause", "gres", "partition", "peer", "reason", "sluid")
_CONVERT: dict[str, Callable[[str], dict[str, Any]]] = {
    "nodes": hostlist.fields,
    "tasks": lambda text: {"tasks": hostlist.tasks(text)},
    "task": lambda text: {"tasks": [int(text)], "task_id": int(text)},
    "wait_status": _wait_status,
    "signal_name": lambda text: {"signal": signal_number(text)},
    "step_id": lambda text: {"step_id": step_name(text)},
    "state": _state,
    "core": lambda _: {"core_dumped": True},
    "limit_kb": lambda text: {"memory_limit_bytes": int(text) * 1024},
    "boot_time": _epoch("node_boot_time"),
    "last_response": _epoch("last_response_time"),
    **{name: _null(name) for name in ("gres_type", "gres_file", "gres_links")},
}


def convert(groups: Mapping[str, str | None], fields: dict[str, Any]) -> None:
    """Put the named groups of a match into `fields`: text, or integers for names that are neither text nor special."""
    for name, text in groups.items():
        if text is None:
            continue
        if name in _CONVERT:
            fields |= _CONVERT[name](text)
        else:
            fields[name] = text if name in _TEXT else int(text)
