"""Logs of Slurm's prolog and epilog scripts, one record per line.

    2025-03-04T05:06:07Z ERROR archive.sh:47 Failed to copy …        scripts of Azure's slurm-log-collection
    DEBUG: json:  [ {...} ] ret:  1 job:  8001 nodename:  gpu-001    prolog of slurmctld, lines of hundreds of KB
    + nvidia-smi -pm 1                                               a trace of `set -x`
    srun: error: Unable to confirm allocation for job 8001: …        Slurm's own commands, called by a script

Nothing is cut. The job is told by the text, else by the file's name. Source of the second form: Azure/cyclecloud-slurm
prolog.sh, whose `echo` puts a second blank behind each name.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsers import hostlist
from parsers.clock import Stamp, local, parse_iso, parse_rfc3339
from parsers.json_lines import CONTROLS, level_of, placed, plain
from parsers.kernel_rules import Fields
from parsers.record import Line, Parser, Record, Ref, Stream, decode
from parsers.slurm_ids import ID_GATE
from parsers.slurm_text import CLIENT, RULES, job_of_path, slurm_text, stepd_line

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

_READ = 4096  # characters of a text that are read for ids: the rest of a dump says nothing of its own line
LEVEL = r"DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE"
_STAMP = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)\]?:?(?: |$)", re.ASCII
)
_WORD = re.compile(rf"(?:\[({LEVEL})\]:?|({LEVEL}):?)(?: +|$)")
PLACE = r"[A-Za-z_./][A-Za-z0-9_./-]{0,199}"
_PLACE = re.compile(rf"({PLACE}):(\d{{1,7}}):?(?: |$)", re.ASCII)
_BARE_WORD = re.compile(rf"(?:\[({LEVEL})\]:?|({LEVEL}):) ")
_DUMP_END = re.compile(r" ret: +\d+ +job: +(\d{1,10}) +nodename: +(\S+)$", re.ASCII)

# RE2: texts that may hold more than a message. Lines with another head than the usual are `rich` in the columns.
_GATE = "|".join(
    [
        *sorted({re.escape(rule.word) for rule in RULES if not rule.controller}),
        ID_GATE,
        rf"JobId=|NodeList=|Partition=|#CPUs=|InitPrio=|usec=| nodename: |^{CLIENT}|^(?:\[(?:{LEVEL})\]|(?:{LEVEL}): )",
    ]
)


class ScriptStream:
    """Stream parser of one log of a script. A line is complete, so nothing is ever held."""

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
        ts: Stamp | None = None
        source = None
        stamp = _STAMP.match(text)
        if stamp and (parsed := parse_iso(stamp[1])):
            ts = parse_rfc3339(stamp[1]) if parsed[2] else local(parsed[0], parsed[1], self.times.tz, flags)
            source = "record" if parsed[2] else "zone"
            text = self._head(text[stamp.end() :], fields)
        elif word := _BARE_WORD.match(text):
            fields["level_raw"] = word[1] or word[2]
            text = text[word.end() :]
        if "level_raw" in fields:
            fields["level"] = level_of(fields["level_raw"])
        self._read(text, fields, flags)
        if self.job is not None:
            fields.setdefault("job_id", self.job)
        return [placed(Record(fields, line.refs, ts, source if ts else None, flags), line)]

    @staticmethod
    def _head(text: str, fields: Fields) -> str:
        """Take level word and place off what follows a stamp."""
        if word := _WORD.match(text):
            fields["level_raw"] = word[1] or word[2]
            text = text[word.end() :]
            if place := _PLACE.match(text):
                fields |= {"src_file": place[1], "src_line": int(place[2])}
                text = text[place.end() :]
        return text

    @staticmethod
    def _read(text: str, fields: Fields, flags: set[str]) -> None:
        """Read the text itself: message, ids, event."""
        if not fields and stepd_line(text, fields, flags):
            return
        fields["message"] = text
        if end := _DUMP_END.search(text, len(text) - 512 if len(text) > 512 else 0):
            fields |= {"job_id": int(end[1]), **hostlist.fields(end[2])}
        else:
            slurm_text(text[:_READ], fields, flags)

    def flush(self) -> list[Record]:
        return []


def script_columns(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":  # noqa: ARG001 - usual stamps are UTC
    """Columns of lines that have the usual head or none."""
    from parsers.script_columns import columns  # here, so that reading a file does not wait for the column libraries

    return columns(lines)


SCRIPT = Parser(ScriptStream, script_columns, _GATE, path_job=True)
