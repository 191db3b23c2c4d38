"""`tailrace parse`: explains what a log file becomes, one JSON object per logical record.

The ten keys kind, ts, ts_source, node, level, event, message, noise, lines and flags are always there,
others only when known. Records come in the order of their first line.
"""

import argparse
import heapq
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flows.steps.redact.blocks import Open
from flows.steps.redact.carriers import read
from flows.steps.redact.line import line_redactor
from flows.steps.redact.rules import default_rules
from parsers import clock
from parsers.record import Line, Record, Ref, Stream, StreamParser
from parsers.registry import KINDS, parser

# Records that may wait for an earlier one; then the parser gives up what it holds, as it does in a silent stream.
MAX_WAITING = 10_000

_EXAMPLES = """\
examples:
  tailrace parse --kind slurmctld --tz Europe/Berlin slurmctld.log
  tailrace parse --kind pod --path /var/log/pods/ml_train-0_4f1c/worker/0.log 0.log
  dmesg --raw | tailrace parse --kind dmesg --boot-time 2025-03-04T05:00:00Z -
"""


def parse(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status. Wrong options and unreadable files end in SystemExit(2)."""
    options, stream = _options(argv)
    try:
        file = open(0, "rb", closefd=False) if options.file == "-" else open(options.file, "rb")  # noqa: SIM115 - below
    except OSError as error:
        print(f"tailrace parse: cannot read {options.file}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 2
    with file:
        try:
            source = without_secrets(lines(file, options.received_at), stream.kind)
            _print(ordered(parser(stream.kind).stream(stream), source), stream)
        except BrokenPipeError:
            # The reader has seen enough. Python would fail again when it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            return 130
    return 0


def lines(file: Iterable[bytes], received: clock.Stamp | None) -> Iterator[Line]:
    """Physical lines of a file, numbered from 0."""
    for number, raw in enumerate(file):
        yield Line(raw.removesuffix(b"\n"), (Ref(0, number),), received)


def without_secrets(source: Iterable[Line], kind: str) -> Iterator[Line]:
    """Lines as the stores would get them, by the rules that come with tailrace."""
    redactor = line_redactor(default_rules())
    opened: Open | None = None
    for line in source:
        raw, found, opened = read(redactor, kind, line.raw, opened)
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


def _print(records: Iterable[Record], stream: Stream) -> None:
    out, at_once = sys.stdout.buffer, sys.stdout.isatty()
    for record in records:
        text = json.dumps(as_object(record, stream), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        out.write(text.encode() + b"\n")
        if at_once:
            out.flush()
    out.flush()


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, Stream]:
    command = argparse.ArgumentParser(
        prog="tailrace parse",
        description="Print one JSON object per logical record of a log file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--kind", required=True, type=_kind, metavar="KIND", help=f"one of: {', '.join(KINDS)}")
    command.add_argument("--node", help="node that wrote the file; else the host that its lines name")
    command.add_argument("--cluster", help="cluster of the node")
    command.add_argument(
        "--tz", type=_zone, metavar="ZONE", help="zone of stamps that show none, such as Europe/Berlin"
    )
    command.add_argument("--received-at", type=_time, metavar="TIME", help="when the lines arrived (RFC 3339)")
    command.add_argument("--path", help="where the file was on its node: pod, container or job are read from it")
    command.add_argument("--boot-time", type=_time, metavar="TIME", help="when the node started (RFC 3339)")
    command.add_argument("--mtime", type=_time, metavar="TIME", help="last change of the file (RFC 3339), for the year")
    command.add_argument("file", metavar="FILE", help="log file, or - for standard input")
    options = command.parse_args(argv)
    times = clock.Times(
        options.tz,
        options.boot_time.ns if options.boot_time else None,
        options.mtime.ns if options.mtime else None,
    )
    return options, Stream(options.kind, options.node, options.cluster, options.path, times)


def _kind(name: str) -> str:
    if name in KINDS:
        return name
    from difflib import get_close_matches

    nearest = get_close_matches(name, KINDS, n=1, cutoff=0.0)[0]
    raise argparse.ArgumentTypeError(f"unknown kind {name!r}; did you mean {nearest!r}? known: {', '.join(KINDS)}")


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
