"""Looks at everything a configuration names before the first line is read: brokers, topics, buckets, stores."""

import logging
from collections.abc import Callable, Iterator, Sequence

from urllib3.exceptions import SSLError

from flows import recovery, serving
from flows.config import Config
from flows.evaluation import alerts_topic, partials_topic
from flows.sources.broker import partitions
from flows.sources.files import FilesSource
from sinks.alertmanager import AlertmanagerSink
from sinks.azure_logs import AzureSink
from sinks.dead_letter import open_writer
from sinks.errors import Misconfigured, RetryLater
from sinks.loki import LokiSink
from sinks.manifest import LANDING
from sinks.parquet import ParquetConfig, ParquetSink
from sinks.storage import open_storage

log = logging.getLogger("tailrace.preflight")

_ALERTMANAGER = "Alertmanager"


def checks(config: Config, own_shards: Sequence[str] | None = None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and check of each outside thing; a check raises Misconfigured when a person must act.

    `own_shards`: the names under which the archive is written; None: those of the tier.
    """
    kafka, files, parquet, loki = config.source.kafka, config.source.files, config.sinks.parquet, config.sinks.loki
    shards, http = list(own_shards or config.tier.own_shards()), config.http
    if http.port:
        yield f"HTTP at {http.host}:{http.port}", lambda: serving.check(http.host, http.port)
    if config.recovery.dir:
        yield f"recovery store in {config.recovery.dir}", lambda: recovery.check(config)
    writer = open_writer(config.dead_letter)
    if kafka:
        yield f"Kafka at {kafka.bootstrap}", lambda: partitions(kafka, kafka.topics)
    if files:
        yield "files", lambda: FilesSource(files, kinds=config.all_kinds()).list_parts()
    if parquet:
        archive = ParquetSink(parquet, config.tier.generation, shards, _nobody)
        yield f"archive at {parquet.storage.url}", archive.check
        if recovery.is_fresh(config):
            yield "no object would be written over", lambda: _untouched(config, parquet, shards)
    if loki:
        yield f"Loki at {loki.url}", LokiSink(loki, shards, _nobody, writer).check
    if azure := config.sinks.azure:
        yield f"Azure Monitor at {azure.endpoint}", AzureSink(azure, shards, _nobody, writer).check
    evaluates = own_shards is not None or config.alerts_mode() == "inline"
    if config.alerts_mode() == "topic" and own_shards is None:
        yield f"topic {config.alerts.partials_topic}", partials_topic(config, shards).check
    if evaluates and (topic := alerts_topic(config)):
        yield f"topic {config.alerts_topic()}", topic.check
    if evaluates and config.sinks.alertmanager:
        sink = AlertmanagerSink(config.sinks.alertmanager, writer, lambda *_: None)
        yield f"{_ALERTMANAGER} at {', '.join(config.sinks.alertmanager.urls)}", sink.check
    yield "dead letters", writer.check


def require(config: Config, own_shards: Sequence[str] | None = None) -> None:
    """Run all checks before the tier (or the evaluator, with its shard) starts.

    Raises Misconfigured; but a Loki or Azure that is down stops nothing: what it misses is listed as gaps. Nor does an
    Alertmanager: alerts wait for it.
    """
    for name, check in checks(config, own_shards):
        try:
            check()
        except Misconfigured as error:
            if not name.startswith(("Loki", "Azure", _ALERTMANAGER)) or not _is_down(error.__cause__):
                raise
            log.warning("store is down; starting without it", extra={"store": name, "error": str(error)})


def _is_down(cause: BaseException | None) -> bool:
    """Whether a store may come back by itself; a certificate that is not trusted will not."""
    return isinstance(cause, RetryLater) and not isinstance(cause.__cause__, SSLError)


def _untouched(config: Config, parquet: ParquetConfig, shards: Sequence[str]) -> None:
    store = open_storage(parquet.storage)
    for shard in shards:
        keys = store.keys(f"{LANDING}/g{config.tier.generation:06d}/{shard}")
        recovery.refuse_objects(config, keys, parquet.storage.url)


def _nobody(fate: str, lines: object, rule: str = "") -> None:
    """An account for sinks that are only checked."""
