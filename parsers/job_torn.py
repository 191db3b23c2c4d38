"""Pieces of torn lines: which wait for their rest, and which lines complete them.

A piece waits when another header follows it on its line (pipes tear at 4096 bytes, libc at 128), when it is
exactly 128 bytes long, or when torchrun's tag comes again before its line feed. A line without header
completes the only waiting piece of its writer; with two of them nothing can be told and all stay `partial`.
"""

import re
from dataclasses import dataclass, field

from parsers import nccl
from parsers.job_lines import Piece
from parsers.nccl_noise import CLOSED
from parsers.record import MAX_HELD_BYTES

PIECE_BYTES = 128
_TAGGED = re.compile(r"\[[A-Za-z_-]+\d+\]:|<std")
_CLOSED = re.compile("|".join(CLOSED.values()))
_OPEN_BRACKET = re.compile(r"\([^()]*$|\[[^\[\]]*$")
_STAMP_START = re.compile(r"\[[\d :.-]{0,30}")
_CHANNEL = re.compile(r"(?:Channel|Ring) \d")


@dataclass(slots=True)
class Head:
    """A waiting piece. `soft`: its line feed was there, so it may be whole."""

    piece: Piece
    soft: bool
    touched: int


@dataclass(slots=True)
class Torn:
    """Waiting pieces of one stream by their writer's key; `orphans` counts tails that nobody can place."""

    heads: dict[str, list[Head]] = field(default_factory=dict)
    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)  # (tails still expected, last touched)

    def waits(self, key: str) -> bool:
        """Whether a header-less line of this writer may be the rest of something."""
        return key in self.heads or key in self.orphans

    def held(self) -> list[Piece]:
        return [head.piece for heads in self.heads.values() for head in heads]

    @property
    def size(self) -> int:
        return sum(len(piece.text) for piece in self.held()) if self.heads else 0

    def feed(self, piece: Piece, count: int, *, plain: bool) -> list[Piece]:
        """Take a piece; return the pieces that are whole, or for which nothing more will come.

        `plain` says that it is nothing but text, so it may be a rest.
        """
        if not self.heads and not self.orphans and piece.last and not piece.head:
            return [piece]
        key = piece.prefix.key
        if piece.head:
            done = self._same_writer(piece.head) if not self._stamped(piece) else []
            if not piece.last or self._unsure(piece, piece.head):
                self.heads.setdefault(key, []).append(Head(piece, piece.last, count))
                return done
            return [*done, piece]
        waiting = self.heads.get(key, [])
        if plain and waiting:
            return self._rest(piece, waiting, key, count)
        if plain and key in self.orphans:
            left = self.orphans[key][0] - 1
            self.orphans[key] = (left, count)
            if not left:
                del self.orphans[key]
            piece.flags.add("partial")
            return [piece]
        done = self._release(key) if _TAGGED.search(key) else []
        if not piece.last and _TAGGED.search(key):
            self.heads[key] = [Head(piece, False, count)]
            return done
        return [*done, piece]

    def _stamped(self, piece: Piece) -> bool:
        """Put the start of a stamp that was torn off (`[1,2]<stdout>:[` and the next line) back to its line."""
        waiting = self.heads.get(piece.prefix.key)
        if not waiting or waiting[0].piece.head or not _STAMP_START.fullmatch(waiting[0].piece.text):
            return False
        del self.heads[piece.prefix.key]
        piece.refs[:0] = waiting[0].piece.refs
        piece.part = waiting[0].piece.part
        piece.flags.add("rejoined")
        return True

    def flush(self) -> list[Piece]:
        """Everything that waits."""
        self.orphans.clear()
        return [piece for key in list(self.heads) for piece in self._release(key)]

    def expire(self, before: int) -> list[Piece]:
        """What was touched last before that line of the stream."""
        for key in [key for key, (_, touched) in self.orphans.items() if touched < before]:
            del self.orphans[key]
        return [
            piece
            for key, heads in list(self.heads.items())
            if any(head.touched < before for head in heads)
            for piece in self._release(key)
        ]

    def _rest(self, piece: Piece, waiting: list[Head], key: str, count: int) -> list[Piece]:
        if len(waiting) > 1:
            done = []
            for head in waiting:
                head.piece.flags.add("partial")
                done.append(head.piece)
            del self.heads[key]
            self.orphans[key] = (len(waiting) - 1, count)
            piece.flags.add("partial")
            return [*done, piece]
        head = waiting[0]
        head.piece.text += piece.text
        head.piece.refs += piece.refs
        head.piece.flags |= {"rejoined", *piece.flags}
        head.touched = count
        if not piece.last and len(head.piece.text) < MAX_HELD_BYTES:
            return []
        head.piece.last = True
        del self.heads[key]
        return [head.piece]

    def _same_writer(self, head: nccl.Head) -> list[Piece]:
        """A process that starts a new line has ended its last one, so its waiting piece gets no rest."""
        if not self.heads:
            return []
        return [
            piece
            for key, heads in list(self.heads.items())
            if any(waiting.piece.text.startswith(head.process) for waiting in heads)
            for piece in self._release(key)
        ]

    def _release(self, key: str) -> list[Piece]:
        done = []
        for head in self.heads.pop(key, []):
            if not head.soft or cut(head.piece.message):
                head.piece.flags.add("partial")
            done.append(head.piece)
        return done

    @staticmethod
    def _unsure(piece: Piece, head: nccl.Head) -> bool:
        """Whether a piece with a line feed may go on: libc's 128 bytes, or srun's line feed after any chunk."""
        if PIECE_BYTES in piece.sizes():
            return not _CLOSED.fullmatch(piece.message)
        return piece.prefix.labelled and head.level in ("INFO", "WARN") and cut(piece.message)


def cut(message: str) -> bool:
    """Whether the message of an NCCL record stops in its middle."""
    if _OPEN_BRACKET.search(message):
        return True
    if message.startswith(("NET/IB : Using ", "NET/IB: Using ")):
        return "OOB" not in message
    return bool(_CHANNEL.match(message)) and " : " in message and "->" in message and not _CLOSED.fullmatch(message)
