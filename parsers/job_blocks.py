"""Records of several lines in job output, and which line goes on with which.

Tracebacks with their chain (also of exception groups), c10 records with `Exception raised from` and frames,
`terminate called …`, NCCL's error block, torchrun's box, option dumps, NCCL's algorithm table, its NVLS
warning, and the dump of Python's fault handler.
"""

import re
from dataclasses import dataclass
from enum import Enum

from parsers import pytorch
from parsers.job_lines import Piece


class Verdict(Enum):
    """What a line is to an open block: part of it, its last line, not of it, or of something else between."""

    TAKE = "take"
    LAST = "last"
    END = "end"
    BETWEEN = "between"


_CHAIN = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_TRACEBACK = "Traceback (most recent call last):"
_GROUP = re.compile(r"^[ |]*\+ Exception Group Traceback \(most recent call last\):")
_GROUP_ERROR = re.compile(r"[ |]*\| (?! )(.*)")
_FRAME = re.compile(r"frame #\d+: ")
_RAISED = re.compile(r"Exception raised from ")
_NCCL = re.compile(r"nccl[A-Z]\w+: ?")
_OPTION = re.compile(r"[A-Z][A-Za-z0-9_]*(?:\(ms\))?: \S|ID=\d+")
_BOX_EDGE = re.compile(r"={10,60}$")
_FATAL = re.compile(r"Thread 0x|Current thread |  File |  <|  \.\.\.|  Garbage-|Extension modules: |Stack \(most")
_TEST_FAILURE = re.compile(r"[\w.-]+: Test (?:NCCL|CUDA|MPI) failure ")
BETWEEN_LINES = 8  # lines of others inside a traceback that has not ended


@dataclass(slots=True)
class Block:
    """An open record of several lines. `lines` are their texts; `touched` counts lines of the stream."""

    kind: str
    piece: Piece
    lines: list[str]
    state: str
    touched: int = 0
    between: int = 0
    error: str | None = None  # class of the last exception

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


def opens(piece: Piece, c10: bool) -> Block | None:
    """The block that starts with this piece, if any. `c10`: the text is of a c10 record."""
    text = piece.text
    if c10:
        if "initialized with following options:" in text:
            return Block("c10", piece, [text], "options")
        return Block("c10", piece, [text], "nccl" if "NCCL error" in text else "ended")
    if text.startswith(_TRACEBACK):
        return Block("traceback", piece, [text], "body")
    if _GROUP.match(text):
        return Block("traceback", piece, [text], "group")
    if text.startswith("terminate called "):
        return Block("abort", piece, [text], "what")
    if text.startswith("Fatal Python error: "):
        return Block("fatal", piece, [text], "fatal")
    if _BOX_EDGE.match(text):
        return Block("box", piece, [text], "title")
    if _TEST_FAILURE.match(text):
        return Block("test", piece, [text], "test")
    name = pytorch.exception_class(text, sure=True)
    if name and ("rank" in piece.fields or "NCCL error in: " in text):
        return Block("traceback", piece, [text], "nccl" if "NCCL error in: " in text else "ended", error=name)
    return None


def follows(block: Block, text: str) -> Verdict:
    """What `text` (without prefixes, not empty) is to `block`; moves the block's state on."""
    state = block.state
    if state in ("body", "chain"):
        return _body(block, text)
    if state == "group":
        if found := _GROUP_ERROR.match(text):
            block.error = pytorch.exception_class(found[1]) or block.error
        return Verdict.TAKE if re.match(r"\s+[|+]", text) else Verdict.END
    if state == "what":
        block.state = "nccl" if "NCCL error" in text else "ended"
        return Verdict.TAKE if text.lstrip().startswith("what():") else _tail(block, text)
    if state == "options":
        return Verdict.TAKE if _OPTION.match(text) else Verdict.END
    if state == "title":
        block.state = "box"
        return Verdict.TAKE if text.rstrip().endswith(" FAILED") else Verdict.END
    if state == "box":
        return Verdict.LAST if _BOX_EDGE.match(text) else Verdict.TAKE
    if state == "matrix":
        return Verdict.TAKE if "|" in text else Verdict.END
    if state == "fatal":
        if text.startswith("Extension modules: "):
            return Verdict.LAST
        return Verdict.TAKE if _FATAL.match(text) else Verdict.END
    if state == "test":
        return Verdict.TAKE if text.startswith(" .. ") else Verdict.END
    if state.startswith("hints"):  # lines of the NVLS warning that are still to come
        left = int(state[5:]) - 1
        block.state = f"hints{left}"
        return Verdict.TAKE if left else Verdict.LAST
    return _tail(block, text)


def blank(block: Block) -> Verdict:
    """What an empty line is to `block`: BETWEEN when only a later line will tell."""
    if block.state in ("frames", "matrix"):
        return Verdict.LAST
    if block.state in ("fatal", "box"):
        return Verdict.TAKE
    if block.state == "last error":
        block.state = "ended"
    return Verdict.BETWEEN


def _body(block: Block, text: str) -> Verdict:
    if text[0] in " \t" or text.startswith(_TRACEBACK):
        block.state = "body"
        return Verdict.TAKE
    if block.state == "body" and (name := pytorch.exception_class(text)):
        block.error = name
        block.state = "nccl" if "NCCL error in: " in text else "ended"
        return Verdict.TAKE
    block.between += 1
    return Verdict.BETWEEN if block.between <= BETWEEN_LINES else Verdict.END


def _tail(block: Block, text: str) -> Verdict:
    """After the first text of a c10 record or the last line of a traceback."""
    state = block.state
    if state == "last error":
        block.state = "ended"
        return Verdict.TAKE
    if state == "nccl" and text.startswith("Last error:"):
        block.state = "last error"
        return Verdict.TAKE
    if state == "nccl" and _NCCL.match(text):
        return Verdict.TAKE
    if _RAISED.match(text) or (state == "frames" and _FRAME.match(text)):
        block.state = "frames"
        return Verdict.TAKE
    if block.kind == "traceback" and text.startswith(_CHAIN):
        block.state = "chain"
        return Verdict.TAKE
    if block.kind == "c10" and state != "frames" and re.match(r"\s+- \[|#\d+ ", text):
        return Verdict.TAKE
    return Verdict.END
