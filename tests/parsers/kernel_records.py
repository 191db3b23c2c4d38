"""Runs kernel lines through the stream parsers, as `tailrace parse` does."""

from typing import Any

from parsers import clock
from parsers.record import Line, Record, Ref, Stream
from parsers.registry import parser


def records(kind: str, text: str | bytes, received: str | None = None, **times: Any) -> list[Record]:
    """Records of a whole file; `times` are those of parsers.clock.Times."""
    data = text.encode() if isinstance(text, str) else text
    stream = parser(kind).stream(Stream(kind, times=clock.Times(**times)))
    stamp = clock.parse_rfc3339(received) if received else None
    lines = data.removesuffix(b"\n").split(b"\n")
    found = [done for row, raw in enumerate(lines) for done in stream.feed(Line(raw, (Ref(0, row),), stamp))]
    return found + stream.flush()


def record(kind: str, text: str | bytes, **options: Any) -> Record:
    """The only record of a file."""
    (found,) = records(kind, text, **options)
    return found


def shown(found: Record, wanted: dict[str, Any]) -> dict[str, Any]:
    """The wanted fields of a record; absent and null are the same."""
    return {name: found.fields.get(name) for name in wanted}
