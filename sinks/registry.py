"""Sinks by the name they have in the configuration. A new sink is one file, one line here, one test."""

from importlib import import_module
from typing import Any

SINKS: dict[str, str] = {
    "parquet": "sinks.parquet:ParquetSink",
    "loki": "sinks.loki:LokiSink",
    "dead_letter": "sinks.dead_letter:DeadLetterSink",
    "console": "sinks.console:ConsoleSink",
    "alertmanager": "sinks.alertmanager:AlertmanagerSink",
    "kafka_topic": "sinks.kafka_topic:KafkaTopicSink",
}


def sink(name: str) -> Any:
    """The class of a sink, imported when first used. Raises KeyError for an unknown name."""
    module, attribute = SINKS[name].split(":")
    return getattr(import_module(module), attribute)
