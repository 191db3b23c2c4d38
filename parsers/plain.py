"""Lines of a kind that no parser knows: kept as they are, flag `unparsed`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsers.json_lines import unparsed
from parsers.record import Line, Parser, Record, Ref, Stream

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header


class PlainStream:
    """Every line is a record; empty lines are none."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        pass

    def feed(self, line: Line) -> list[Record]:
        return [unparsed(line)] if line.raw.strip(b"\0\r") else []

    def flush(self) -> list[Record]:
        return []


def plain_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":  # noqa: ARG001 - contract of Parser.header
    """The line as `message`, and its flag; lines that are no UTF-8 are `rich`."""
    import pyarrow as pa

    from parsers.header import Header, as_text

    message, bad = as_text(lines)
    offsets = pa.array(range(len(lines) + 1), pa.int32())
    flags = pa.ListArray.from_arrays(offsets, pa.repeat("unparsed", len(lines)))
    return Header(message=message, columns={"flags": flags}, rich=bad)


# Lines whose message is not the line itself: ANSI sequences, control characters at the end, NULs in front, nothing.
PLAIN = Parser(PlainStream, plain_header, gate=r"\x1b|[\x00-\x08\x0a-\x1f\x7f]$|^\x00|^$")
