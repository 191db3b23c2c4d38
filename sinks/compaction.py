"""Compaction: landing objects become files of one kind and one hour, sorted by node and time.

    landing/g000001/0000/000000000042.parquet   →   compacted/kind=kmsg/date=2026-11-30/hour=13/v…-….parquet

Hours are UTC, of Kafka's time (`appended_at`), so that no clock of a node makes partitions. Safe beside a running tier:
the newest object of a shard is left alone, since a redone epoch may replace it, and no other ever changes. Safe against
crashes at any point: files count once their manifest is there (sinks.manifest); what a crash leaves is removed by the
next run. What is replaced stays for `grace_s`, for readers that have listed it.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, field_validator

from parsers.schema import LOG, SCHEMA_VERSION
from sinks.manifest import COMPACTED, File, Gone, Manifest, commit, landed, newest
from sinks.parquet_file import writer
from sinks.storage import ObjectStore

_HOUR_MS = 3_600_000
_BATCH_OBJECTS = 500
_BATCH_BYTES = 2 << 30
_ROW_GROUP = 131_072
_DEFAULT = "default"
_INDEXED = ("job_id", "node")  # bloom filters


class CompactConfig(BaseModel):
    """What `tailrace compact` does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mib: int = Field(
        512,
        ge=64,
        description="Rows held in memory until they are sorted and written, in MiB; about thrice that is used.",
    )
    small_mib: int = Field(64, ge=1, description="A compacted file below this size, in MiB, is small.")
    small_files: int = Field(
        8, ge=2, description="Small files of one kind and hour after which they are merged with what comes next."
    )
    grace_s: int = Field(3_600, ge=0, description="How long objects that were replaced stay, for readers, in seconds.")
    keep_days: dict[str, int] = Field(
        default_factory=dict,
        description="Days that rows are kept, by kind; `default` is for kinds not named. Unset: for ever.",
    )

    @field_validator("keep_days")
    @classmethod
    def _some(cls, days: dict[str, int]) -> dict[str, int]:
        for kind, count in days.items():
            if count < 1:
                raise ValueError(f"{kind}: {count} days would remove what has just come; leave it out to keep all")
        return days


@dataclass(slots=True)
class Done:
    """What a compaction did."""

    objects: int = 0
    rows: int = 0
    files: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0


