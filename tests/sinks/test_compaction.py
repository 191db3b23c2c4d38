"""Compaction keeps every row exactly once, whatever ends it, and makes the archive quick to search."""

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from parsers.schema import LOG
from sinks import compaction
from sinks.compaction import CompactConfig, Compaction, Done
from sinks.errors import SinkError
from sinks.manifest import newest, readable
from sinks.parquet import ParquetConfig, ParquetSink
from sinks.storage import ObjectStore, StorageConfig, open_storage
from tests.sinks.archive_rows import Ledger, delivery, record

HOUR_MS = 3_600_000
NOW_S = 1_764_547_200
START_MS = NOW_S * 1_000 - 24 * HOUR_MS


def archive(storage: StorageConfig, epochs: Iterable[list[dict[str, Any]]], shard: str = "0000", seq: int = 0) -> int:
    """Store each of `epochs` as a landing object; returns the number of the next one."""
    part = ParquetSink(ParquetConfig(storage=storage), 1, [shard], Ledger()).build_part("parquet", shard, seq)
    for records in epochs:
        part.write_batch(
            [
                delivery([each for each in records if each["kind"] == kind])
                for kind in sorted({each["kind"] for each in records})
            ]
        )
        seq = part.snapshot()
    part.close()
    return seq


def epochs(count: int, rows: int = 20, minutes: int = 7, partition: int = 0) -> list[list[dict[str, Any]]]:
    """Rows of two kinds that go through several hours."""
    return [
        [
            record(
                epoch * rows + row,
                kind=("kmsg", "training")[row % 2],
                partition=partition,
                node=f"gpu-{(epoch * 7 + row * 3) % 5}",
                appended_at=START_MS + epoch * minutes * 60_000 + row,
            )
            for row in range(rows)
        ]
        for epoch in range(count)
    ]


def compact(store: ObjectStore, spool: Path, now_s: int = NOW_S, **config: Any) -> Done:
    return Compaction(store, CompactConfig(**config), spool, now_s, lambda *_: None).run()


def rows_of(store: ObjectStore, spool: Path) -> list[dict[str, Any]]:
    """All rows that a reader gets."""
    files, landing = readable(store)
    spool.mkdir(exist_ok=True)
    tables = [
        pq.read_table(store.local(key, spool / f"read-{number}"), partitioning=None)
        for number, key in enumerate([*(file.key for file in files), *landing])
    ]
    return sorted(
        (row for table in tables for row in table.to_pylist()),
        key=lambda row: (row["partition"], row["offset"], row["line"], row["part"]),
    )


def test_every_row_is_there_once_and_unchanged_after_each_run(storage: StorageConfig, tmp_path: Path) -> None:
    store, spool = open_storage(storage), tmp_path / "spool"
    first = archive(storage, epochs(20))
    archive(storage, epochs(5, partition=1), "0001")
    before = rows_of(store, spool)
    assert len(before) == 25 * 20

    done = compact(store, spool, grace_s=0)

    assert (done.objects, done.rows) == (23, 23 * 20)
    assert rows_of(store, spool) == before
    assert sorted(store.keys("landing")) == [  # the newest of each shard may still be redone
        "landing/g000001/0000/000000000019.parquet",
        "landing/g000001/0001/000000000004.parquet",
    ]
    archive(storage, [[record(10_000, appended_at=START_MS)]], seq=first)
    assert compact(store, spool, grace_s=0).objects == 1
    assert [row for row in rows_of(store, spool) if row["offset"] < 10_000] == before


def test_a_redone_epoch_may_replace_the_newest_object_after_a_compaction(
    local_storage: StorageConfig, tmp_path: Path
) -> None:
    store = open_storage(local_storage)
    seq = archive(local_storage, epochs(3))
    compact(store, tmp_path / "spool")
    other = [record(900, appended_at=START_MS)]
    archive(local_storage, [other, [record(901, appended_at=START_MS)]], seq=seq - 1)
    compact(store, tmp_path / "spool")
    offsets = [row["offset"] for row in rows_of(store, tmp_path / "spool")]
    assert offsets == [*range(40), 900, 901]


class Dying:
    """A store whose process ends before its n-th call, or after it was carried out."""

    def __init__(self, store: ObjectStore, calls: int, *, after: bool) -> None:
        self._store, self.left, self._after = store, calls, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            self.left -= 1
            if self.left >= 0:
                return method(*arguments)
            if self._after and self.left == -1:
                method(*arguments)
            raise SystemExit("killed")

        return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_of_the_store_loses_and_repeats_nothing(
    local_storage: StorageConfig, tmp_path: Path, *, after: bool
) -> None:
    base, spool = Path(local_storage.url), tmp_path / "spool"
    seq = 0
    for turn in range(3):  # so that the run to be killed merges small files and removes objects
        seq = archive(local_storage, [[record(turn * 10 + at, appended_at=START_MS)] for at in range(2)], seq=seq)
        compact(open_storage(local_storage), spool, now_s=NOW_S - 2 + turn, grace_s=2, small_files=2)
    archive(local_storage, [[record(100 + at, appended_at=START_MS)] for at in range(3)], seq=seq)
    before = rows_of(open_storage(local_storage), spool)
    for call in range(1_000):
        killed = tmp_path / f"killed-{call}"
        shutil.copytree(base, killed)
        store = open_storage(StorageConfig(url=str(killed), retry_for_s=0))
        dying = Dying(store, call, after=after)
        with suppress(SystemExit):
            compact(dying, spool, grace_s=2, small_files=2)  # type: ignore[arg-type]
        assert rows_of(store, spool) == before, f"after a crash at call {call}"
        for later in (10, 20):  # the first run does what was left, the second removes what the killed one left
            compact(store, spool, now_s=NOW_S + later, grace_s=2)
        assert rows_of(store, spool) == before, f"after a crash at call {call} and further runs"
        named = {file.key for file in newest(store).files} | {each.key for each in newest(store).gone}
        assert set(store.keys("compacted")) <= named, "files that no manifest names are left"
        if dying.left > 0:
            break
    assert call > 10, "a run has fewer calls than were to be interrupted"


