"""Builds LOG rows: of plain lines by whole columns, of finished records by Python lists.

Rows on their way to a sink carry two columns more than the archive: `body` (large_binary), the text
without the carrier's prefix, null where that is `raw`; and `stream` (int32), the index of the label set.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from flows.batch import Raw
from flows.steps.labels import LabelSets
from flows.steps.reassemble import Finished, whole
from parsers.header import Header, slices
from parsers.registry import parser
from parsers.schema import CODE, ENVELOPE, LOG, TYPED
from parsers.slurm_text import job_of_path

ROWS = LOG.append(pa.field("body", pa.large_binary())).append(pa.field("stream", pa.int32()))

Indices = np.ndarray[tuple[int], np.dtype[np.intp]]

_LONGEST_UPTIME_US = 100 * 366 * 86_400 * 10**6  # a larger number is no uptime, and would leave int64's nanoseconds
_COLUMNS = frozenset({*TYPED.names, "noise"})  # of the field dictionary; what else a record has is in `fields`
_RECEIVED = pa.scalar("received", pa.string())


def plain_rows(
    raw: Raw, rows: Indices, header: Header, labels: LabelSets | None, noise: pa.Array | None = None
) -> pa.Table:
    """Rows of the lines at `rows` of `raw`; `header` and `noise` (a dictionary column) are aligned with `rows`.

    Without `labels` the rows are of no stream.
    """
    table, count = raw.rows, len(rows)
    indices = pa.array(rows)
    received = table["received_at"].combine_chunks().take(indices)
    lines = table["raw"].combine_chunks().take(indices)
    header = _of_path(raw, indices, _since_boot(raw, indices, header))
    ts, source = received, _constant("received", count)
    if header.ts is not None and header.ts_source is not None:
        missing = pc.is_null(header.ts)
        ts = pc.coalesce(header.ts, received)
        source = header.ts_source
        if pc.any(missing).as_py():
            source = pc.if_else(missing, _RECEIVED, source.cast(pa.string())).cast(CODE)
    columns: dict[str, pa.Array] = {
        "partition": table["partition"].combine_chunks().take(indices),
        "offset": table["offset"].combine_chunks().take(indices),
        "line": table["line"].combine_chunks().take(indices),
        "part": pa.array(np.zeros(count, dtype=np.int16)),
        "owned": pa.array(np.ones(count, dtype=np.int32)),
        "appended_at": table["appended_at"].combine_chunks().take(indices),
        "ts": ts.cast(LOG.field("ts").type),
        "ts_source": source,
        "kind": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([raw.kind])),
        "level": header.level,
        "message": header.message,
        "noise": noise,
        "raw": lines,
        **header.columns,
    }
    columns |= _shared(table, ["topic"], indices)
    columns |= _shared(table, ENVELOPE.names, indices)
    if (named := header.columns.get("node")) is not None:
        columns["node"] = _known_or(columns["node"], named)
    if labels is not None:
        columns["stream"] = labels.column(whole(table["labels"]).take(indices), header.level)
    if header.body is not None:
        starts = np.asarray(header.body.to_numpy(zero_copy_only=False), dtype=np.int64)
        columns["body"] = pc.if_else(pa.array(starts > 0), slices(lines, starts), pa.scalar(None, pa.large_binary()))
    return _table(columns, count)


def rich_rows(finished: Sequence[Finished], labels: LabelSets) -> pa.Table:
    """Rows of finished records, all of one kind."""
    count = len(finished)
    records = [done.record for done in finished]
    firsts = [record.refs[0] for record in records]
    columns: dict[str, list[Any]] = defaultdict(lambda: [None] * count)
    for row, record in enumerate(records):
        rest = []
        for name, value in record.fields.items():
            if value is None:
                continue
            if name in _COLUMNS:
                columns[name][row] = value
            else:
                rest.append((name, value if isinstance(value, str) else _json(value)))
        if rest:
            columns["fields"][row] = rest
    columns |= {
        "topic": [done.topic for done in finished],
        "partition": [done.partition for done in finished],
        "offset": [first.offset for first in firsts],
        "line": [first.line for first in firsts],
        "part": [record.part for record in records],
        "spans": [[tuple(ref) for ref in record.refs] if len(record.refs) > 1 else None for record in records],
        "owned": [done.owned for done in finished],
        "appended_at": [done.appended_ms for done in finished],
        "ts": [None if record.ts is None else record.ts.ns for record in records],
        "ts_source": [record.ts_source for record in records],
        "kind": [done.kind for done in finished],
        "node": [done.envelope["node"] or record.node for done, record in zip(finished, records, strict=True)],
        "flags": [sorted(record.flags) or None for record in records],
        "raw": [done.raw for done in finished],
        "body": [None if record.body is None else record.body.encode(errors="replace") for record in records],
        "stream": [labels.number(done.labelled, done.record.fields.get("level")) for done in finished],
    }
    arrays = _envelopes([done.envelope for done in finished])
    arrays |= {name: _column(values, ROWS.field(name)) for name, values in columns.items()}
    return _table(arrays, count)


def in_order(kept: pa.Table, rich: pa.Table, plain_at: Indices, rich_at: Indices) -> pa.Table:
    """Plain and rich rows together, in the order of the batch (held lines from before come first)."""
    if not len(rich):
        return kept
    order = np.argsort(np.concatenate([plain_at, rich_at]), kind="stable")
    whole = pa.concat_tables([kept, rich]).unify_dictionaries().combine_chunks()
    return whole.take(pa.array(order))


def _since_boot(raw: Raw, indices: pa.Array, header: Header) -> Header:
    """Where lines only show the time since boot, and their message says when that was: the time."""
    monotonic = header.columns.get("monotonic_us")
    boots = [stream.times.boot_ns for stream in raw.streams]
    if header.ts is not None or monotonic is None or not any(boots):
        return header
    boot = pa.array(boots, pa.int64()).take(raw.rows["stream"].combine_chunks().take(indices))
    sane = pc.if_else(pc.less(monotonic, _LONGEST_UPTIME_US), monotonic, None)
    ts = pc.add(boot, pc.multiply(sane, 1_000))
    source = pa.DictionaryArray.from_arrays(
        pc.if_else(ts.is_valid(), pa.scalar(0, pa.int8()), None), pa.array(["boot"])
    )
    return header._replace(ts=ts, ts_source=source)


def _of_path(raw: Raw, indices: pa.Array, header: Header) -> Header:
    """Where a line names no job, and the file's name does: that one."""
    if not parser(raw.kind).path_job:
        return header
    jobs = [job_of_path(stream.path) if stream.path else None for stream in raw.streams]
    if not any(jobs):
        return header
    named = pa.array(jobs, pa.int64()).take(raw.rows["stream"].combine_chunks().take(indices))
    said = header.columns.get("job_id")
    return header._replace(columns={**header.columns, "job_id": named if said is None else pc.coalesce(said, named)})


