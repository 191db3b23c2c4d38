"""Records as the stores get them, as plain values: for people, and for the tests inside a configuration."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from parsers.schema import LOG
from sinks.base import Delivery, Part


def as_objects(delivery: Delivery) -> Iterator[dict[str, Any]]:
    """All records of a delivery: the columns of schema.LOG that have a value, with the map `fields` spread among them.

    `ts` is RFC 3339; `message` is `raw` as text where the record has none of its own. Added are `labels` (Loki's, by
    name), `demoted` (labels for which there is no room) and `dropped` (a noise rule keeps it from Loki and Azure).
    """
    for part in delivery.parts:
        yield from _objects(part, part.rows, dropped=False)
        yield from _objects(part, part.noise, dropped=True)


def _objects(part: Part, table: pa.Table, dropped: bool) -> Iterator[dict[str, Any]]:
    if not len(table):
        return
    streams = [None] * len(table) if dropped else table["stream"].to_pylist()
    rows = table.select(LOG.names)
    rows = rows.set_column(LOG.get_field_index("ts"), "ts", rows["ts"].cast(pa.string()))
    for row, stream in zip(rows.to_pylist(), streams, strict=True):
        fields = dict(row.pop("fields") or ())
        raw = row["raw"].decode(errors="replace")
        known = {name: value for name, value in row.items() if value not in (None, "")}
        ts = {"ts": row["ts"].replace(" ", "T")} if row["ts"] else {}
        labels = {} if stream is None else dict(part.streams[stream])
        demoted = dict(part.demoted[stream]) if stream is not None and part.demoted else {}
        yield {"message": raw, **fields, **known, **ts, "raw": raw} | {
            "labels": labels,
            "demoted": demoted,
            "dropped": dropped,
        }
