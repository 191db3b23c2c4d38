"""`tailrace compact` sorts the archive into files by kind and hour; `tailrace archive` says which files to read."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from flows.config import Config, load
from flows.run import EXIT_AGAIN, EXIT_CONFIG, command_line
from sinks.compaction import Compaction, Done
from sinks.errors import Misconfigured, SinkError
from sinks.manifest import File, readable
from sinks.parquet import ParquetConfig
from sinks.storage import ObjectStore, open_storage

_COMPACT_EXAMPLES = """examples:
  tailrace compact --config tailrace.toml               # once, for example from a timer
  tailrace compact --config tailrace.toml --every 600   # again and again, every 10 minutes
"""
_ARCHIVE_EXAMPLES = """examples:
  tailrace archive files --config tailrace.toml --kind kmsg --from 2026-11-30T10:00:00Z
  duckdb -c "$(tailrace archive sql --config tailrace.toml) SELECT node, xid, count(*) FROM logs GROUP BY ALL"
  tailrace archive status --config tailrace.toml
"""


def compact(argv: Sequence[str]) -> int:
    """Sort what has landed in the archive into files by kind and hour, drop what is older than it is kept.

    Safe beside running tiers and at any interruption. Exit status 0, 2 for a wrong configuration, 75 when the store
    failed or another compaction was quicker: then start it again.
    """
    options = command_line("compact", compact.__doc__ or "", _COMPACT_EXAMPLES)
    options.add_argument("--every", type=float, metavar="SECONDS", help="go on, and start anew after that many seconds")
    arguments = options.parse_args(argv)
    try:
        archive = _archive(load(arguments.config), arguments.config)
        store = open_storage(archive.storage)
        while True:
            with tempfile.TemporaryDirectory(prefix="tailrace-compact-", dir=archive.spool) as spool:
                done = Compaction(store, archive.compact, Path(spool), int(time.time()), _progress).run()
            sys.stderr.write(f"tailrace compact: {_said(done)}\n")
            if arguments.every is None:
                return 0
            time.sleep(arguments.every)
    except SinkError as error:
        sys.stderr.write(f"tailrace compact: {error}\n")
        return EXIT_CONFIG if isinstance(error, Misconfigured) else EXIT_AGAIN
    except KeyboardInterrupt:
        return 130


def archive(argv: Sequence[str]) -> int:
    """Say which files of the archive to read: those that are compacted, and what has landed since.

    `files` prints one address per line, `sql` a DuckDB view `logs` over them, `status` what there is.
    """
    options = command_line("archive", archive.__doc__ or "", _ARCHIVE_EXAMPLES)
    options.add_argument("what", choices=["files", "sql", "status"], help="what to print")
    options.add_argument("--kind", action="append", default=[], help="only files with this kind (may be repeated)")
    options.add_argument("--from", dest="start", type=_time, metavar="TIME", help="only files with lines from then on")
    options.add_argument("--to", dest="end", type=_time, metavar="TIME", help="only files with lines before")
    arguments = options.parse_args(argv)
    try:
        store = open_storage(_archive(load(arguments.config), arguments.config).storage)
        files, landing = readable(store)
    except SinkError as error:
        sys.stderr.write(f"tailrace archive: {error}\n")
        return EXIT_CONFIG if isinstance(error, Misconfigured) else EXIT_AGAIN
    files = [file for file in files if _wanted(file, arguments)]
    addresses = [store.url(key) for key in (*(file.key for file in files), *landing)]
    if arguments.what == "files":
        sys.stdout.writelines(f"{address}\n" for address in addresses)
    elif arguments.what == "sql":
        sys.stdout.write(_view(addresses))
    else:
        sys.stdout.write(_status(files, landing, store))
    return 0


def _archive(config: Config, path: Path) -> ParquetConfig:
    if config.sinks.parquet is None:
        raise Misconfigured(f"{path} names no archive; add [sinks.parquet]")
    return config.sinks.parquet


def _wanted(file: File, arguments: argparse.Namespace) -> bool:
    """Kafka's time is that of the file's hour. Landing objects have no such name and are always read."""
    begins = file.hour * 3_600
    return (
        (not arguments.kind or file.kind in arguments.kind)
        and (arguments.start is None or begins + 3_600 > arguments.start.timestamp())
        and (arguments.end is None or begins < arguments.end.timestamp())
    )


def _view(addresses: list[str]) -> str:
    """DuckDB's SQL. Addresses are made of our own keys and the configured place; a quote in that is doubled."""
    if not addresses:
        raise Misconfigured("the archive has no files yet")
    listed = ",\n  ".join("'" + address.replace("'", "''") + "'" for address in addresses)
    view = "CREATE OR REPLACE TEMP VIEW logs AS SELECT * FROM read_parquet"
    return f"{view}([\n  {listed}\n], hive_partitioning = false);\n"


def _status(files: list[File], landing: list[str], store: ObjectStore) -> str:
    lines = [f"archive {store.url('landing').removesuffix('landing').rstrip('/')}"]
    for kind in sorted({file.kind for file in files}):
        mine = [file for file in files if file.kind == kind]
        first, last = (datetime.fromtimestamp(3_600 * hour, UTC) for hour in _span(mine))
        rows, size = sum(file.rows for file in mine), sum(file.size for file in mine)
        lines.append(
            f"  {kind:16} {len(mine):6,} files {rows:14,} rows {size / 2**20:10,.1f} MiB  {first:%Y-%m-%d %H}h to "
            f"{last:%Y-%m-%d %H}h"
        )
    lines.append(f"  {'not compacted':16} {len(landing):6,} objects")
    return "\n".join(lines) + "\n"


def _span(files: list[File]) -> tuple[int, int]:
    hours = [file.hour for file in files]
    return min(hours), max(hours)


def _said(done: Done) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in asdict(done).items())


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        width = 30 * done // max(of, 1)
        sys.stderr.write(f"\r[{'#' * width:30}] {done:,} of {of:,} objects" + ("\n" if done == of else ""))


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it like 2026-11-30T10:00:00Z") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)
