"""The strict receiver answers as Grafana Loki 3.7 did when it was asked the same."""

import gzip
import http.client
import threading
import zlib
from collections.abc import Mapping

import pytest
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.demo.loki_limits import Limits
from flows.demo.loki_receiver import Fault, Receiver
from flows.demo.loki_store import Count, KeepAll, Numbers, by_regex
from tests.sinks.loki_pushes import JSON, PROTOBUF, Entry, as_json, as_message, as_protobuf, snappy

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
DAY = 86400 * SECOND
NOW = 1_796_072_710 * SECOND  # 2026-11-30T21:05:10Z

GOOD = ('{app="good"}', [Entry(NOW, "good")])


DEFAULTS = Limits()


def receiver(limits: Limits = DEFAULTS, **options: object) -> Receiver:
    return Receiver(limits=limits, clock=lambda: NOW, **options)  # type: ignore[arg-type]


def lines(of: Receiver, **labels: str) -> list[str]:
    return [entry.line for entry in of.entries(**labels)]


def push(to: Receiver, *streams: tuple[str | bytes, list[Entry]]) -> tuple[int, str]:
    return to.push(PROTOBUF, as_protobuf(*streams))


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


NAMES_16 = "{" + ", ".join(f'l{n:02}="x"' for n in range(16)) + "}"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (NAMES_16, "has 16 label names; limit 15"),
        (f'{{{"n" * 1025}="x"}}', f"has label name too long: '{'n' * 1025}'"),
        (f'{{a="{"v" * 2049}"}}', f"has label value too long: '{'v' * 2049}'"),
        ('{a="1", a="2"}', "has duplicate label name: 'a'"),
    ],
)
def test_a_stream_with_labels_over_a_limit_is_dropped_and_the_rest_kept(labels: str, text: str) -> None:
    to = receiver()
    status, said = push(to, (labels, [Entry(NOW, "x"), Entry(NOW, "y")]), GOOD)
    assert status == 400
    assert said.endswith(text)
    assert lines(to) == ["good"]


def test_service_name_does_not_count_as_a_label() -> None:
    to = receiver()
    labels = NAMES_16.replace("l00", "service_name")
    assert push(to, (labels, [Entry(NOW, "x")])) == (204, "")


def test_a_missing_enforced_label_drops_its_stream() -> None:
    to = receiver(Limits(enforced_labels=("cluster",)))
    status, text = push(to, ('{cluster="c"}', [Entry(NOW, "kept")]), GOOD)
    assert (status, lines(to)) == (400, ["kept"])
    assert text.startswith("missing required labels 'cluster' for user fake for stream {app=\"good\"}")


STREAM = '{app="a", service_name="a"}'


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (
            Entry(NOW, "x" * 262145),
            f"max entry size '262144' bytes exceeded for stream '{STREAM}' while adding an entry with length "
            "'262145' bytes",
        ),
        (
            Entry(NOW - 8 * DAY, "x"),
            f"entry for stream '{STREAM}' has timestamp too old: 2026-11-22T21:05:10Z, "
            "oldest acceptable timestamp is: 2026-11-23T21:05:10Z",
        ),
        (
            Entry(NOW // SECOND, "x"),
            f"entry for stream '{STREAM}' has timestamp too old: 1970-01-01T00:00:01Z, "
            "oldest acceptable timestamp is: 2026-11-23T21:05:10Z",
        ),
        (Entry(NOW + 11 * MINUTE, "x"), f"entry for stream '{STREAM}' has timestamp too new: 2026-11-30T21:16:10Z"),
        (Entry(NOW, "x", [("k", "v" * 65536)]), f"stream '{STREAM}' has structured metadata too large: '65537' bytes"),
        (
            Entry(NOW, "x", [(f"k{n}", "v") for n in range(129)]),
            f"stream '{STREAM}' has too many structured metadata labels: '129', limit: '128'",
        ),
    ],
)
def test_an_entry_over_a_limit_is_dropped_alone(bad: Entry, text: str) -> None:
    to = receiver()
    status, said = push(to, ('{app="a"}', [Entry(NOW, "before"), bad, Entry(NOW, "after")]), GOOD)
    assert status == 400
    assert said.startswith(text)
    assert sorted(lines(to)) == ["after", "before", "good"]


