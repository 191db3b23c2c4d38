"""Bad input stops nothing: each case goes through a running tier between two good lines, and all is accounted for.

Every case has a partition for its own: `before`, the bad message, `after`. One tier reads them all from a real
broker into an archive, a receiver as strict as Loki, and dead letters.
"""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from flows.demo.loki_receiver import Receiver
from tests.flows.tier import WAIT_S, Tier, assert_balanced, committed, rows
from tests.services.kafka import MAX_MESSAGE_BYTES, Kafka

Headers = list[tuple[str, bytes | None]]

NOW_S = int(time.time())
SEED = random.Random(20260301)
SIZE_OF_BATCH = 400  # bytes of a Kafka batch beside the value, at most: batch and record heads, headers, key
TRAINING: Headers = [("v", b"1"), ("kind", b"training"), ("node", b"gpu-1"), ("tz", b"UTC")]
SLURM: Headers = [("v", b"1"), ("kind", b"slurmctld"), ("node", b"ctl-1"), ("tz", b"UTC")]
KERNEL: Headers = [("v", b"1"), ("kind", b"kmsg"), ("node", b"gpu-1"), ("boot_time", b"%d" % NOW_S)]
KINDS = ["kmsg", "dmesg", "slurmctld", "slurmd", "training", "pod", "docker", "json", "syslog"]


def block(kind: str, *more: tuple[str, bytes | None]) -> Headers:
    return [("v", b"1"), ("kind", kind.encode()), ("node", b"gpu-1"), *more]


def noise_of_bytes(count: int) -> bytes:
    return SEED.randbytes(count)


@dataclass(frozen=True)
class Case:
    """One bad message and what must become of it.

    `lines`: the archive's lines of it, in order, byte for byte; `flags` and `columns` of the first of them;
    `dead`: (reason, line) of each dead letter.
    """

    name: str
    value: bytes | None
    headers: Headers = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    dead: list[tuple[str, int]] = field(default_factory=list)
    topic: str = "auto"
    key: bytes | None = b"gpu-1"
    time_ms: int | None = None
    columns: dict[str, Any] = field(default_factory=dict)


def kept(name: str, value: bytes, headers: Headers, **more: Any) -> Case:
    """A block whose lines are all archived as they are."""
    return Case(name, value, headers, lines=[line for line in value.split(b"\n") if line], **more)


def unheard(name: str, value: bytes | None, **more: Any) -> Case:
    return Case(name, value, **more)


RANDOM = noise_of_bytes(20_000)
AT_LIMIT = MAX_MESSAGE_BYTES - SIZE_OF_BATCH
LONG = b"x" * (1 << 20)
STAMP = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(NOW_S)).encode()
NESTED = b"[" * 100_000

