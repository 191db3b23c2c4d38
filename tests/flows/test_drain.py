"""Signals to a running tier: it ends by itself with status 0, and the next start repeats and loses nothing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from flows.demo.loki_receiver import Receiver
from flows.demo.loki_store import Count, Numbers, by_regex
from flows.run import EXIT_AGAIN, EXIT_CONFIG
from flows.shutdown import EXIT_STUCK
from tests.flows.tier import WAIT_S, Tier, assert_balanced, committed, rows
from tests.services.kafka import Kafka

PARTITIONS = 3
BLOCK = 20  # lines of a message
HEADERS = [("v", b"1"), ("kind", b"slurmctld"), ("node", b"ctl-1"), ("tz", b"UTC")]


class Sender:
    """Sends numbered lines without a pause. Every line is an event that its parser holds until the next one comes."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic, self.messages = topic, [0] * PARTITIONS
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap})

    @property
    def lines(self) -> int:
        return sum(self.messages) * BLOCK

    def send(self, messages: int) -> None:
        """Send so many blocks to each partition."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000", time.gmtime())
        for _ in range(messages):
            for partition in range(PARTITIONS):
                first = self.lines
                block = "\n".join(f"[{stamp}] error: number {first + line}" for line in range(BLOCK))
                self._producer.produce(self.topic, block, b"ctl-1", partition, headers=HEADERS)
                self.messages[partition] += 1
        assert self._producer.flush(WAIT_S) == 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send all the time."""
        over = threading.Event()

        def loop() -> None:
            while not over.wait(0.01):
                self.send(5)

        thread = threading.Thread(target=loop, name="sender")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def config(kafka: Kafka, home: Path, topic: str, loki: Receiver) -> dict[str, Any]:
    storage = {"url": str(home / "archive")}
    return {
        "tier": {"shards": 2},
        "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic], "group": topic}},
        "sinks": {"parquet": {"storage": storage}, "loki": {"url": loki.url, "flush_s": 0.1, "outage_s": 0.5}},
        "dead_letter": {"storage": storage},
        "recovery": {"dir": str(home / "recovery"), "epoch_s": 0.4},
    }


SIGNALS = [
    [signal.SIGTERM],
    [signal.SIGTERM, signal.SIGTERM],
    [signal.SIGINT],
    [signal.SIGINT, signal.SIGTERM, signal.SIGINT],
]


def test_drained_under_load_it_repeats_and_loses_nothing(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(PARTITIONS)
    places = [(topic, partition) for partition in range(PARTITIONS)]
    sender = Sender(kafka, topic)
    numbers = Numbers(1_000_000, by_regex(r"number (\d+)$"))
    with Receiver(store=Count(numbers)) as loki, Tier(tmp_path, config(kafka, tmp_path, topic, loki)) as tier:
        with sender.sending():
            for life, signals in enumerate(SIGNALS):
                tier.start()
                before = sum(committed(kafka, topic, *places))
                tier.until(lambda before=before: sum(committed(kafka, topic, *places)) > before + 10)
                for number in signals:
                    tier.signal(number)
                assert tier.wait() == 0, tier.tail()
                assert len(tier.events(f"{signals[0].name}: draining, at most 32.4 s")) >= 1
                assert len(tier.events("ended")) == life + 1
                assert_balanced(tier.ledger)
                # What the group is told is what was delivered, but for what waits for the rest of its record.
                known = sum(offset for offset in committed(kafka, topic, *places) if offset > 0)
                assert tier.ledger["read"] == known * BLOCK
                assert loki.lines == tier.ledger["kept"] == tier.ledger["read"] - tier.ledger["held"]
        tier.start()
        tier.until(lambda: committed(kafka, topic, *places) == sender.messages)
        tier.until(lambda: loki.lines == sender.lines)  # what was held is released by its age
        assert tier.drain() == 0, tier.tail()
        assert tier.ledger["read"] == sender.lines
        assert_balanced(tier.ledger)
    assert numbers.repeated == numbers.foreign == 0
    assert not len(numbers.missing(sender.lines))
    archived = [(row["partition"], row["offset"], row["line"]) for row in rows(tmp_path / "archive", "landing")]
    assert len(archived) == len(set(archived)) == sender.lines


def test_an_idle_tier_ends_as_well(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(PARTITIONS)
    with Receiver() as loki, Tier(tmp_path, config(kafka, tmp_path, topic, loki)).start() as tier:
        tier.until(lambda: bool(tier.events("started")))
        assert tier.drain() == 0, tier.tail()
        assert tier.ledger["read"] == 0


def test_a_store_that_hangs_does_not_hold_up_the_end(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(PARTITIONS)
    sender = Sender(kafka, topic)
    with Receiver() as loki, Tier(tmp_path, config(kafka, tmp_path, topic, loki)).start() as tier:
        loki.hang()
        tier.until(lambda: bool(tier.events("started")))
        sender.send(10)
        places = [(topic, partition) for partition in range(PARTITIONS)]
        tier.until(lambda: committed(kafka, topic, *places) == sender.messages)
        assert tier.drain() == 0, tier.tail()
        assert_balanced(tier.ledger)
        assert tier.ledger["sinks"]["loki"]["gapped"] == tier.ledger["kept"] > 0
        assert tier.ledger["sinks"]["parquet"]["delivered"] == tier.ledger["kept"]
        loki.release()
        tier.start()
        tier.until(lambda: len(tier.events("started")) == 2)
        assert tier.drain() == 0, tier.tail()
        assert tier.ledger["sinks"]["loki"]["gapped"] > 0  # the list outlives the restart
        assert_balanced(tier.ledger)


def test_who_does_not_end_in_time_is_ended_with_a_status_that_says_again() -> None:
    program = """
import threading
from flows.shutdown import on_signals
on_signals(lambda: print("asked", flush=True), 0.2, lambda text: print(text, flush=True))
print("ready", flush=True)
threading.Event().wait(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EXIT_STUCK
    assert said.splitlines() == [
        "SIGTERM: draining, at most 0.2 s",
        "asked",
        "drain took too long; leaving without it, the last epoch will be repeated",
    ]


def test_a_store_that_fails_for_good_ends_it_with_one_message(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(PARTITIONS)
    sender = Sender(kafka, topic)
    with Receiver() as loki, Tier(tmp_path, config(kafka, tmp_path, topic, loki)).start() as tier:
        sender.send(1)
        tier.until(lambda: loki.lines > 0)
        (tmp_path / "archive").rename(tmp_path / "gone")
        (tmp_path / "archive").write_text("a file where the archive was")
        sender.send(1)
        assert tier.wait() in (EXIT_CONFIG, EXIT_AGAIN)
        assert tier.tail().rstrip().splitlines()[-1].startswith("tailrace run: ")
        assert "\nTraceback" not in tier.tail()
        (tmp_path / "archive").unlink()
        (tmp_path / "gone").rename(tmp_path / "archive")
        tier.start()
        tier.until(lambda: committed(kafka, topic, *((topic, p) for p in range(PARTITIONS))) == sender.messages)
        tier.until(lambda: loki.lines == sender.lines)
        assert tier.drain() == 0, tier.tail()
    archived = [(row["partition"], row["offset"], row["line"]) for row in rows(tmp_path / "archive", "landing")]
    assert len(archived) == len(set(archived)) == sender.lines
