"""Looks at everything a configuration names before the first line is read: brokers, topics, buckets, stores."""

from collections.abc import Callable, Iterator

from flows.config import Config
from flows.sources.files import FilesSource
from flows.sources.kafka import check_topics
from sinks.dead_letter import open_writer
from sinks.storage import open_storage


def checks(config: Config) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and check of each outside thing; a check raises Misconfigured when a person must act."""
    kafka, files, parquet = config.source.kafka, config.source.files, config.sinks.parquet
    if kafka:
        yield f"Kafka at {kafka.bootstrap}", lambda: check_topics(kafka)
    if files:
        yield "files", lambda: FilesSource(files).list_parts()
    if parquet:
        yield f"archive at {parquet.storage.url}", lambda: open_storage(parquet.storage).check()
    yield "dead letters", lambda: open_writer(config.dead_letter).check()
