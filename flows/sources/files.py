"""Files, directories, globs and standard input, read once to their end, as blocks of whole lines.

A block is a message of the wire contract (header `v=1`): its topic is the path as it was given, its
offset the position of its first byte, its time that of the file's last change. A line longer than
`max_line_bytes` is cut into lines of that length. One shard, `0000`; the position is in the recovery
store, except that standard input cannot be read again.
"""

import glob
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from bytewax.inputs import AbortExecution, FixedPartitionedSource, StatefulSourcePartition
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from flows.batch import Chunk, Headers
from flows.sources.chunks import about_lines, now_ms, tick
from flows.sources.drain import Drain
from flows.steps.kinds import BUILT_IN, Kinds, require_kind
from parsers.clock import zone
from sinks.errors import Misconfigured

log = logging.getLogger("tailrace.files")

STDIN = "-"
_SHARD = "0000"
_BLOCK = 128 << 10
_TICK_S = 1.0
_PACKED = (".gz", ".xz", ".zst", ".bz2", ".zip")


class FilesConfig(BaseModel):
    """What is read, and what its path does not tell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paths: list[str] = Field(
        [STDIN], min_length=1, description="Files, directories (read recursively), globs, or - for standard input."
    )
    kind: str | None = Field(None, description="Kind of all files; otherwise the name of each file must tell it.")
    node: str | None = Field(None, description="Node that wrote all files.")
    node_regex: str | None = Field(
        None, description="Regular expression searched in each path; its first group is the node, as in ([^/]+)/[^/]+$."
    )
    tz: str | None = Field(None, description="Zone (IANA name) of local times in all files; see also decode.tz.")
    max_line_bytes: int = Field(1 << 20, ge=1024, description="Longer lines are cut into several.")
    batch_bytes: int = Field(8 << 20, ge=1024, description="Bytes of one batch, about.")
    batch_lines: int = Field(40_000, ge=1, description="Lines of one batch, about.")

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str | None, info: ValidationInfo) -> str | None:
        if kind is not None:
            require_kind(kind, info)
        return kind

    @field_validator("tz")
    @classmethod
    def _known_zone(cls, tz: str | None) -> str | None:
        return None if tz is None else zone(tz).key

    @field_validator("node_regex")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        try:
            if pattern is not None and re.compile(pattern).groups < 1:
                raise ValueError(f"{pattern!r} has no group; put the node's name in ( )")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return pattern


class Position(NamedTuple):
    """`done` bytes of `path` are read, and all of the files before it; `ended`: the last chunk was given out."""

    path: str
    done: int
    ended: bool = False


class FilesSource(FixedPartitionedSource[tuple[str, Chunk], Position]):
    """Chunks keyed by the shard `0000`; the last one is `ended` and has no messages.

    Raises Misconfigured when there is no such file, it cannot be read, or its kind is not known.
    """

    def __init__(self, config: FilesConfig, drain: Drain | None = None, kinds: Kinds = BUILT_IN) -> None:
        self._config, self._drain, self._kinds = config, drain or Drain(), kinds
        self._files = list(dict.fromkeys(found for given in config.paths for found in _find(given)))
        for path in self._files:
            _headers(path, config, kinds)
            if path != STDIN and not os.access(path, os.R_OK):
                raise Misconfigured(f"cannot read {path}; change its permissions, or leave it out of paths")

    def list_parts(self) -> list[str]:
        return [_SHARD]

    def build_part(self, step_id: str, for_part: str, resume_state: Position | None) -> "FilesPart":  # noqa: ARG002
        return FilesPart(self._files, self._config, resume_state, self._drain, self._kinds)


class FilesPart(StatefulSourcePartition[tuple[str, Chunk], Position]):
    """All files, one after the other."""

    def __init__(
        self, files: list[str], config: FilesConfig, resume: Position | None, drain: Drain, kinds: Kinds
    ) -> None:
        self._config, self._drain, self._kinds = config, drain, kinds
        self._position = resume or Position(files[0], 0)
        start = files.index(self._position.path) if self._position.path in files else 0
        if resume and files[start] != resume.path:
            log.warning("a file of the recovery store is gone; reading all files", extra={"path": resume.path})
            self._position = Position(files[0], 0)
        self._files = files[start:]
        self._reader: _Reader | None = None
        self._closed_epoch = self._draining = self._idle = False
        self._last_chunk = time.monotonic()
        drain.enter(_SHARD)

    def next_batch(self) -> Iterable[tuple[str, Chunk]]:
        if self._closed_epoch and self._draining:
            self._drain.leave(_SHARD)
            if self._drain.finished:
                raise AbortExecution
            return []
        self._closed_epoch = False
        if self._position.ended:
            self._drain.leave(_SHARD)
            raise StopIteration
        self._idle = False
        chunk = self._read()
        if chunk is None and not self._files:
            self._position = self._position._replace(ended=True)
            chunk = tick([], ended=True)
        if chunk is None:
            if time.monotonic() - self._last_chunk < _TICK_S:
                return []
            chunk = tick([])  # a silent pipe: what is held must be released all the same
        self._last_chunk = time.monotonic()
        return [(_SHARD, chunk)]

    def next_awake(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(milliseconds=10) if self._idle else None

    def snapshot(self) -> Position:
        self._closed_epoch = True
        self._draining = self._drain.is_set()
        return self._position

    def close(self) -> None:
        if self._reader:
            self._reader.close()

    def _read(self) -> Chunk | None:
        topics: list[str] = []
        topic: list[int] = []
        offset: list[int] = []
        appended: list[int] = []
        headers: list[Headers] = []
        values: list[bytes | None] = []
        lines = size = 0
        while self._files and lines < self._config.batch_lines and size < self._config.batch_bytes:
            reader = self._reader or self._open()
            value = reader.read()
            if value is None:
                self._next_file(reader)
                continue
            if not value:
                self._idle = True
                break
            if not topics or topics[-1] != reader.path:
                topics.append(reader.path)
            topic.append(len(topics) - 1)
            offset.append(self._position.done)
            appended.append(reader.changed_ms)
            headers.append(reader.headers)
            values.append(value)
            size += len(value)
            lines += about_lines([value], len(value))
            self._position = Position(reader.path, self._position.done + len(value))
        if not values:
            return None
        return Chunk(
            topics,
            np.array(topic, dtype=np.int32),
            np.zeros(len(values), dtype=np.int32),
            np.array(offset, dtype=np.int64),
            np.array(appended, dtype=np.int64),
            [None] * len(values),
            headers,
            values,
            now_ms(),
        )

    def _open(self) -> "_Reader":
        path = self._files[0]
        done = self._position.done if path == self._position.path else 0
        self._position = Position(path, done)
        self._reader = _Reader(path, done, self._config, self._kinds)
        return self._reader

    def _next_file(self, reader: "_Reader") -> None:
        if reader.cut:
            log.warning("lines were cut at max_line_bytes", extra={"path": reader.path, "pieces": reader.cut})
        reader.close()
        self._reader = None
        self._files = self._files[1:]


class _Reader:
    """Blocks of whole lines of one file; holds at most one block and one line."""

    def __init__(self, path: str, done: int, config: FilesConfig, kinds: Kinds) -> None:
        self.path, self.cut = path, 0
        self._limit = config.max_line_bytes
        self._file: IO[bytes] = open(  # noqa: SIM115 - closed by close()
            sys.stdin.fileno() if path == STDIN else path, "rb", buffering=0, closefd=path != STDIN
        )
        status = os.fstat(self._file.fileno())
        self._regular = stat.S_ISREG(status.st_mode)
        if done and self._regular:
            self._file.seek(done)
        self.changed_ms = status.st_mtime_ns // 1_000_000 if self._regular else now_ms()
        self.headers = _headers(path, config, kinds)
        if self._regular:
            self.headers += (("mtime", b"%d" % status.st_mtime_ns),)
        self._rest = b""

    def read(self) -> bytes | None:
        """The next block; empty when nothing is there yet (a pipe), None at the end."""
        while True:
            if not self._regular and not select.select([self._file], [], [], 0)[0]:
                return b""
            data = self._file.read(_BLOCK)
            if not data:
                block, self._rest = self._rest, b""
                return block or None
            if end := data.rfind(b"\n") + 1:
                block, self._rest = self._rest + data[:end], data[end:]
                return block
            self._rest += data
            if len(self._rest) >= self._limit:
                block, self._rest = self._rest[: self._limit], self._rest[self._limit :]
                self.cut += 1
                return block

    def close(self) -> None:
        self._file.close()


def _find(given: str) -> Iterator[str]:
    """Files that one entry of `paths` names. Raises Misconfigured when there is none."""
    if given == STDIN:
        yield given
        return
    found = [given] if os.path.exists(given) else sorted(glob.glob(given, recursive=True))
    if not found:
        raise Misconfigured(f"there is no file {given}; correct paths")
    for path in found:
        if os.path.isdir(path):
            inside = sorted(str(file) for file in Path(path).rglob("*") if _is_log(file.relative_to(path), file))
            if not inside:
                raise Misconfigured(f"the directory {path} has no log files; correct paths")
            yield from inside
        elif path.endswith(_PACKED):
            raise Misconfigured(f"{path} is compressed; unpack it first, as in `zcat {path} | tailrace …`")
        else:
            yield path


def _is_log(relative: Path, file: Path) -> bool:
    hidden = any(part.startswith(".") for part in relative.parts)
    return not hidden and not file.name.endswith(_PACKED) and file.is_file()


def _headers(path: str, config: FilesConfig, kinds: Kinds) -> Headers:
    kind = config.kind or (None if path == STDIN else kinds.of_path(path))
    if kind is None:
        what = "standard input" if path == STDIN else f"the name of {path}"
        raise Misconfigured(f"{what} does not tell the kind of log; set kind to one of {', '.join(sorted(kinds.jobs))}")
    node = config.node
    if config.node_regex and (found := re.search(config.node_regex, path)):
        node = found[1]
    named = {"v": "1", "kind": kind, "path": None if path == STDIN else path, "node": node, "tz": config.tz}
    return tuple((name, os.fsencode(value)) for name, value in named.items() if value)
