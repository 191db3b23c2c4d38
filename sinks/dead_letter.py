"""Dead letters: what could not be delivered, kept with its origin and its reason.

Each letter is stored at least once, in a Kafka topic or below `dead/` of an object store. The place
(topic, partition, offset, line) is its identity there, by which a repeat can be told.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.outputs import StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field

from parsers.schema import NAME, PLACE
from sinks.base import MAX_DEAD_BYTES, DeadLetter, DeadLetterWriter, Delivery
from sinks.http import secret
from sinks.sharded import ShardedSink
from sinks.storage import ObjectStore, StorageConfig, open_storage

DEAD = "dead"
MAX_DETAIL = 1_024  # characters
DEAD_SCHEMA = pa.schema(
    [
        *PLACE,
        pa.field("lines", pa.int32()),
        pa.field("reason", NAME),
        pa.field("detail", pa.string()),
        pa.field("raw", pa.large_binary()),
    ]
)
# Letters and bytes after which the sink writes before the epoch ends; two such writes may wait.
_BATCH_LETTERS, _BATCH_BYTES, _WAITING = 1_000, 4 << 20, 2


class DeadLetterConfig(BaseModel):
    """Where dead letters are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Literal["storage", "kafka"] = Field("storage", description="Kind of store.")
    bootstrap: str = Field("127.0.0.1:9092", min_length=1, description="Brokers (host:port, …), where `to` is kafka.")
    topic: str = Field("tailrace.deadletters", min_length=1, description="Topic, where `to` is kafka.")
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Further librdkafka settings, such as security.protocol; a value env:NAME or file:PATH is looked "
        "up, so that no secret stands here.",
    )
    storage: StorageConfig = Field(
        StorageConfig(), description="Object store, where `to` is storage; its objects are below `dead/`."
    )


class CheckedWriter(DeadLetterWriter, Protocol):
    """A writer that can tell beforehand whether it would work."""

    def check(self) -> None:
        """Raise Misconfigured unless letters can be stored."""
        ...


def open_writer(config: DeadLetterConfig) -> CheckedWriter:
    """The writer of a configuration. Raises Misconfigured for a bad address, setting or secret reference."""
    if config.to == "storage":
        return StorageDeadLetters(open_storage(config.storage))
    from sinks.dead_letter_kafka import KafkaDeadLetters

    settings = {name: secret(value, f"dead_letter.settings.{name}") for name, value in config.settings.items()}
    return KafkaDeadLetters(config.topic, {"bootstrap.servers": config.bootstrap, **settings})


def clipped(letter: DeadLetter) -> DeadLetter:
    """The letter with its text cut to what is kept."""
    return letter._replace(detail=letter.detail[:MAX_DETAIL], raw=letter.raw[:MAX_DEAD_BYTES])


class StorageDeadLetters:
    """One Parquet object (DEAD_SCHEMA) per write, named after the places in it, so that the same write overwrites it.

    Raises RetryLater when the store stays down longer than `storage.retry_for_s`.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self) -> None:
        self._store.check()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        columns = dict(zip(DeadLetter._fields, zip(*map(clipped, letters), strict=True), strict=True))
        table = pa.table([pa.array(columns[field.name], field.type) for field in DEAD_SCHEMA], schema=DEAD_SCHEMA)
        body = pa.BufferOutputStream()
        pq.write_table(table, body, compression="zstd", use_dictionary=["topic", "reason"])
        identity = repr([(x.topic, x.partition, x.offset, x.line, x.reason) for x in letters])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
        first = letters[0]
        self._store.put_bytes(
            body.getvalue().to_pybytes(), f"{DEAD}/{first.partition:06d}-{first.offset:015d}-{digest}.parquet"
        )


class DeadLetterSink(ShardedSink[None]):
    """Stores the dead letters of every Delivery; the epoch cannot end before all of its own are stored.

    It reports to no account: whoever makes a dead letter counts its lines.
    """

    def __init__(self, writer: DeadLetterWriter, shards: Sequence[str]) -> None:
        super().__init__(shards)
        self._writer = writer

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "DeadLetterPart":  # noqa: ARG002 - Bytewax's signature
        return DeadLetterPart(self._writer)


class DeadLetterPart(StatefulSinkPartition[Delivery, None]):
    """One shard. Writes in a thread, in reading order; an error there is raised by the next call here."""

    def __init__(self, writer: DeadLetterWriter) -> None:
        self._writer = writer
        self._letters: list[DeadLetter] = []
        self._bytes = 0
        self._waiting: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dead-letter")

    def write_batch(self, values: list[Delivery]) -> None:
        for letter in (letter for delivery in values for letter in delivery.dead):
            self._letters.append(clipped(letter))
            self._bytes += len(self._letters[-1].raw)
            if len(self._letters) >= _BATCH_LETTERS or self._bytes >= _BATCH_BYTES:
                self._submit()
                self._wait(_WAITING)

    def snapshot(self) -> None:
        """Return when all letters so far are stored."""
        if self._letters:
            self._submit()
        self._wait(0)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self) -> None:
        letters, self._letters, self._bytes = self._letters, [], 0
        self._waiting.append(self._thread.submit(self._writer.write, letters))

    def _wait(self, limit: int) -> None:
        while len(self._waiting) > limit:
            self._waiting.popleft().result()
