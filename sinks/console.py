"""Records as JSON lines on standard output: for people, and for pipes."""

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import orjson
import pyarrow as pa
from bytewax.outputs import StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field

from parsers.schema import LOG
from sinks.base import Account, Delivery, Partition, Site
from sinks.sharded import ShardedSink

_HIDDEN = {"owned", "spans", "part"}


class ConsoleConfig(BaseModel):
    """Records on standard output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int | None = Field(
        1_000, ge=1, description="Records printed per shard and run, the rest is only counted; unset: all."
    )


class ConsoleSink(ShardedSink[None]):
    """Prints the records that every store gets (not the noise), one JSON object per line.

    Keys are those of schema.LOG that have a value, with the map `fields` spread among them; `message` is
    `raw` as text where the record has none of its own. At least once: a redone epoch is printed again.
    """

    def __init__(
        self, config: ConsoleConfig, shards: Sequence[str], account: Account, out: TextIO | None = None
    ) -> None:
        super().__init__(shards)
        self._config, self._account, self._out = config, account, out or sys.stdout

    @classmethod
    def at(cls, config: ConsoleConfig, site: Site) -> "ConsoleSink":
        """The sink of a site; see sinks.registry."""
        return cls(config, site.shards, site.account)

    def check(self) -> None:
        """Standard output is always there."""

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "ConsolePart":  # noqa: ARG002 - Bytewax's signature
        return ConsolePart(self._config.rows, self._account, self._out)


class ConsolePart(StatefulSinkPartition[Delivery, None]):
    """One shard."""

    def __init__(self, rows: int | None, account: Account, out: TextIO) -> None:
        self._left, self._account, self._out = rows, account, out
        self._lines: dict[Partition, int] = {}

    def write_batch(self, values: list[Delivery]) -> None:
        for table in (part.rows.select(LOG.names) for delivery in values for part in delivery.parts):
            shown = table if self._left is None else table.slice(0, self._left)
            for text in json_lines(shown):
                self._out.write(text + "\n")
            if self._left is not None:
                self._left -= shown.num_rows
            self._count(table)

    def snapshot(self) -> None:
        """Flush, and report all records as delivered, printed or not."""
        self._out.flush()
        if self._lines:
            self._account("delivered", self._lines)
            self._lines = {}

    def _count(self, table: pa.Table) -> None:
        place = (
            table.select(["topic", "partition", "owned"]).group_by(["topic", "partition"]).aggregate([("owned", "sum")])
        )
        for row in place.to_pylist():
            at = row["topic"], row["partition"]
            self._lines[at] = self._lines.get(at, 0) + row["owned_sum"]


def json_lines(table: pa.Table) -> list[str]:
    """Rows of schema.LOG as JSON objects."""
    ts = table.schema.get_field_index("ts")
    table = table.set_column(ts, "ts", table["ts"].cast(pa.string()))
    return [orjson.dumps(_record(row)).decode() for row in table.to_pylist()]


def _record(row: dict[str, Any]) -> dict[str, Any]:
    raw, fields = row.pop("raw"), row.pop("fields")
    record = {name: value for name, value in row.items() if value is not None and name not in _HIDDEN}
    if "ts" in record:
        record["ts"] = record["ts"].replace(" ", "T")
    record.setdefault("message", raw.decode(errors="replace"))
    return {**dict(fields or ()), **record}
