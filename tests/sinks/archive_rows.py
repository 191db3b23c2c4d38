"""Rows of schema.LOG for tests of the stores, named by what they are."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from parsers.schema import LOG
from sinks.base import Delivery, Part

TOPIC = "logs.job"


def record(number: int, **values: Any) -> dict[str, Any]:
    """One record of one line: message `number` of partition 0, or what `values` say."""
    return {
        "topic": TOPIC,
        "partition": 0,
        "offset": number,
        "line": 0,
        "part": 0,
        "owned": 1,
        "appended_at": 1_741_000_000_000 + number,
        "ts": datetime(2025, 3, 3, 12, number // 60 % 60, number % 60, tzinfo=UTC),
        "ts_source": "record",
        "kind": "training",
        "node": f"gpu-{number % 4}",
        "raw": f"line {number}".encode(),
        **values,
    }


def log(records: Iterable[dict[str, Any]]) -> pa.Table:
    """Records as a table, in chunks as the pipeline makes them: dictionaries have repeats and unused values."""
    rows = list(records)
    columns = []
    for field in LOG:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_dictionary(field.type):
            # NAME columns have an entry per message, CODE columns one per code.
            present = [x for x in values if x is not None]
            known = present if field.type.index_type == pa.int32() else sorted(set(present))
            order = iter(range(len(rows)))
            indices = [None if x is None else next(order) if known is present else known.index(x) for x in values]
            dictionary = pa.array([*known, "unused"], field.type.value_type)
            columns.append(pa.DictionaryArray.from_arrays(pa.array(indices, field.type.index_type), dictionary))
        else:
            columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=LOG)


def delivery(kept: Iterable[dict[str, Any]], noise: Iterable[dict[str, Any]] = ()) -> Delivery:
    """Records of one kind as the pipeline hands them to a sink."""
    kept, noise = list(kept), list(noise)
    rows = log(kept)
    rows = rows.append_column("body", pa.nulls(len(kept), pa.large_binary()))
    rows = rows.append_column("stream", pa.array([0] * len(kept), pa.int32()))
    kind = (kept or noise)[0]["kind"]
    return Delivery([Part(kind, rows, log(noise), [(("job", kind),)])])


class Ledger:
    """An account that remembers what it was told."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[tuple[str, int], int], str]] = []

    def __call__(self, fate: str, lines: dict[tuple[str, int], int], rule: str = "") -> None:
        self.entries.append((fate, dict(lines), rule))

    def total(self, fate: str) -> int:
        return sum(sum(lines.values()) for name, lines, _ in self.entries if name == fate)
