"""The strict receiver reads what Grafana Loki 3.7 reads, and refuses the rest as it does."""

import gzip
import zlib
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sinks.loki_pushes import (
    GOOD,
    JSON,
    MINUTE,
    NOW,
    PROTOBUF,
    SECOND,
    Entry,
    as_json,
    as_message,
    push,
    receiver,
    snappy,
)


def deflated(body: bytes) -> bytes:
    raw = zlib.compressobj(wbits=-15)
    return raw.compress(body) + raw.flush()


A_JSON = as_json(({"app": "a"}, [Entry(NOW, "one", [("k", "v")])]))
A_MESSAGE = as_message(('{app="a"}', [Entry(NOW, "one", [("k", "v")])]))
A_PROTOBUF = snappy(A_MESSAGE)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, A_JSON),
        ({"Content-Type": "application/json; charset=utf-8"}, A_JSON),
        (JSON | {"Content-Encoding": "gzip"}, gzip.compress(A_JSON)),
        (JSON | {"Content-Encoding": "deflate"}, deflated(A_JSON)),
        (PROTOBUF, A_PROTOBUF),
        (PROTOBUF | {"Content-Encoding": "snappy"}, A_PROTOBUF),
        ({"Content-Type": "application/octet-stream"}, A_PROTOBUF),
    ],
)
def test_every_encoding_that_loki_reads_is_stored(headers: Mapping[str, str], body: bytes) -> None:
    to = receiver()
    assert to.push(headers, body) == (204, "")
    [entry] = to.entries(app="a")
    assert (entry.ts, entry.line, entry.metadata) == (NOW, "one", {"k": "v"})


JSON_ERROR = "loghttp.PushRequest.Streams: []loghttp.LogProtoStream: "


def of_values(value: str) -> bytes:
    return b'{"streams":[{"stream":{"app":"a"},"values":[%s]}]}' % value.encode()


@pytest.mark.parametrize(
    ("headers", "body", "status", "text"),
    [
        ({}, A_PROTOBUF, 400, "mime: no media type"),
        (PROTOBUF, A_MESSAGE, 400, "snappy: corrupt input"),
        (PROTOBUF, gzip.compress(A_MESSAGE), 400, "snappy: corrupt input"),
        (PROTOBUF, b"\xff\x06\x00\x00sNaPpY" + A_PROTOBUF, 400, "snappy: corrupt input"),
        (PROTOBUF, b"", 400, "snappy: corrupt input"),
        (PROTOBUF, snappy(A_MESSAGE[:-3]), 400, "proto: "),
        (JSON | {"Content-Encoding": "zstd"}, A_JSON, 400, 'Content-Encoding "zstd" not supported'),
        (JSON | {"Content-Encoding": "gzip"}, A_JSON, 400, "gzip: invalid header"),
        (JSON | {"Content-Encoding": "gzip"}, gzip.compress(A_JSON)[:-9], 400, "unexpected EOF"),
        (JSON, b"", 400, "EOF"),
        (JSON, A_JSON[:-1], 400, JSON_ERROR),
        (JSON, of_values('[5, "x"]'), 400, JSON_ERROR),
        (JSON, of_values('["1.5e18", "x"]'), 400, JSON_ERROR),
        (JSON, of_values(f'["{NOW}", "x", {{"k": 5}}]'), 400, JSON_ERROR),
        (JSON, of_values(f'["{NOW}", "x", {{"k": null}}]'), 400, JSON_ERROR),
        (JSON, b'{"streams":[]}', 422, "error at least one valid stream is required for ingestion"),
        (JSON, b"{}", 422, "error at least one valid stream is required for ingestion"),
        (PROTOBUF, snappy(b""), 422, "error at least one valid stream is required for ingestion"),
    ],
)
def test_what_loki_cannot_read_is_refused_whole(
    headers: Mapping[str, str], body: bytes, status: int, text: str
) -> None:
    to = receiver()
    answer = to.push(headers, body)
    assert answer.status == status
    assert answer.text.startswith(text)
    assert to.lines == 0


@pytest.mark.parametrize(
    "labels",
    [
        *(b'{bad-name="x"}', b'{1abc="x"}', b'{a.b="x"}', b'{a b="x"}', b'{a:b="x"}', '{é="x"}'.encode(), b'{="x"}'),
        *(b'{a="x"', b"a", b'{a="x" b="y"}', b"{a=x}", b'{a="\xff"}', b"", rb'{a="\q"}', rb'{a="\xff"}'),
    ],
)
def test_a_label_error_takes_the_good_streams_of_its_request_along(labels: bytes) -> None:
    to = receiver()
    status, text = push(to, GOOD, (labels, [Entry(NOW, "x")]))
    assert status == 400
    assert text.startswith("couldn't parse labels: 1:")
    assert "parse error: " in text
    assert to.lines == 0


