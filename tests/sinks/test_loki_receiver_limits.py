"""The strict receiver checks pushes as Grafana Loki 3.7 did: what is kept, what is lost, and what it says."""

import pytest

from flows.demo.loki_limits import Limits
from flows.demo.loki_receiver import Receiver
from tests.sinks.loki_pushes import DAY, GOOD, MINUTE, NOW, PROTOBUF, SECOND, Entry, as_protobuf, lines, push, receiver

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