CASES = [
    *(kept(f"random bytes as {kind}", RANDOM, block(kind)) for kind in KINDS),
    Case("random bytes without headers", RANDOM, lines=[RANDOM.removesuffix(b"\n")]),
    kept("a random key", b"a line", TRAINING[:2], key=noise_of_bytes(300)),
    kept("a header of random bytes", b"a line", [*TRAINING, ("path", noise_of_bytes(500))]),
    *(kept(f"NULs as {kind}", b"\0" * 300 + b"a\0line" + b"\0", block(kind)) for kind in KINDS),
    kept("a block at the broker's limit", (b"y" * 199 + b"\n") * (AT_LIMIT // 200), TRAINING),
    kept("a line at the broker's limit", b"z" * AT_LIMIT, block("slurmd", ("tz", b"UTC"))),
    kept("a line of 1 MiB", LONG, TRAINING),
    kept("a line of 1 MiB with an event", b"[" + STAMP + b".000] error: " + LONG, SLURM),
    kept("a message of line feeds", b"\n" * 100_000, TRAINING),
    Case("more lines than a message may have", b"\n" * 300_000, TRAINING, dead=[("too_large", 0)]),
    Case("no JSON where JSON is due", b'{"line":"torn', topic="json", dead=[("bad_envelope", 0)]),
    Case("JSON without a line", b'{"line":7}', topic="json", dead=[("bad_envelope", 0)]),
    Case("no object", b"[1,2]", topic="json", dead=[("bad_envelope", 0)]),
    Case("JSON too deep", b'{"line":' + NESTED, topic="json", dead=[("bad_envelope", 0)]),
    Case("JSON that is no UTF-8", b'{"line":"\xff"', topic="json", dead=[("bad_envelope", 0)]),
    Case("torn JSON where anything may come", b'{"line":"torn', lines=[b'{"line":"torn']),
    Case("half a surrogate pair", rb'{"host":"gpu-1","src":"slurmd","file":"/l","line":"a\ud800b"}', lines=[b"a?b"]),
    kept("an unknown kind", b"text\nmore", block("no such kind"), flags={"unparsed"}, columns={"kind": "unknown"}),
    kept("a kind of 100 KB", b"text", block("k" * 100_000), flags={"unparsed"}, columns={"kind": "unknown"}),
    unheard("an empty value", b""),
    unheard("a tombstone", None),
    unheard("an empty block", b""),
    kept("Kafka's time is 1970", b"a line", TRAINING, time_ms=1_000, dead=[("too_old", 0)]),
    kept("Kafka's time is 2100", b"a line", TRAINING, time_ms=4_102_444_800_000, dead=[("too_new", 0)]),
    kept("a stamp of 1970", b"[1970-01-01T00:00:01.000] error: x", SLURM, dead=[("too_old", 0)]),
    kept("a stamp before 1970", b"[1960-01-01T00:00:01.000] error: x", SLURM, dead=[("too_old", 0)]),
    kept("a stamp of 2100", b"[2100-01-01T00:00:01.000] error: x", SLURM, dead=[("too_new", 0)]),
    kept("a stamp of 9999", b"[9999-12-31T23:59:59.999] error: x", SLURM),
    kept("a year of eight digits", b"[20250304-01-01T00:00:01.000] error: x", SLURM),
    kept("a month of 99", b"[2025-99-99T99:99:99.999] error: x", SLURM),
    kept("numbers above 64 bits", b"6,%d,%d,-;a" % (10**30, 10**40), KERNEL),
    kept("numbers above 64 bits in JSON", b'{"msg":"a","pid":%d,"rank":%d}' % (10**30, 10**4_000), block("json")),
    kept("a job id above 64 bits", b"[" + STAMP + b".000] error: JobId=%d x" % 10**30, SLURM),
    Case("no headers and no key", b"a line", lines=[b"a line"], flags={"unparsed"}, key=None),
    kept("v alone", b"a\nb", [("v", b"1")], flags={"unparsed"}),
    Case("v is 2", b"a line", [("v", b"2")], dead=[("bad_version", 0)]),
    Case("v is nothing", b"a line", [("v", None)], dead=[("bad_version", 0)]),
    Case("v is huge", b"a line", [("v", b"1" * 100_000)], dead=[("bad_version", 0)]),
    kept("v twice", b"a\nb", [("v", b"1"), ("v", b"2"), *TRAINING[1:]]),
    kept("a header twice", b"a line", [*TRAINING, ("node", b"gpu-2")]),
    kept("a node of 100 KB", b"a line", [*TRAINING[:2], ("node", b"n" * 100_000)], columns={"node": "n" * 1024}),
    kept("a node that is no UTF-8", b"a line", [*TRAINING[:2], ("node", b"\xff" * 3_000)]),
    kept("a node with quotes", b"a line", [*TRAINING[:2], ("node", b'a"}\n\\ b\0=,{')]),
    kept("headers of nothing", b"a line", [*TRAINING, ("pod", None), ("tz", None), ("read_at", b"")]),
    kept("500 headers", b"a line", [*TRAINING, *((f"x{number}", b"y") for number in range(500))]),
    kept("a header with an odd name", b"a line", [*TRAINING, ("", b"x"), ("é\n", b"x")]),
    *(
        kept(f"tz is {zone!r}", b"[" + STAMP + b".000] error: x", [*SLURM[:3], ("tz", zone)])
        for zone in (b"Mars/Olympus", b"../../etc/passwd", b"Europe", b"/etc/passwd", b"U\0TC", b"\xff", b"x" * 5_000)
    ),
    *(
        kept(f"{name} is {number[:30]!r}", b"6,1,%d,-;usb" % 10**6, [*KERNEL[:3], (name, number)])
        for name in ("read_at", "mtime", "boot_time")
        for number in (b"abc", b"-1", b"1e400", b"9" * 4_000, b"99999999999999999999", b"NaN", b"\xff", b"0x10")
    ),
    kept("read_at in the year 9999", b"a line", [*TRAINING, ("read_at", b"9999-12-31T23:59:59Z")]),
    kept("a line above Loki's limit", b"w" * 300_000, TRAINING),
    kept("no UTF-8", b"gpu-1: \xc3\x28 \xff", TRAINING, flags={"invalid_utf8"}),
    kept("no UTF-8 in an event", b"[" + STAMP + b".000] error: \xff x", SLURM, flags={"invalid_utf8"}),
    kept("escape sequences", b"\x1b[31m\x1b]0;x\x07red\x1b[0m", TRAINING),
]  # fmt: skip
PARTITION = {case.name: number for number, case in enumerate(CASES)}


@dataclass
class Outcome:
    """What a drained tier left in its stores."""

    ledger: dict[str, Any]
    archive: dict[int, list[dict[str, Any]]]  # by partition, in the order of their lines
    dead: dict[int, list[dict[str, Any]]]
    loki: Receiver


@pytest.fixture(scope="module")
def outcome(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    forever = str(2**63 - 1)
    settings = {
        "message_timestamp_type": "CreateTime",
        "message_timestamp_before_max_ms": forever,
        "message_timestamp_after_max_ms": forever,
        "max_message_bytes": str(MAX_MESSAGE_BYTES),
    }
    topics = {form: kafka.topic(len(CASES), stem=form, **settings) for form in ("auto", "json")}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2 * MAX_MESSAGE_BYTES})
    refused: list[str] = []

    def sent(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(f"{CASES[message.partition()].name}: {error}")

    for partition, case in enumerate(CASES):
        topic = topics[case.topic]
        good = [("kind", b"training"), ("node", b"good")]
        for text in (b"before", b"after"):
            value = text + b" %d" % partition
            if case.topic == "json":
                value = json.dumps({"line": value.decode(), "kind": "training", "host": "good"}).encode()
            producer.produce(topic, value, b"good", partition, headers=good, on_delivery=sent)
            if text == b"before":
                producer.produce(
                    topic, case.value, case.key, partition, sent, timestamp=case.time_ms or 0, headers=case.headers
                )
        assert producer.flush(WAIT_S) == 0
    assert not refused
    home = tmp_path_factory.mktemp("bad-input")
    stored = {"url": str(home / "archive")}
    with Receiver() as loki:
        source = {"bootstrap": kafka.bootstrap, "topics": list(topics.values()), "group": topics["auto"]}
        config = {
            "tier": {"cluster": "test"},
            "source": {"kafka": source},
            "decode": {"forms": {topics["json"]: "json"}},
            "sinks": {"parquet": {"storage": stored}, "loki": {"url": loki.url, "flush_s": 0.1, "barrier_s": 10.0}},
            "dead_letter": {"storage": stored},
            "recovery": {"dir": str(home / "recovery"), "epoch_s": 0.5},
        }
        with Tier(home, config).start() as tier:
            places = [(topics[case.topic], partition) for partition, case in enumerate(CASES)]

            def all_read() -> bool:
                return committed(kafka, topics["auto"], *places) == [3] * len(places)

            tier.until(all_read)
            time.sleep(2.5)  # what is held is released by age
            assert tier.drain() == 0, tier.tail()
            assert not tier.events("ledger does not balance in the pipeline")
            assert not tier.events("ledger does not balance in a sink")
            archive, dead = (by_partition(rows(home / "archive", name)) for name in ("landing", "dead"))
            yield Outcome(tier.ledger, archive, dead, loki)


def by_partition(found: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Rows by partition, in reading order."""
    grouped: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(found, key=lambda row: (row["offset"], row["line"], row.get("part", 0))):
        grouped.setdefault(row["partition"], []).append(row)
    return grouped


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_becomes_of(outcome: Outcome, case: Case) -> None:
    partition = PARTITION[case.name]
    archive = outcome.archive[partition]
    assert [row["raw"] for row in archive if row["offset"] == 0] == [b"before %d" % partition]
    assert [row["raw"] for row in archive if row["offset"] == 2] == [b"after %d" % partition]
    mine = [row for row in archive if row["offset"] == 1]
    assert b"\n".join(row["raw"] for row in mine) == b"\n".join(case.lines)
    dead = [letter for letter in outcome.dead.get(partition, []) if letter["offset"] == 1]
    assert sorted((letter["reason"], letter["line"]) for letter in dead) == sorted(case.dead)
    assert all(letter["detail"] for letter in dead)
    if mine:
        assert case.flags <= set(mine[0]["flags"] or ())
        assert {name: mine[0][name] for name in case.columns} == case.columns
    assert not [letter for letter in outcome.dead.get(partition, []) if letter["offset"] != 1]


@pytest.mark.parametrize("word", ["before", "after"])
def test_good_lines_around_reach_loki_exactly_as_they_are(outcome: Outcome, word: str) -> None:
    found = sorted(entry.line for entry in outcome.loki.entries(node="good") if entry.line.startswith(word))
    assert found == sorted(f"{word} {partition}" for partition in range(len(CASES)))


def test_the_ledger_balances_and_nothing_is_held_back(outcome: Outcome) -> None:
    assert_balanced(outcome.ledger)
    assert outcome.ledger["held"] == 0
    loki = outcome.ledger["sinks"]["loki"]
    assert loki["gapped"] == 0
    assert outcome.ledger["dead"] == sum(
        letter["lines"] for letters in outcome.dead.values() for letter in letters if letter["reason"] in BEFORE_SINKS
    )


BEFORE_SINKS = {"too_large", "bad_envelope", "bad_version"}


def test_loki_was_never_sent_what_it_refuses(outcome: Outcome) -> None:
    assert set(outcome.loki.answers) == {204, 422}, outcome.loki.problems
    assert outcome.loki.answers[422] == 1  # the empty push by which the start asks whether Loki is there


def test_a_line_too_long_for_loki_is_cut_there_and_whole_in_the_archive(outcome: Outcome) -> None:
    (long,) = [entry for entry in outcome.loki.entries() if entry.line.startswith("wwww")]
    assert len(long.line) == 262_144
    assert "truncated" in long.metadata["flags"]


def test_dead_letters_hold_the_first_64_kib_and_the_place(outcome: Outcome) -> None:
    (letter,) = outcome.dead[PARTITION["more lines than a message may have"]]
    assert letter["raw"] == b"\n" * 65_536
    assert letter["lines"] == 300_000
    assert letter["detail"].startswith("300000 lines; decode.max_message_lines is ")
