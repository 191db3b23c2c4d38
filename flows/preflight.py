"""Looks at everything a configuration names before the first line is read: brokers, topics, buckets, stores."""

import logging
from collections.abc import Callable, Iterator

from flows.config import Config
from flows.sources.broker import partitions
from flows.sources.files import FilesSource
from sinks.dead_letter import open_writer
from sinks.errors import Misconfigured, RetryLater
from sinks.loki import LokiSink
from sinks.parquet import ParquetSink

log = logging.getLogger("tailrace.preflight")


def checks(config: Config) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and check of each outside thing; a check raises Misconfigured when a person must act."""
    kafka, files, parquet, loki = config.source.kafka, config.source.files, config.sinks.parquet, config.sinks.loki
    shards = config.tier.own_shards()
    writer = open_writer(config.dead_letter)
    if kafka:
        yield f"Kafka at {kafka.bootstrap}", lambda: partitions(kafka, kafka.topics)
    if files:
        yield "files", lambda: FilesSource(files).list_parts()
    if parquet:
        archive = ParquetSink(parquet, config.tier.generation, shards, _nobody)
        yield f"archive at {parquet.storage.url}", archive.check
    if loki:
        yield f"Loki at {loki.url}", LokiSink(loki, shards, _nobody, writer).check
    yield "dead letters", writer.check


def require(config: Config) -> None:
    """Run all checks before the tier starts.

    Raises Misconfigured; but a Loki that is down stops nothing: what it misses is listed as gaps.
    """
    for name, check in checks(config):
        try:
            check()
        except Misconfigured as error:
            if not isinstance(error.__cause__, RetryLater) or not name.startswith("Loki"):
                raise
            log.warning("store is down; starting without it", extra={"store": name, "error": str(error)})


def _nobody(fate: str, lines: object, rule: str = "") -> None:
    """An account for sinks that are only checked."""
