"""One physical line of job output taken apart: repaints, glued records, prefixes.

Several processes write to one pipe, so a line may hold the end of one record and the start of the next. It
is cut in front of every second NCCL or c10 header, at a torchrun or Open MPI tag in its middle, and behind
a progress bar, before anything else looks at it.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from parsers import nccl, pytorch
from parsers.clock import Stamp
from parsers.json_lines import CONTROLS, plain
from parsers.launcher import EPOCH, MPI_TAG, STAMP, Prefix, strip
from parsers.record import Line, Ref, decode

MAX_NAMES = 4_096
MAX_LEAD = 512  # characters of prefixes in front of a header

BAR = re.compile(
    r"\d{1,3}%\|[^|\n]{0,500}\||\b\d{1,12}it \[\d|\b\d{1,12}/\d{1,12} \[=*[>=.]\.*\] - "
    r"|(?:it/s|s/it|B/s)[^\]\n]{0,200}\]"
)
_BAR_END = re.compile(
    r"(?:\d{1,3}%\|[^|\n]{0,500}\||\b\d{1,12}it )[^\n|\[]{0,80}\[[^\]\n]{0,80}(?:it/s|s/it|B/s)[^\]\n]{0,500}\]"
)
_TAG = re.compile(rf"\[([A-Za-z_][A-Za-z_-]*)\d{{1,6}}\]:|{MPI_TAG}")
_LEAD = re.compile(rf"(?:{STAMP}|{EPOCH}|{MPI_TAG}|\[[A-Za-z_][A-Za-z_-]*\d{{1,9}}\]:)+$")
_C10 = re.compile(rf"(?:\[rank\d{{1,9}}\]:)?(?=\[[VIWEF][\d ]){pytorch.HEADER.pattern}", re.ASCII)
# NCCL_DEBUG_TIMESTAMP_FORMAT may be any text.
_GLUE = re.compile(
    r".(?:NCCL (?:INFO|WARN|TRACE|CALL|ABORT)|\[[A-Za-z_-]+\d+\]:|\]<std|\[[VIWEF][\d ])|it/s|s/it|B/s", re.DOTALL
)
_CLOSING = re.compile(r"[\s\]]*")
_STAMPISH = re.compile(
    r"(?:[\d\s\[\]()<>.,:/+|_-]|T|Z|AM|PM|UTC|GMT|CES?T|[ECMP][SD]T|Mon|Tue|Wed|Thu|Fri|Sat|Sun"
    r"|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)*[\s\]|:)>]",
    re.ASCII,
)


@dataclass(slots=True)
class Names:
    """Host names of one stream: of NCCL headers seen, and of pdsh prefixes. Bounded by MAX_NAMES."""

    hosts: dict[str, None] = field(default_factory=dict)
    pdsh: dict[str, None] = field(default_factory=dict)

    def glued(self, run: str) -> int:
        """Where the host starts in `run`, host characters in front of an NCCL header in mid-line."""
        if run in self.hosts:
            return 0
        best = max((host for host in self.hosts if run.endswith(host)), key=len, default=None)
        if best:
            return len(run) - len(best)
        stems = {found[0] for host in self.hosts if (found := re.match(r"[A-Za-z]{2,}[-_.]", host))}
        return max((run.rfind(stem) for stem in stems), default=0) if stems else 0

    @staticmethod
    def add(names: dict[str, None], name: str) -> None:
        if name not in names:
            if len(names) >= MAX_NAMES:
                del names[next(iter(names))]
            names[name] = None


@dataclass(slots=True)
class Piece:
    """A record, or a piece of one, on one physical line.

    `text` starts behind the prefixes, at the NCCL header if there is one (`head`). `last` says that the line
    feed (or a carriage return) stands behind it.
    """

    text: str
    refs: list[Ref]
    part: int
    prefix: Prefix
    flags: set[str]
    received: Stamp | None
    head: nccl.Head | None
    last: bool

    @property
    def fields(self) -> dict[str, Any]:
        return self.prefix.fields

    @property
    def message(self) -> str:
        """The text behind the NCCL header."""
        return self.text[self.head.end :] if self.head else self.text

    def sizes(self) -> tuple[int, int]:
        """Bytes of the text, without and with the stamp in front of it."""
        size = len(self.text.encode())
        return size, size + (len(self.prefix.stamps[-1]) if self.prefix.stamps else 0)


def is_bar(text: str) -> bool:
    """A progress bar (tqdm, Keras) and nothing else of interest."""
    return BAR.search(text) is not None


def pieces(line: Line, names: Names) -> list[Piece]:
    """The pieces of a line, in order; none for an empty line (also one that holds only prefixes)."""
    flags = set(line.flags)
    made: list[Piece] = []
    for text in _visible(plain(decode(line.raw, flags)).rstrip(CONTROLS)):
        for start, end in pairwise((0, *sorted(_cuts(text, names)), len(text))):
            prefix = Prefix()
            body, head = _unwrap(text[start:end], prefix, names)
            if body:
                made.append(Piece(body, list(line.refs), len(made), prefix, set(flags), line.received, head, False))
        if made:
            made[-1].last = True
    return made


def _visible(text: str) -> list[str]:
    """What a terminal would show of a line with carriage returns, and hidden text that has a header in it."""
    if "\r" not in text:
        return [text]
    parts = [part.rstrip(CONTROLS) for part in text.split("\r") if part.strip(CONTROLS)]
    return [
        part
        for part in parts
        if part is parts[-1] or nccl.HEADER.search(part) or _C10.search(part) or "Traceback (" in part
    ]


def _cuts(text: str, names: Names) -> set[int]:
    """Positions in `text` where a second record starts."""
    whole = nccl.HEADER.match(text)
    if not _GLUE.search(text, whole.end() if whole else 0):
        if whole:
            names.add(names.hosts, whole["host"])
        return set()
    cuts: set[int] = set()
    inside: list[tuple[int, int]] = []  # headers with their prefixes, which hold no cut
    if "NCCL " in text:
        end = 0
        for found in nccl.HEADER.finditer(text):
            start = found.start()
            if lead := _LEAD.search(text, max(end, start - MAX_LEAD), start):
                start = lead.start()
            elif start:
                start += names.glued(found["host"])
            if end or not _is_prefix(text, start, names):
                cuts.add(start)
            inside.append((start, found.end()))
            names.add(names.hosts, text[max(start, found.start()) : found.end("host")])
            end = found.end()
    if "]" not in text:
        return cuts - {0}
    first = min(cuts, default=None)
    for found in _C10.finditer(text):
        if first is not None or not _is_prefix(text, found.start(), names):
            cuts.add(found.start())
        first = 0
    cuts |= _tags(text, names, inside)
    for found in _BAR_END.finditer(text):
        end = _CLOSING.match(text, found.end()).end()  # type: ignore[union-attr]
        if end < len(text) and not BAR.search(text, end):
            cuts.add(found.end())
    return cuts - {0}


def _tags(text: str, names: Names, inside: list[tuple[int, int]]) -> set[int]:
    """Tags of torchrun and Open MPI behind the prefixes of the line."""
    head = strip(text, Prefix(), names.pdsh)
    first = _TAG.match(text)
    starts = [start for start, _ in inside]
    cuts = set()
    for found in _TAG.finditer(text):
        at = found.start()
        before = bisect_left(starts, at) - 1
        if at < head or (before >= 0 and inside[before][0] < at < inside[before][1]):
            continue
        if found[1] is None or found[1] == "default" or (first and found[1] == first[1] != "rank"):
            cuts.add(at)
    return cuts


def _is_prefix(text: str, end: int, names: Names) -> bool:
    """Whether the text before the first header of a line is prefixes and a stamp and nothing else."""
    if end > MAX_LEAD:
        return False
    lead = text[:end]
    at = strip(lead, Prefix(), names.pdsh, header=True)
    return at == end or bool(_STAMPISH.fullmatch(lead, at))


def _unwrap(text: str, prefix: Prefix, names: Names) -> tuple[str, nccl.Head | None]:
    found = nccl.HEADER.search(text) if "NCCL " in text else None
    if not found:
        return text[strip(text, prefix, names.pdsh) :], None
    lead = text[: found.start()]
    strip(lead, prefix, names.pdsh, header=True)
    if (name := prefix.fields.get("host")) and re.search(r"[\d.-]", name):
        names.add(names.pdsh, name)
    return text[found.start() :], nccl.read_head(found)
