"""Every sink in the registry is one that Bytewax recovers, and works in a dataflow."""

from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
import pyarrow.dataset as ds
import pytest
from bytewax.dataflow import Dataflow
from bytewax.outputs import FixedPartitionedSink
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSource, run_main

from flows.config import SinksConfig
from sinks.base import Delivery, Site
from sinks.console import ConsoleConfig
from sinks.dead_letter import DeadLetterConfig, DeadLetterSink, open_writer
from sinks.parquet import ParquetConfig
from sinks.registry import SINKS, sink
from sinks.storage import StorageConfig
from tests.sinks.archive_rows import Ledger, delivery, record
from tests.sinks.test_dead_letter import letter


@pytest.mark.parametrize("name", SINKS)
def test_a_name_stands_for_a_sink_that_is_part_of_recovery(name: str) -> None:
    assert issubclass(sink(name), FixedPartitionedSink)
    assert name in SinksConfig.model_fields


def test_sinks_store_what_a_dataflow_sends_and_go_on_after_a_stop(
    tmp_path: Path, local_storage: StorageConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    items: list[tuple[str, Delivery]] = []
    for n in range(20):
        item = delivery([record(n)])
        item.dead.append(letter(n))
        items.append((f"000{n % 2}", item))
    items.insert(11, TestingSource.ABORT())  # type: ignore[arg-type]
    ledger = Ledger()
    shards = ["0001", "0000"]
    graph = Dataflow("sinks")
    stream = op.input("source", graph, TestingSource(items))
    writer = open_writer(DeadLetterConfig(storage=local_storage))
    archive = sink("parquet").at(ParquetConfig(storage=local_storage), Site(1, shards, ledger, writer))
    op.output("parquet", stream, archive)
    op.output("dead_letter", stream, DeadLetterSink(writer, shards))
    op.output("console", stream, sink("console").at(ConsoleConfig(), Site(1, shards, Ledger(), writer)))
    (tmp_path / "recovery").mkdir()
    init_db_dir(tmp_path / "recovery", 1)
    for _ in range(2):
        run_main(graph, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(str(tmp_path / "recovery")))

    rows = ds.dataset(Path(local_storage.url) / "landing").to_table().to_pylist()
    assert sorted(row["offset"] for row in rows) == list(range(20))
    letters = ds.dataset(Path(local_storage.url) / "dead").to_table().to_pylist()
    assert {row["offset"] for row in letters} == set(range(20))
    assert ledger.total("delivered") >= 20
    assert len(capsys.readouterr().out.splitlines()) >= 20
