"""Dead letters are stored with origin and reason, whole up to 64 KiB, before their epoch ends."""

import threading
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from sinks.base import MAX_DEAD_BYTES, DeadLetter, Delivery
from sinks.dead_letter import (
    MAX_DETAIL,
    DeadLetterConfig,
    DeadLetterPart,
    DeadLetterSink,
    StorageDeadLetters,
    open_writer,
)
from sinks.errors import Misconfigured, RetryLater
from sinks.storage import StorageConfig, open_storage
from tests.services.process import free_port


def letter(number: int, **values: Any) -> DeadLetter:
    known = {"topic": "logs.job", "partition": 3, "offset": number, "line": 2, "lines": 1, "reason": "bad_envelope"}
    return DeadLetter(**{**known, "detail": f"no JSON: {number}", "raw": f"{{{number}".encode(), **values})


HUGE = letter(9, raw=b"\xff" * (MAX_DEAD_BYTES + 1), detail="ü" * (MAX_DETAIL + 1), reason="too_large", lines=17)


def stored(storage: StorageConfig) -> dict[str, pa.Table]:
    store = open_storage(storage)
    return {key: pq.read_table(BytesIO(store.get(key))) for key in store.keys("dead")}


def test_letters_are_read_back_from_storage(storage: StorageConfig) -> None:
    writer = open_writer(DeadLetterConfig(to="storage", storage=storage))
    writer.check()
    writer.write([letter(1), HUGE])
    (table,) = stored(storage).values()
    cut = HUGE._replace(raw=HUGE.raw[:MAX_DEAD_BYTES], detail=HUGE.detail[:MAX_DETAIL])
    assert table.to_pylist() == [letter(1)._asdict(), cut._asdict()]


def test_the_same_letters_overwrite_their_object_whatever_their_text(local_storage: StorageConfig) -> None:
    writer = StorageDeadLetters(open_storage(local_storage))
    writer.write([letter(1), letter(2)])
    writer.write([letter(1, raw=b"../../etc/passwd", detail="other"), letter(2)])
    (once,) = stored(local_storage).values()
    assert once["raw"].to_pylist() == [b"../../etc/passwd", b"{2"]
    writer.write([letter(1)])
    writer.write([letter(1, reason="tombstone"), letter(2)])
    writer.write([])
    assert len(stored(local_storage)) == 3


def test_the_epoch_ends_when_its_letters_are_stored(local_storage: StorageConfig) -> None:
    sink = DeadLetterSink(StorageDeadLetters(open_storage(local_storage)), ["0001", "0000"])
    part = sink.build_part("dead_letter", "0001", None)
    part.write_batch([Delivery(dead=[letter(n) for n in range(700)]), Delivery()])
    part.write_batch([Delivery(dead=[letter(n) for n in range(700, 1_500)])])
    part.snapshot()
    offsets = [offset for table in stored(local_storage).values() for offset in table["offset"].to_pylist()]
    assert sorted(offsets) == list(range(1_500))
    objects = len(stored(local_storage))
    part.snapshot()
    assert len(stored(local_storage)) == objects


class Blocked:
    """A writer whose store is down until `up` is set, and which then fails if it was told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.up, self.error, self.seen = threading.Event(), error, 0

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self.up.wait(60)
        if self.error:
            raise self.error
        self.seen += len(letters)


def test_the_epoch_does_not_end_while_the_store_is_down() -> None:
    writer = Blocked()
    part = DeadLetterPart(writer)
    part.write_batch([Delivery(dead=[letter(n) for n in range(2_500)])])
    barrier = threading.Thread(target=part.snapshot)
    barrier.start()
    barrier.join(0.2)
    assert barrier.is_alive()
    writer.up.set()
    barrier.join(60)
    assert writer.seen == 2_500


def test_a_store_that_gave_up_ends_the_epoch_with_its_error() -> None:
    writer = Blocked(RetryLater("gave up after 600 s"))
    writer.up.set()
    part = DeadLetterPart(writer)
    part.write_batch([Delivery(dead=[letter(1)])])
    with pytest.raises(RetryLater, match="gave up"):
        part.snapshot()


def test_letters_are_read_back_from_kafka(kafka: Any) -> None:
    topic = kafka.topic(1)
    writer = open_writer(DeadLetterConfig(to="kafka", bootstrap=kafka.bootstrap, topic=topic))
    writer.check()
    writer.write([letter(1), HUGE])
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = []
    for _ in range(30):
        messages += consumer.consume(2 - len(messages), 1.0)
        if len(messages) == 2:
            break
    consumer.close()
    assert [message.key() for message in messages] == [b"logs.job:3"] * 2
    assert [message.value() for message in messages] == [b"{1", HUGE.raw[:MAX_DEAD_BYTES]]
    headers = [{name: value.decode() for name, value in message.headers()} for message in messages]
    assert headers == [
        {
            "reason": each.reason,
            "detail": each.detail[:MAX_DETAIL],
            "topic": "logs.job",
            "partition": "3",
            "offset": str(each.offset),
            "line": "2",
            "lines": str(each.lines),
        }
        for each in (letter(1), HUGE)
    ]


def test_a_topic_that_refuses_a_letter_for_good_is_named(kafka: Any) -> None:
    topic = kafka.topic(1, max_message_bytes="20000")
    config = DeadLetterConfig(to="kafka", bootstrap=kafka.bootstrap, topic=topic, settings={"compression.type": "none"})
    with pytest.raises(
        Misconfigured, match=rf"{topic} did not take .* dead letters: .*size too large.*max\.message\.bytes"
    ):
        open_writer(config).write([letter(1), HUGE])


def test_check_names_a_missing_topic(kafka: Any) -> None:
    config = DeadLetterConfig(to="kafka", bootstrap=kafka.bootstrap, topic="not-there")
    with pytest.raises(Misconfigured, match=r"not-there for dead letters: .*`tailrace topics`"):
        open_writer(config).check()


def test_check_names_brokers_that_do_not_answer() -> None:
    config = DeadLetterConfig(to="kafka", bootstrap=f"127.0.0.1:{free_port()}")
    with pytest.raises(Misconfigured, match=r"Kafka does not answer for dead letters: .*Connection refused"):
        open_writer(config).check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no.such.setting": "1"}, "Kafka settings for dead letters: .*no.such.setting"),
        ({"sasl.password": "env:TAILRACE_NOT_SET"}, "dead_letter.settings.sasl.password: .*TAILRACE_NOT_SET"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        open_writer(DeadLetterConfig(to="kafka", settings=settings))
