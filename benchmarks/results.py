"""Writes the figures of a benchmark: results.json with every run, RESULTS.md with medians."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.cases import Case, Run
from benchmarks.generate import Topics
from tests.services.kafka import Kafka

_PACKAGES = ("bytewax", "pyarrow", "numpy", "confluent-kafka")


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().split()[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} × {cpu[0].partition(': ')[2] if cpu else platform.machine()}, "
        f"{int(memory) / (1 << 20):.0f} GiB, Linux {platform.release()}",
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "commit": commit.stdout.strip(),
    }


def write(
    directory: Path,
    kafka: Kafka,
    topics: Iterable[Topics],
    cases: Sequence[Case],
    runs: Collection[Run],
    argv: list[str],
) -> None:
    """Both files."""
    directory.mkdir(parents=True, exist_ok=True)
    facts = machine() | {
        "broker": kafka.used.partition(", 127")[0],
        "command": " ".join(["python -m benchmarks.run", *argv]),
    }
    every = [asdict(run) | {"cpu_s_per_million": round(run.cpu_s_per_million, 3)} for run in runs]
    (directory / "results.json").write_text(json.dumps({**facts, "runs": every}, indent=1) + "\n")
    sizes = [
        f"{each.lines:,} lines in {each.messages:,} messages, {each.size / each.lines:.0f} bytes a line, "
        f"{each.noise / each.lines:.4%} noise"
        for each in topics
    ]
    rows = [_row(case, [run for run in runs if run.case == case.name]) for case in cases]
    page = _PAGE.format(**facts, topics="; ".join(sizes), rows="\n".join(rows), repeat=len(runs) // len(cases))
    (directory / "RESULTS.md").write_text(page)


def _row(case: Case, runs: Sequence[Run]) -> str:
    def median(pick: Callable[[Run], float]) -> float:
        return statistics.median(pick(run) for run in runs)

    def per_million(pick: Callable[[Run], float]) -> str:
        return f"{median(lambda run: pick(run) / run.lines * 1e6):.2f}"

    threads = " + ".join(
        per_million(lambda run, name=name: run.threads_cpu.get(name, 0.0))  # type: ignore[misc]
        for name in ("worker", "pools", "kafka client")
    )
    cells = [
        case.title,
        f"**{median(lambda run: run.lines_per_s):,.0f}**",
        " ".join(f"{run.lines_per_s / 1000:,.0f}k" for run in runs),
        f"{case.goal:,}" if case.goal else "–",
        f"{median(lambda run: run.lines / run.end_to_end_s):,.0f}",
        per_million(lambda run: run.tier_cpu + (run.broker_cpu or 0.0) + run.receiver_cpu),
        per_million(lambda run: run.tier_cpu),
        threads,
        per_million(lambda run: run.broker_cpu or 0.0),
        per_million(lambda run: run.receiver_cpu),
        f"{max(run.peak_rss_mib for run in runs):,.0f}",
        f"{median(lambda run: run.archive_bytes / run.lines):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


_PAGE = """# Throughput of one process

Written by `make bench`; single runs are in `results.json`.

- {date}, commit {commit}: {machine}
- {versions}; {broker}
- `{command}`
- Topics: {topics}.

Broker, Loki and tier share the machine. Loki is a receiver that decodes every push and checks number, text and labels
of every line (`benchmarks/loki.py`). The archive is a local directory. Every run starts from an empty recovery store
and ends at lag zero, and counts only if Loki, archive and ledger have every line once. Epochs are 5 s. The default
rules are matched, and what they find goes to a topic. All other settings are defaults, but noise is not summed up: a
summary is no line, and the budgets of labels have room for all.

`lines/s` is between the ends of the first and the last whole epoch: start-up is not in it, all work at the end of an
epoch is. `whole run` divides all lines by the time from the log's event `started` (before the tier connects to
anything) to the last stored object: connecting and waiting for the last, part-filled epoch are in it. CPU-seconds per
million lines read are from /proc: `all` is tier + broker + Loki, tier is worker thread + threads of the sinks and of
Arrow + librdkafka. `RSS` is the largest peak of the tier, `B/line` the size of the archive by lines read. All other
figures are medians of {repeat} interleaved runs.

| case | lines/s | runs | goal | whole run | all | tier | worker+pools+Kafka | broker | Loki | RSS MiB | B/line |
|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}
"""
