"""Throughput of one tier process that catches up on full Kafka topics: `python -m benchmarks.run`, `make bench`.

Real Kafka, the archive in a local directory, and a Loki in a process of its own, which decodes every push and
checks every line (`benchmarks.loki`). Every run starts from an empty recovery store and ends at lag zero and
when Loki has all; then Loki, archive and ledger must have every line once.

`lines/s` is taken between the ends of the first and the last whole epoch, so neither start-up nor the wait
for the end of a part-filled epoch is in it, but everything that happens at the end of an epoch is.
"""

import argparse
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import archive, results
from benchmarks.archive import expect
from benchmarks.cases import CASES, Case, Run
from benchmarks.generate import Topics, fill
from benchmarks.lines import CYCLE_LINES
from benchmarks.loki import checker
from benchmarks.observe import child_running, cpu_s
from benchmarks.tier import Lag, TierProcess
from flows.demo.loki_apart import BULK, ReceiverApart, Report
from tests.flows.tier import assert_balanced
from tests.services import kafka as kafka_service
from tests.services.kafka import Kafka

RESULTS = Path(__file__).parent / "results"
EPOCH_S = 5.0
_LIMIT_S = 600.0
_ROOM = 20_000  # nodes; partitions that are first met late are dealt an eighth of it
_SHOWN = 20  # problems of Loki in an error


def measure(case: Case, kafka: Kafka, topics: Topics, home: Path, epoch_s: float, loki: ReceiverApart) -> Run:
    """Run one case once, with a Loki that has not been started.

    Raises AssertionError when a line is missing, unaccounted for or not as sent, or is archived twice.
    """
    kept = topics.other if case.dropped else topics.lines
    group = f"bench-{case.name}-{time.monotonic_ns()}"
    broker = child_running("kafka.Kafka")
    with loki as receiver:
        config = _config(case, kafka, topics, group, receiver.url, home / "archive", epoch_s)
        with TierProcess(home / "tier", config) as tier, Lag(kafka, group, topics) as lag:
            broker_before, receiver_before = cpu_s(broker) if broker else 0.0, receiver.report(0).cpu_s
            tier.wait_for(lambda: lag() == 0 and receiver.report(0).lines >= kept, _LIMIT_S, 0.25)
            cpu, threads = tier.cpu_s() - tier.started_cpu_s, tier.threads()
            broker_cpu = cpu_s(broker) - broker_before if broker else None
            report = receiver.report(kept)
            peak = tier.peak_rss_mib()
            ledger = tier.drain()
        _check_ledger(ledger, topics, case)
        check_loki(report, kept)
    objects = archive.objects(home / "archive")
    named = topics.noise if case.archived else 0
    archive.check(objects, topics.other + named, named)
    rate, epochs = archive.rate(objects, topics)
    return Run(
        case.name,
        topics.lines,
        rate,
        epochs,
        objects[-1].stored_at - tier.started_at,
        cpu,
        threads,
        broker_cpu,
        report.cpu_s - receiver_before,
        peak,
        sum(each.size for each in objects),
        report.lines,
        report.repeated,
    )


def _config(
    case: Case, kafka: Kafka, topics: Topics, group: str, loki: str, directory: Path, epoch_s: float
) -> dict[str, Any]:
    return {
        "tier": {"cluster": "gpu-west"},
        "source": {
            "kafka": {
                "bootstrap": kafka.bootstrap,
                "topics": {name: kind for kind, name in topics.names.items()},
                "group": group,
            }
        },
        "decode": {"tz": "UTC"},
        "labels": {"streams": BULK.max_global_streams_per_user, "node": _ROOM} if case.roomy else {},
        "noise": {"drop": case.dropped, "summary_s": 0},  # every record in the stores is a line
        "alerts": {"mode": "topic", "partials_topic": kafka.topic(stem="bench-partials")},
        "sinks": {
            "parquet": {"noise": case.archived, "storage": {"url": str(directory)}},
            "loki": {"url": loki, "limits": {"active_streams": BULK.max_global_streams_per_user}},
        },
        "dead_letter": {"storage": {"url": str(directory.parent / "dead")}},
        "recovery": {"dir": str(directory.parent / "recovery"), "epoch_s": epoch_s},
    }


def check_loki(report: Report, kept: int) -> None:
    """Raises AssertionError unless Loki has the lines 0 to `kept` - 1 as sent, and answered as it should.

    At least once: what a slow machine did not acknowledge in time came again, and is counted apart.
    """
    got = report.lines - report.repeated, report.missing, report.foreign, report.changed, report.unmeant
    what = f"Loki: lines, missing, foreign, changed, unmeant answers of {report.answers}"
    expect(f"{what}; {report.problems[:_SHOWN]}", got, (kept, 0, 0, 0, 0))


def _check_ledger(ledger: dict[str, Any], topics: Topics, case: Case) -> None:
    assert_balanced(ledger)
    known = ledger["read"], sum(ledger["dropped"].values()), ledger["dead"]
    expect("ledger: lines read, dropped, dead", known, (topics.lines, topics.noise if case.dropped else 0, 0))


def main(argv: list[str]) -> int:
    """Run the benchmark and write its results. Exit status 0."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cases", default=",".join(case.name for case in CASES), help="names, comma-separated")
    options.add_argument("--repeat", type=int, default=3, help="runs of each case, interleaved")
    options.add_argument("--blocks", type=int, default=20_000_000, help="lines of the topics with blocks, about")
    options.add_argument("--singles", type=int, default=8_000_000, help="lines of the topics with one line per message")
    options.add_argument("--epoch-s", type=float, default=EPOCH_S, help="recovery.epoch_s")
    options.add_argument("--out", type=Path, default=RESULTS, help="directory of results.json and RESULTS.md")
    given = options.parse_args(argv)
    chosen = [case for case in CASES if case.name in given.cases.split(",")]
    sizes = {True: given.singles, False: given.blocks}
    runs: list[Run] = []
    with kafka_service.kafka() as kafka:
        topics: dict[bool, Topics] = {}
        for single in sorted({case.single for case in chosen}):
            topics[single] = fill(kafka, -(-sizes[single] // CYCLE_LINES), single=single)
            say(f"{topics[single].lines:,} lines in {topics[single].messages:,} messages are in {kafka.used}")
        for turn in range(given.repeat):
            for case in chosen:
                home = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
                full = topics[case.single]
                loki = checker(full.content[: full.other] if case.dropped else full.content)
                try:
                    run = measure(case, kafka, full, home, given.epoch_s, loki)
                finally:
                    shutil.rmtree(home, ignore_errors=True)
                runs.append(run)
                rate, cpu = run.lines_per_s, run.cpu_s_per_million
                say(f"{turn + 1}/{given.repeat} {case.name}: {rate:,.0f} lines/s, {cpu:.2f} CPU-s per million lines")
        results.write(given.out, kafka, topics.values(), chosen, runs, argv)
    return 0


def say(text: str) -> None:
    """Progress, for whoever waits."""
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
