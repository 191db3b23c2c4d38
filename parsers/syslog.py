"""Syslog files and messages: the rich parser. Every line is a record; heads are read by `syslog_head`.

rsyslog writes control characters as `#012`: three octal digits on receipt, decimal ones in a template with the
option escape-cc (`#013` is a carriage return there, `#009` a tab).
"""

import re
from collections.abc import Sequence

from parsers.carried import Carried
from parsers.json_lines import CONTROLS, no_header, placed, unparsed
from parsers.record import Line, Parser, Record, Ref, Stream, decode
from parsers.syslog_head import read_head

_ESCAPE = re.compile(r"#(0[0-3][0-7]|177|009)")
_DECIMAL = {"009": "\t", "010": "\n", "013": "\r", "027": "\x1b"}


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
        self.carried = Carried(stream)

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = decode(line.raw, flags).rstrip(CONTROLS)
        if not text.strip():
            return []
        head = read_head(text, self.times, line.received, flags)
        if head is None:
            return [unparsed(line)]
        record = Record(head.fields, line.refs, head.ts, head.source if head.ts else None, flags, node=head.node)
        agent = "healthagent" if head.logger else None
        kernel = head.fields.get("facility") == "kern" and "app" not in head.fields
        return [placed(self.carried.read(record, unescape(head.text), line, agent, kernel), line)]

    def flush(self) -> list[Record]:
        return []


SYSLOG = Parser(SyslogStream, no_header)
