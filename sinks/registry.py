"""Sinks of records by the name of their section in the configuration. A new sink is one file, one line here, one test.

A sink class has `at(config, site)`, which makes it, and `check()`, which raises Misconfigured when a person
must act before it can work.
"""

from importlib import import_module
from typing import Any

SINKS: dict[str, str] = {
    "parquet": "sinks.parquet:ParquetSink",
    "loki": "sinks.loki:LokiSink",
    "azure": "sinks.azure_logs:AzureSink",
    "console": "sinks.console:ConsoleSink",
}


def sink(name: str) -> Any:
    """The class of a sink, imported when first used. Raises KeyError for an unknown name."""
    module, attribute = SINKS[name].split(":")
    return getattr(import_module(module), attribute)
