"""The archive holds every line exactly once, in files that other tools can query."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.schema import LOG, SCHEMA_VERSION
from sinks import parquet_file
from sinks.errors import Misconfigured, SinkError
from sinks.parquet import ParquetConfig, ParquetPart, ParquetSink
from sinks.parquet_file import ParquetFile
from sinks.storage import ObjectStore, StorageConfig, open_storage
from tests.sinks.archive_rows import TOPIC, Ledger, delivery, log, record

OBJECT = "landing/g000001/0000/{:012d}.parquet"

FULL = record(
    1,
    spans=[{"offset": 1, "line": 0}, {"offset": 3, "line": 2}],
    owned=2,
    part=1,
    cluster="c1",
    namespace="ml",
    pod="train-0",
    level="error",
    event="xid",
    message="GPU has fallen off the bus ü",
    job_id=4_000_001,
    step_id="batch",
    rank=7,
    pci="0000:4b:00",
    xid=79,
    seq=2**64 - 1,
    nodes=["gpu-0", "gpu-1"],
    flags=["clock_suspect"],
    fields=[("tid", "9"), ("uid", "0")],
    raw=b"\xff\x00 NVRM: Xid (PCI:0000:4b:00): 79",
)
NOISE = record(2, noise="N02", ts_source="received")


def part_of(storage: StorageConfig, ledger: Ledger | None = None, seq: int | None = None, **values: Any) -> ParquetPart:
    sink = ParquetSink(ParquetConfig(storage=storage, **values), 1, ["0000"], ledger or Ledger())
    return sink.build_part("parquet", "0000", seq)


def objects(store: ObjectStore) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(BytesIO(store.get(key))) for key in store.keys("landing")]


def numbers(store: ObjectStore) -> list[int]:
    """Offsets of all rows of an archive, sorted: the test records are numbered by it."""
    return sorted(number for file in objects(store) for number in file.read(["offset"])["offset"].to_pylist())


def test_rows_read_back_are_the_rows_written(storage: StorageConfig) -> None:
    part = part_of(storage)
    part.write_batch([delivery([FULL, record(5)], [NOISE]), delivery([record(9, kind="kmsg", node=None)])])
    assert part.snapshot() == 1
    (file,) = objects(open_storage(storage))
    table = file.read()
    assert table.schema.equals(LOG)
    expected = log([record(9, kind="kmsg", node=None), FULL, record(5), NOISE]).to_pylist()
    assert table.to_pylist() == expected


def test_a_row_group_holds_one_kind_and_keeps_noise_apart(local_storage: StorageConfig) -> None:
    part = part_of(local_storage, row_group_rows=1_024)
    for start in range(0, 3_000, 500):
        kept = [record(n) for n in range(start, start + 500)]
        part.write_batch([delivery(kept, [NOISE] * 10), delivery([record(start, kind="slurmctld")])])
    part.snapshot()
    (file,) = objects(open_storage(local_storage))
    groups = [file.read_row_group(n, ["kind", "noise"]) for n in range(file.num_row_groups)]
    sizes = [
        (group["kind"].unique().to_pylist(), group["noise"].unique().to_pylist(), group.num_rows) for group in groups
    ]
    assert sorted(sizes, key=repr) == [
        (["slurmctld"], [None], 6),
        (["training"], ["N02"], 60),
        (["training"], [None], 1_500),
        (["training"], [None], 1_500),
    ]


@pytest.mark.parametrize(("noise", "stored"), [(True, 5), (False, 3)])
def test_noise_is_stored_and_accounted_only_when_configured(
    local_storage: StorageConfig, noise: bool, stored: int
) -> None:
    ledger = Ledger()
    part = part_of(local_storage, ledger, noise=noise)
    part.write_batch([delivery([record(1, owned=2), record(3, partition=4)], [NOISE, record(4, noise="N01")])])
    assert ledger.entries == []
    part.snapshot()
    expected = {(TOPIC, 0): stored - 1, (TOPIC, 4): 1}
    assert ledger.entries == [("delivered", expected, "")]
    assert len(numbers(open_storage(local_storage))) == stored - 1


def test_metadata_says_where_the_rows_came_from(local_storage: StorageConfig) -> None:
    part = part_of(local_storage, seq=7, row_group_rows=1_024)
    part.write_batch([delivery([record(n, partition=2) for n in range(1_050, 1_000, -1)]) for _ in range(30)])
    part.write_batch([delivery([record(7, partition=1, topic="logs.kernel"), FULL])])
    part.snapshot()
    metadata = objects(open_storage(local_storage))[0].metadata.metadata
    assert metadata[b"tailrace.schema"] == SCHEMA_VERSION.encode()
    names = (b"tailrace.generation", b"tailrace.shard", b"tailrace.seq")
    assert [metadata[name] for name in names] == [b"1", b"0000", b"7"]
    assert json.loads(metadata[parquet_file.RANGES_KEY.encode()]) == [
        {"topic": TOPIC, "partition": 0, "min": 1, "max": 3, "lines": 2},  # its last line is of a later message
        {"topic": TOPIC, "partition": 2, "min": 1_001, "max": 1_050, "lines": 1_500},
        {"topic": "logs.kernel", "partition": 1, "min": 7, "max": 7, "lines": 1},
    ]


def test_an_epoch_without_rows_stores_nothing_and_keeps_the_number(local_storage: StorageConfig) -> None:
    ledger = Ledger()
    part = part_of(local_storage, ledger, seq=3, noise=False)
    part.write_batch([delivery([], [NOISE])])
    assert part.snapshot() == 3
    part.write_batch([delivery([record(1)])])
    assert part.snapshot() == 4
    assert list(open_storage(local_storage).keys("landing")) == [OBJECT.format(3)]
    assert ledger.total("delivered") == 1


def test_nothing_is_stored_by_close(local_storage: StorageConfig) -> None:
    part = part_of(local_storage)
    part.write_batch([delivery([record(1)])])
    part.close()
    assert [path for path in Path(local_storage.url).rglob("*") if path.is_file()] == []


KILLED = """
import json, os, signal, sys
from sinks.parquet import ParquetConfig, ParquetSink
from tests.sinks.archive_rows import Ledger, delivery, record

