"""Rows for the Loki tests, and what a server reads from a push: decoded by the official protobuf runtime."""

from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from parsers.schema import LOG

_STRING, _BYTES, _INT64, _INT32, _MESSAGE = 9, 12, 3, 5, 11


def push_request_class() -> Any:
    """PushRequest of grafana/loki pkg/push/push.proto; texts as bytes, since Loki does not check their UTF-8."""
    file = descriptor_pb2.FileDescriptorProto(name="push.proto", package="logproto", syntax="proto3")
    shapes = {
        "PushRequest": [("streams", 1, "Stream", True)],
        "Stream": [("labels", 1, _STRING, False), ("entries", 2, "Entry", True)],
        "Entry": [("timestamp", 1, "Time", False), ("line", 2, _BYTES, False), ("metadata", 3, "Pair", True)],
        "Time": [("seconds", 1, _INT64, False), ("nanos", 2, _INT32, False)],
        "Pair": [("name", 1, _STRING, False), ("value", 2, _STRING, False)],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".logproto.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.PushRequest"))


PushRequest = push_request_class()


class Entry(NamedTuple):
    ts: int
    line: bytes
    metadata: dict[str, str]


def decoded(compressed: bytes) -> list[tuple[str, list[Entry]]]:
    """Streams of a push request as a server reads them."""
    size, shift = 0, 0
    for byte in compressed[:5]:  # snappy starts with the decoded size
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    request = PushRequest.FromString(pa.Codec("snappy").decompress(compressed, size, asbytes=True))
    return [
        (
            stream.labels,
            [
                Entry(
                    one.timestamp.seconds * 10**9 + one.timestamp.nanos,
                    one.line,
                    {pair.name: pair.value for pair in one.metadata},
                )
                for one in stream.entries
            ],
        )
        for stream in request.streams
    ]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of schema.LOG plus body and stream; what a row leaves out is null, or a plain default."""
    base = {
        "topic": "logs.job",
        "partition": 0,
        "offset": 7,
        "line": 0,
        "part": 0,
        "owned": 1,
        "flags": [],
        "stream": 0,
    }
    schema = pa.schema([*LOG, pa.field("body", pa.large_binary()), pa.field("stream", pa.int32())])
    columns = []
    for field in schema:
        values = [{**base, **row}.get(field.name) for row in rows]
        coded = pa.types.is_dictionary(field.type)
        column = pa.array(values, field.type.value_type if coded else field.type)
        columns.append(column.dictionary_encode().cast(field.type) if coded else column)
    return pa.table(columns, schema=schema)
