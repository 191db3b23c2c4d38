"""One physical line of job output taken apart: repaints, glued records, prefixes.

Several processes write to one pipe, so a line may hold the end of one record and the start of the next. It
is cut in front of every second NCCL or c10 header, at a torchrun or Open MPI tag in its middle, and behind
a progress bar, before anything else looks at it.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from parsers import nccl, pytorch
from parsers.clock import Stamp
from parsers.json_lines import CONTROLS, plain
from parsers.launcher import EPOCH, MPI_TAG, STAMP, Prefix, strip
from parsers.record import Line, Ref, decode

MAX_NAMES = 4_096

BAR = re.compile(r"\d{1,3}%\|[^|\n]*\||\b\d+it \[\d|\d+/\d+ \[=*[>=.]\.*\] - |(?:it/s|s/it|B/s)[^\]\n]{0,200}\]")
_BAR_END = re.compile(r"(?:\d{1,3}%\|[^|\n]*\||\b\d+it )[^\n|]*?\[[^\]\n]*?(?:it/s|s/it|B/s)[^\]\n]*\]")
_TAG = re.compile(rf"\[([A-Za-z_][A-Za-z_-]*)\d{{1,6}}\]:|{MPI_TAG}")
_LEAD = re.compile(rf"(?:{STAMP}|{EPOCH}|{MPI_TAG}|\[[A-Za-z_][A-Za-z_-]*\d{{1,9}}\]:)+$")
_C10 = re.compile(rf"(?:\[rank\d{{1,9}}\]:)?(?=\[[VIWEF][\d ]){pytorch.HEADER.pattern}", re.ASCII)
# NCCL_DEBUG_TIMESTAMP_FORMAT may be any text.
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

    `text` starts behind the prefixes, at the NCCL header if there is one (`nccl`). `last` says that the
    line feed stands behind it. `size` is its length in bytes, `stamped` with the stamp in front of it.
    """

    text: str
    refs: list[Ref]
    part: int
    prefix: Prefix
    flags: set[str]
    received: Stamp | None
    nccl: bool
    last: bool

    @property
    def fields(self) -> dict[str, Any]:
        return self.prefix.fields

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
    text = _visible(plain(decode(line.raw, flags))).rstrip(CONTROLS)
    if not text:
        return []
    cuts = [0, *sorted(_cuts(text, names)), len(text)]
    made: list[Piece] = []
    for start, end in pairwise(cuts):
        prefix = Prefix()
        body, is_nccl = _unwrap(text[start:end], prefix, names)
        if body:
            made.append(Piece(body, list(line.refs), len(made), prefix, set(flags), line.received, is_nccl, False))
    if made:
        made[-1].last = True
    return made


def _visible(text: str) -> str:
    """What a terminal would show of a line with carriage returns; hidden text stays when a header is in it."""
    if "\r" not in text:
        return text
    parts = [part for part in text.split("\r") if part.strip(CONTROLS)]
    kept = [part for part in parts[:-1] if nccl.HEADER.search(part) or _C10.search(part) or "Traceback (" in part]
    return "".join(kept + parts[-1:])


def _cuts(text: str, names: Names) -> set[int]:
    """Positions in `text` where a second record starts."""
    cuts: set[int] = set()
    inside: list[tuple[int, int]] = []  # prefixes of headers, which hold no cut
    head = strip(text, Prefix(), names.pdsh)
    if "NCCL " in text:
        end = 0
        for found in nccl.HEADER.finditer(text):
            start = found.start()
            if lead := _LEAD.search(text, end, start):
                start = lead.start()
            elif start:
                start += names.glued(found["host"])
            if end or not _is_prefix(text[:start], names):
                cuts.add(start)
            inside.append((start, found.end()))
            names.add(names.hosts, text[max(start, found.start()) : found.end("host")])
            end = found.end()
    if "]" not in text:
        return cuts - {0}
    cuts.update(found.start() for found in _C10.finditer(text) if not _is_prefix(text[: found.start()], names))
    first = _TAG.match(text)
    for found in _TAG.finditer(text):
        if found.start() < head or any(start < found.start() < end for start, end in inside):
            continue
        if found[1] is None or found[1] == "default" or (first and found[1] == first[1] != "rank"):
            cuts.add(found.start())
    for found in _BAR_END.finditer(text):
        if text[found.end() :].strip(" ]" + CONTROLS) and not BAR.search(text, found.end()):
            cuts.add(found.end())
    return cuts - {0}


def _is_prefix(lead: str, names: Names) -> bool:
    """Whether `lead`, in front of a line's first header, is prefixes and a stamp and nothing else."""
    at = strip(lead, Prefix(), names.pdsh, header=True)
    return at == len(lead) or bool(len(lead) - at <= 64 and _STAMPISH.fullmatch(lead, at))


def _unwrap(text: str, prefix: Prefix, names: Names) -> tuple[str, bool]:
    found = nccl.HEADER.search(text) if "NCCL " in text else None
    if not found:
        return text[strip(text, prefix, names.pdsh) :], False
    lead = text[: found.start()]
    strip(lead, prefix, names.pdsh, header=True)
    if (name := prefix.fields.get("host")) and re.search(r"[\d.-]", name):
        names.add(names.pdsh, name)
    return text[found.start() :], True
