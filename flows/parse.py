"""`tailrace parse`: what a log file becomes, one JSON object per logical record, as a table, or explained.

The ten keys kind, ts, ts_source, node, level, event, message, noise, lines and flags are always there,
others only when known. Records come in the order of their first line.
"""

import argparse
import heapq
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.steps.kinds import BUILT_IN, UNKNOWN, Kinds
from flows.steps.redact.blocks import Open
from flows.steps.redact.carriers import read as redact
from flows.steps.redact.line import line_redactor
from flows.steps.redact.rules import Rules, default_rules
from parsers import clock
from parsers.record import Line, Record, Ref, Stream, StreamParser
from parsers.registry import KINDS
from sinks.errors import Misconfigured

if TYPE_CHECKING:
    from flows.config import Config

# Records that may wait for an earlier one; then the parser gives up what it holds, as it does in a silent stream.
MAX_WAITING = 10_000

# Title, key (empty: `event`, else `noise`) and width of each column of a table but the last, the message.
_TABLE = (("time", "ts", 30), ("level", "level", 9), ("event or noise", "", 22), ("node", "node", 16))

_EXAMPLES = """\
examples:
  tailrace parse --kind slurmctld --tz Europe/Berlin slurmctld.log
  tailrace parse --kind pod --path /var/log/pods/ml_train-0_4f1c/worker/0.log 0.log
  tailrace parse --kind training --explain slurm-70011.out               # why, and what each store would get
  tailrace parse --kind slurmd --format table /var/log/slurmd.log
  tailrace parse --config tailrace.toml --kind my_kind my.log            # a kind of your own: [kinds.my_kind]
  dmesg --raw | tailrace parse --kind dmesg --boot-time 2025-03-04T05:00:00Z -
"""


class Known(NamedTuple):
    """What a configuration says of lines; without one, what comes with tailrace."""

    kinds: Kinds = BUILT_IN
    secrets: Rules = default_rules()
    with_secrets: tuple[str, ...] = ()  # kinds that are left as they are
    config: "Config | None" = None

    def clean(self, source: Iterable[Line], kind: str) -> Iterable[Line]:
        """Lines as the stores would get them."""
        return source if kind in self.with_secrets else without_secrets(source, kind, self.secrets)