@pytest.mark.parametrize(
    ("labels", "stored"),
    [
        (r'{a="q\"b\\n\n\u00e9\xc3\xa9"}', {"a": 'q"b\\n\néé'}),
        ('{a=`raw\\n`, b=""}', {"a": "raw\\n"}),
        ('{__x="1", __stream_shard__="7"}', {"__x": "1", "__stream_shard__": "7"}),
        ("{}", {}),
    ],
)
def test_labels_are_read_as_go_quotes_them(labels: str, stored: dict[str, str]) -> None:
    to = receiver()
    assert push(to, (labels, [Entry(NOW, "x")])) == (204, "")
    [entry] = to.entries()
    assert entry.labels == stored | {"service_name": "unknown_service"}


def test_json_label_values_that_are_no_text_become_their_json() -> None:
    to = receiver()
    body = as_json(({"a": 5, "b": True, "c": None, "d": [1]}, [Entry(NOW, "x")]))
    assert to.push(JSON, body).status == 204
    assert {"a": "5", "b": "true", "c": "null", "d": "[1]"}.items() <= to.entries()[0].labels.items()


def test_label_order_makes_no_second_stream() -> None:
    to = receiver()
    blocks = [('{a="1", b="2"}', [Entry(NOW, "x")]), ('{b="2", a="1"}', [Entry(NOW, "y")])]
    assert push(to, *blocks) == (204, "")
    assert list(to.streams().values()) == [2]


entries = st.builds(
    Entry,
    st.integers(NOW - 30 * MINUTE, NOW + 9 * MINUTE),
    st.binary(max_size=40) | st.binary(min_size=127, max_size=130),
    st.lists(st.tuples(st.sampled_from(["job_id", "rank", "x" * 130]), st.text(min_size=1, max_size=9)), max_size=4),
)


@settings(max_examples=150)
@given(st.lists(st.lists(entries, max_size=12), max_size=4))
def test_what_the_protobuf_library_writes_is_read_back(pushed: list[list[Entry]]) -> None:
    to = receiver()
    if pushed:
        assert push(to, *((f'{{n="{n}"}}', part) for n, part in enumerate(pushed))) == (204, "")
    for n, part in enumerate(pushed):
        wanted = {(e.ts, e.line.decode(errors="replace"), *sorted(dict(e.metadata).items())) for e in part}
        assert {(e.ts, e.line, *sorted(e.metadata.items())) for e in to.entries(n=str(n))} == wanted


@settings(max_examples=200)
@given(st.data())
def test_broken_protobuf_is_refused_and_never_crashes(data: st.DataObject) -> None:
    plain = bytearray(A_MESSAGE * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(plain)))
    answer = receiver().push(PROTOBUF, snappy(bytes(plain[:cut])))
    assert answer.status in (204, 400, 422, 500)


def test_a_line_that_is_sent_as_a_number_is_refused() -> None:
    entry = b"\x10\xff\xff\xff\x7f"  # field 2 as a varint
    stream = b'\x0a\x09{app="a"}\x12' + bytes([len(entry)]) + entry
    answer = receiver().push(PROTOBUF, snappy(b"\x0a" + bytes([len(stream)]) + stream))
    assert answer == (400, "proto: PushRequest: illegal wire type")


def padded(number: int, width: int) -> bytes:
    """A varint stretched to `width` bytes, as column-wise encoders write it."""
    parts = [(number >> 7 * n) & 0x7F | 0x80 for n in range(width)]
    return bytes([*parts[:-1], parts[-1] & 0x7F])


def test_varints_of_fixed_width_are_read() -> None:
    stamp = b"\x08" + padded(NOW // SECOND, 5) + b"\x10" + padded(7, 5)
    entry = b"\x0a" + padded(len(stamp), 1) + stamp + b"\x12" + padded(3, 4) + b"one"
    stream = b'\x0a\x09{app="a"}\x12' + padded(len(entry), 4) + entry
    to = receiver()
    assert to.push(PROTOBUF, snappy(b"\x0a" + padded(len(stream), 5) + stream)).status == 204
    assert [(e.ts, e.line) for e in to.entries(app="a")] == [(NOW + 7, "one")]
