"""`tailrace alerts`: the evaluator as a flow of its own, behind the topic of partials.

    topic of partials ─► evaluator ─► Alertmanager, topic of alerts, and as records: parquet, loki, console

There is one such process for a cluster: rules look across nodes, namespaces and jobs. It reads the tier's
configuration; its own state, metrics and group are those of `[alerts]`.
"""

import sys
from collections.abc import Sequence

import bytewax.operators as op
from bytewax.dataflow import Dataflow

from flows import log as own_log
from flows.cluster import Runtime, source, store
from flows.config import Config, TierConfig, load
from flows.evaluation import KEY, evaluate
from flows.findings import from_chunk
from flows.preflight import require
from flows.run import EXIT_AGAIN, EXIT_CONFIG, command_line, execute
from sinks.dead_letter import open_writer
from sinks.errors import Misconfigured, SinkError

_SHARD = "0000"  # of the source
_LINGER_MS = 10  # partials are few, and urgent
_EXAMPLES = """examples:
  tailrace alerts --config tailrace.toml
  TAILRACE_ALERTS__RECOVERY__DIR=/var/lib/tailrace/alerts tailrace alerts --config tailrace.toml
"""


def run(argv: Sequence[str]) -> int:
    """Turn what the tier found into alerts until a signal drains it; one such process for a cluster.

    Exit status 0, 2 for a wrong configuration, 75 when a store failed for too long: then start it again.
    """
    options = command_line("alerts", run.__doc__ or "", _EXAMPLES)
    options.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    arguments = options.parse_args(argv)
    try:
        config = evaluators(load(arguments.config))
        own_log.setup(arguments.log_level)
        require(config, [KEY])
        return execute(config, Runtime(config), build)
    except SinkError as error:
        sys.stderr.write(f"tailrace alerts: {error}\n")
        return EXIT_CONFIG if isinstance(error, Misconfigured) else EXIT_AGAIN


def evaluators(config: Config) -> Config:
    """The configuration as the evaluator's process needs it. Raises Misconfigured where there is none."""
    kafka, alerts = config.source.kafka, config.alerts
    if config.alerts_mode() != "topic" or kafka is None:
        raise Misconfigured(
            f"alerts.mode is {config.alerts_mode()}, so there is nothing to read; set it to topic, for the tier as well"
        )
    reads = kafka.model_copy(
        update={
            "topics": [alerts.partials_topic],
            "group": alerts.group,
            "start": "earliest",
            "linger_ms": min(kafka.linger_ms, _LINGER_MS),
        }
    )
    return config.model_copy(
        update={
            "tier": TierConfig(cluster=config.tier.cluster, generation=config.tier.generation),
            "alerts": alerts.model_copy(update={"mode": "topic"}),
            "source": config.source.model_copy(update={"kafka": reads}),
            "recovery": alerts.recovery,
            "http": alerts.http,
        }
    )


def build(runtime: Runtime) -> Dataflow:
    """The dataflow of the evaluator. Raises Misconfigured when a store or topic cannot be used."""
    writer = open_writer(runtime.config.dead_letter)
    graph = Dataflow("tailrace-alerts")
    chunks = op.input("source", graph, source(runtime, [_SHARD]))
    findings = op.map("findings", chunks, lambda item: (KEY, from_chunk(item[1])))
    records = evaluate(runtime.config, runtime.alerts, findings, writer, runtime.metrics.epoch_ended)
    store(runtime, [KEY], writer, records)
    return graph
