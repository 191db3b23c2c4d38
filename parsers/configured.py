"""Kinds that a configuration describes: a head at the start of each record, events and noise in its text.

Head, events and noise are regular expressions that RE2 and Python read alike, matched over bytes: by Arrow for all
lines (configured_columns), here for the few that need more. What has no head continues the record before it
(`follows`), or is a record of its own, flag `unparsed`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from parsers.configured_times import TimeFormat, compiled
from parsers.json_lines import CONTROLS, level_of, plain, unparsed
from parsers.kernel_rules import pci
from parsers.record import NO_LINE, Line, Parser, Record, Stream, decode
from parsers.stamped import StampedStream

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

# Groups that are whole numbers because their column is; other text leaves them null.
INTEGERS = {
    "pid": "[1-9][0-9]{0,17}",
    "job_id": "[0-9]{1,18}",
    "rank": "[0-9]{1,9}",
    "xid": "[0-9]{1,9}",
    "sxid": "[0-9]{1,9}",
    "exit_code": "-?[0-9]{1,9}",
    "signal": "[0-9]{1,9}",
}
INTEGER = "-?[0-9]{1,18}"
# Bytes beyond which Arrow's RE2 looks instead of Python: slower to call, but linear; `a.*b` on 1 MiB is a minute else.
_LONG = 2_048


@dataclass(frozen=True, slots=True)
class Event:
    """`regex`, found in a record's text, makes it this event; its groups and `fields` are the record's."""

    name: str
    regex: str
    level: str | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """The grammar of a kind.

    `head` matches at the start of a record; its groups `time`, `level` and `node` are the record's, others are fields.
    The text is what follows it. `levels` maps words in lower case. `gate`, if any, must be found in the text before
    events are looked for. `noise`: (id, regex found in the text); an event is never noise. `integers` are the groups
    that are whole numbers.
    """

    head: str = ""
    time: TimeFormat | None = None
    levels: Mapping[str, str] | None = None
    follows: bool = False
    gate: str | None = None
    events: tuple[Event, ...] = ()
    noise: tuple[tuple[str, str], ...] = ()
    integers: frozenset[str] = frozenset()

    def level(self, word: str) -> str | None:
        """The level that a word stands for."""
        return (self.levels or {}).get(word.strip().lower()) or level_of(word)

    def integer(self, name: str) -> str | None:
        """The form (RE2) of a group that is a whole number, None for text."""
        return INTEGERS.get(name) or (INTEGER if name in self.integers else None)

    def event_gate(self) -> str | None:
        """RE2 text for the texts that may be events: the configured one, else made of their own."""
        if not self.events:
            return None
        return self.gate or "|".join(f"(?:{nameless(event.regex)})" for event in self.events)


def parser(form: Form) -> Parser:
    """Both speeds of a configured kind."""

    def header(lines: "pa.LargeBinaryArray", tz: str | None, near: "pa.Array" = None) -> "Header":
        from parsers.configured_columns import header  # here, so that files are read without the column libraries

        return header(lines, tz, near, form)

    def noise(lines: "pa.LargeBinaryArray") -> "pa.DictionaryArray":
        from parsers.configured_columns import noise

        return noise(lines, form)

    stream: Callable[[Stream], ConfiguredStream] = partial(ConfiguredStream, form=form)
    return Parser(stream, header, NO_LINE, noise if form.noise else None, near=bool(form.time and form.time.yearless))


def nameless(regex: str) -> str:
    """The same without names of groups: RE2 refuses a name twice."""
    return re.sub(
        r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>",
        lambda found: "(?:" if found[0].startswith("(?P<") else found[0],
        regex,
    )


class ConfiguredStream(StampedStream):
    """Stream parser of a configured kind. Its state has the grammar it began with."""

    def __init__(self, stream: Stream, form: Form) -> None:
        super().__init__(stream)
        self.form = form

    def feed(self, line: Line) -> list[Record]:
        if self.form.follows:
            return super().feed(line)
        flags = set(line.flags)
        text = plain(decode(line.raw, flags)).rstrip(CONTROLS)
        return [self.read(text, line, flags) or unparsed(line)] if text else []

    def start(self, text: str, line: Line, flags: set[str]) -> Record | None:
        data = text.encode()
        found = _head(self.form.head, data)
        if found is None:
            return None
        end, said = found
        time, level, node = (said.pop(name, None) for name in ("time", "level", "node"))
        record = Record(self._fields(said), line.refs, flags=flags, node=_text(node))
        record.fields["message"] = data[end:].decode(errors="replace")
        if level is not None and (word := _text(level.strip())):
            record.fields |= {"level_raw": word, "level": self.form.level(word)}
        if time and self.form.time:
            record.ts, record.ts_source = self.form.time.read(time, self.times, line.received, flags) or (None, None)
        return record

    def finish(self, record: Record) -> None:
        text = record.fields["message"].encode()
        gate = self.form.gate
        for event in self.form.events if gate is None or _search(gate, text) is not None else ():
            if (said := _search(event.regex, text)) is not None:
                level = {"level": event.level} if event.level else {}
                record.fields |= {"event": event.name, **dict(event.fields), **level, **self._fields(said)}
                return
        for name, regex in self.form.noise:
            if _search(regex, text) is not None:
                record.fields["noise"] = name
                return

    def _fields(self, said: Mapping[str, bytes | None]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in said.items():
            if not value:
                continue
            if (form := self.form.integer(name)) is not None:
                if compiled(form).fullmatch(value):
                    fields[name] = int(value)
            elif text := pci(value.decode(errors="replace")) if name == "pci" else _text(value):
                fields[name] = text
        return fields


def _head(regex: str, line: bytes) -> tuple[int, dict[str, bytes | None]] | None:
    """Where the head of a line ends, and its groups; None without one."""
    if len(line) <= _LONG:
        found = compiled(regex).match(line)
        return None if found is None else (found.end(), found.groupdict())
    from parsers.configured_columns import search

    said = search(f"^(?P<head>{regex})", line)
    return None if said is None else (len(said.pop("head") or b""), said)


def _search(regex: str, text: bytes) -> dict[str, bytes | None] | None:
    """The groups of a pattern that is found in a text, else None."""
    if len(text) <= _LONG:
        found = compiled(regex).search(text)
        return None if found is None else found.groupdict()
    from parsers.configured_columns import search

    return search(regex, text)


def _text(value: bytes | None) -> str | None:
    return value.decode(errors="replace") if value else None