@dataclass(slots=True)
class Compaction:
    """One run over an archive. `spool` is a local directory for copies and files in the making.

    `progress` is called with the landing objects done so far and those there are. Memory: `memory_mib` of rows, and
    their sorted copy; local disk: 2 GiB of copies, one more object, and one file.
    """

    store: ObjectStore
    config: CompactConfig
    spool: Path
    now_s: int
    progress: Callable[[int, int], None]
    done: Done = field(default_factory=Done)
    _files: list[File] = field(default_factory=list)
    _merged: set[str] = field(default_factory=set)
    _name: str = ""

    def run(self) -> Done:
        """Compact what has landed, forget what is too old, remove what nobody reads any more.

        Raises SinkError when the store fails or another compaction was quicker; all that was committed holds.
        """
        self.spool.mkdir(parents=True, exist_ok=True)
        manifest = newest(self.store)
        self._sweep(manifest)
        waiting = [
            (shard, number, key)
            for shard, objects in groupby(landed(self.store), key=lambda each: each[0])
            for _, number, key in list(objects)[:-1]
            if number > manifest.done.get(shard, -1)
        ]
        while self.done.objects < len(waiting):
            manifest = self._batch(manifest, waiting[self.done.objects :][:_BATCH_OBJECTS])
            self.progress(self.done.objects, len(waiting))
        manifest = self._expire(manifest)
        self._remove(manifest)
        return self.done

    def _batch(self, manifest: Manifest, objects: list[tuple[str, int, str]]) -> Manifest:
        """Compact the first of these objects, as many as the local disk may hold, and commit."""
        self._files, self._merged = [], set()
        self._name = f"v{manifest.version + 1:012d}-{secrets.token_hex(4)}"
        parts = list(self._fetched([key for _, _, key in objects]))
        objects = objects[: len(parts)]
        try:
            for kind in sorted({kind for _, groups in parts for kind in groups}):
                self._kind(manifest, kind, parts)
        finally:
            for path, _ in parts:
                if path.parent == self.spool:
                    path.unlink(missing_ok=True)
        gone = [Gone(key=key, at_s=self.now_s) for key in (*sorted(self._merged), *(key for _, _, key in objects))]
        kept = [file for file in manifest.files if file.key not in self._merged]
        done = manifest.done | {shard: number for shard, number, _ in objects}
        after = Manifest(
            version=manifest.version + 1, done=done, files=(*kept, *self._files), gone=(*manifest.gone, *gone)
        )
        commit(self.store, after)
        self.done.objects += len(objects)
        self.done.files += len(self._files)
        self.done.merged += len(self._merged)
        return after

    def _fetched(self, keys: Iterable[str]) -> Iterator[tuple[Path, dict[str, list[int]]]]:
        """Objects as local files, and their row groups by kind; those that come after `_BATCH_BYTES` are left out."""
        size = 0
        for number, key in enumerate(keys):
            if size > _BATCH_BYTES:
                return
            path = self.store.local(key, self.spool / f"{number}.parquet")
            size += path.stat().st_size
            metadata = pq.read_metadata(path)
            groups: dict[str, list[int]] = {}
            for group in range(metadata.num_row_groups):
                statistics = _column(metadata.row_group(group), "kind").statistics
                groups.setdefault(statistics.min, []).append(group)
            yield path, groups

    def _kind(self, manifest: Manifest, kind: str, parts: list[tuple[Path, dict[str, list[int]]]]) -> None:
        """Sort and write the rows of one kind, as many at a time as memory allows."""
        tables: list[pa.Table] = []
        size = 0
        for path, groups in parts:
            if kind not in groups:
                continue
            file = pq.ParquetFile(path)
            for group in groups[kind]:
                table = file.read_row_group(group).cast(LOG)
                tables.append(table)
                size += table.nbytes
                if size > self.config.memory_mib << 20:
                    self._write(manifest, kind, tables)
                    tables, size = [], 0
        if tables:
            self._write(manifest, kind, tables)

    def _write(self, manifest: Manifest, kind: str, tables: list[pa.Table]) -> None:
        table = pa.concat_tables(tables)
        hours = table["appended_at"].to_numpy() // _HOUR_MS
        self.done.rows += len(table)
        for hour in np.unique(hours).tolist():
            rows = table.filter(pa.array(hours == hour))
            small = [
                file
                for file in manifest.files
                if (file.kind, file.hour) == (kind, hour) and file.size < self.config.small_mib << 20
            ]
            small = [file for file in small if file.key not in self._merged]
            if (
                len(small) >= self.config.small_files
                and sum(file.size for file in small) < self.config.memory_mib << 18
            ):
                older = [self._read(file) for file in small]
                self._merged |= {file.key for file in small}
                rows = pa.concat_tables([*older, rows])
            self._file(kind, hour, rows)

    def _read(self, file: File) -> pa.Table:
        path = self.store.local(file.key, self.spool / "small.parquet")
        return pq.read_table(path, partitioning=None).cast(LOG)

    def _file(self, kind: str, hour: int, rows: pa.Table) -> None:
        """Sort rows and store them as a file."""
        order = pc.sort_indices(
            pa.table(
                {"node": rows["node"].cast(pa.string()), **{name: rows[name] for name in ("ts", "offset", "line")}}
            ),
            sort_keys=[(name, "ascending") for name in ("node", "ts", "offset", "line")],
        )
        rows = rows.unify_dictionaries().combine_chunks().take(order)
        path = self.spool / "compacted.parquet"
        with writer(path, level=3, bloom_filters=_INDEXED) as output:
            output.write_table(rows, row_group_size=_ROW_GROUP)
            output.add_key_value_metadata({"tailrace.schema": SCHEMA_VERSION})
        date = np.datetime64(hour, "h")
        key = (
            f"{COMPACTED}/kind={kind}/date={date.astype('datetime64[D]')}/hour={hour % 24:02d}/"
            f"{self._name}-{len(self._files):04d}.parquet"
        )
        self.store.put_file(path, key)
        size = path.stat().st_size
        path.unlink()
        lines = pc.sum(rows["owned"]).as_py() or 0
        self._files.append(File(key=key, kind=kind, hour=hour, rows=len(rows), lines=lines, size=size))

    def _expire(self, manifest: Manifest) -> Manifest:
        """Commit a version without the files whose rows have been kept long enough."""
        keep = self.config.keep_days
        now = self.now_s // 3_600

        def old(file: File) -> bool:
            days = keep.get(file.kind, keep.get(_DEFAULT))
            return days is not None and file.hour + 1 + 24 * days <= now

        expired = [file for file in manifest.files if old(file)]
        if not expired:
            return manifest
        self.done.expired += len(expired)
        after = manifest.model_copy(
            update={
                "version": manifest.version + 1,
                "files": tuple(file for file in manifest.files if not old(file)),
                "gone": (*manifest.gone, *(Gone(key=file.key, at_s=self.now_s) for file in expired)),
            }
        )
        commit(self.store, after)
        return after

    def _remove(self, manifest: Manifest) -> None:
        """Remove what was replaced longer than `grace_s` ago, then commit a version that no longer names it."""
        late = [each for each in manifest.gone if each.at_s + self.config.grace_s <= self.now_s]
        for each in late:
            self.store.delete(each.key)
        if late:
            left = tuple(each for each in manifest.gone if each not in late)
            commit(self.store, manifest.model_copy(update={"version": manifest.version + 1, "gone": left}))
            self.done.removed += len(late)

    def _sweep(self, manifest: Manifest) -> None:
        """Remove files of compactions that never committed: of a version that has been made by another."""
        known = {file.key for file in manifest.files} | {each.key for each in manifest.gone}
        for key in self.store.keys(COMPACTED):
            version = key.rpartition("/")[2].removeprefix("v").partition("-")[0]
            if key not in known and version.isdecimal() and int(version) <= manifest.version:
                self.store.delete(key)


def _column(group: "pq.RowGroupMetaData", name: str) -> "pq.ColumnChunkMetaData":
    return next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == name)
