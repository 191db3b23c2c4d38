"""`tailrace replay`: reads a bounded part of what was logged once more, through the same path as live lines.

Without `--into` records go to standard output as JSON lines. What goes to stores has the label `replay`; nothing pages
anybody without `--page`; nothing is committed to the tier's consumer group or recovery store.
"""

import argparse
import getpass
import json
import logging
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource

from flows import log as own_log
from flows.backtest import compare
from flows.cluster import Runtime, build
from flows.config import Config, load, load_rules
from flows.gaps import GapTopic, open_gaps
from flows.preflight import require
from flows.run import EXIT_AGAIN, EXIT_CONFIG, command_line, execute, ledger
from flows.sources.archive import ArchiveSource, Window
from flows.sources.kafka import KafkaConfig
from flows.sources.kafka_range import Bound, Plan, Range, RangeSource, available, between
from flows.steps.selection import Selection
from sinks.base import Gap
from sinks.console import ConsoleConfig
from sinks.errors import Misconfigured, SinkError
from sinks.manifest import readable
from sinks.registry import SINKS
from sinks.storage import ObjectStore, open_storage

log = logging.getLogger("tailrace.replay")

_PLAN = "replay.json"
_EXAMPLES = """examples:
  tailrace replay --config tailrace.toml --topic logs.kernel --from 2026-11-30T10:00:00Z --to 2026-11-30T11:00:00Z
  tailrace replay --config tailrace.toml --node gpu-17 --from 2026-11-30T10:00:00Z | jq -r .message
  tailrace replay --config tailrace.toml --into loki --from 120000 --to 130000 --topic logs.job --state /var/tmp/again
  tailrace replay --config tailrace.toml --source archive --job 70011 --kind slurmctld --kind job_stderr
  tailrace replay --config tailrace.toml --rules new-rules.toml --topic logs.kernel --from 2026-11-01T00:00:00Z
  tailrace replay --config tailrace.toml --gaps loki   # after an outage of Loki
"""


def replay(argv: Sequence[str]) -> int:
    """Read what was logged once more: messages of Kafka from one offset or time to another, or rows of the archive.

    Exit status 0, 1 when some of it is not in Kafka any more, 2 for a wrong configuration, 75 when a store failed:
    then start it again, with --state from where it was.
    """
    arguments = _options().parse_args(argv)
    try:
        config = load(arguments.config)
        own_log.setup("WARNING")
        return _archived(config, arguments) if arguments.source == "archive" else _kafka(config, arguments)
    except SinkError as error:
        sys.stderr.write(f"tailrace replay: {error}\n")
        return EXIT_CONFIG if isinstance(error, Misconfigured) else EXIT_AGAIN


def _kafka(config: Config, arguments: argparse.Namespace) -> int:
    """Replay ranges of Kafka, or the gaps of a store."""
    if config.source.kafka is None:
        raise Misconfigured(f"{arguments.config} reads no Kafka topics; add [source.kafka]")
    kafka = config.source.kafka.model_copy(update={"group": f"{config.source.kafka.group}-replay"})
    gaps = open_gaps(kafka, arguments.gaps) if arguments.gaps else None
    plan = _planned(arguments, kafka, None if gaps is None else gaps.values())
    source = config.source.model_copy(update={"kafka": kafka})
    runtime = Runtime(_config(config, arguments).model_copy(update={"source": source}))
    progress = Progress(sum(each.stop - each.first for each in plan.ranges), "messages")
    origin = RangeSource(kafka, plan.ranges, runtime.drain, progress.tell)
    if arguments.rules:
        return _diff(config, arguments, origin, progress)
    require(runtime.config)
    _audit(arguments, [tuple(each) for each in plan.ranges])
    if plan.ranges:
        _run(runtime, origin, _selection(arguments))
    progress.end()
    if gaps:
        _settle(GapTopic(kafka, config.tier.generation), gaps, plan, runtime.accounts.totals()[arguments.gaps])
    sys.stderr.write(f"tailrace replay: {json.dumps(ledger(runtime))}\n")
    for each in plan.lost:
        sys.stderr.write(
            f"tailrace replay: {each.topic}/{each.partition} has messages {each.first} to {each.stop - 1} no more; "
            "look for them with --source archive\n"
        )
    return 1 if plan.lost else 0


