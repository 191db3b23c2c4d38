"""Syslog files and messages: the rich parser. Every line is a record; heads are read by `syslog_head`.

rsyslog writes control characters as `#012`: three octal digits on receipt, decimal ones in a template with the
option escape-cc (`#013` is a carriage return there, `#009` a tab).
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsers.json_lines import CONTROLS, placed, unparsed
from parsers.kernel_text import clean, kernel_text
from parsers.programs import GATE, Programs
from parsers.record import Line, Parser, Record, Ref, Stream, decode
from parsers.syslog_head import read_head

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

_ESCAPE = re.compile(r"#(0[0-3][0-7]|177|009)")
_DECIMAL = {"009": "\t", "010": "\n", "013": "\r", "027": "\x1b"}

_DRIVER = re.compile(r"(?:\[ *\d+\.\d+\] )?(?:NVRM|nvidia-nvswitch\d+): ", re.ASCII)
_KERNEL = re.compile(r"(?:^|.*? )kernel: (?:\[ *\d+\.\d+\] )?|\[ *\d+\.\d+\] ", re.ASCII)


def unescape(text: str) -> str:
    """Undo rsyslog's escapes. Where octal and decimal differ, the control character that logs hold is meant."""
    if "#" not in text:
        return text
    return _ESCAPE.sub(lambda found: _DECIMAL.get(found[1]) or chr(int(found[1], 8)), text)


class SyslogStream:
    """Holds nothing: a line is whole by itself."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times
        self.programs = Programs(stream.times)

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = decode(line.raw, flags).rstrip(CONTROLS)
        if not text.strip():
            return []
        head = read_head(text, self.times, line.received, flags)
        if head is None:
            return [_unknown(text, line)]
        record = Record(head.fields, line.refs, head.ts, head.source if head.ts else None, flags, node=head.node)
        text, app, facility = unescape(head.text), head.fields.get("app"), head.fields.get("facility")
        if app is None and (facility == "kern" or (facility is None and _DRIVER.match(text))):
            app = "kernel"
        self.programs.read(app, text, record, line)
        return [placed(record, line)]

    def flush(self) -> list[Record]:
        return []


def _unknown(text: str, line: Line) -> Record:
    """A line with a head that is not known. Faults that the kernel tells in it must be seen all the same."""
    record = unparsed(line)
    if found := _KERNEL.match(text):
        kernel_text(clean(unescape(text[found.end() :])), record.fields, record.flags)
    return record


def header(lines: "pa.LargeBinaryArray", tz: str | None, near: "pa.Array | None" = None) -> "Header":
    """Columns of lines with a usual head; see `syslog_columns`."""
    from parsers.syslog_columns import columns  # here, so that reading a file does not wait for the column libraries

    return columns(lines, tz, near)


SYSLOG = Parser(SyslogStream, header, GATE, near=True)