sink = ParquetSink(ParquetConfig(**json.loads(sys.argv[1])), 1, ["0000"], Ledger())
part = sink.build_part("parquet", "0000", None)
put_file = part._store.put_file

def put(path, key):
    put_file(path, key)
    if key.endswith("1.parquet"):
        os.kill(os.getpid(), signal.SIGKILL)

part._store.put_file = put
part.write_batch([delivery([record(n) for n in range(100)])])
print(part.snapshot(), flush=True)
part.write_batch([delivery([record(n) for n in range(100, 250)], [record(n, noise="N01") for n in range(250, 300)])])
print(part.snapshot(), flush=True)
"""


def test_a_process_killed_between_store_and_commit_leaves_an_object_that_is_overwritten(
    storage: StorageConfig, tmp_path: Path
) -> None:
    config = ParquetConfig(storage=storage, spool=str(tmp_path / "spool"))
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, config.model_dump_json()], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    committed = int(ran.stdout)
    assert committed == 1
    store = open_storage(storage)
    assert numbers(store) == list(range(300)), "the killed process had stored its second object"
    left = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["0000.spool"]

    sink = ParquetSink(config, 1, ["0000"], Ledger())
    part = sink.build_part("parquet", "0000", committed)
    assert not left[0].exists()
    # Redone epochs start at the same row, but need not end where the lost one did.
    for first, last in ((100, 180), (180, 400)):
        part.write_batch([delivery([record(n) for n in range(first, last)])])
        part.snapshot()
    part.close()
    assert numbers(store) == list(range(400))
    assert list(store.keys("landing")) == [OBJECT.format(n) for n in range(3)]


@settings(max_examples=25)
@given(
    epochs=st.lists(
        st.tuples(st.lists(st.integers(0, 4), max_size=4), st.sampled_from(["commit", "commit", "stored", "killed"])),
        max_size=12,
    )
)
def test_every_row_is_there_once_however_epochs_are_cut_and_lost(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[list[int], str]]
) -> None:
    storage = StorageConfig(url=str(tmp_path_factory.mktemp("archive")), retry_for_s=0)
    seq, position = None, 0  # what Bytewax has committed: the sink's state and the source's
    part = part_of(storage)
    for batches, end in [*epochs, ([1], "commit")]:
        read = position
        for rows in batches:
            if rows:
                part.write_batch([delivery([record(n) for n in range(read, read + rows)])])
                read += rows
        state = part.snapshot() if end in ("commit", "stored") else None
        if end == "commit":
            seq, position = state, read
        else:
            part.close()
            part = part_of(storage, seq=seq)
    part.close()
    assert numbers(open_storage(storage)) == list(range(position))


def test_leftovers_of_other_shards_stay(local_storage: StorageConfig, tmp_path: Path) -> None:
    config = ParquetConfig(storage=local_storage, spool=str(tmp_path / "spool"))
    sink = ParquetSink(config, 1, ["0000", "0001"], Ledger())
    first, second = (sink.build_part("parquet", shard, None) for shard in ("0000", "0001"))
    rows = [record(n) for n in range(2_000)]
    first.write_batch([delivery(rows)])
    second.write_batch([delivery(rows)])
    again = ParquetSink(config, 1, ["0000", "0001"], Ledger()).build_part("parquet", "0000", None)
    second.snapshot()
    again.write_batch([delivery([record(5)])])
    again.snapshot()
    store = open_storage(local_storage)
    assert [file.metadata.num_rows for file in objects(store)] == [1, 2_000]


def test_two_archives_on_one_machine_do_not_share_a_spool_file(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    storages = [StorageConfig(url=str(tmp_path / name)) for name in ("one", "two")]
    parts = [part_of(storage, spool=spool) for storage in storages]
    for number, part in enumerate(parts):
        part.write_batch([delivery([record(number)])])
    for part in parts:
        part.snapshot()
    assert [numbers(open_storage(storage)) for storage in storages] == [[0], [1]]


def test_a_failing_spool_disk_ends_the_epoch_with_a_clear_message(local_storage: StorageConfig, tmp_path: Path) -> None:
    part = part_of(local_storage, spool=str(tmp_path / "spool"))
    shutil.rmtree(tmp_path / "spool")
    part.write_batch([delivery([record(1)])])
    with pytest.raises(SinkError, match=r"archive: encoding object 0 of landing/g000001/0000 .* set parquet\.spool"):
        part.snapshot()


def test_rows_of_another_schema_are_an_error_of_the_epoch(local_storage: StorageConfig) -> None:
    part = part_of(local_storage)
    item = delivery([record(1)])
    item.parts[0].rows = item.parts[0].rows.set_column(2, "offset", pa.array([1], pa.int32()))
    part.write_batch([item])
    with pytest.raises(SinkError, match="do not have the schema LOG"):
        part.snapshot()


def test_check_names_a_spool_directory_that_cannot_be_used(local_storage: StorageConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = ParquetConfig(storage=local_storage, spool=str(tmp_path / "file"))
    with pytest.raises(Misconfigured, match=r"spool directory .* set parquet\.spool"):
        ParquetSink(config, 1, ["0000"], Ledger()).check()
    ParquetSink(ParquetConfig(storage=local_storage), 1, ["0000"], Ledger()).check()


def test_rows_in_memory_stay_within_the_bound_when_many_kinds_wait(tmp_path: Path) -> None:
    bound = 4 << 20
    file = ParquetFile(tmp_path / "spool", bound, 65_536)
    before = most = pa.total_allocated_bytes()
    for number in range(60):
        file.add(f"kind{number % 20}", False, log([record(n, raw=b"x" * 1_000) for n in range(500)]))
        most = max(most, pa.total_allocated_bytes())
    assert most - before < 2 * bound
    assert file.finish({}) == {(TOPIC, 0): 30_000}
    assert pq.read_metadata(file.path).num_rows == 30_000


def test_a_batch_of_huge_lines_is_cut_into_row_groups(tmp_path: Path) -> None:
    file = ParquetFile(tmp_path / "spool", 1 << 20, 65_536)
    file.add("training", False, log([record(n, raw=b"x" * (2 << 20)) for n in range(100)]))
    file.finish({})
    metadata = pq.read_metadata(file.path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [25] * 4


def test_tuned_columns_exist() -> None:
    assert set(parquet_file._STATISTICS) | set(parquet_file._RISING) <= set(LOG.names)


@pytest.fixture
def archive(local_storage: StorageConfig) -> Path:
    """Two shards and two epochs; kmsg of gpu-1 at 12:00:01 and every minute thereafter among others."""
    sink = ParquetSink(ParquetConfig(storage=local_storage), 1, ["0000", "0001"], Ledger())
    for shard in ("0000", "0001"):
        part = sink.build_part("parquet", shard, None)
        for start in (0, 240):
            for kind in ("kmsg", "training"):
                partition = int(shard)
                rows = [record(n, kind=kind, partition=partition) for n in range(start, start + 240)]
                part.write_batch([delivery(rows, [record(n, kind=kind, noise="N01") for n in range(3)])])
            part.snapshot()
    return Path(local_storage.url)


SINCE, UNTIL = datetime(2025, 3, 3, 12, 1, tzinfo=UTC), datetime(2025, 3, 3, 12, 5, tzinfo=UTC)
EXPECTED = [(n, shard) for n in range(60, 300) if n % 4 == 1 for shard in (0, 1)]


def as_pairs(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["offset"], row["partition"]) for row in rows)


def test_duckdb_finds_rows_by_kind_node_and_time(archive: Path) -> None:
    found = duckdb.execute(
        'select "offset", partition, decode(raw) from read_parquet($files) '
        "where kind = 'kmsg' and node = 'gpu-1' and ts >= $since and ts < $until and noise is null",
        {"files": f"{archive}/landing/**/*.parquet", "since": SINCE, "until": UNTIL},
    ).fetchall()
    assert sorted((offset, partition) for offset, partition, _ in found) == EXPECTED
    assert all(raw == f"line {offset}" for offset, _, raw in found)


def test_pyarrow_dataset_finds_rows_by_kind_node_and_time(archive: Path) -> None:
    rows = ds.dataset(archive / "landing")
    wanted = (ds.field("kind") == "kmsg") & (ds.field("node") == "gpu-1") & ds.field("noise").is_null()
    wanted &= (ds.field("ts") >= SINCE) & (ds.field("ts") < UNTIL)
    assert as_pairs(rows.to_table(filter=wanted).to_pylist()) == EXPECTED