def test_of_two_compactions_at_one_time_one_commits(storage: StorageConfig, tmp_path: Path) -> None:
    store, spool = open_storage(storage), tmp_path / "spool"
    archive(storage, epochs(6))
    before = rows_of(store, spool)

    class Overtaken(Dying):
        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name == "put_new" and self.left:
                self.left = 0
                compact(store, tmp_path / "other")
            return getattr(store, name)  # type: ignore[no-any-return]

    with pytest.raises(SinkError, match="another compaction"):
        compact(Overtaken(store, 1, after=False), spool)  # type: ignore[arg-type]
    assert rows_of(store, spool) == before
    compact(store, spool)
    assert rows_of(store, spool) == before
    assert set(store.keys("compacted")) == {file.key for file in newest(store).files}


def test_what_was_replaced_stays_for_readers_that_have_listed_it(local_storage: StorageConfig, tmp_path: Path) -> None:
    store, spool = open_storage(local_storage), tmp_path / "spool"
    archive(local_storage, epochs(3))
    _, listed = readable(store)
    compact(store, spool, grace_s=60)
    compact(store, spool, now_s=NOW_S + 59, grace_s=60)
    assert all(store.exists(key) for key in listed)
    assert compact(store, spool, now_s=NOW_S + 60, grace_s=60).removed == 2
    assert [store.exists(key) for key in listed] == [False, False, True]


def test_kinds_are_kept_as_long_as_configured(local_storage: StorageConfig, tmp_path: Path) -> None:
    store, spool = open_storage(local_storage), tmp_path / "spool"
    archive(local_storage, epochs(3))
    later = START_MS // 1_000 + 2 * 86_400 + 2 * 3_600
    assert compact(store, spool, now_s=later, keep_days={"training": 2, "default": 3}).expired == 1
    assert {file.kind for file in newest(store).files} == {"kmsg"}
    assert compact(store, spool, now_s=later + 86_400, keep_days={"training": 2, "default": 3}).expired == 1
    assert not newest(store).files


def test_a_slow_day_of_small_objects_ends_in_few_files(local_storage: StorageConfig, tmp_path: Path) -> None:
    """Ten records per second with an object a minute would be 1440 files."""
    store, spool = open_storage(local_storage), tmp_path / "spool"
    seq = 0
    for hour in range(2):
        for tenth in range(6):
            objects = [
                [record(hour * 10_000 + tenth * 100 + each, appended_at=START_MS + hour * HOUR_MS + tenth * 600_000)]
                for each in range(10)
            ]
            seq = archive(local_storage, objects, seq=seq)
            compact(store, spool, small_files=3, grace_s=0)
    assert len(newest(store).files) <= 2 * 3
    assert len(rows_of(store, spool)) == 120
    assert len(list(store.keys("manifest"))) <= 10


def test_memory_bounds_the_rows_of_one_file(
    local_storage: StorageConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spool = open_storage(local_storage), tmp_path / "spool"
    archive(
        local_storage,
        [
            [record(epoch * 100 + row, raw=b"x" * 100_000, appended_at=START_MS) for row in range(100)]
            for epoch in range(16)
        ],
    )
    before = rows_of(store, spool)
    written: list[int] = []
    file = Compaction._file
    monkeypatch.setattr(
        Compaction, "_file", lambda self, kind, hour, rows: (written.append(rows.nbytes), file(self, kind, hour, rows))
    )
    compact(store, spool, memory_mib=64)
    assert len(written) > 1
    assert max(written) < (64 + 32) << 20
    assert rows_of(store, spool) == before


def test_queries_read_the_files_and_row_groups_of_their_rows_only(
    local_storage: StorageConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_ROW_GROUP", 50)
    store, spool = open_storage(local_storage), tmp_path / "spool"
    archive(local_storage, epochs(12, rows=400))
    compact(store, spool)
    root = Path(local_storage.url) / "compacted"
    partitions = ds.partitioning(
        pa.schema([LOG.field("kind"), ("date", pa.string()), ("hour", pa.string())]),
        dictionaries={"kind": pa.array(["kmsg", "training"])},
        flavor="hive",
    )
    table = ds.dataset(root, format="parquet", partitioning=partitions)
    hour = (ds.field("kind") == "kmsg") & (ds.field("hour") == "01")
    fragments = list(table.get_fragments(filter=hour))
    assert 0 < len(fragments) < len(list(table.get_fragments())) / 2
    metadata = [pq.read_metadata(fragment.path) for fragment in fragments]
    groups = [each.row_group(at) for each in metadata for at in range(each.num_row_groups)]
    nodes = [group.column(LOG.get_field_index("node")).statistics for group in groups]
    assert sum(each.min <= "gpu-2" <= each.max for each in nodes) <= len(groups) / 2  # sorted: few can hold a node

    files, landing = readable(store)
    paths = [store.url(key) for key in (*(file.key for file in files), *landing)]
    found = duckdb.sql(f'SELECT count(*), count(DISTINCT "offset") FROM read_parquet({paths})').fetchall()
    assert found == [(4_800, 4_800)]
    assert groups[0].column(0).has_column_index
