"""Decoding: whatever form messages have, the same lines come out, and every message is accounted for."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.batch import Chunk, Decoded, Headers, Raw
from flows.steps.decode import DecodeConfig, decode
from parsers.clock import Times
from parsers.record import Stream
from parsers.schema import ENVELOPE, RAW

NOW_MS = 1_796_071_829_000
BLOCK: Headers = (("v", b"1"),)

line = st.binary(max_size=30).map(lambda text: text.replace(b"\n", b""))
lines = st.lists(line, min_size=1, max_size=20)


def chunk(
    *messages: bytes | tuple[bytes | None, Headers] | tuple[bytes | None, Headers, bytes | None] | None,
    topic: str = "logs.job",
    partition: int = 3,
) -> Chunk:
    """A chunk of one partition; a message is its value, or (value, headers), or (value, headers, key)."""
    whole = [(*(given if isinstance(given, tuple) else (given,)), (), None) for given in messages]
    values, headers = [one[0] for one in whole], [one[1] if len(one) > 3 else () for one in whole]
    keys = [one[2] if len(one) > 4 else None for one in whole]
    count = len(values)
    return Chunk(
        [topic],
        np.zeros(count, dtype=np.int32),
        np.full(count, partition, dtype=np.int32),
        np.arange(100, 100 + count, dtype=np.int64),
        np.full(count, NOW_MS, dtype=np.int64),
        keys,
        headers,
        values,
        NOW_MS,
    )


def decoded(*messages: object, config: DecodeConfig | None = None, topic: str = "logs.job") -> Decoded:
    return decode(chunk(*messages, topic=topic), config or DecodeConfig())  # type: ignore[arg-type]


def only(result: Decoded) -> Raw:
    (raw,) = result.raws
    raw.rows.validate(full=True)
    assert raw.rows.schema == RAW
    return raw


def texts(result: Decoded) -> list[bytes]:
    """All lines by offset and line, over all kinds."""
    rows = [row for raw in result.raws for row in raw.rows.select(["offset", "line", "raw"]).to_pylist()]
    return [row["raw"] for row in sorted(rows, key=lambda row: (row["offset"], row["line"]))]


def total(result: Decoded) -> int:
    return sum(len(raw.rows) for raw in result.raws)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a\nb", [b"a", b"b"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb\n\n", [b"a", b"", b"b", b""]),
        (b"\n", [b""]),
        (b"a\r\nb\r\n", [b"a\r", b"b\r"]),
        (b"\xff\x00\n\xfe", [b"\xff\x00", b"\xfe"]),
    ],
)
def test_a_block_is_cut_at_its_line_feeds(value: bytes, expected: list[bytes]) -> None:
    raw = only(decoded((value, BLOCK)))
    assert raw.rows["raw"].to_pylist() == expected
    assert raw.rows["line"].to_pylist() == list(range(len(expected)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a", b"a"),
        (b"a\n", b"a"),
        (b"a\n\n", b"a\n"),
        (b"Traceback\n  File\nError\n", b"Traceback\n  File\nError"),
        (b"\n", b""),
        (b"{not json", b"{not json"),
        (b'{"level":"info","msg":"an application\'s own"}', b'{"level":"info","msg":"an application\'s own"}'),
        (b"bad utf8 \xff\xfe and nul-free control \x01 end", b"bad utf8 \xff\xfe and nul-free control \x01 end"),
    ],
)
def test_a_message_without_version_is_one_line_less_one_line_feed(value: bytes, expected: bytes) -> None:
    assert texts(decoded(value)) == [expected]


@given(lines, st.lists(st.integers(0, 20)), st.booleans())
def test_any_cut_of_lines_into_blocks_gives_the_same_lines(all_lines: list[bytes], cuts: list[int], feed: bool) -> None:
    places = sorted({cut for cut in cuts if 0 < cut < len(all_lines)})
    parts = [all_lines[a:b] for a, b in zip([0, *places], [*places, len(all_lines)], strict=True)]
    # A block that ends with an empty line must end with a line feed.
    blocks = [b"\n".join(part) + (b"\n" if feed or not part[-1] else b"") for part in parts]
    result = decoded(*((block, BLOCK) for block in blocks))
    assert texts(result) == all_lines
    assert only(result).rows["offset"].to_pylist() == [100 + number for number, part in enumerate(parts) for _ in part]


@given(lines)
def test_lines_sent_one_by_one_are_the_lines_of_the_block(all_lines: list[bytes]) -> None:
    config = DecodeConfig(form="raw")
    one_by_one = decoded(*(text + b"\n" for text in all_lines), config=config)
    assert texts(one_by_one) == all_lines
    assert texts(one_by_one) == texts(decoded((b"\n".join(all_lines) + b"\n", BLOCK)))


any_headers = st.lists(
    st.tuples(
        st.sampled_from(["v", "kind", "node", "path", "tz", "read_at", "mtime", "boot_time", "namespace", "trace"]),
        st.one_of(
            st.none(), st.binary(max_size=12), st.sampled_from([b"1", b"2", b"kmsg", b"UTC", b"1e99", b"9" * 19])
        ),
    ),
    max_size=4,
).map(tuple)
any_value = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([b"{", b"{}", b'{"log":"x"}', b'{"log":"x","stream":"stdout","time":"z"}', b"[1]", b"null", b"1"]),
)


@given(
    st.lists(st.tuples(any_value, any_headers, st.one_of(st.none(), st.binary(max_size=8))), max_size=12),
    st.sampled_from(["auto", "raw", "json", "block"]),
)
def test_any_messages_are_decoded_buried_or_counted(messages: list[object], form: str) -> None:
    result = decoded(*messages, config=DecodeConfig.model_validate({"form": form, "max_message_lines": 3}))
    offsets = {offset for raw in result.raws for offset in raw.rows["offset"].to_pylist()}
    for raw in result.raws:
        raw.rows.validate(full=True)
        assert raw.rows["raw"].null_count == 0
        assert max(raw.rows["stream"].to_pylist()) < len(raw.streams)
    assert len(offsets) + len(result.dead) + sum(result.empty.values()) == len(messages)


def test_tombstones_and_empty_values_are_counted_by_partition() -> None:
    result = decoded(None, b"", (b"", BLOCK), b"a line")
    assert result.empty == {("logs.job", 3): 3}
    assert texts(result) == [b"a line"]


@pytest.mark.parametrize(
    ("message", "config", "reason", "count"),
    [
        ((b"a\nb", (("v", b"2"),)), DecodeConfig(), "bad_version", 1),
        (b'{"log": ', DecodeConfig(form="json"), "bad_envelope", 1),
        (b'{"no": "line"}', DecodeConfig(forms={"logs.job": "json"}), "bad_envelope", 1),
        (b"x" * 2000, DecodeConfig(max_message_bytes=1024), "too_large", 1),
        ((b"\n" * 11, BLOCK), DecodeConfig(max_message_lines=10), "too_large", 11),
    ],
)
def test_what_cannot_be_read_becomes_a_dead_letter(
    message: object, config: DecodeConfig, reason: str, count: int
) -> None:
    result = decoded(b'{"log":"before"}', message, b'{"log":"after"}', config=config)
    (letter,) = result.dead
    assert (letter.topic, letter.partition, letter.offset) == ("logs.job", 3, 101)
    assert (letter.reason, letter.lines) == (reason, count)
    assert len(letter.raw) <= 64 * 1024
    assert total(result) == 2


@pytest.mark.parametrize(
    ("headers", "topic", "kinds", "expected"),
    [
        ((("kind", b"slurmd"),), "logs.slurm", {"logs.slurm": "slurmctld"}, "slurmd"),
        ((), "logs.slurm", {"logs.slurm": "slurmctld"}, "slurmctld"),
        ((("path", b"/var/log/slurm/slurmctld.log"),), "logs.slurm", {}, "slurmctld"),
        ((), "logs.slurm", {}, "unknown"),
        ((("kind", b"no such kind"),), "logs.slurm", {}, "unknown"),
    ],
)
def test_the_kind_comes_from_the_header_then_the_topic_then_the_path(
    headers: Headers, topic: str, kinds: dict[str, str], expected: str
) -> None:
    assert only(decoded((b"x", headers), config=DecodeConfig(kinds=kinds), topic=topic)).kind == expected


@pytest.mark.parametrize(
    ("headers", "key", "expected"),
    [
        ((("node", b"gpu-1"),), b"gpu-2", "gpu-1"),
        ((), b"gpu-2", "gpu-2"),
        ((), b"\x00\x01\xff", ""),
        ((), None, ""),
    ],
)
def test_the_node_comes_from_the_header_then_the_key(headers: Headers, key: bytes | None, expected: str) -> None:
    raw = only(decoded((b"x", headers, key)))
    assert raw.rows["node"].to_pylist() == [expected]
    assert raw.streams[0].node == (expected or None)


def test_labels_of_the_message_are_columns_that_share_one_index() -> None:
    said: Headers = (
        *BLOCK,
        ("kind", b"training"),
        ("node", b"gpu-1"),
        ("app", b"llama"),
        ("job_id", b"77"),
        ("nccl_debug", b"TRACE"),
        ("trace", b"not a label"),
    )
    raw = only(decoded((b"a\nb", said), (b"c", (("kind", b"training"),), b"gpu-2")))
    row = raw.rows.slice(0, 1).to_pylist()[0]
    assert {name: row[name] for name in ENVELOPE.names if row[name]} == {
        "node": "gpu-1",
        "app": "llama",
        "owner_job": "77",
        "nccl_debug": "TRACE",
        "job": "training",
    }
    columns = [raw.rows[name].chunk(0) for name in ENVELOPE.names]
    assert len({column.indices.buffers()[1].address for column in columns}) == 1
    assert all(column.null_count == column.dictionary.null_count == 0 for column in columns)


@pytest.mark.parametrize(
    "path",
    [
        b"/var/log/pods/ml-team_trainer-0_0a1b-2c/worker/0.log",
        b"/var/log/containers/trainer-0_ml-team_worker-" + b"0" * 64 + b".log",
    ],
)
def test_a_pod_is_named_by_its_path(path: bytes) -> None:
    raw = only(decoded((b"2026-11-30T20:43:11Z stdout F x", (("path", path),))))
    row = raw.rows.to_pylist()[0]
    assert (raw.kind, row["namespace"], row["pod"], row["container"]) == ("pod", "ml-team", "trainer-0", "worker")


def test_containers_without_a_path_are_streams_of_their_own() -> None:
    pod: Headers = (("kind", b"pod"), ("namespace", b"ml"), ("pod", b"t-0"))
    raw = only(decoded((b"a", (*pod, ("container", b"x"))), (b"b", (*pod, ("container", b"y")))))
    assert len(set(raw.streams)) == 2


def test_lines_of_one_file_are_one_stream_whatever_their_other_headers_say() -> None:
    file: Headers = (*BLOCK, ("kind", b"slurmd"), ("node", b"n"), ("path", b"/l"), ("tz", b"Europe/Berlin"))
    raw = only(
        decoded(
            (
                b"a\nb",
                (*file, ("first", b"0"), ("read_at", b"2026-11-30T20:43:11.123456789Z"), ("mtime", b"1796071829")),
            ),
            (b"c", (*file, ("first", b"4"), ("read_at", b"1796071829"), ("mtime", b"1796071999"))),
        )
    )
    assert raw.tz == "Europe/Berlin"
    assert raw.streams == [Stream("slurmd", "n", None, "/l", Times("Europe/Berlin", None, 1_796_071_829_000_000_000))]
    assert raw.rows["stream"].to_pylist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("read_at", "expected_ns"),
    [
        (b"2026-11-30T20:43:11.123456789Z", 1_796_071_391_123_456_789),
        (b"1796071391.5", 1_796_071_391_500_000_000),
        (b"1796071391123", 1_796_071_391_123_000_000),
        (b"1970-01-01T00:00:01Z", 1_000_000_000),
        (b"yesterday", NOW_MS * 1_000_000),
        (b"9" * 19, NOW_MS * 1_000_000),
        (b"\xff", NOW_MS * 1_000_000),
    ],
)
def test_lines_are_received_when_the_forwarder_says_else_when_kafka_took_them(read_at: bytes, expected_ns: int) -> None:
    raw = only(decoded((b"a\nb", (*BLOCK, ("read_at", read_at)))))
    assert raw.rows["received_at"].to_pylist() == [expected_ns] * 2
    assert raw.rows["appended_at"].to_pylist() == [NOW_MS] * 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("journal", b'{"_TRANSPORT":"kernel","_SOURCE_MONOTONIC_TIMESTAMP":"1","MESSAGE":"x","_HOSTNAME":"n"}'),
        ("docker", b'{"log":"x\\n","stream":"stdout","time":"2026-11-30T20:43:11.2Z"}'),
        ("json", b'{"@timestamp":"2026-11-30T20:43:11Z","log":"x","host":"n"}'),
    ],
)
def test_lines_that_are_json_by_their_kind_stay_whole(kind: str, value: bytes) -> None:
    assert only(decoded((value, (("kind", kind.encode()),)))).rows["raw"].to_pylist() == [value]
    by_topic = only(decoded(value, config=DecodeConfig(kinds={"logs.job": kind})))
    assert (by_topic.kind, by_topic.rows["raw"].to_pylist()) == (kind, [value])


def test_what_an_envelope_says_wins_over_the_topic_and_a_header_over_both() -> None:
    envelope = b'{"host":"gpu-9","src":"slurmd","file":"/l","off":0,"line":"x"}'
    config = DecodeConfig(kinds={"logs.slurm": "slurmctld"})
    raw = only(decoded((envelope, (), b"gpu-1"), config=config, topic="logs.slurm"))
    assert (raw.kind, raw.rows["node"].to_pylist()) == ("slurmd", ["gpu-9"])
    said: Headers = (("kind", b"slurmdbd"), ("node", b"db-1"))
    raw = only(decoded((envelope, said, b"gpu-1"), config=config, topic="logs.slurm"))
    assert (raw.kind, raw.rows["node"].to_pylist()) == ("slurmdbd", ["db-1"])


def test_an_unknown_zone_is_the_configured_one() -> None:
    config = DecodeConfig(tz="Asia/Tokyo")
    assert only(decoded((b"a", (("tz", b"Mars/Olympus"),)), config=config)).tz == "Asia/Tokyo"
    assert only(decoded((b"a", (("tz", b"../../etc/passwd"),)))).tz is None


def test_kinds_and_zones_are_decoded_into_tables_of_their_own() -> None:
    result = decoded(
        (b"a", (("kind", b"kmsg"),)),
        (b"b\nc", (*BLOCK, ("kind", b"slurmd"))),
        (b"d", (("kind", b"slurmd"), ("tz", b"UTC"))),
        (b"e", (("kind", b"slurmd"),)),
    )
    assert {(raw.kind, raw.tz): raw.rows["raw"].to_pylist() for raw in result.raws} == {
        ("kmsg", None): [b"a"],
        ("slurmd", None): [b"b", b"c", b"e"],
        ("slurmd", "UTC"): [b"d"],
    }


def test_forms_mixed_in_one_topic_keep_their_order() -> None:
    result = decoded(
        (b"a\nb", (*BLOCK, ("kind", b"slurmd"))),
        b'{"host":"n","src":"slurmd","file":"/l","off":0,"line":"c"}\n',
        (b"d\n", (("kind", b"slurmd"),)),
        (b"e\nf\n", (*BLOCK, ("kind", b"slurmd"))),
    )
    assert only(result).rows["raw"].to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert only(result).rows["offset"].to_pylist() == [100, 100, 101, 102, 103, 103]


def test_topics_and_partitions_stay_with_their_lines() -> None:
    whole = chunk((b"a\nb", BLOCK), b"c")
    whole.topics = ["logs.kernel", "logs.job"]
    whole.topic = np.array([1, 0], dtype=np.int32)
    whole.partition = np.array([5, 7], dtype=np.int32)
    rows = pa.concat_tables([raw.rows for raw in decode(whole, DecodeConfig()).raws]).sort_by("offset")
    assert rows["topic"].to_pylist() == ["logs.job", "logs.job", "logs.kernel"]
    assert rows["partition"].to_pylist() == [5, 5, 7]


def test_more_sets_of_headers_than_are_remembered_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.steps.decode.MAX_ORIGINS", 10)
    config = DecodeConfig(max_message_bytes=12_345)  # of its own, so that its memory is empty
    for turn in range(5):
        nodes = [f"n{turn}-{number}" for number in range(1500 if turn == 2 else 8)]
        raw = only(decoded(*((b"x", (("node", node.encode()),)) for node in nodes), config=config))
        assert raw.rows["node"].to_pylist() == nodes


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kinds": {"logs.slurm": "slurmdd"}}, "slurmd"),
        ({"tz": "Berlin"}, "Europe/Berlin"),
        ({"form": "xml"}, "auto"),
        ({"forn": "raw"}, "forn"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_would_be_right(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DecodeConfig.model_validate(wrong)
