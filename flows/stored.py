"""Records as the stores get them, as plain values: for people, and for the tests inside a configuration."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from parsers.schema import LOG
from sinks.base import Delivery, Part


class Stored(NamedTuple):
    """A record of a part: its place in `part.rows`, None in the noise, and its values.

    These are the columns of schema.LOG that have one, with the map `fields` spread among them; `ts` is RFC 3339,
    `message` is `raw` as text where the record has none of its own. Added are `labels` (Loki's, by name), `demoted`
    (labels for which there is no room) and `dropped` (a noise rule keeps it from Loki and Azure).
    """

    part: Part
    at: int | None
    values: dict[str, Any]


def records(delivery: Delivery) -> Iterator[Stored]:
    """All records of a delivery, the noise included."""
    for part in delivery.parts:
        for at, values in enumerate(_values(part.rows)):
            stream = values.pop("stream")
            shown = {
                "labels": dict(part.streams[stream]),
                "demoted": dict(part.demoted[stream]) if part.demoted else {},
            }
            yield Stored(part, at, values | shown | {"dropped": False})
        for values in _values(part.noise):
            yield Stored(part, None, values | {"labels": {}, "demoted": {}, "dropped": True})


def _values(table: pa.Table) -> Iterator[dict[str, Any]]:
    if not len(table):
        return
    place = LOG.get_field_index("ts")
    table = table.set_column(place, "ts", table["ts"].cast(pa.string()))
    for row in table.to_pylist():
        fields, raw, _ = dict(row.pop("fields") or ()), row.pop("raw").decode(errors="replace"), row.pop("body", None)
        known = {name: value for name, value in row.items() if value is not None and (value != "" or name == "message")}
        if "ts" in known:
            known["ts"] = known["ts"].replace(" ", "T")
        yield {"message": raw, **fields, **known, "raw": raw}