@pytest.mark.parametrize(
    "entry",
    [
        Entry(NOW, "x" * 262144),
        Entry(NOW - 6 * DAY, "x"),
        Entry(NOW + 9 * MINUTE, "x"),
        Entry(NOW, ""),
        Entry(NOW, "two\nlines and NUL \0"),
        Entry(NOW, "x", [(f"k{n}", "v") for n in range(128)]),
    ],
)
def test_an_entry_at_its_limit_is_kept(entry: Entry) -> None:
    to = receiver()
    assert push(to, ('{app="a"}', [entry])) == (204, "")
    assert lines(to) == [entry.line]


def test_alike_errors_are_counted_and_different_ones_joined() -> None:
    to = receiver()
    old = [Entry(NOW - 8 * DAY, "x"), Entry(NOW - 8 * DAY, "y"), Entry(NOW - 9 * DAY, "z")]
    _, text = push(to, ('{app="a"}', old))
    first, second = text.split("; ")
    assert first.startswith("2 errors like: entry for stream")
    assert second.startswith("1 errors like: entry for stream")


def test_long_lines_are_cut_to_the_limit_where_the_tenant_truncates() -> None:
    to = receiver(Limits(max_line_size=10, max_line_size_truncate=True, max_line_size_truncate_identifier="..T"))
    assert push(to, ('{app="a"}', [Entry(NOW, "0123456789abc"), Entry(NOW + 1, "short")])) == (204, "")
    assert lines(to) == ["0123456..T", "short"]


def test_structured_metadata_is_refused_where_the_tenant_may_not_send_it() -> None:
    to = receiver(Limits(allow_structured_metadata=False))
    status, text = push(to, ('{app="a"}', [Entry(NOW, "x", [("k", "v")]), Entry(NOW, "kept")]))
    assert (status, lines(to)) == (400, ["kept"])
    assert "includes structured metadata, but this feature is disallowed" in text


def test_metadata_names_are_normalised_and_empty_values_dropped() -> None:
    to = receiver()
    pairs = [
        ("job.id", "1"),
        ("trace-id", "2"),
        ("0x", "3"),
        ("empty", ""),
        ("app", "4"),
        ("twice", "a"),
        ("twice", "b"),
    ]
    assert push(to, ('{app="a"}', [Entry(NOW, "x", [*pairs, ("raw", b"\xff")])])) == (204, "")
    assert to.entries()[0].metadata == {
        "job_id": "1",
        "trace_id": "2",
        "key_0x": "3",
        "app_extracted": "4",
        "twice": "b",
        "raw": "\ufffd",
    }


@pytest.mark.parametrize("name", ["", "...", "_", "é", "日本"])
def test_a_metadata_name_with_nothing_to_keep_poisons_the_whole_request(name: str) -> None:
    to = receiver()
    status, text = push(to, GOOD, ('{app="a"}', [Entry(NOW, "x", [(name, "v")])]))
    why = "label name is empty"
    if name:
        why = f'normalization for label name "{name}" resulted in invalid name "_"'
    assert (status, text, to.lines) == (500, why, 0)


def test_more_than_4_mib_of_entries_is_lost_whole_with_a_500() -> None:
    to = receiver()
    streams = [(f'{{app="{n}"}}', [Entry(NOW + i, "x" * 1000) for i in range(500)]) for n in range(10)]
    status, text = push(to, *streams)
    assert (status, to.lines) == (500, 0)
    assert text.startswith("rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5")
    assert text.endswith(" vs. 4194304)")


def test_an_entry_an_hour_behind_its_stream_is_refused_and_one_within_it_kept() -> None:
    to = receiver()
    assert push(to, ('{app="a"}', [Entry(NOW, "new")])) == (204, "")
    assert push(to, ('{app="a"}', [Entry(NOW - 59 * MINUTE, "late")])) == (204, "")
    status, text = push(to, ('{app="a"}', [Entry(NOW - 61 * MINUTE + 5_000_000, "too late"), Entry(NOW, "good")]))
    assert status == 400
    assert text == (
        "entry with timestamp 2026-11-30 20:04:10.005 +0000 UTC ignored, reason: 'entry too far behind, entry "
        "timestamp is: 2026-11-30T20:04:10Z, oldest acceptable timestamp is: 2026-11-30T20:05:10Z',\n"
        f"user 'fake', total ignored: 1 out of 2 for stream: {STREAM}"
    )
    assert lines(to) == ["late", "new", "good"]