def _archived(config: Config, arguments: argparse.Namespace) -> int:
    """Replay the archive. Messages are what the tier made of them, so the configuration's forms do not hold."""
    archive = config.sinks.parquet
    if archive is None:
        raise Misconfigured(f"{arguments.config} names no archive; add [sinks.parquet]")
    if isinstance(arguments.start, int) or isinstance(arguments.end, int):
        raise Misconfigured("--source archive takes times, not offsets; write a time like 2026-11-30T10:00:00Z")
    decode = config.decode.model_copy(update={"form": "raw", "forms": {}, "max_message_lines": 2**31})
    runtime = Runtime(_config(config, arguments).model_copy(update={"decode": decode}))
    with tempfile.TemporaryDirectory(prefix="tailrace-replay-", dir=archive.spool) as spool:
        store = open_storage(archive.storage)
        window = Window(arguments.start, arguments.end, _selection(arguments))
        files = [store.local(key, Path(spool) / f"{at}.parquet") for at, key in enumerate(_keys(store, window))]
        progress = Progress(0, "rows")
        origin = ArchiveSource(
            files,
            window,
            Path(spool),
            archive.compact.memory_mib,
            runtime.drain,
            progress.tell,
            config.all_kinds().jobs,
        )
        progress.of = origin.count()
        if arguments.rules:
            return _diff(runtime.config, arguments, origin, progress)
        require(runtime.config)
        _audit(arguments, [len(files), progress.of])
        _run(runtime, origin, window.selection)
        progress.end()
    sys.stderr.write(f"tailrace replay: {json.dumps(ledger(runtime))}\n")
    return 0


def _diff(
    config: Config, arguments: argparse.Namespace, origin: FixedPartitionedSource[Any, Any], progress: "Progress"
) -> int:
    """Print what other rules would have changed; exit status 1 when there is something."""
    other = config.model_copy(update={"rules": load_rules(arguments.rules)})
    found = compare(config, other.all_rules(), origin, _selection(arguments))
    progress.end()
    sys.stdout.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


def _keys(store: ObjectStore, window: Window) -> list[str]:
    """The objects that may have rows of the window."""
    files, landing = readable(store)
    kinds = window.selection.kinds
    return [
        file.key
        for file in files
        if (not kinds or file.kind in kinds)
        and (window.start is None or 3_600 * (file.hour + 1) > window.start.timestamp())
        and (window.end is None or 3_600 * file.hour < window.end.timestamp())
    ] + landing


def _options() -> argparse.ArgumentParser:
    options = command_line("replay", replay.__doc__ or "", _EXAMPLES)
    options.add_argument(
        "--source", choices=["kafka", "archive"], default="kafka", help="where to read (default kafka)"
    )
    options.add_argument("--topic", action="append", help="topic to read (may be repeated; default: all of the tier)")
    options.add_argument("--from", dest="start", type=_bound, metavar="BOUND", help="offset or time (RFC 3339)")
    options.add_argument(
        "--to", dest="end", type=_bound, metavar="BOUND", help="offset or time, excluded (default: now)"
    )
    for name in ("kind", "node", "job"):
        options.add_argument(f"--{name}", action="append", default=[], help=f"only this {name} (may be repeated)")
    options.add_argument(
        "--rules",
        type=Path,
        metavar="FILE",
        help="back-test: print which alerts the [[rules]] of this file would have added (+), left out (-) or changed "
        "(~); exit status 1 when any differ",
    )
    options.add_argument("--into", action="append", choices=sorted(SINKS), help="store to write to (may be repeated)")
    options.add_argument(
        "--gaps",
        choices=["azure", "loki"],
        metavar="STORE",
        help="send a store what it missed in outages, and strike that off",
    )
    options.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long the store may be silent before --gaps gives up (default 60)",
    )
    options.add_argument("--target", metavar="URL", help="where --into parquet writes; never the archive of the tier")
    options.add_argument("--state", type=Path, help="directory that lets an interrupted replay go on")
    options.add_argument("--page", action="store_true", help="let alerts of the replay reach Alertmanager")
    return options


def _bound(text: str) -> Bound:
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an offset nor a time; write a time like 2026-11-30T10:00:00Z"
        ) from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _planned(arguments: argparse.Namespace, kafka: KafkaConfig, gaps: Iterable[Gap] | None) -> Plan:
    """The plan of the command line, or of the interrupted run: `now` must not move on."""
    kept = arguments.state and arguments.state / _PLAN
    if kept and kept.exists():
        ranges, lost = json.loads(kept.read_text(encoding="utf-8"))
        return Plan(tuple(Range(*each) for each in ranges), tuple(Range(*each) for each in lost))
    if gaps is not None:
        plan = available(kafka, (Range(gap.topic, gap.partition, gap.first, gap.last + 1) for gap in gaps))
    else:
        plan = between(kafka, arguments.topic or kafka.topics, arguments.start, arguments.end)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([plan.ranges, plan.lost]), encoding="utf-8")
    return plan


