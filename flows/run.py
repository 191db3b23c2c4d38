"""`tailrace run`: the tier, one process of it. `tailrace check`: a configuration before it runs."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from flows import log as own_log
from flows.cluster import Runtime, build
from flows.config import Config, load
from flows.metrics import serve
from flows.preflight import checks, require
from flows.shutdown import on_signals
from sinks.errors import Misconfigured

log = logging.getLogger("tailrace.run")

EXIT_CONFIG = 2
_DRAIN_PATIENCE_EPOCHS = 6
_STALE_EPOCHS = 12

_RUN_EXAMPLES = """examples:
  tailrace run --config tailrace.toml
  TAILRACE_TIER__PROCESS=1 tailrace run --config tailrace.toml   # the second process of the layout
"""
_CHECK_EXAMPLES = """examples:
  tailrace check --config tailrace.toml             # validate, then ask every broker and store
  tailrace check --config tailrace.toml --offline   # validate only, for use in CI
"""


def run(argv: Sequence[str]) -> int:
    """Run the tier until its source ends or a signal drains it. Exit status 0, or 2 for a wrong configuration."""
    options = _parser("run", run.__doc__ or "", _RUN_EXAMPLES)
    options.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    arguments = options.parse_args(argv)
    try:
        config = load(arguments.config)
        own_log.setup(arguments.log_level)
        require(config)
        return execute(config)
    except Misconfigured as error:
        sys.stderr.write(f"tailrace run: {error}\n")
        return EXIT_CONFIG


def execute(config: Config, runtime: "Runtime | None" = None) -> int:
    """Run the dataflow of a valid configuration in this process, from the main thread."""
    runtime = runtime or Runtime(config)
    epoch = config.recovery.epoch_s
    on_signals(runtime.drain.set, _DRAIN_PATIENCE_EPOCHS * epoch + 30.0, log.warning)
    graph = build(runtime)
    server = None
    if config.http.port:
        server = serve(config.http.host, config.http.port, runtime.metrics, lambda: _not_ready(runtime))
        log.info(
            "serving /metrics, /healthz and /readyz", extra={"address": "{}:{}".format(*server.server_address[:2])}
        )
    log.info("started", extra={"shards": config.tier.own_shards(), "generation": config.tier.generation})
    try:
        cli_main(graph, epoch_interval=timedelta(seconds=epoch), recovery_config=_recovery(config))
    finally:
        log.info("ended", extra={"ledger": ledger(runtime)})
        if server:
            server.shutdown()
    return 0


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
    """Validate a configuration and ask everything it names. Exit status 0, or 2 with what to change."""
    options = _parser("check", check.__doc__ or "", _CHECK_EXAMPLES)
    options.add_argument("--offline", action="store_true", help="validate only; open no connection")
    options.add_argument("--show", action="store_true", help="print the configuration with all defaults as JSON")
    arguments = options.parse_args(argv)
    try:
        config = load(arguments.config)
        if arguments.show:
            sys.stdout.write(json.dumps(config.model_dump(mode="json"), indent=2) + "\n")
        for name, check_one in () if arguments.offline else checks(config):
            started = time.monotonic()
            check_one()
            sys.stderr.write(f"ok  {name}  ({time.monotonic() - started:.2f} s)\n")
    except Misconfigured as error:
        sys.stderr.write(f"tailrace check: {error}\n")
        return EXIT_CONFIG
    sys.stderr.write(f"ok  {arguments.config}\n")
    return 0


def _parser(name: str, text: str, examples: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"tailrace {name}",
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, default=Path("tailrace.toml"), help="TOML file (default tailrace.toml)")
    return parser


def _recovery(config: Config) -> "RecoveryConfig | None":
    """The recovery store of this process, made at its first start. One directory belongs to one process."""
    directory = config.recovery.dir
    if directory is None:
        return None
    try:
        if not directory.exists() or not any(directory.iterdir()):
            directory.mkdir(parents=True, exist_ok=True)
            init_db_dir(directory, 1)
    except OSError as error:
        raise Misconfigured(
            f"recovery.dir: cannot use {directory}: {error.strerror}; name a writable directory on a local disk"
        ) from error
    return RecoveryConfig(str(directory))


def _not_ready(runtime: Runtime) -> str | None:
    """Why the process is not ready, or None."""
    last = runtime.metrics.last_epoch
    if last is None:
        return "no epoch has ended yet"
    silent, limit = time.monotonic() - last, _STALE_EPOCHS * runtime.config.recovery.epoch_s
    return f"no epoch has ended for {silent:.0f} s" if silent > limit else None
