"""Records of job output: fields, time and flags of a piece or a block that is complete."""

import re
from typing import Any

from parsers import nccl, pytorch
from parsers.clock import NS, Stamp, from_number, local, parse_iso, parse_rfc3339
from parsers.job_blocks import Block
from parsers.job_lines import Piece, is_bar
from parsers.json_lines import CONTROLS, LEVELS
from parsers.nccl_noise import noise_id
from parsers.nccl_text import text_fields
from parsers.record import Record, Stream
from parsers.slurm_text import CLIENT_LINE, job_of_path, stepd_line

# Texts with these events are kept by the rules.
USEFUL_EVENTS = ("nccl_comm", "nccl_call_path", "nccl_init_timing", "nccl_env", "nccl_network", "nccl_version")
MAX_READ = 4_096  # characters of an NCCL message that are read for fields and noise
MAX_PROCESSES = 4_096
LONGEST_BYTES = 1_023  # NCCL 2.20 to 2.28 cuts a line here
WRONG_FRACTIONS = "2.26.2"  # this version prints wrong sub-second digits

_LEVEL = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
# Python logging behind a stamp: `INFO text` `[INFO] text` `name: [INFO] text` `- name - INFO - text` `| INFO | text`
_LOGGED = re.compile(
    rf"(?:[-|] )?(?:(?P<app>[A-Za-z_][\w.]*)(?::| -)? )??\[?(?P<level>{_LEVEL})\]?(?: *[-|:](?= ))? +(?=\S)"
)
_BASIC = re.compile(rf"(?P<level>{_LEVEL}):(?P<app>[A-Za-z_][\w.]*):(?=\S)")
_REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\](?: \(Ray dedup.*\))?$")
_SERVICE = "[Service thread] Connection closed by localRank"


