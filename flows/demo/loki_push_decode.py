"""Turns the body of a Loki push into columns, with Loki's own answer where the body cannot be read.

Forms (Grafana Loki HTTP API, `POST /loki/api/v1/push`): JSON, plain or gzip or raw deflate; logproto.PushRequest
as protobuf in raw snappy. One wrong thing here loses the whole request.
"""

import json
import re
import zlib
from collections.abc import Mapping
from email.message import Message
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from flows.demo.loki_push import LABEL_NAME, Metadata, PushStream, Refused
from flows.demo.loki_push_protobuf import decode_protobuf

SNAPPY: Final = pa.Codec("snappy")
MAX_DECODED: Final = 1 << 30  # Arrow's offsets are 32 bits; Loki itself takes 5000 MiB


def decode(headers: Mapping[str, str], body: bytes) -> list[PushStream]:
    """Streams in request order, those without entries included. `headers` by lower-case names. Raises Refused."""
    content_type = headers.get("content-type", "")
    if not content_type:
        raise Refused(400, "mime: no media type")
    message = Message()
    message["Content-Type"] = content_type
    body = _unpack(headers.get("content-encoding", ""), body)
    is_json = message.get_content_type() == "application/json"
    streams = _decode_json(body) if is_json else decode_protobuf(unsnap(body))
    for stream in streams:
        stream.metadata = _normalised(stream.metadata)
    return streams


def _unpack(encoding: str, body: bytes) -> bytes:
    if encoding in ("", "snappy"):
        return body
    if encoding == "gzip":
        if not body.startswith(b"\x1f\x8b"):
            raise Refused(400, "gzip: invalid header" if body else "EOF")
        return _inflate(body, 31, "gzip: invalid checksum")
    if encoding == "deflate":
        return _inflate(body, -15, "flate: corrupt input before offset 1")
    raise Refused(400, f'Content-Encoding "{encoding}" not supported')


def _inflate(body: bytes, window: int, corrupt: str) -> bytes:
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(body) + inflater.flush()
    except zlib.error:
        raise Refused(400, corrupt) from None
    if not inflater.eof:
        raise Refused(400, "unexpected EOF")
    return plain


def unsnap(body: bytes) -> bytes:
    """The plain bytes of raw snappy. Raises Refused."""
    size, shift = 0, 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if not body or size > min(64 * len(body) + 64, MAX_DECODED):  # snappy cannot shrink further
        raise Refused(400, "snappy: corrupt input")
    try:
        plain: bytes = SNAPPY.decompress(body, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowInvalid):
        raise Refused(400, "snappy: corrupt input") from None
    return plain


# --- JSON


def _decode_json(body: bytes) -> list[PushStream]:
    if not body:
        raise Refused(400, "EOF")
    try:
        push = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:  # bytes that are no UTF-8 are let through, as surrogates; orjson refuses them
            push = json.loads(body.decode("utf-8", "surrogateescape"))
        except ValueError:
            raise _bad_json(str(error)) from None
    if not isinstance(push, dict) or not isinstance(push.get("streams", []), list):
        raise _bad_json("expected an object with a list `streams`")
    return [_json_stream(stream) for stream in push.get("streams", [])]


def _bad_json(why: str) -> Refused:
    return Refused(400, f"loghttp.PushRequest.Streams: []loghttp.LogProtoStream: {why}")


def _json_stream(stream: Any) -> PushStream:
    labels, values = (stream.get("stream", {}), stream.get("values", [])) if isinstance(stream, dict) else (None, None)
    if not isinstance(labels, dict) or not isinstance(values, list):
        raise _bad_json("a stream needs `stream` and `values`")
    pairs = tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in labels.items())
    for name, value in pairs:
        if not LABEL_NAME.fullmatch(name) or not _is_utf8(value):
            raise Refused(400, f"couldn't parse labels: 1:2: parse error: unexpected {name!r} in label set")
    ts: list[int] = []
    lines: list[bytes] = []
    owners: list[int] = []
    names: list[bytes] = []
    texts: list[bytes] = []
    for row, value in enumerate(values):
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(part, str) for part in value[:2]):
            raise _bad_json(f'value {row} must be ["<ns>", "<line>"]')
        if not re.fullmatch(r"-?[0-9]{1,19}", value[0]):
            raise _bad_json(f"strconv.ParseInt: parsing {value[0]!r}: invalid syntax")
        ts.append(max(-(2**63), min(2**63 - 1, int(value[0]))))
        lines.append(value[1].encode("utf-8", "surrogateescape"))
        metadata = value[2] if len(value) > 2 else {}
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise _bad_json("structured metadata must be an object of strings")
        owners += [row] * len(metadata)
        names += [name.encode("utf-8", "surrogateescape") for name in metadata]
        texts += [text.encode("utf-8", "surrogateescape") for text in metadata.values()]
    return PushStream(
        pairs,
        np.array(ts, np.int64),
        pa.array(lines, pa.binary()),
        Metadata(np.array(owners, np.int64), pa.array(names, pa.binary()), pa.array(texts, pa.binary())),
    )


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


# --- structured metadata


def _normalised(metadata: Metadata) -> Metadata:
    """Names made into label names, empty values dropped. Raises Refused(500) for a name with nothing to keep."""
    if not len(metadata.entry):
        return metadata
    coded = metadata.names.dictionary_encode()
    names = pa.array([_normal_name(name) for name in coded.dictionary.to_pylist()], pa.binary())
    keep = pc.not_equal(pc.binary_length(metadata.values), 0)
    return Metadata(
        metadata.entry[keep.to_numpy(zero_copy_only=False)],
        names.take(coded.indices).filter(keep),
        metadata.values.filter(keep),
    )


def _normal_name(raw: bytes) -> bytes:
    name = raw.decode("utf-8", "replace")
    if not name:
        raise Refused(500, "label name is empty")
    normal = re.sub(r"[^a-zA-Z0-9_]+", "_", name)
    if not normal.strip("_"):
        raise Refused(500, f'normalization for label name "{name}" resulted in invalid name "_"')
    return ("key_" + normal if normal[0].isdigit() else normal).encode()