def test_at_most_ten_refused_entries_are_listed() -> None:
    to = receiver()
    late = [Entry(NOW - 2 * 60 * MINUTE, f"late {n}") for n in range(15)]
    _, text = push(to, ('{app="a"}', [Entry(NOW, "new"), *late]))
    assert text.count("entry too far behind") == 10
    assert f"total ignored: 15 out of 16 for stream: {STREAM}" in text


def test_order_inside_a_push_decides_what_is_too_late() -> None:
    old, new = Entry(NOW - 2 * 60 * MINUTE, "old"), Entry(NOW, "new")
    for entries, status, kept in (([new, old], 400, ["new"]), ([old, new], 204, ["old", "new"])):
        to = receiver()
        assert push(to, ('{app="a"}', entries))[0] == status
        assert lines(to) == kept


KB = 1024


def test_a_tenant_over_its_rate_loses_the_request_and_no_tokens() -> None:
    to = receiver(Limits(ingestion_rate_bytes=50 * KB, ingestion_burst_bytes=60 * KB))
    big = ('{app="a"}', [Entry(NOW + n, "x" * KB) for n in range(61)])
    status, text = push(to, big)
    assert (status, to.lines) == (429, 0)
    assert text.startswith(
        "ingestion rate limit exceeded for user fake (limit: 51200 bytes/sec) while attempting to ingest '61' lines "
        "totaling '62464' bytes, reduce log volume"
    )
    assert push(to, ('{app="a"}', [Entry(NOW + n, "x" * KB) for n in range(60)]))[0] == 204


def test_a_tenant_over_its_rate_may_send_again_later() -> None:
    now = [NOW]
    to = Receiver(limits=Limits(ingestion_rate_bytes=10 * KB, ingestion_burst_bytes=20 * KB), clock=lambda: now[0])
    batch = ('{app="a"}', [Entry(NOW + n, "x" * KB) for n in range(20)])
    assert [push(to, batch)[0], push(to, batch)[0]] == [204, 429]
    now[0] += 2 * SECOND
    assert push(to, batch)[0] == 204


LIMITED = ('{app="a"}', [Entry(NOW + n, "x" * KB) for n in range(30)])


@pytest.mark.parametrize(("sharding", "kept"), [(True, 0), (False, 10)])
def test_the_per_stream_rate_shows_only_when_the_limited_stream_is_last(sharding: bool, kept: int) -> None:
    limits = Limits(per_stream_rate_bytes=10 * KB, per_stream_burst_bytes=10 * KB, shard_streams=sharding)
    last = receiver(limits)
    status, text = push(last, GOOD, LIMITED)
    assert status == 429
    assert "reason: 'Per stream rate limit exceeded (limit: 10KB/sec) while attempting to ingest for stream" in text
    assert "totaling 1KB, consider splitting a stream" in text
    assert f"total ignored: {30 - kept} out of 30 for stream: {STREAM}" in text
    assert len(lines(last, app="a")) == kept

    first = receiver(limits)
    assert push(first, LIMITED, GOOD) == (204, "")
    assert len(lines(first, app="a")) == kept
    assert lines(first, app="good") == ["good"]
    [problem] = first.problems
    assert problem.startswith("lost without a word: ")


def test_too_many_streams_show_only_when_the_last_one_is_new() -> None:
    to = receiver(Limits(max_global_streams_per_user=5))
    eight = [(f'{{s="{n}"}}', [Entry(NOW, str(n))]) for n in range(8)]
    status, text = push(to, *eight)
    assert status == 429
    assert text.startswith(
        'maximum active stream limit exceeded when trying to create stream {s="7", service_name="unknown_service"}, '
    )
    assert text.endswith("user: 'fake'")
    assert sorted(lines(to)) == ["0", "1", "2", "3", "4"]
    assert push(to, eight[6], eight[0]) == (204, "")
    assert "6" not in lines(to)


