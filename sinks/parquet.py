"""The archive: every line, once, as Parquet objects.

One object per (generation, shard, epoch), `landing/g000001/SHARD/000000000042.parquet`. Why every line
is there exactly once: the object is stored in `snapshot()`, before the epoch can be committed; the number
of the next object is the state that is committed with the epoch; Bytewax has at most one epoch
uncommitted. So a crash leaves at most one object too many, and the redone epoch, which starts at the same
source position, gets the same number and overwrites it. An epoch without rows stores nothing and keeps
the number, so that an object left by a crash is still overwritten by the rows that are read again.
"""

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from bytewax.outputs import StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field

from parsers.schema import LOG
from sinks.base import Account, Delivery, Site
from sinks.compaction import CompactConfig
from sinks.errors import Misconfigured, SinkError
from sinks.manifest import LANDING
from sinks.parquet_file import ParquetFile
from sinks.sharded import ShardedSink
from sinks.storage import ObjectStore, StorageConfig, checked, open_storage

T = TypeVar("T")


class ParquetConfig(BaseModel):
    """The Parquet archive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: StorageConfig = Field(StorageConfig(), description="Where the archive is kept.")
    noise: bool = Field(True, description="Whether lines dropped by a noise rule are archived as well.")
    spool: str | None = Field(
        None,
        description="Local directory for objects in the making; unset: `.spool` in a local archive, else a "
        "directory of this user below the system's temporary directory.",
    )
    memory_mib: int = Field(
        128, ge=16, description="Bound on rows held in memory in this process, divided among its shards, in MiB."
    )
    row_group_rows: int = Field(
        65_536, ge=1_024, description="Rows of one kind after which they are encoded as one row group."
    )
    compact: CompactConfig = Field(
        default_factory=lambda: CompactConfig(), description="What `tailrace compact` makes of the archive."
    )


class ParquetSink(ShardedSink[int]):
    """The archive as a sink; its state is the number of the next object of the shard.

    Memory per shard: `memory_mib` / shards, half of it rows that wait for the encoder, half rows that
    wait for their row group to fill; and one batch, and the pages of one column, beyond that. Local
    disk: the compressed bytes of one epoch. Raises Misconfigured for settings that cannot work.
    """

    def __init__(self, config: ParquetConfig, generation: int, shards: Sequence[str], account: Account) -> None:
        super().__init__(shards)
        self._config, self._generation, self._account = config, generation, account
        self._store = open_storage(config.storage)
        self._spool = _spool_directory(config)
        self._prefixes = {shard: checked(f"{LANDING}/g{generation:06d}/{shard}") for shard in shards}

    @classmethod
    def at(cls, config: ParquetConfig, site: Site) -> "ParquetSink":
        """The sink of a site; see sinks.registry."""
        return cls(config, site.generation, site.shards, site.account)

    def check(self) -> None:
        """Raise Misconfigured unless the store and the spool directory can be written."""
        self._store.check()
        _make_spool(self._spool)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> "ParquetPart":  # noqa: ARG002 - Bytewax's signature
        prefix = self._prefixes[for_part]
        half = (self._config.memory_mib << 19) // len(self._shards)
        _make_spool(self._spool)
        self._store.discard_partial(prefix)
        return ParquetPart(
            self._store,
            prefix,
            resume_state or 0,
            ParquetFile(self._spool / f"{for_part}.spool", half, self._config.row_group_rows),
            identity={"tailrace.generation": str(self._generation), "tailrace.shard": for_part},
            waiting_bytes=half,
            noise=self._config.noise,
            account=self._account,
        )


class ParquetPart(StatefulSinkPartition[Delivery, int]):
    """One shard: hands rows to an encoding thread, and stores their object at the end of the epoch.

    `identity` (generation and shard) goes into the file's metadata. An error in the thread is raised by
    the next call here; the process then ends, and the epoch is redone.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        seq: int,
        file: ParquetFile,
        *,
        identity: dict[str, str],
        waiting_bytes: int,
        noise: bool,
        account: Account,
    ) -> None:
        self._store, self._prefix, self._seq, self._file = store, prefix, seq, file
        self._identity, self._noise, self._account = identity, noise, account
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._waiting_bytes, self._bytes = waiting_bytes, 0
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._file.discard()  # left by a process that was killed

    def write_batch(self, values: list[Delivery]) -> None:
        """Queue the rows; blocks while more than the bound waits for the encoder."""
        for part in (part for delivery in values for part in delivery.parts):
            if part.rows.num_rows:
                self._queue(part.kind, False, part.rows.select(LOG.names))
            if part.noise.num_rows and self._noise:
                self._queue(part.kind, True, part.noise.select(LOG.names))

    def snapshot(self) -> int:
        """Store the object of this epoch, durably; return the number of the next one."""
        self._wait(0)
        lines = self._result(
            self._encoder.submit(self._file.finish, {**self._identity, "tailrace.seq": str(self._seq)})
        )
        if lines:
            self._store.put_file(self._file.path, f"{self._prefix}/{self._seq:012d}.parquet")
            self._file.discard()
            self._account("delivered", lines)
            self._seq += 1
        return self._seq

    def close(self) -> None:
        """End the thread and drop what was not stored: its epoch will be redone."""
        self._encoder.shutdown(cancel_futures=True)
        self._file.discard()

    def _queue(self, kind: str, noise: bool, rows: pa.Table) -> None:
        size = rows.nbytes
        self._wait(max(0, self._waiting_bytes - size))
        self._waiting.append((self._encoder.submit(self._file.add, kind, noise, rows), size))
        self._bytes += size

    def _wait(self, limit: int) -> None:
        """Wait until at most `limit` bytes are queued; take finished work off the queue."""
        while self._waiting and (self._bytes > limit or self._waiting[0][0].done()):
            future, size = self._waiting.popleft()
            self._bytes -= size
            self._result(future)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SinkError(
                f"archive: encoding object {self._seq} of {self._prefix} in {self._file.path} failed: {error}; "
                "nothing is lost, the epoch is redone after a restart; if the disk is full or broken, set parquet.spool"
            ) from error


def _spool_directory(config: ParquetConfig) -> Path:
    """Where spool files of this archive are; two archives on one machine must not share a directory."""
    url = config.storage.url
    if config.spool is None and "://" not in url:
        return Path(url) / ".spool"  # same file system: storing an object is a rename
    base = Path(config.spool) if config.spool else Path(tempfile.gettempdir()) / f"tailrace-spool-{os.getuid()}"
    digest = hashlib.sha256(f"{config.storage.endpoint_url} {url}".encode()).hexdigest()
    return base / digest[:16]


def _make_spool(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.getuid() or not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(0, "belongs to another user or cannot be written")
    except OSError as error:
        raise Misconfigured(
            f"the spool directory {directory} cannot be used: {error.strerror}; set parquet.spool"
        ) from error
