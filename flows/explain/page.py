"""What `tailrace parse --explain` prints: a block for each record, for a person."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TextIO

import pyarrow as pa

from flows.config import Config, validate
from flows.explain.gate import pick
from flows.explain.stores import Fate, Tier, azure_row, loki_entry
from parsers import clock
from parsers.nccl_noise import RULES
from parsers.record import NO_LINE, Line, Record, Stream
from sinks.azure_rows import Profile
from sinks.loki_limits import Limits

_ENVELOPE = (
    "cluster", "facility", "host", "ip", "app", "process", "pid", "tid", "uid", "gid", "thread", "unit", "boot_id",
    "stream", "namespace", "pod", "container", "seq", "monotonic_us", "caller_tid", "caller_cpu", "kernel_dict",
    "printk_flags", "from_kernel", "daemon", "structured_data", "msgid",
)  # fmt: skip
_PLACES = (
    "labels", "demoted", "dropped", "topic", "partition", "offset", "line", "part", "spans", "owned", "appended_at",
)  # fmt: skip
_HEADER = ("level", "level_raw", "message", "event", "noise")
_MAX_TEXT = 300  # characters of one value
_NCCL_NAMES = {rule["id"]: rule["name"].removeprefix(f"{rule['id']} ") for rule in RULES["noise"]}
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_LEVELS = {"emergency": _RED, "alert": _RED, "critical": _RED, "error": _RED, "warning": _YELLOW}

Records = Callable[[Iterable[Line]], Iterator[tuple[Record, Sequence[bytes]]]]


@dataclass(slots=True)
class Page:
    """Prints blocks to `out`, in colour where `colour`."""

    out: TextIO
    colour: bool
    config: Config
    stream: Stream
    tier: Tier
    _windows: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._windows = {rule.name: rule for rule in self.config.all_rules()}

    def show(self, record: Record, raws: Sequence[bytes], fate: Fate | None) -> None:
        """One record: its lines, what was read of them, and what becomes of it."""
        first, last = record.refs[0].line + 1, record.refs[-1].line + 1
        place = f"line {first}" if first == last else f"lines {first} to {last}"
        part = f", record {record.part + 1} of it" if record.part else ""
        self._print(self._paint(f"── {place}{part}", _BOLD))
        for raw in raws:
            self._print("   " + self._paint(_short(raw.decode(errors="replace")), _DIM))
        fields = record.fields
        node = self.stream.node or record.node
        self._row("envelope", self._pairs({"kind": self.stream.kind, "node": node, **fields}))
        stamp = "no time" if record.ts is None else f"{clock.text(record.ts)} ({record.ts_source})"
        level = self._paint(fields.get("level") or "no level", _LEVELS.get(fields.get("level") or "", ""))
        word = f" from {fields['level_raw']!r}" if fields.get("level_raw") else ""
        flags = f", flags {' '.join(sorted(record.flags))}" if record.flags else ""
        self._row("header", f"{stamp}, {level}{word}{flags}")
        self._row("message", repr(_short(fields["message"])))
        self._row("gate", self._gate(record, raws, fate))
        self._row("event", self._paint(fields["event"], _GREEN) if fields.get("event") else "none")
        if rest := {name: fields[name] for name in fields.keys() - {*_ENVELOPE, *_HEADER} if fields[name] is not None}:
            self._row("fields", self._joined(dict(sorted(rest.items()))))
        self._row("noise", self._noise(record, fate))
        if fate is None:
            self._row("stores", "nothing: the message it is in becomes a dead letter, see [decode]")
        else:
            self._stores(fate)
        self._print("")

    def _pairs(self, values: Mapping[str, Any]) -> str:
        names = ("kind", "node", *_ENVELOPE)
        return self._joined({name: values[name] for name in names if values.get(name) is not None})

    def _joined(self, values: Mapping[str, Any]) -> str:
        return " ".join(f"{self._paint(name, _CYAN)}={_value(value)}" for name, value in values.items())

    def _gate(self, record: Record, raws: Sequence[bytes], fate: Fate | None) -> str:
        parser = self.tier.pipeline.kinds.parser(self.stream.kind)
        lines = pa.array([*raws], pa.large_binary())
        if fate and fate.record.values["dropped"] and parser.noise and parser.noise(lines)[0].is_valid:
            return "not asked: noise of this form is told before"
        own = self.config.kinds.get(self.stream.kind)
        gate = own.form().event_gate() if own else parser.gate
        if gate is None and not own:
            return "none: lines of this kind are all read one by one"
        if gate is not None and gate != NO_LINE:
            for text in [record.fields["message"].encode()] if own else raws:
                if found := pick(gate, text):
                    return f"{self._paint('picked', _GREEN)} for {_short(found.text)!r}, by {_short(found.part)}"
        if len(raws) > 1:
            return "not picked; read one by one for the sake of the lines that belong together"
        if "redacted" in record.flags:
            return "not picked; read by itself for its secret"
        near = (pa.array([0], pa.int64()),) if parser.near else ()
        header = parser.header(lines, self.stream.times.tz, *near)
        if header.rich is not None and header.rich[0].as_py():
            return "not picked; read by itself for its form"
        return "not picked: read with others, by columns"

    def _noise(self, record: Record, fate: Fate | None) -> str:
        rule, config = record.fields.get("noise"), self.config.noise
        if rule is None:
            return f"no rule{self._why_kept(record)}"
        named = self._paint(rule, _YELLOW) + (f" ({_NCCL_NAMES[rule]})" if rule in _NCCL_NAMES else "")
        if fate is None or fate.record.values["dropped"]:
            return f"{named}: dropped, so neither Loki nor Azure gets it; it is counted"
        if not config.drop:
            return f"{named}, but kept: noise.drop is false"
        if rule in config.keep:
            return f"{named}, but kept: noise.keep names it"
        return f"{named}, but kept: noise.exempt, {self._joined(config.exempt)}"

    def _why_kept(self, record: Record) -> str:
        level, message = record.fields.get("level_raw"), record.fields["message"]
        if self.tier.pipeline.kinds.parser(self.stream.kind).noise is None or level not in ("WARN", "ABORT", "INFO"):
            return ""
        if level != "INFO":
            return f": {level} is never noise"
        kept = next((rule["name"] for rule in RULES["keep"] if re.search(rule["re"], message)), None)
        return f": kept by {kept}" if kept else ": what is not known is kept"

    def _stores(self, fate: Fate) -> None:
        sinks, values = self.config.sinks, fate.record.values
        some = any((sinks.loki, sinks.azure, sinks.parquet))
        labels, dropped = values["labels"], values["dropped"]
        if not dropped:
            demoted = f" (no room: {self._joined(values['demoted'])})" if values["demoted"] else ""
            self._row("labels", self._joined(labels) + demoted)
        if not dropped and (sinks.loki or not some):
            limits, record_id = (sinks.loki.limits, sinks.loki.record_id) if sinks.loki else (Limits(), False)
            entry = loki_entry(fate.record, limits, record_id)
            self._row("Loki", f"line {_short(entry.line)!r}")
            self._row("", f"metadata {self._joined(entry.metadata) or 'none'}")
        if not dropped and (sinks.azure or not some):
            profile: Profile = sinks.azure.profile if sinks.azure else "parsed"
            stream, row = azure_row(fate.record, profile, sinks.azure.streams if sinks.azure else {})
            self._row("Azure", f"{self._paint(stream, _BOLD)} {self._joined(row)}")
        if sinks.parquet or not some:
            archived = not dropped or sinks.parquet is None or sinks.parquet.noise
            columns = {name: value for name, value in values.items() if name not in _PLACES}
            self._row("Parquet", self._joined(columns) if archived else "nothing: sinks.parquet.noise is false")
        if not fate.partials:
            self._row("alerts", "no rule counts it")
        for partial in fate.partials:
            rule = self._windows[partial.rule]
            often = f"more than {rule.threshold} in {rule.window_s} s" if rule.threshold else "the first one"
            for_s = f", for {rule.for_s} s" if rule.for_s else ""
            late = "; older than the horizon, so it would page nobody" if partial.late else ""
            follows = "; a follower, which counts with its fault" if partial.follower else ""
            name = self._paint(partial.rule, _RED)
            group = self._joined(dict(partial.group))
            self._row("alerts", f"{name} ({rule.severity}) {group}: fires at {often}{for_s}{late}{follows}")

    def _row(self, name: str, text: str) -> None:
        self._print(f"   {self._paint(f'{name:9}', _BOLD)} {text}")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text

    def _print(self, text: str) -> None:
        self.out.write(text + "\n")


def explain(
    source: Iterable[Line], stream: Stream, read: Records, config: Config | None, out: TextIO, colour: bool
) -> None:
    """Explain all records of a file. `read` makes records of lines, each with its lines without secrets.

    Without a configuration that of the defaults holds, and all stores are shown.
    """
    config = config or validate({"source": {"files": {}}}, "defaults")
    source = iter(source)
    first = next(source, None)
    received = first.received if first else None
    tier = Tier(config, stream, received.ns // 1_000_000 if received else int(time.time() * 1_000))
    page = Page(out, colour, config, stream, tier)
    waiting: deque[tuple[Record, Sequence[bytes]]] = deque()

    def watched() -> Iterator[Line]:
        for line in () if first is None else chain([first], source):
            tier.feed(line.raw)
            yield line

    def print_ready(ended: bool) -> None:
        while waiting and (ended or _key(waiting[0][0]) in tier.fates):
            record, raws = waiting.popleft()
            page.show(record, raws, tier.fates.pop(_key(record), None))

    for found in read(watched()):
        waiting.append(found)
        print_ready(ended=False)
    tier.end()
    print_ready(ended=True)


def _key(record: Record) -> tuple[int, int]:
    return record.refs[0].line, record.part


def _value(value: Any) -> str:
    if isinstance(value, str):
        return repr(_short(value)) if re.search(r"[\s'\"=]", value) or not value else _short(value)
    return _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text) - _MAX_TEXT} characters more)"
