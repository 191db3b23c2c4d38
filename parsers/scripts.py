"""Logs of Slurm's prolog and epilog scripts, one record per line.

    2025-03-04T05:06:07Z ERROR archive.sh:47 Failed to copy …        the way of Azure's slurm-log-collection
    DEBUG: json: [ {...} ] ret: 1 job: 8001 nodename: …                prolog of slurmctld, lines of hundreds of KB
    + nvidia-smi -pm 1                                                a trace of `set -x`

Nothing is cut. The job is told by the text, else by the file's name.
"""

import re
from collections.abc import Sequence

from parsers.clock import Stamp, local, parse_iso, parse_rfc3339
from parsers.json_lines import CONTROLS, level_of, no_header, placed, plain
from parsers.kernel_rules import Fields
from parsers.record import Line, Parser, Record, Ref, Stream, decode
from parsers.slurm_text import job_of_path, slurm_text

_READ = 4096  # characters of a text that are read for ids: the rest of a dump says nothing of its own line
_LEVEL = r"DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE"
_STAMP = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)\]?:?(?: |$)", re.ASCII
)
_WORD = re.compile(rf"(?:\[({_LEVEL})\]:?|({_LEVEL}):?)(?: +|$)")
_PLACE = re.compile(r"([\w./-]{1,200}):(\d{1,7}):?(?: |$)", re.ASCII)
_BARE_WORD = re.compile(rf"({_LEVEL}): ")


class ScriptStream:
    """Stream parser of one log of a script."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times
        self.job = job_of_path(stream.path) if stream.path else None

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = plain(decode(line.raw, flags)).rstrip(CONTROLS)
        if not text:
            return []
        fields: Fields = {}
        ts, source = None, None
        stamp = _STAMP.match(text)
        if stamp and (parsed := parse_iso(stamp[1])):
            ts = parse_rfc3339(stamp[1]) if parsed[2] else local(parsed[0], parsed[1], self.times.tz, flags)
            source = "record" if parsed[2] else "zone"
            text = self._head(text[stamp.end() :], fields)
        elif word := _BARE_WORD.match(text):
            fields |= {"level": level_of(word[1]), "level_raw": word[1]}
            text = text[word.end() :]
        return [self._record(text, line, fields, flags, ts, source)]

    def _head(self, text: str, fields: Fields) -> str:
        """Take level word and place off what follows a stamp."""
        if word := _WORD.match(text):
            fields["level_raw"] = word[1] or word[2]
            fields["level"] = level_of(fields["level_raw"])
            text = text[word.end() :]
            if place := _PLACE.match(text):
                fields |= {"src_file": place[1], "src_line": int(place[2])}
                text = text[place.end() :]
        return text

    def _record(
        self, text: str, line: Line, fields: Fields, flags: set[str], ts: Stamp | None, source: str | None
    ) -> Record:
        said: Fields = {}
        slurm_text(text[:_READ], said, flags)
        fields |= {name: value for name, value in said.items() if name not in fields}
        if self.job is not None:
            fields.setdefault("job_id", self.job)
        fields["message"] = text
        return placed(Record(fields, line.refs, ts, source if ts else None, flags), line)

    def flush(self) -> list[Record]:
        return []


SCRIPT = Parser(ScriptStream, no_header)
