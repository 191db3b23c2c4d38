"""Output of a container: pieces joined per stdout and stderr, then the text read by its own grammar.

A JSON object goes to the rules of json_lines, klog and logfmt to klog, everything else to the training
parser, which sees the carrier's stamp as its time of receipt. A line that an inner grammar swallows,
such as an empty one, is a record all the same, since the carrier wrote one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from parsers.clock import Stamp, Times
from parsers.json_lines import CONTROLS, object_record, placed, plain, unparsed
from parsers.klog import KlogStream, starts_go
from parsers.logfmt import logfmt_record
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Record, Ref, Stream, decode
from parsers.training import TrainingStream

# A writer that has turned to JSON or klog will not end the traceback that the training parser waits for.
MAX_OTHERS = 100

# Kubernetes names hold no underscore. Layouts of kubelet's pod log directories, and of the links beside them.
_DIRECTORY = re.compile(r"/pods/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_[^/]+/(?P<container>[^/]+)/[^/]+$")
_LINK = re.compile(r"/containers/(?P<pod>[^/_]+)_(?P<namespace>[^/_]+)_(?P<container>[^/]+)-[0-9a-f]+\.log[^/]*$")


class Piece(NamedTuple):
    """What a carrier's line holds: text, stamp, `stdout` or `stderr`, and whether it ends a line of the program."""

    content: bytes
    stamp: Stamp | None
    stream: str | None
    last: bool


@dataclass(slots=True)
class Joined:
    """A line of the program, made of its pieces. `carried`: its time is the carrier's."""

    line: Line
    text: str
    carried: bool


def place(path: str | None) -> dict[str, str]:
    """`namespace`, `pod` and `container` from the path of a pod's log; empty for any other path."""
    found = _DIRECTORY.search(path or "") or _LINK.search(path or "")
    return found.groupdict() if found else {}


@dataclass(slots=True)
class Pieces:
    """The pieces of the line that is being written. Past MAX_HELD_* they are a line cut by a limit."""

    contents: list[bytes] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    size: int = 0
    stamp: Stamp | None = None
    carried: bool = False

    def feed(self, piece: Piece, line: Line) -> list[Joined]:
        done: list[Joined] = []
        if self.refs and self._over(len(line.refs), len(piece.content)):
            done = [self._cut()]
        if not self.refs:
            self.carried = piece.stamp is not None
            self.stamp = piece.stamp or line.received
        self.contents.append(piece.content)
        self.refs += line.refs
        self.flags.update(line.flags)
        self.size += len(piece.content)
        if piece.last:
            done.append(self._join())
        elif self._over(0, 0):
            done.append(self._cut())
        return done

    def flush(self) -> list[Joined]:
        if not self.refs:
            return []
        self.flags.add("partial")
        return [self._join()]

    def _over(self, lines: int, size: int) -> bool:
        return len(self.refs) + lines > MAX_HELD_LINES or self.size + size > MAX_HELD_BYTES

    def _cut(self) -> Joined:
        self.flags |= {"partial", "truncated"}
        joined = self._join()
        self.flags.add("partial")  # what follows has lost its head
        return joined

    def _join(self) -> Joined:
        flags = self.flags | {"rejoined"} if len(self.contents) > 1 else self.flags
        content = b"".join(self.contents)
        text = decode(content, flags).rstrip("\r\n")
        joined = Joined(Line(content, tuple(self.refs), self.stamp, tuple(sorted(flags))), text, self.carried)
        self.contents, self.refs, self.flags, self.size = [], [], set(), 0
        return joined


@dataclass(slots=True)
class Output:
    """stdout or stderr of a container. `lines`: those that an inner parser may still hold, by their first ref."""

    times: Times
    training: TrainingStream
    klog: KlogStream
    pieces: Pieces = field(default_factory=Pieces)
    lines: dict[Ref, Joined] = field(default_factory=dict)
    others: int = 0

    def feed(self, piece: Piece, line: Line) -> list[Record]:
        return [record for joined in self.pieces.feed(piece, line) for record in self._take(joined)]

    def flush(self) -> list[Record]:
        done = [record for joined in self.pieces.flush() for record in self._take(joined)]
        return done + self._settle(self.klog.flush() + self.training.flush())

    @property
    def held(self) -> list[Ref]:
        return [*self.pieces.refs, *self.klog.held, *self.training.held]

    def _take(self, joined: Joined) -> list[Record]:
        self.lines[joined.line.refs[0]] = joined
        return self._settle(self._read(joined))

    def _read(self, joined: Joined) -> list[Record]:
        """Hand a line to the grammar it is written in."""
        line, text, flags = joined.line, joined.text, set(joined.line.flags)
        whole = object_record(text, line, self.times, flags) or logfmt_record(text, line, self.times, flags)
        is_klog = not whole and (self.klog.first is not None or starts_go(text))
        if not whole and not is_klog:
            self.others = 0
            return self.training.feed(line)
        self.others += 1
        given_up = self.training.flush() if self.others == MAX_OTHERS else []
        return given_up + ([*self.klog.flush(), whole] if whole else self.klog.feed(line))

    def _settle(self, records: list[Record]) -> list[Record]:
        """Finish what the inner parsers returned, and add a record for every line that they swallowed."""
        held = {*self.klog.held, *self.training.held}
        used: set[Ref] = set()
        for record in records:
            lines = [self.lines[ref] for ref in record.refs if ref in self.lines]
            record.body = "\n".join(joined.text for joined in lines)
            record.flags.update(flag for joined in lines for flag in joined.line.flags)
            if record.ts_source == "received" and lines[0].carried:
                record.ts_source = "carrier"
            used.update(record.refs)
        for ref in [ref for ref in self.lines if ref not in held]:
            joined = self.lines.pop(ref)
            if ref not in used:
                record = placed(Record({"message": plain(joined.text).rstrip(CONTROLS)}, joined.line.refs), joined.line)
                record.flags.update(joined.line.flags)
                record.body = joined.text
                if joined.carried:
                    record.ts_source = "carrier"
                records.append(record)
        return records


class ContainerStream:
    """Stream parser of one container's log; `read` takes a carrier's line apart, None when it is none.

    What is held is bounded by MAX_HELD_* for each of: the unfinished line, klog, the training parser.
    """

    def __init__(self, stream: Stream, read: Callable[[bytes], Piece | None]) -> None:
        self.read = read
        self.place = place(stream.path)
        self.stream = replace(stream, path=None)  # a pod's path names no Slurm job
        self.outputs: dict[str | None, Output] = {}

    def feed(self, line: Line) -> list[Record]:
        piece = self.read(line.raw)
        if piece is None:
            return self._named([unparsed(line)], None)
        output = self.outputs.get(piece.stream)
        if output is None:
            inner = self.stream
            output = Output(inner.times, TrainingStream(inner), KlogStream(inner, starts_go))
            self.outputs[piece.stream] = output
        return self._named(output.feed(piece, line), piece.stream)

    def flush(self) -> list[Record]:
        return [record for name, output in self.outputs.items() for record in self._named(output.flush(), name)]

    @property
    def held(self) -> Sequence[Ref]:
        return [ref for output in self.outputs.values() for ref in output.held]

    def _named(self, records: list[Record], stream: str | None) -> list[Record]:
        for record in records:
            record.fields |= self.place
            if stream:
                record.fields["stream"] = stream
        return records
