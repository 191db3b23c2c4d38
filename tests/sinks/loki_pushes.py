"""Loki pushes as other clients make them (JSON, and protobuf by Google's library), and a receiver for them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from flows.demo.loki_limits import Limits
from flows.demo.loki_receiver import Receiver

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}

# github.com/grafana/loki/pkg/push/push.proto
_MESSAGES = {
    "PushRequest": [("streams", 1, "Stream", True)],
    "Stream": [("labels", 1, "bytes", False), ("entries", 2, "Entry", True), ("hash", 3, "uint64", False)],
    "Entry": [("timestamp", 1, "Timestamp", False), ("line", 2, "bytes", False), ("metadata", 3, "Pair", True)],
    "Timestamp": [("seconds", 1, "int64", False), ("nanos", 2, "int32", False)],
    "Pair": [("name", 1, "bytes", False), ("value", 2, "bytes", False)],
}


def _push_request() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {"bytes": field.TYPE_BYTES, "int64": field.TYPE_INT64, "int32": field.TYPE_INT32}
    scalars["uint64"] = field.TYPE_UINT64
    file = descriptor_pb2.FileDescriptorProto(name="push.proto", package="logproto", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            new = message.field.add(name=field_name, number=number, label=label)
            if kind in scalars:
                new.type = scalars[kind]
            else:
                new.type, new.type_name = field.TYPE_MESSAGE, f".logproto.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.PushRequest"))


PushRequest = _push_request()


class Entry(NamedTuple):
    ts: int
    line: str | bytes
    metadata: Iterable[tuple[str | bytes, str | bytes]] = ()


def as_json(*streams: tuple[Mapping[str, Any], Iterable[Entry]]) -> bytes:
    return json.dumps(
        {
            "streams": [
                {
                    "stream": labels,
                    "values": [[str(e.ts), e.line, *([dict(e.metadata)] if e.metadata else [])] for e in entries],
                }
                for labels, entries in streams
            ]
        }
    ).encode()


def as_message(*streams: tuple[str | bytes, Iterable[Entry]]) -> bytes:
    """The uncompressed protobuf."""
    request = PushRequest()
    for labels, entries in streams:
        stream = request.streams.add(labels=_bytes(labels), hash=7)
        for entry in entries:
            new = stream.entries.add(line=_bytes(entry.line))
            new.timestamp.seconds, new.timestamp.nanos = divmod(entry.ts, 1_000_000_000)
            for name, value in entry.metadata:
                new.metadata.add(name=_bytes(name), value=_bytes(value))
    return request.SerializeToString()


def snappy(plain: bytes) -> bytes:
    return pa.Codec("snappy").compress(plain, asbytes=True)


def as_protobuf(*streams: tuple[str | bytes, Iterable[Entry]]) -> bytes:
    return snappy(as_message(*streams))


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


SECOND = 1_000_000_000
MINUTE = 60 * SECOND
DAY = 86400 * SECOND
NOW = 1_796_072_710 * SECOND  # 2026-11-30T21:05:10Z

GOOD = ('{app="good"}', [Entry(NOW, "good")])


DEFAULTS = Limits()


def receiver(limits: Limits = DEFAULTS, **options: object) -> Receiver:
    """A receiver whose clock stands at NOW."""
    return Receiver(limits=limits, clock=lambda: NOW, **options)  # type: ignore[arg-type]


def lines(of: Receiver, **labels: str) -> list[str]:
    """The stored lines of the streams that carry `labels`, by time."""
    return [entry.line for entry in of.entries(**labels)]


def push(to: Receiver, *streams: tuple[str | bytes, list[Entry]]) -> tuple[int, str]:
    """Pushes protobuf past HTTP."""
    return to.push(PROTOBUF, as_protobuf(*streams))
