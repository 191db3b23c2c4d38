"""Reads back what a run archived: which lines are there, and when each epoch was stored."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.generate import Topics
from benchmarks.lines import NUMBER
from flows.demo.loki_store import Numbers, by_regex
from sinks.parquet_file import RANGES_KEY


@dataclass(frozen=True, slots=True)
class Stored:
    """The object of one epoch. `stored_at`: s since the epoch; `last`: highest offset by (topic, partition)."""

    path: Path
    stored_at: float
    size: int
    last: dict[tuple[str, int], int]


def objects(directory: Path) -> list[Stored]:
    """All objects of a local archive, in the order of their epochs."""
    return [_object(path) for path in sorted((directory / "landing").rglob("*.parquet"))]


def _object(path: Path) -> Stored:
    ranges = json.loads(pq.read_metadata(path).metadata[RANGES_KEY.encode()])
    status = path.stat()
    last = {(each["topic"], each["partition"]): each["max"] for each in ranges}
    return Stored(path, status.st_ctime, status.st_size, last)


def rate(stored: list[Stored], topics: Topics) -> tuple[float, int]:
    """Lines per second between the ends of the first and the last whole epoch, and how many epochs that are.

    (0.0, 0) when there are less than two whole epochs. The last epoch with messages that are new is not whole.
    """
    reached: dict[tuple[str, int], int] = {}
    messages = []
    for each in stored:
        for place, last in each.last.items():
            reached[place] = max(reached.get(place, -1), last)
        messages.append(sum(last + 1 for last in reached.values()))
    whole = [at for at, count in enumerate(messages) if count < messages[-1]]
    if len(whole) < 2:
        return 0.0, 0
    seconds = stored[whole[-1]].stored_at - stored[0].stored_at
    lines = (messages[whole[-1]] - messages[0]) * topics.lines / topics.messages
    return lines / seconds, len(whole) - 1


def check(stored: list[Stored], lines: int, named: int) -> None:
    """Raises AssertionError unless the lines 0 to `lines` - 1 are there once, and rules name `named` of them."""
    numbers = Numbers(lines, by_regex(NUMBER))
    rows = found = 0
    for each in stored:
        file = pq.ParquetFile(each.path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["raw", "noise"]).combine_chunks()
            numbers.add(table["raw"].chunk(0))
            rows += len(table)
            found += len(table) - table["noise"].null_count
    wrong = (numbers.repeated, numbers.foreign, len(numbers.missing()))
    expect("archive: rows, rows with a rule, repeated/foreign/missing", (rows, found, wrong), (lines, named, (0, 0, 0)))


def expect(what: str, found: object, wanted: object) -> None:
    """Raises AssertionError unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {found}, expected {wanted}")