def _shared(table: pa.Table, names: Sequence[str], indices: pa.Array) -> dict[str, pa.Array]:
    """Dictionary columns that share one index (schema.ENVELOPE), taken once for all of them."""
    taken = None
    columns = {}
    for name in names:
        column = table[name].combine_chunks()
        if taken is None:
            taken = column.indices.take(indices)
        columns[name] = pa.DictionaryArray.from_arrays(taken, column.dictionary)
    return columns


def _known_or(known: pa.DictionaryArray, named: pa.Array) -> pa.Array:
    """The node that the message names, else the one that the line names."""
    unknown = pa.array([not name for name in known.dictionary.to_pylist()], pa.bool_())
    if not pc.any(unknown).as_py():
        return known
    return pc.if_else(unknown.take(known.indices), pc.fill_null(named, ""), known.cast(pa.string())).dictionary_encode()


def _envelopes(envelopes: Sequence[Mapping[str, str | None]]) -> dict[str, pa.Array]:
    """Envelopes as dictionary columns that share one index; those of a stream are one object."""
    known: dict[int, int] = {}
    index = pa.array([known.setdefault(id(envelope), len(known)) for envelope in envelopes], pa.int32())
    distinct = {id(envelope): envelope for envelope in envelopes}
    return {
        name: pa.DictionaryArray.from_arrays(index, pa.array([distinct[key][name] for key in known], pa.string()))
        for name in ENVELOPE.names
    }


def _constant(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int8)), pa.array([value]))


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer of more than 64 bits, which a line may well hold
        return json.dumps(value, default=str)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        return _column(values, pa.field(field.name, field.type.value_type)).dictionary_encode().cast(field.type)
    try:
        return pa.array(values, field.type)
    except (ValueError, OverflowError):
        # A number in a line may be larger than its column, and text may hold half a surrogate pair: the
        # value is null then, and still stands in `raw`.
        return pa.array([_fitting(value, field.type) for value in values], field.type)


def _fitting(value: Any, type_: pa.DataType) -> Any:
    try:
        pa.scalar(value, type_)
    except (ValueError, OverflowError):
        return None
    return value


def _table(columns: dict[str, pa.Array], count: int) -> pa.Table:
    arrays = []
    for field in ROWS:
        array = columns.get(field.name)
        if array is None:
            array = pa.nulls(count, field.type)
        elif array.type != field.type:
            array = array.cast(field.type)
        arrays.append(array)
    return pa.table(arrays, schema=ROWS)
