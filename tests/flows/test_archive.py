"""`tailrace compact` and `tailrace archive` as an operator runs them."""

from pathlib import Path

import duckdb
import pytest

from flows.cli import main
from flows.config import load
from sinks.parquet import ParquetSink
from tests.sinks.archive_rows import Ledger, delivery, record


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An archive of three epochs of two kinds, and its configuration."""
    file = tmp_path / "tailrace.toml"
    file.write_text(f"""
        [source.files]
        paths = ["{tmp_path}"]
        [sinks.parquet.storage]
        url = "{tmp_path}/archive"
    """)
    parquet = load(file).sinks.parquet
    assert parquet is not None
    part = ParquetSink(parquet, 1, ["0000"], Ledger()).build_part("parquet", "0000", None)
    for epoch in range(3):
        part.write_batch(
            [delivery([record(10 * epoch + row, kind=kind) for row in range(5)]) for kind in ("kmsg", "pod")]
        )
        part.snapshot()
    part.close()
    return file


def test_the_files_of_a_kind_and_time_are_listed_with_what_has_landed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", "--config", str(config)]) == 0
    assert "rows 20" in capsys.readouterr().err
    assert main(["archive", "files", "--config", str(config), "--kind", "kmsg", "--from", "2025-03-03T11:00:00Z"]) == 0
    files = capsys.readouterr().out.split()
    assert ["kind=kmsg" in name or "landing" in name for name in files] == [True, True]
    assert all(Path(name).is_file() for name in files)
    assert main(["archive", "files", "--config", str(config), "--kind", "kmsg", "--to", "2025-03-03T11:00:00Z"]) == 0
    assert [name for name in capsys.readouterr().out.split() if "landing" not in name] == []


def test_the_view_for_duckdb_has_every_row_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "--config", str(config)]) == 0
    capsys.readouterr()
    assert main(["archive", "sql", "--config", str(config)]) == 0
    connection = duckdb.connect()
    connection.execute(capsys.readouterr().out)
    assert connection.execute("SELECT kind, count(*) FROM logs GROUP BY kind ORDER BY kind").fetchall() == [
        ("kmsg", 15),
        ("pod", 15),
    ]


def test_the_status_says_what_there_is(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "--config", str(config)]) == 0
    assert main(["archive", "status", "--config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "kmsg" in shown
    assert "not compacted         1 objects" in shown


@pytest.mark.parametrize("command", [["compact"], ["archive", "files"]])
def test_a_configuration_without_an_archive_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_text('[source.files]\npaths = ["x"]\n')
    assert main([*command, "--config", str(file)]) == 2
    assert "add [sinks.parquet]" in capsys.readouterr().err