def test_the_ingesters_answer_hides_that_of_the_checks() -> None:
    to = receiver(Limits(max_global_streams_per_user=1))
    assert push(to, GOOD)[0] == 204
    status, text = push(to, ('{app="good"}', [Entry(NOW + 11 * MINUTE, "too new")]), ('{app="b"}', [Entry(NOW, "x")]))
    assert status == 429
    assert "too new" not in text


def test_an_entry_is_shown_once_unless_something_in_it_differs() -> None:
    to = receiver()
    same = Entry(NOW, "x", [("k", "1")])
    stream = ('{app="a"}', [same, same, Entry(NOW, "y", [("k", "1")]), Entry(NOW, "x", [("k", "2")])])
    assert push(to, stream) == (204, "")
    assert push(to, stream) == (204, "")
    assert to.lines == len(to.entries()) == 3


def test_streams_without_entries_are_ignored() -> None:
    to = receiver()
    assert push(to, ('{app="a"}', [])) == (204, "")
    assert push(to, ('{app="a"}', []), GOOD) == (204, "")
    assert lines(to) == ["good"]


@pytest.mark.parametrize(
    ("tenant", "status", "text"),
    [
        ("", 401, "no org id"),
        ("a|b", 400, "multiple org IDs present"),
        ("a/b", 400, "tenant ID 'a/b' contains unsupported character '/'"),
        ("tü", 400, "tenant ID 'tü' contains unsupported character 'ü'"),
        ("..", 400, "tenant ID is '.' or '..'"),
        ("x" * 151, 400, "tenant ID is too long: max 150 characters"),
        ("blocked", 260, "ingestion blocked for user 'blocked' until '2026-12-01T21:05:10Z' with status code '260'"),
        ("team-a", 204, ""),
    ],
)
def test_tenants_are_checked_where_there_are_any(tenant: str, status: int, text: str) -> None:
    to = receiver(auth=True, tenants={"blocked": Limits(block_ingestion_until=NOW + DAY)})
    assert to.push(PROTOBUF | {"X-Scope-OrgID": tenant}, as_protobuf(GOOD)) == (status, text)
    assert to.lines == (status == 204)
    assert len(to.entries(tenant)) == (status == 204)


def test_without_tenants_the_header_is_ignored() -> None:
    to = receiver()
    assert to.push(PROTOBUF | {"X-Scope-OrgID": "a/b"}, as_protobuf(GOOD)).status == 204
    assert len(to.entries("fake")) == 1


# --- decoding

entries = st.builds(
    Entry,
    st.integers(NOW - 30 * MINUTE, NOW + 9 * MINUTE),
    st.binary(max_size=40) | st.binary(min_size=127, max_size=130),
    st.lists(st.tuples(st.sampled_from(["job_id", "rank", "x" * 130]), st.text(min_size=1, max_size=9)), max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(entries, max_size=12), max_size=4))
def test_what_the_protobuf_library_writes_is_read_back(pushed: list[list[Entry]]) -> None:
    to = receiver()
    if pushed:
        assert push(to, *((f'{{n="{n}"}}', part) for n, part in enumerate(pushed))) == (204, "")
    for n, part in enumerate(pushed):
        wanted = {(e.ts, e.line.decode(errors="replace"), *sorted(dict(e.metadata).items())) for e in part}
        assert {(e.ts, e.line, *sorted(e.metadata.items())) for e in to.entries(n=str(n))} == wanted


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_broken_protobuf_is_refused_and_never_crashes(data: st.DataObject) -> None:
    plain = bytearray(A_MESSAGE * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(plain)))
    answer = receiver().push(PROTOBUF, snappy(bytes(plain[:cut])))
    assert answer.status in (204, 400, 422, 500)


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


# --- stores


def test_a_counting_receiver_finds_missing_repeated_and_foreign_numbers() -> None:
    numbers = Numbers(10, by_regex("seq=([0-9]+)"))
    to = receiver(store=Count(numbers))
    sent = ["seq=0", "a seq=1 b", "seq=1", "seq=4", "no number", "seq=99"]
    assert push(to, ('{app="a"}', [Entry(NOW, line) for line in sent])) == (204, "")
    assert (to.lines, list(to.streams().values())) == (6, [6])
    assert (numbers.repeated, numbers.foreign, numbers.missing(6).tolist()) == (1, 2, [2, 3, 5])
    with pytest.raises(TypeError, match="only counts"):
        to.entries()


