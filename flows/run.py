"""`tailrace run`: the tier, one process of it. `tailrace check`: a configuration before it runs."""

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from bytewax.dataflow import Dataflow
from bytewax.errors import BytewaxRuntimeError
from bytewax.run import cli_main

from flows import log as own_log
from flows import recovery
from flows.cluster import Runtime, build
from flows.config import Config, load, shown
from flows.config_tests import failures
from flows.preflight import checks, require
from flows.serving import serve
from flows.shutdown import on_signals
from flows.steps.redact import config as redaction
from sinks.errors import Misconfigured, SinkError

log = logging.getLogger("tailrace.run")

EXIT_CONFIG = 2
EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: start it again, the last epoch is redone
_DRAIN_PATIENCE_EPOCHS = 6
_STALE_EPOCHS = 12
_STUCK_S = 60.0

_RUN_EXAMPLES = """examples:
  tailrace run --config tailrace.toml
  TAILRACE_TIER__PROCESS=1 tailrace run --config tailrace.toml   # the second process of the layout
"""
_CHECK_EXAMPLES = """examples:
  tailrace check --config tailrace.toml             # validate, run the tests inside, then ask every broker and store
  tailrace check --config tailrace.toml --offline   # validate and run the tests only, for use in CI
"""


def run(argv: Sequence[str]) -> int:
    """Run the tier until its source ends or a signal drains it.

    Exit status 0, 2 for a wrong configuration, 75 when a store failed for too long: then start it again.
    """
    options = command_line("run", run.__doc__ or "", _RUN_EXAMPLES)
    options.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    arguments = options.parse_args(argv)
    try:
        config = load(arguments.config)
        own_log.setup(arguments.log_level)
        require(config)
        return execute(config)
    except SinkError as error:
        sys.stderr.write(f"tailrace run: {error}\n")
        return EXIT_CONFIG if isinstance(error, Misconfigured) else EXIT_AGAIN


def execute(
    config: Config, runtime: "Runtime | None" = None, build_graph: Callable[[Runtime], Dataflow] = build
) -> int:
    """Run the dataflow of a valid configuration in this process, from the main thread.

    Raises Misconfigured when a person must act, another SinkError when a start from the last epoch may help.
    """
    runtime = runtime or Runtime(config)
    store = recovery.open_store(config)
    epoch = config.recovery.epoch_s
    on_signals(runtime.drain.set, _DRAIN_PATIENCE_EPOCHS * epoch + 30.0, log.warning)
    graph = build_graph(runtime)
    server = None
    if config.http.port:
        server = serve(
            config.http.host,
            config.http.port,
            runtime.metrics.registry,
            lambda: _stuck(runtime),
            lambda: _not_ready(runtime),
        )
        log.info(
            "serving /metrics, /healthz and /readyz", extra={"address": "{}:{}".format(*server.server_address[:2])}
        )
    log.info("started", extra={"shards": config.tier.own_shards(), "generation": config.tier.generation})
    _give_memory_back()
    # What exists now lives as long as the process, and batches hold few cycles: scanning them less often saves 5 %.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    try:
        cli_main(graph, epoch_interval=timedelta(seconds=epoch), recovery_config=store)
    except BytewaxRuntimeError as error:
        raise _cause(error) from error
    finally:
        log.info("ended", extra={"ledger": ledger(runtime)})
        if server:
            server.shutdown()
    return 0


def _give_memory_back() -> None:
    """Let Arrow use jemalloc, where it has it: it returns freed memory to the system.

    Measured on a catch-up with long lines and 20,000 streams: peak 0.7 to 0.84 GiB against 0.83 to 1.1 GiB of
    Arrow's default, mimalloc, which keeps what each of its threads once had.
    """
    with suppress(NotImplementedError):  # what pyarrow raises where it was built without jemalloc
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def ledger(runtime: Runtime) -> dict[str, object]:
    """The whole ledger as plain values: lines read, held, dropped by rule, dead, and the fates by sink."""
    totals = runtime.metrics.totals()
    return {
        "read": totals.counts.read.total(),
        "kept": totals.counts.kept.total(),
        "dropped": {rule: lines.total() for rule, lines in sorted(totals.counts.dropped.items())},
        "dead": totals.counts.dead.total(),
        "held": totals.held,
        "unbalanced": totals.unbalanced,
        "sinks": runtime.accounts.totals(),
    }


def check(argv: Sequence[str]) -> int:
    """Validate a configuration, run the tests inside it, and ask everything it names.

    Exit status 0, or 2 with what to change.
    """
    options = command_line("check", check.__doc__ or "", _CHECK_EXAMPLES)
    options.add_argument("--offline", action="store_true", help="open no connection")
    options.add_argument("--show", action="store_true", help="print the configuration with all defaults as JSON")
    arguments = options.parse_args(argv)
    try:
        config = load(arguments.config)
        if arguments.show:
            sys.stdout.write(json.dumps(shown(config), indent=2) + "\n")
        if failed := failures(config.tests, config.rules, config.for_tests()):
            raise Misconfigured("\n".join(failed))
        if failed := redaction.failures(config.redaction):
            raise Misconfigured("\n".join(failed))
        if tests := redaction.count_tests(config.redaction):
            sys.stderr.write(f"ok  {tests} tests of secrets\n")
        if tests := sum(len(rule.tests) for rule in config.rules):
            sys.stderr.write(f"ok  {tests} tests of rules\n")
        if config.tests:
            sys.stderr.write(f"ok  {len(config.tests)} tests of lines\n")
        for name, check_one in () if arguments.offline else checks(config):
            started = time.monotonic()
            check_one()
            sys.stderr.write(f"ok  {name}  ({time.monotonic() - started:.2f} s)\n")
    except Misconfigured as error:
        sys.stderr.write(f"tailrace check: {error}\n")
        return EXIT_CONFIG
    sys.stderr.write(f"ok  {arguments.config}\n")
    return 0


def command_line(name: str, text: str, examples: str) -> argparse.ArgumentParser:
    """The options that all commands with a configuration have."""
    parser = argparse.ArgumentParser(
        prog=f"tailrace {name}",
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, default=Path("tailrace.toml"), help="TOML file (default tailrace.toml)")
    return parser


def _cause(error: BaseException) -> BaseException:
    """The error of a store or source behind what Bytewax raises; the error itself when there is none."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, SinkError):
        inner = inner.__cause__
    return inner or error


def _stuck(runtime: Runtime) -> str | None:
    """Why the process is of no use any more, or None: its worker has not ended an epoch for long."""
    limit = max(_STUCK_S, _STALE_EPOCHS * runtime.config.recovery.epoch_s)
    silent = runtime.metrics.silent_s()
    return f"no epoch has ended for {silent:.0f} s" if silent > limit else None


def _not_ready(runtime: Runtime) -> str | None:
    """Why the process is not ready, or None."""
    if runtime.metrics.last_epoch is None:
        return "no epoch has ended yet"
    silent, limit = runtime.metrics.silent_s(), _STALE_EPOCHS * runtime.config.recovery.epoch_s
    return f"no epoch has ended for {silent:.0f} s" if silent > limit else None
