"""Memory of one tier process that catches up on hard input: `python -m benchmarks.memory`.

The lines of the throughput benchmark, with lines of 1 MiB and containers and nodes of which each has a name of
its own among them, so that Loki gets a stream for every name. Both stores are checked as there. The peak of the
resident memory must stay below 1 GiB.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import gmtime, strftime

import numpy as np

from benchmarks.cases import Case, Run
from benchmarks.generate import KINDS, Headers, Topics, Writer, headers_of, start_of, topics_for
from benchmarks.lines import CYCLE_LINES, FIRST, NUMBER, UPTIME_S, blocks, totals
from benchmarks.results import machine
from benchmarks.run import EPOCH_S, RESULTS, measure, say
from flows.demo.loki_apart import strict
from tests.services import kafka as kafka_service
from tests.services.kafka import Kafka

LIMIT_MIB = 1024
LONG_LINE = 1 << 20
CASE = Case("memory", "catching up on hard input", single=False, archived=True, roomy=False)

_LINES_PER_NAME = 5
_STOPS = 100  # places in the topics where hard messages are put


def fill(kafka: Kafka, lines: int, names: int, long_lines: int) -> Topics:
    """About `lines` lines of which `long_lines` have 1 MiB; `names` containers and nodes of one message each."""
    extra = names * _LINES_PER_NAME + long_lines
    cycles = max(1, -(-(lines - extra) // CYCLE_LINES))
    topics, start_s = topics_for(kafka, {**KINDS, "pod": "pod"}, "hard"), start_of(cycles)
    writer, hard = Writer(kafka), _hard(names, long_lines, start_s, FIRST + totals(cycles)[1])
    per_stop, stop = -(-(names + long_lines) // _STOPS), -(-cycles * 49 // _STOPS)
    for number, block in enumerate(blocks(cycles, start_s, extra)):
        writer.send(topics[block.kind], block.node, block.value, headers_of(block, start_s))
        if number % stop == 0:
            for _ in range(per_stop):
                _send(writer, topics, hard)
    while _send(writer, topics, hard):
        pass
    writer.finish()
    noise, other = totals(cycles)
    return Topics(topics, noise, other + extra, writer.size, writer.messages, np.zeros(0, np.uint32))


Message = tuple[str, str, bytes, Headers]  # kind, node, value, headers


def _send(writer: Writer, topics: dict[str, str], hard: Iterator[Message]) -> bool:
    for kind, node, value, headers in hard:
        writer.send(topics[kind], node, value, headers)
        return True
    return False


def _hard(names: int, long_lines: int, start_s: int, number: int) -> Iterator[Message]:
    """Messages of containers and nodes in turn, long lines spread among them."""
    stamp = strftime("%Y-%m-%dT%H:%M:%S", gmtime(start_s))
    rng = random.Random(1)  # noqa: S311 - reproducible lines, nothing secret
    every = max(names // max(long_lines, 1), 1)
    for name in range(names):
        numbers = range(number, number + _LINES_PER_NAME)
        number += _LINES_PER_NAME
        if name % 2:
            node, pod = f"gpu-{name % 512:04d}", f"trial-{name:06d}-worker-0"
            text = "\n".join(f"{stamp}.{n % 10**9:09d}Z stdout F step {n} loss 2.1" for n in numbers)
            yield "pod", node, text.encode(), _said("pod", node, namespace="research", pod=pod, container="main")
        else:
            node, us = f"spot-{name:06d}", UPTIME_S * 1_000_000
            text = "\n".join(
                f"6,{n % 10**9},{us + n % 10**6},-;perf: interrupt took too long ({n} > 3971)" for n in numbers
            )
            yield "kmsg", node, text.encode(), _said("kmsg", node, boot_time=str(start_s - UPTIME_S))
        if name % every == 0 and long_lines:
            long_lines -= 1
            head = f"step {number} "
            number += 1
            value = head + rng.randbytes(LONG_LINE // 2).hex()[: LONG_LINE - len(head)]
            yield "training", "gpu-west-0000", value.encode(), _said("training", "gpu-west-0000", job_id="81002")


def _said(kind: str, node: str, **more: str) -> Headers:
    return {"v": "1", "kind": kind, "node": node, "tz": "UTC", **more}


def catch_up(kafka: Kafka, lines: int, names: int, long_lines: int, home: Path) -> tuple[Topics, Run]:
    """Fill topics and measure one run."""
    topics = fill(kafka, lines, names, long_lines)
    say(f"{topics.lines:,} lines in {topics.messages:,} messages are in {kafka.used}")
    return topics, measure(CASE, kafka, topics, home, EPOCH_S, strict(NUMBER, topics.lines))


def main(argv: list[str]) -> int:
    """Run and write memory.json. Exit status 1 when the peak is 1 GiB or more."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lines", type=int, default=20_000_000)
    options.add_argument("--names", type=int, default=100_000, help="containers and nodes")
    options.add_argument("--long-lines", type=int, default=500, help="lines of 1 MiB")
    options.add_argument("--out", type=Path, default=RESULTS, help="directory of memory.json")
    given = options.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        with kafka_service.kafka() as kafka:
            topics, run = catch_up(kafka, given.lines, given.names, given.long_lines, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    facts = machine() | {"command": " ".join(["python -m benchmarks.memory", *argv])}
    found = facts | {"names": given.names, "long_lines": given.long_lines, "limit_mib": LIMIT_MIB, **asdict(run)}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "memory.json").write_text(json.dumps(found, indent=1) + "\n")
    say(f"peak {run.peak_rss_mib:,.0f} MiB of {LIMIT_MIB} after {topics.lines:,} lines in {run.end_to_end_s:.0f} s")
    return 0 if run.peak_rss_mib < LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