class Builder:
    """Makes the records of one stream. Remembers which processes have ended their communicator (noise N26)."""

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times
        self.job_id = job_of_path(stream.path) if stream.path else None
        self.ended: dict[str, None] = {}
        self.whole_seconds = False

    def is_text(self, piece: Piece) -> bool:
        """Whether a piece without header is nothing but text: it may be the rest of a torn line."""
        text = piece.text
        return not (
            piece.prefix.stamps
            or is_bar(text)
            or nccl.VERSION.match(text)
            or text.startswith(("Traceback (", "terminate called ", "Fatal Python error: ", "====", '  File "'))
            or CLIENT_LINE.match(text)
        )

    def nccl(self, piece: Piece, lines: str = "") -> Record:
        """A record with an NCCL header; `lines` are the texts of the lines after the first."""
        fields: dict[str, Any] = dict(piece.fields)
        raw = piece.head.level if piece.head else "INFO"
        if piece.head:
            fields |= nccl.header_fields(piece.head)
        message = self._repeat(piece.message, fields).rstrip(CONTROLS)
        start = message[:MAX_READ]
        text_fields(start, raw, fields, piece.flags)
        if LONGEST_BYTES in piece.sizes():
            piece.flags.add("truncated")
        if "partial" not in piece.flags and fields.get("event") not in USEFUL_EVENTS:
            fields["noise"] = noise_id(start, raw)
        if piece.head:
            self._process(piece.head.process, start, fields)
        return self._record(piece, fields, message + lines)

    def path(self, block: Block) -> Record:
        """Lines of a call path as one record; code and place are the first line's."""
        if len(block.lines) > 1:
            block.piece.flags.add("folded")
        return self.nccl(block.piece, "".join(f"\n{line}" for line in block.lines[1:]))

    def block(self, block: Block) -> list[Record]:
        """The records of a closed block: one, except for a line that only looked like the start of a box."""
        piece, text = block.piece, block.text
        fields = dict(piece.fields)
        if block.kind == "nccl":
            return [self.nccl(piece, "".join(f"\n{line}" for line in block.lines[1:]))]
        if block.kind == "c10":
            return [self._c10(piece, text, fields)]
        if block.kind == "box":
            if len(block.lines) == 1:
                return [self.plain(piece)]
            pytorch.box_fields(text, fields)
            if not block.lines[-1].startswith("==="):
                piece.flags.add("partial")
        elif block.kind == "abort":
            pytorch.abort_fields(text, fields, piece.flags)
        elif block.kind == "traceback":
            fields |= {"event": "python_exception", "level": "error"}
            if block.error:
                fields["error_class"] = block.error
            if block.error == "KeyboardInterrupt":
                piece.flags.add("secondary")
            if block.state in ("body", "chain"):
                piece.flags.add("partial")
            pytorch.error_fields(text, fields, piece.flags)
        elif block.kind == "fatal":
            fields["event"] = "process_abort"
            pytorch.error_fields(text, fields, piece.flags)
        else:
            fields["nccl_code"] = next((code for words, code in nccl.CODES.items() if words in text), None)
        return [self._record(piece, fields, text)]

    def plain(self, piece: Piece) -> Record:
        """A line without NCCL or c10 header."""
        fields = dict(piece.fields)
        text = self._repeat(piece.text, fields)
        if stepd_line(text, fields, piece.flags):
            return self._record(piece, fields, fields["message"])
        if nccl.VERSION.match(text):
            fields |= {"level": "info", "level_raw": "VERSION"}
            nccl.version_fields(text, fields)
            self.whole_seconds |= fields.get("nccl_version") == WRONG_FRACTIONS
            return self._record(piece, fields, text)
        logged = _BASIC.match(text) or (_LOGGED.match(text) if piece.prefix.stamps else None)
        if logged:
            fields |= {"level": LEVELS[logged["level"].lower()], "level_raw": logged["level"]}
            if logged["app"]:
                fields["app"] = logged["app"]
            text = text[logged.end() :]
        pytorch.elastic_fields(text, fields)
        if is_bar(text) and "event" not in fields and not logged:
            fields["noise"] = "progress"
        return self._record(piece, fields, text)

    def _c10(self, piece: Piece, text: str, fields: dict[str, Any]) -> Record:
        head = pytorch.read_header(text)
        if head is None:
            return self.plain(piece)
        fields |= head.fields
        message = self._repeat(text[head.end :], fields)
        pytorch.text_fields(message, fields, piece.flags)
        return self._record(piece, fields, message, head.date)

    def _record(
        self, piece: Piece, fields: dict[str, Any], message: str, date: tuple[str, str, str] | None = None
    ) -> Record:
        fields["message"] = message.rstrip(CONTROLS)
        if self.job_id is not None:
            fields.setdefault("job_id", self.job_id)
        ts, source = self._time(piece, date)
        refs = tuple(sorted(dict.fromkeys(piece.refs)))
        return Record(fields, refs, ts, source, piece.flags, piece.part)

    def _process(self, process: str, message: str, fields: dict[str, Any]) -> None:
        """Note the end of a communicator; what its process says afterwards is noise."""
        state = fields.get("comm_state")
        if state in nccl.DONE:
            if len(self.ended) >= MAX_PROCESSES:
                del self.ended[next(iter(self.ended))]
            self.ended[process] = None
        elif state == "init_start":
            self.ended.pop(process, None)
        elif process in self.ended and (
            (fields.get("event") == "nccl_call_path" and fields["level_raw"] == "INFO") or message.startswith(_SERVICE)
        ):
            fields["noise"] = "N26"
        if fields.get("event") == "nccl_version":
            self.whole_seconds |= fields.get("nccl_version") == WRONG_FRACTIONS

    def _time(self, piece: Piece, date: tuple[str, str, str] | None) -> tuple[Stamp | None, str | None]:
        """The innermost stamp that can be placed, else the time of receipt."""
        if date and (stamp := pytorch.stamp(date, self.times, piece.received, piece.flags)):
            return stamp, "year"
        for text in reversed(piece.prefix.stamps):
            core = text.strip(" []:").replace("_", " ").replace(",", ".")
            found = parse_iso(core)
            if found and found[2] is None:
                stamp, source = local(found[0], found[1], self.times.tz, piece.flags), "zone"
            else:
                stamp, source = parse_rfc3339(core) if found else from_number(core), "record"
            if stamp:
                if piece.head and self.whole_seconds:
                    stamp = Stamp(stamp.ns - stamp.ns % NS)._replace(digits=0)
                return stamp, source
        return (piece.received, "received") if piece.received else (None, None)

    @staticmethod
    def _repeat(text: str, fields: dict[str, Any]) -> str:
        """Ray prints like lines of several actors once."""
        if "across cluster]" in text and (found := _REPEATED.search(text)):
            fields["repeat"] = int(found[1])
            return text[: found.start()]
        return text
