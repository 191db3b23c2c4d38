"""Output of training jobs: NCCL, PyTorch, launchers, tracebacks, progress bars, slurmstepd and srun, any text.

Two speeds: `TrainingStream` reads the lines that the gate picks (and those after them while it holds
something), `job_columns` gives the columns of all others.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parsers import job_blocks, nccl, pytorch
from parsers.job_blocks import Block, Verdict
from parsers.job_gate import GATE
from parsers.job_lines import Names, Piece, pieces
from parsers.job_records import Builder
from parsers.job_torn import Torn
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Parser, Record, Ref, Stream

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

# What is held is given up once this many lines of others have followed it.
PATIENCE = 50
_NVLS_BIND = "Failed to bind NVLink SHARP"  # the only NCCL WARN with line feeds in its text, two of them
_MATRIX = "Enabled NCCL Func/Proto/Algo Matrix"


class TrainingStream:
    """Stream parser of one job's output (one file, or stdout or stderr of one container)."""

    def __init__(self, stream: Stream) -> None:
        self.builder = Builder(stream)
        self.names = Names()
        self.torn = Torn()
        self.blocks: dict[str, Block] = {}  # by the writer's key
        self.paths: dict[str, Block] = {}  # call paths, by thread
        self.warning: Piece | None = None  # the last record, when it is a WARN: empty lines may belong to it
        self.blanks: list[Ref] = []
        self.count = 0

    def feed(self, line: Line) -> list[Record]:
        """Take the next line; return the records that are now complete."""
        self.count += 1
        made = pieces(line, self.names)
        done = [record for piece in made for record in self._piece(piece)] if made else self._blank(line)
        if self.held:
            done += self._give_up()
        return sorted(done, key=_place)

    def flush(self) -> list[Record]:
        """Return what is held."""
        done = [record for piece in self.torn.flush() for record in self._record(piece)]
        done += self._settle_warning(self.blanks)
        self.blanks = []
        done += [self.builder.path(block) for block in self.paths.values()]
        done += [record for block in self.blocks.values() for record in self.builder.block(block)]
        self.paths.clear()
        self.blocks.clear()
        return sorted(done, key=_place)

    @property
    def held(self) -> Sequence[Ref]:
        """Lines taken in but not yet part of a returned record."""
        waiting = [piece.refs for piece in self.torn.held()]
        waiting += [block.piece.refs for block in (*self.blocks.values(), *self.paths.values())]
        if self.warning:
            waiting.append(self.warning.refs)
        return list(dict.fromkeys([ref for refs in (*waiting, self.blanks) for ref in refs]))

    def _blank(self, line: Line) -> list[Record]:
        """An empty line ends some records; else the next line tells whose it is."""
        key = max(self.blocks, key=lambda name: self.blocks[name].touched, default=None)
        if key is not None and self.warning is None:
            block = self.blocks[key]
            verdict = job_blocks.blank(block)
            if verdict in (Verdict.TAKE, Verdict.LAST):
                self._extend(block, line.refs, "")
                return self._close(key) if verdict is Verdict.LAST else []
        self.blanks += line.refs
        return []

    def _piece(self, piece: Piece) -> list[Record]:
        blanks, self.blanks = self.blanks, []
        head = piece.head
        if head and head.level == "WARN":
            piece.refs[:0] = blanks
            blanks = []
        done: list[Record] = []
        is_c10 = not head and pytorch.HEADER.match(piece.text) is not None
        key = piece.prefix.key
        block = self.blocks.get(key)
        if block and not head and not is_c10 and not (block.kind == "c10" and self.torn.waits(key)):
            verdict = job_blocks.follows(block, piece.text)
            if verdict in (Verdict.TAKE, Verdict.LAST):
                self._extend(block, blanks, *[""] * len(blanks))
                self._extend(block, piece.refs, piece.text)
                block.piece.flags |= piece.flags
                done = self._settle_warning([])
                return done + (self._close(key) if verdict is Verdict.LAST else [])
            if verdict is Verdict.END:
                done = self._close(key)
        elif block and is_c10:
            done = self._close(key)
        done += self._settle_warning(blanks)
        plain = not head and not is_c10 and self.builder.is_text(piece)
        for whole in self.torn.feed(piece, self.count, plain=plain):
            done += self._record(whole)
        return done

    def _record(self, piece: Piece) -> list[Record]:
        """A whole record, or the first line of one that goes on."""
        key, head, message = piece.prefix.key, piece.head, piece.message
        if not head:
            c10 = pytorch.HEADER.match(piece.text) is not None
            block = job_blocks.opens(piece, c10)
            if not block:
                return [self.builder.plain(piece)]
            done = self._close(key)
            block.touched = self.count
            self.blocks[key] = block
            return done
        if head.level == "WARN" and not message.startswith(_NVLS_BIND):
            done = self._settle_warning([])
            self.warning = piece
            return done
        thread = head.thread
        is_path = head.level == "INFO" and nccl.PATH.match(message) is not None
        if is_path and (path := self.paths.get(thread)):
            self._extend(path, piece.refs, message)
            path.piece.flags |= piece.flags
            return []
        done = [self.builder.path(self.paths.pop(thread))] if thread in self.paths else []
        if is_path:
            self.paths[thread] = Block("path", piece, [message], "path", self.count)
            return done
        if message.startswith((_NVLS_BIND, _MATRIX)):
            done += self._close(key)
            state = "matrix" if message.startswith(_MATRIX) else "hints2"
            self.blocks[key] = Block("nccl", piece, [piece.text], state, self.count)
            return done
        return [*done, self.builder.nccl(piece)]

    def _extend(self, block: Block, refs: Sequence[Ref], *lines: str) -> None:
        block.piece.refs += refs
        block.lines += lines
        block.touched = self.count

    def _close(self, key: str) -> list[Record]:
        block = self.blocks.pop(key, None)
        return self.builder.block(block) if block else []

    def _settle_warning(self, blanks: Sequence[Ref]) -> list[Record]:
        """The line after a WARN is there: empty lines between them are the WARN's."""
        piece, self.warning = self.warning, None
        if piece is None:
            return []
        piece.refs += blanks
        thread = piece.head.thread if piece.head else ""
        done = [self.builder.path(self.paths.pop(thread))] if thread in self.paths else []
        return [*done, self.builder.nccl(piece)]

    def _give_up(self) -> list[Record]:
        """Return what has waited too long, and everything when too much is held."""
        done = [record for piece in self.torn.expire(self.count - PATIENCE) for record in self._record(piece)]
        for key in [key for key, block in self.blocks.items() if block.touched < self.count - PATIENCE]:
            done += self._close(key)
        for thread in [name for name, path in self.paths.items() if path.touched < self.count - PATIENCE]:
            done.append(self.builder.path(self.paths.pop(thread)))
        size = self.torn.size + sum(block.size for block in (*self.blocks.values(), *self.paths.values()))
        if len(self.held) > MAX_HELD_LINES or size > MAX_HELD_BYTES:
            for block in self.blocks.values():
                block.piece.flags.add("partial")
            done += self.flush()
        return done


def _place(record: Record) -> tuple[Any, ...]:
    return record.refs[0], record.part


def job_columns(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
    """Columns of lines of job output."""
    from parsers.job_columns import columns

    return columns(lines, tz)


def noise(lines: "pa.LargeBinaryArray") -> "pa.DictionaryArray":
    """Noise ids of lines that are noise whole and alone."""
    from parsers.job_columns import noise_column

    return noise_column(lines)


TRAINING = Parser(TrainingStream, job_columns, GATE, noise, path_job=True)