def _config(config: Config, arguments: argparse.Namespace) -> Config:
    """The tier's configuration for one process that writes to the chosen stores only."""
    into = {*(arguments.into or ()), *([arguments.gaps] if arguments.gaps else ())}
    sinks: dict[str, Any] = dict.fromkeys((*SINKS, "alertmanager"))
    for name in into:
        if (section := getattr(config.sinks, name)) is None:
            raise Misconfigured(f"--into {name}: {arguments.config} has no [sinks.{name}]; add it")
        sinks[name] = section
        if name == arguments.gaps:  # what it does not take now would be a gap again
            sinks[name] = section.model_copy(update={"barrier_s": arguments.patience, "outage_s": arguments.patience})
    if "parquet" in into:
        if not arguments.target:
            raise Misconfigured("--into parquet needs --target: the tier's own archive has these lines already")
        storage = config.sinks.parquet.storage.model_copy(update={"url": arguments.target})  # type: ignore[union-attr]
        sinks["parquet"] = sinks["parquet"].model_copy(update={"storage": storage, "spool": None})
    if not into:
        sinks["console"] = ConsoleConfig(rows=None)
    if arguments.page:
        sinks["alertmanager"] = config.sinks.alertmanager
    mode = "inline" if arguments.page else "off"
    return config.model_copy(
        update={
            "tier": config.tier.model_copy(update={"shards": 1, "processes": 1, "process": 0}),
            "sinks": config.sinks.model_copy(update=sinks),
            "alerts": config.alerts.model_copy(update={"mode": mode, "alerts_topic": ""}),
            "recovery": config.recovery.model_copy(update={"dir": arguments.state and arguments.state / "recovery"}),
            "http": config.http.model_copy(update={"port": 0}),
        }
    )


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(frozenset(arguments.kind), frozenset(arguments.node), frozenset(arguments.job))


def _audit(arguments: argparse.Namespace, what: list[Any]) -> None:
    """Who replays what, as one line of our log."""
    log.warning(
        "replay",
        extra={
            "user": getpass.getuser(),
            "host": socket.gethostname(),
            "source": arguments.source,
            "ranges": what,
            "selected": {name: getattr(arguments, name) for name in ("kind", "node", "job")},
            "into": arguments.into or ["stdout"],
            "page": arguments.page,
        },
    )


def _run(runtime: Runtime, origin: FixedPartitionedSource[Any, Any], selection: Selection) -> None:
    def graph(runtime: Runtime) -> Dataflow:
        return build(runtime, origin, selection.of)

    execute(runtime.config, runtime, graph)


def _settle(topic: GapTopic, gaps: Mapping[bytes, Gap], plan: Plan, fates: Mapping[str, int]) -> None:
    """Strike the gaps that are filled off the topic. Raises SinkError when the store has not taken all of it."""
    if missing := fates.get("gapped", 0):
        raise SinkError(f"the store has not taken {missing} lines; the gaps stay open: run it again")
    gone = {(each.topic, each.partition, at) for each in plan.lost for at in (each.first, each.stop - 1)}
    filled = [
        key
        for key, gap in gaps.items()
        if not any(
            (topic, partition) == (gap.topic, gap.partition) and gap.first <= at <= gap.last
            for topic, partition, at in gone
        )
    ]
    topic.settle(filled)
    sys.stderr.write(f"tailrace replay: {len(filled)} of {len(gaps)} gaps are filled\n")


@dataclass(slots=True)
class Progress:
    """A line on a terminal: messages or rows done of `of`, and the time left at the pace so far."""

    of: int
    what: str
    started: float = field(default_factory=time.monotonic)
    shown: float = 0.0

    def tell(self, done: int) -> None:
        """Show how many are done, once a second at most."""
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self.shown < 1.0:
            return
        self.shown = now
        left = (now - self.started) / max(done, 1) * (self.of - done)
        sys.stderr.write(f"\r{done:,} of {self.of:,} {self.what}, {left:,.0f} s left \x1b[K")

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\n")