def test_a_full_receiver_says_so() -> None:
    to = receiver(store=KeepAll(capacity=1))
    assert push(to, GOOD)[0] == 204
    assert push(to, ('{app="a"}', [Entry(NOW, "x")])) == (500, "this receiver keeps 1 entries and no more")


# --- over HTTP

BODY = as_protobuf(GOOD)


@pytest.fixture
def served() -> Receiver:
    with receiver() as running:
        yield running


def post(to: Receiver, **options: object) -> urllib3.BaseHTTPResponse:
    pool = urllib3.PoolManager(retries=False, timeout=10)
    return pool.request("POST", f"{to.url}/loki/api/v1/push", **({"body": BODY, "headers": PROTOBUF} | options))  # type: ignore[arg-type]


def test_success_is_a_bare_204_and_errors_are_text_on_a_living_connection(served: Receiver) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/loki/api/v1/push", BODY, PROTOBUF)
    answer = connection.getresponse()
    assert (answer.status, answer.getheaders(), answer.read()) == (204, [], b"")
    before = connection.sock
    connection.request("POST", "/loki/api/v1/push", b"junk", PROTOBUF)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"snappy: corrupt input\n")
    assert answer.getheader("Content-Type") == "text/plain; charset=utf-8"
    assert answer.getheader("Retry-After") is None
    assert connection.sock is before
    connection.request("GET", "/loki/api/v1/push")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (405, b"")
    connection.request("GET", "/ready")
    assert connection.getresponse().status == 200
    assert dict(served.answers) == {204: 1, 400: 1}
    connection.close()


def test_chunked_bodies_and_the_old_path_are_taken(served: Receiver) -> None:
    assert post(served, body=iter([BODY[:10], BODY[10:]]), chunked=True).status == 204
    assert urllib3.request("POST", f"{served.url}/api/prom/push", body=BODY, headers=PROTOBUF).status == 204
    assert served.lines == 1


def test_a_body_over_the_limit_closes_the_connection() -> None:
    with receiver(Limits(max_recv_msg_size=10)) as small:
        for body in (BODY, iter([BODY])):
            answer = post(small, body=body)
            assert (answer.status, answer.headers["Connection"]) == (413, "close")
            assert answer.data.startswith(b"request body too large: message size too large than max (")
        assert small.lines == 0


def test_the_next_answers_can_be_made_to_fail(served: Receiver) -> None:
    served.fail_next(2, Fault(503, "down"))
    served.fail_next(1, Fault(500, "lost answer", stored=True))
    answers = [post(served) for _ in range(2)]
    assert [(answer.status, answer.data) for answer in answers] == [(503, b"down\n")] * 2
    assert served.lines == 0
    assert post(served).status == 500
    assert served.lines == 1
    assert post(served).status == 204


@pytest.mark.parametrize("stored", [False, True])
def test_connections_can_be_cut_before_or_after_the_entries_are_stored(served: Receiver, stored: bool) -> None:
    served.fail_next(1, Fault(drop=True, stored=stored))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        post(served)
    assert served.lines == stored
    assert served.answers[0] == 1
    assert post(served).status == 204


def test_pushes_hang_until_released(served: Receiver) -> None:
    served.hang()
    answers: list[int] = []
    client = threading.Thread(target=lambda: answers.append(post(served).status))
    client.start()
    client.join(0.3)
    assert (answers, served.lines) == ([], 0)
    served.release()
    client.join(10)
    assert (answers, served.lines) == ([204], 1)


def test_a_stopped_receiver_is_gone_for_open_connections_too_and_comes_back_with_its_state(served: Receiver) -> None:
    pool = urllib3.HTTPConnectionPool("127.0.0.1", served.port, maxsize=1, retries=False, timeout=5)
    assert pool.request("POST", "/loki/api/v1/push", body=BODY, headers=PROTOBUF).status == 204
    served.stop()
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("POST", "/loki/api/v1/push", body=BODY, headers=PROTOBUF)
    served.start()
    assert post(served).status == 204
    assert served.lines == 1