def parse(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status. Wrong options end in SystemExit(2)."""
    try:
        options, stream, known = _options(argv)
        file = open(0, "rb", closefd=False) if options.file == "-" else open(options.file, "rb")  # noqa: SIM115 - below
    except Misconfigured as error:
        print(f"tailrace parse: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except OSError as error:
        print(f"tailrace parse: cannot read {options.file}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 2
    with file:
        try:
            source = lines(file, options.received_at)
            if options.explain:
                _explain(source, stream, known)
            else:
                _print(read(source, stream, known), stream, options.format)
        except BrokenPipeError:
            # The reader has seen enough. Python would fail again when it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            return 130
    return 0


def read(source: Iterable[Line], stream: Stream, known: Known) -> Iterator[Record]:
    """The records of lines, without secrets."""
    return ordered(known.kinds.parser(stream.kind).stream(stream), known.clean(source, stream.kind))


def _explain(source: Iterable[Line], stream: Stream, known: Known) -> None:
    from flows.explain.page import explain

    def with_lines(watched: Iterable[Line]) -> Iterator[tuple[Record, list[bytes]]]:
        kept: dict[int, bytes] = {}

        def keeping() -> Iterator[Line]:
            for line in known.clean(watched, stream.kind):
                kept[line.refs[0].line] = line.raw
                yield line

        for record in ordered(known.kinds.parser(stream.kind).stream(stream), keeping()):
            for number in [number for number in kept if number < record.refs[0].line]:
                del kept[number]
            yield record, [kept[ref.line] for ref in record.refs]

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    explain(source, stream, with_lines, known.config, sys.stdout, colour)
    sys.stdout.flush()


def lines(file: Iterable[bytes], received: clock.Stamp | None) -> Iterator[Line]:
    """Physical lines of a file, numbered from 0."""
    for number, raw in enumerate(file):
        yield Line(raw.removesuffix(b"\n"), (Ref(0, number),), received)


def without_secrets(source: Iterable[Line], kind: str, rules: Rules) -> Iterator[Line]:
    """Lines with *** for secrets."""
    redactor = line_redactor(rules)
    opened: Open | None = None
    for line in source:
        raw, found, opened = redact(redactor, kind, line.raw, opened)
        yield line._replace(raw=raw, flags=(*line.flags, "redacted")) if found else line


def ordered(stream: StreamParser, source: Iterable[Line]) -> Iterator[Record]:
    """All records, in the order of their first line and their part."""
    waiting: list[tuple[Ref, int, int, Record]] = []
    count = 0
    for line in source:
        done = stream.feed(line)
        if len(waiting) + len(done) > MAX_WAITING:
            done += stream.flush()
        for record in done:
            heapq.heappush(waiting, (record.refs[0], record.part, count, record))
            count += 1
        if not waiting:
            continue
        held = stream.held
        first = min(held) if held else None
        while waiting and (first is None or waiting[0][0] < first):
            yield heapq.heappop(waiting)[3]
    for record in stream.flush():
        heapq.heappush(waiting, (record.refs[0], record.part, count, record))
        count += 1
    while waiting:
        yield heapq.heappop(waiting)[3]


def as_object(record: Record, stream: Stream) -> dict[str, Any]:
    """The record as it is printed: ten keys that are always there, then the fields that are known."""
    fields = record.fields
    always = {
        "kind": stream.kind,
        "ts": None if record.ts is None else clock.text(record.ts),
        "ts_source": None if record.ts is None else record.ts_source,
        "node": stream.node or record.node,
        "level": fields.get("level"),
        "event": fields.get("event"),
        "message": fields["message"],
        "noise": fields.get("noise"),
        "lines": len(record.refs),
        "flags": sorted(record.flags),
    }
    others = {"cluster": stream.cluster, **fields}
    return always | {name: value for name, value in others.items() if name not in always and value is not None}


def _print(records: Iterable[Record], stream: Stream, form: str) -> None:
    out, at_once = sys.stdout.buffer, sys.stdout.isatty()
    if form == "table":
        out.write(_cells([*(title for title, _, _ in _TABLE), "message"]))
    for record in records:
        values = as_object(record, stream)
        if form == "table":
            columns = {"": values["event"] or values["noise"], **values}
            message = values["message"].replace("\n", " ⏎ ")
            out.write(_cells([*(columns[name] for _, name, _ in _TABLE), message]))
        else:
            text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            out.write(text.encode() + b"\n")
        if at_once:
            out.flush()
    out.flush()


def _cells(texts: Sequence[str | None]) -> bytes:
    """A line of the table; a longer text pushes the rest of its line aside."""
    cells = [f"{text or '-':{width}}" for text, (_, _, width) in zip(texts, _TABLE, strict=False)]
    return " ".join((*cells, texts[-1] or "")).encode() + b"\n"


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, Stream, Known]:
    command = argparse.ArgumentParser(
        prog="tailrace parse",
        description="Print one JSON object per logical record of a log file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--kind", required=True, metavar="KIND", help=f"one of: {', '.join(KINDS)}; or one of the configuration's"
    )
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration whose kinds, zones, secrets, noise and rules hold"
    )
    command.add_argument("--node", help="node that wrote the file; else the host that its lines name")
    command.add_argument("--cluster", help="cluster of the node")
    command.add_argument(
        "--tz", type=_zone, metavar="ZONE", help="zone of stamps that show none, such as Europe/Berlin"
    )
    command.add_argument("--received-at", type=_time, metavar="TIME", help="when the lines arrived (RFC 3339)")
    command.add_argument("--path", help="where the file was on its node: pod, container or job are read from it")
    command.add_argument("--boot-time", type=_time, metavar="TIME", help="when the node started (RFC 3339)")
    command.add_argument("--mtime", type=_time, metavar="TIME", help="last change of the file (RFC 3339), for the year")
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--format", choices=["json", "table"], default="json", help="json: all fields; table: for the eye"
    )
    form.add_argument("--explain", action="store_true", help="say for each record why, and what each store would get")
    command.add_argument("file", metavar="FILE", help="log file, or - for standard input")
    options = command.parse_args(argv)
    known = _known(options.config) if options.config else Known()
    if options.kind not in known.kinds.jobs or options.kind == UNKNOWN:
        command.error(f"argument --kind: {_unknown(options.kind, known.kinds)}")
    tz = options.tz
    if tz is None and known.config is not None:
        tz = known.config.decode.zone_of(known.kinds, options.kind, options.node or "")
    times = clock.Times(
        tz,
        options.boot_time.ns if options.boot_time else None,
        options.mtime.ns if options.mtime else None,
    )
    cluster = options.cluster or (known.config and known.config.tier.cluster) or None
    return options, Stream(options.kind, options.node, cluster, options.path, times), known


def _known(path: Path) -> Known:
    """What a configuration says. Raises Misconfigured."""
    from flows.config import load

    config = load(path)
    return Known(config.all_kinds(), config.redaction.redaction().rules, config.redaction.skip_kinds, config)


def _unknown(name: str, kinds: Kinds) -> str:
    from difflib import get_close_matches

    names = [known for known in kinds.jobs if known != UNKNOWN]
    nearest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
    return f"unknown kind {name!r}; did you mean {nearest!r}? known: {', '.join(names)}"


def _zone(name: str) -> str:
    try:
        clock.zone(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _time(text: str) -> clock.Stamp:
    stamp = clock.parse_rfc3339(text)
    if stamp is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no RFC 3339 time with a zone; write it like 2025-03-04T05:06:07Z or 2025-03-04T05:06:07+01:00"
        )
    return stamp
