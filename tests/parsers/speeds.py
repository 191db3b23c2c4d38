"""Compares the columns of a kind's header with what its stream parser says of the same lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parsers.clock import Stamp, Times
from parsers.record import Line, Ref, Stream
from parsers.registry import parser
from tests.parsers.kernel_records import records

# Kinds whose texts other carriers bring too, and the program that writes them.
_PROGRAMS = {
    "kmsg": "kernel", "dmesg": "kernel", "slurmctld": "slurmctld", "slurmd": "slurmd",
    "fabric_manager": "nv-fabricmanager", "healthagent": "healthagent",
}  # fmt: skip


def cases(kind: str) -> list[dict[str, Any]]:
    """Recorded cases of a kind whose input is text."""
    lines = (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text("utf-8").split("\n")
    return [case for case in map(json.loads, filter(None, lines)) if case["kind"] == kind and "input" in case]


def event_texts() -> list[tuple[str, str]]:
    """Program and text of every recorded case of one line that is an event."""
    return [
        (program, found.fields["message"])
        for kind, program in _PROGRAMS.items()
        for case in cases(kind)
        for found in records(kind, case["input"])
        if found.fields.get("event") and "\n" not in found.fields["message"]
    ]


def fast(kind: str, lines: Sequence[bytes], tz: str | None, received: Stamp) -> list[dict[str, Any] | None]:
    """What the header says of each line; None for a line that goes to the stream parser."""
    reading = parser(kind)
    column = pa.array(lines, pa.large_binary())
    more = [pa.array([received.ns] * len(lines), pa.int64())] if reading.near else []
    header = reading.header(column, tz, *more)
    rich = pc.or_(pc.match_substring_regex(column, reading.gate), header.rich).to_pylist()
    named = {"ts": header.ts, "ts_source": header.ts_source, "level": header.level, "message": header.message}
    columns = {**named, **header.columns}
    values = {name: column.to_pylist() for name, column in columns.items() if column is not None}
    rows = [{name: values[name][row] for name in values} for row in range(len(lines))]
    for row in rows:
        row |= dict(row.pop("fields"))
    return [None if taken else row for taken, row in zip(rich, rows, strict=True)]


def slow(kind: str, line: bytes, tz: str | None, received: Stamp) -> dict[str, Any]:
    """The only record of a line in the same shape. Fields outside the schema's columns are text."""
    stream = parser(kind).stream(Stream(kind, times=Times(tz)))
    (record,) = stream.feed(Line(line, (Ref(0, 0),), received)) + stream.flush()
    assert not record.flags
    typed = {name: record.fields.get(name) for name in ("level", "message", "pid", "monotonic_us")}
    texts = {
        name: json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in record.fields.items()
        if name not in typed and value is not None
    }
    time = {"ts": record.ts.ns, "ts_source": record.ts_source} if record.ts else {}
    if record.ts_source in (None, "received"):  # added by the tier
        time = {"ts": None, "ts_source": None}
    return {**time, **typed, "node": record.node, **texts}


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """Absent and null are the same, and so are two ways to print one object."""
    return {
        name: json.loads(value) if name == "attributes" else value for name, value in row.items() if value is not None
    }


def assert_same(kind: str, lines: Sequence[bytes], tz: str | None, received: Stamp) -> int:
    """Both speeds agree on every line that the gate leaves; returns how many these are."""
    rows = fast(kind, lines, tz, received)
    for line, row in zip(lines, rows, strict=True):
        assert row is None or _known(row) == _known(slow(kind, line, tz, received)), line
    return len(rows) - rows.count(None)
