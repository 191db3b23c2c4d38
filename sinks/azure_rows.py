"""Rows of Azure Monitor Logs: which table, which columns, and their JSON.

Profile `raw` is that of Azure's slurm-log-collection: `TimeGenerated, RawData, Computer, FilePath`, the same tables and
streams. Profile `parsed` has typed columns, `EventTime` and `RecordId`. A row is a function of its record alone, so a
repeat can be told, by `RecordId` or by all of its content.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sinks.base import Partition

Profile = Literal["raw", "parsed"]

MAX_FIELD_BYTES = 65_536  # the service cuts longer values without a word
_DAY_NS = 86_400_000_000_000
# Tables of slurm-log-collection whose name is not that of the kind.
_RAW_TABLES = {
    "slurmdbd": "slurmdb_raw_CL",
    **dict.fromkeys(("job_stdout", "job_stderr", "training", "job_script", "job_env"), "slurmjobs_raw_CL"),
}
_PLACE = ("topic", "partition", "offset", "line", "part")
# Column of the table → column of schema.LOG.
_TYPED = {
    "Cluster": "cluster", "Computer": "node", "Kind": "kind", "Level": "level", "Event": "event", "Message": "message",
    "FilePath": "path", "Unit": "unit", "Namespace": "namespace", "Pod": "pod", "Container": "container", "App": "app",
    "Team": "team", "Job": "job", "JobId": "job_id", "OwnerJobId": "owner_job", "StepId": "step_id", "Rank": "rank",
    "Host": "host", "Pid": "pid", "Pci": "pci", "Xid": "xid", "Sxid": "sxid", "Severity": "severity",
    "Action": "action", "FaultClass": "fault_class", "ExitCode": "exit_code", "Signal": "signal", "Cause": "cause",
    "TimeSource": "ts_source", "Nodes": "nodes", "Flags": "flags",
}  # fmt: skip
_RAW_COLUMNS = (*_PLACE, "owned", "appended_at", "ts", "body", "raw", "node", "path")
COLUMNS = (*_PLACE, "owned", "appended_at", "ts", "body", "raw", "fields", *_TYPED.values())


class Row(NamedTuple):
    """One row as JSON, and the record it is of."""

    data: bytes
    place: Partition
    offset: int
    line: int
    owned: int


def stream_of(kind: str, profile: Profile, streams: Mapping[str, str]) -> str:
    """The input stream of the data collection rule for a kind: configured, else by the profile's custom."""
    if kind in streams:
        return streams[kind]
    if profile == "raw":
        return f"Custom-Text-{_RAW_TABLES.get(kind, f'{kind}_raw_CL')}"
    return f"Custom-tailrace_{kind}_CL"


def json_rows(rows: pa.Table, profile: Profile) -> list[Row]:
    """Rows (with COLUMNS) as JSON, in their order. Fields are cut to MAX_FIELD_BYTES at a character's edge."""
    table = rows.select(_RAW_COLUMNS if profile == "raw" else COLUMNS).unify_dictionaries().combine_chunks()
    values = {name: found for name in table.column_names if (found := _values(table[name].chunk(0))) is not None}
    text = [
        _cut((raw if body is None else body).decode(errors="replace"))
        for raw, body in zip(values["raw"], values.get("body", [None] * len(table)), strict=True)
    ]
    generated, event = _times(table)
    build = _raw if profile == "raw" else _parsed
    places = zip(*(values[name] for name in _PLACE), strict=True)
    return [
        Row(data, (topic, partition), offset, line, owned)
        for data, (topic, partition, offset, line, _), owned in zip(
            build(values, text, generated, event), places, values["owned"], strict=True
        )
    ]


def _values(column: pa.Array) -> list[Any] | None:
    """A column as a list, by whole columns where Arrow or NumPy can; None where it says nothing."""
    if column.null_count == len(column):
        return None
    if pa.types.is_dictionary(column.type):
        words = column.dictionary.to_pylist()
        if not any(words):
            return None
        if column.null_count:
            return [None if at is None else words[at] for at in column.indices.to_pylist()]
        return [words[at] for at in column.indices.to_numpy().tolist()]
    if pa.types.is_nested(column.type) or (pa.types.is_integer(column.type) and column.null_count):
        return list(column.to_pylist())
    if pa.types.is_timestamp(column.type):
        return None  # `_times` reads them
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _raw(values: dict[str, list[Any]], text: list[str], generated: list[str], _event: list[str]) -> list[bytes]:
    count = len(text)
    nodes, paths = (values.get(name, [None] * count) for name in ("node", "path"))
    return [
        orjson.dumps({"TimeGenerated": at, "RawData": line, "Computer": node, "FilePath": path})
        for at, line, node, path in zip(generated, text, nodes, paths, strict=True)
    ]


def _parsed(values: dict[str, list[Any]], text: list[str], generated: list[str], event: list[str]) -> list[bytes]:
    shown = [(name, values[column]) for name, column in _TYPED.items() if column in values]
    fields = values.get("fields", [None] * len(text))
    ids = map("/".join, zip(*(map(str, values[name]) for name in _PLACE), strict=True))
    rows = []
    for at, (line, time, when, identity) in enumerate(zip(text, generated, event, ids, strict=True)):
        row: dict[str, Any] = {"TimeGenerated": time, "EventTime": when, "RecordId": identity, "RawData": line}
        for name, column in shown:
            value = column[at]
            if value is None or value == "":
                continue
            row[name] = _cut(value) if isinstance(value, str) else value
        if fields[at]:
            row["Fields"] = _cut(orjson.dumps(dict(fields[at])).decode())
        rows.append(orjson.dumps(row))
    return rows


def _times(table: pa.Table) -> tuple[list[str], list[str]]:
    """TimeGenerated and EventTime. The service takes up to two days of age and one ahead, and else puts in its own
    time; the broker's time then stands for it, so that a repeat has the same."""
    event = table["ts"].cast(pa.int64()).combine_chunks().to_numpy()
    received = table["appended_at"].combine_chunks().to_numpy() * 1_000_000
    fits = (event >= received - 2 * _DAY_NS) & (event <= received + _DAY_NS)
    return _iso(np.where(fits, event, received)), _iso(event)


def _iso(ns: Any) -> list[str]:
    """RFC 3339 with seven digits, which is what the service keeps."""
    text = pc.strftime(pa.array(ns // 100 * 100).cast(pa.timestamp("ns", "UTC")), "%Y-%m-%dT%H:%M:%S")
    return [f"{stamp[:27]}Z" for stamp in text.to_pylist()]


def _cut(text: str) -> str:
    """At most MAX_FIELD_BYTES of UTF-8."""
    if len(text) * 4 <= MAX_FIELD_BYTES:
        return text
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_FIELD_BYTES else data[:MAX_FIELD_BYTES].decode(errors="ignore")
