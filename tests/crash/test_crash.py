"""Two tier processes and the evaluator are killed again and again under load.

No line is lost, none is archived twice, alerts are those of an undisturbed run, and each incident is one page.
"""

import json
import random
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flows.demo.loki_apart import BULK
from flows.demo.loki_receiver import Receiver
from flows.steps import summaries
from tests.crash.alerts import RULES, check_alerts, expected, told
from tests.crash.load import JOB, KERNEL, KINDS, SLURM
from tests.crash.loki_seen import KeepArrivals
from tests.crash.storm import Kill, Landing, storm
from tests.crash.tier import Tier, wait_for
from tests.crash.truth import lag, produced
from tests.crash.verify import (
    by_place,
    check_ledger,
    check_loki,
    check_partition,
    kept_records,
    read_archive,
    topic_of_job,
)
from tests.services.alertmanager import Alertmanager
from tests.services.kafka import Kafka
from tests.services.process import free_ports
from tests.services.s3 import S3
from tests.services.table import needs_real

PROCESSES = 2
SHARDS = [f"{shard:04d}" for shard in range(4)]
ROOT = Path(__file__).parents[2]
EMPTY_PUSH = "422 error at least one valid stream"  # what every start asks Loki, to learn whether it may come in

CONFIG = """
[tier]
cluster = "{cluster}"
shards = {shards}
processes = {processes}

[source.kafka]
bootstrap = "{bootstrap}"
topics = {topics}

[alerts]
default_rules = false
partials_topic = "{partials}"
alerts_topic = "{alerts}"
group = "{partials}"

[alerts.recovery]
epoch_s = 1.0

[sinks.alertmanager]
urls = ["{alertmanager}"]

[sinks.parquet]
spool = "{home}/spool"

[sinks.parquet.storage]
url = "s3://{bucket}"
endpoint_url = "{endpoint}"
region = "us-east-1"
path_style = true

[sinks.loki]
url = "{loki}"
barrier_s = 15.0
outage_s = 30.0
timeout_s = 30.0

[dead_letter.storage]
url = "s3://{bucket}"
endpoint_url = "{endpoint}"
region = "us-east-1"
path_style = true

[recovery]
epoch_s = 1.0
"""


class Size(NamedTuple):
    """How hard it is made: lines per second, for how long at least, SIGKILLs, and epochs that must be committed."""

    rate: int
    seconds: float
    kills: int
    epochs: int
    patience_s: float


SHORT = Size(rate=10_000, seconds=30, kills=6, epochs=20, patience_s=60)
LONG = Size(rate=50_000, seconds=120, kills=24, epochs=40, patience_s=600)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.timeout(240)),
        pytest.param(LONG, id="long", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_kills_lose_no_line_archive_none_twice_and_page_once(
    size: Size, kafka: Kafka, s3: S3, alertmanager: Alertmanager, tmp_path: Path
) -> None:
    needs_real(kafka, "positions and group offsets over kills")
    needs_real(alertmanager, "notifications")
    seed = time.time_ns() % 1_000_000
    started = time.monotonic()
    names = {JOB: ("job", 8), SLURM: ("slurm", 4), KERNEL: ("kernel", 4)}
    topics = [
        kafka.topic(count, stem=f"crash-{stem}", message_timestamp_type="LogAppendTime", max_message_bytes="2097152")
        for stem, count in (names[number] for number in sorted(names))
    ]
    landing = Landing(s3.client(), s3.bucket("crash"), SHARDS)
    arrivals = KeepArrivals()
    ports = free_ports(PROCESSES)
    cluster, alerts = uuid.uuid4().hex, kafka.topic(stem="crash-alerts")
    with Receiver(limits=BULK, store=arrivals) as receiver:
        config = tmp_path / "tailrace.toml"
        config.write_text(
            CONFIG.format(
                cluster=cluster,
                shards=len(SHARDS),
                processes=PROCESSES,
                bootstrap=kafka.bootstrap,
                topics=json.dumps(topics),
                partials=kafka.topic(2, stem="crash-partials"),
                alerts=alerts,
                alertmanager=alertmanager.url,
                home=tmp_path,
                bucket=landing.bucket,
                endpoint=s3.endpoint,
                loki=receiver.url,
            )
            + RULES
        )
        keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
        with Tier(config, ports, keys, tmp_path) as tier:
            command = [sys.executable, "-m", "tests.crash.load", kafka.bootstrap, str(size.rate), str(size.seconds)]
            load = subprocess.Popen(
                [*command, *topics], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            try:
                kills, drained = storm(tier, landing, arrivals, size.kills, size.seconds, random.Random(seed))
                output, _ = load.communicate(timeout=size.patience_s)
            finally:
                load.kill()
            assert load.returncode == 0
            said = json.loads(output)
            wait_for("all is read", lambda: lag(kafka.bootstrap, topics, "tailrace") == 0, size.patience_s, 0.5)
            wait_for("nothing is held", lambda: not any(map(_held, ports)), 30)
            wait_for("no alert fires", lambda: not alertmanager.alerts(cluster=cluster), 60)
            ends = [tier.drain(process.number, 60) for process in tier.all]
        problems = [problem for problem in receiver.problems if not problem.startswith(EMPTY_PUSH)]
    events = [process.events() for process in tier.all]
    statuses = [status for process in tier.processes for status in process.statuses]
    of_evaluator = tier.all[tier.evaluator].statuses
    assert ends == [0] * (PROCESSES + 1)
    assert drained.status == 0
    assert sorted(statuses) == sorted([-9] * len(kills) + [0] * (PROCESSES + 1)), "a process ended by itself"
    assert of_evaluator == [-9] * (len(kills) // 2) + [0]
    assert not problems
    assert not [event for of_process in events for event in of_process if event["level"] == "error"]

    objects = landing.objects()
    lines = produced(kafka.bootstrap, topics)
    archive = by_place(read_archive(landing.client, landing.bucket, objects))
    count = sum(len(of_place.at) for of_place in lines.values())
    assert count == sum(said["lines"].values())
    assert archive.keys() == {place for place, of_place in lines.items() if len(of_place.at)}
    for place, rows in archive.items():
        check_partition(place, lines[place], rows)
    assert len(objects) >= size.epochs
    kinds = {kind for rows in archive.values() for kind in rows["kind"].unique().to_pylist()}
    assert kinds - {summaries.KIND} == KINDS.keys()
    assert drained.objects.items() <= objects.items(), "objects were stored again after a drain"

    by_kind = topic_of_job({name: topics[kind.topic] for name, kind in KINDS.items()})
    kept = kept_records(archive)
    of_drained = {place[1] for place in lines if place[1] % len(SHARDS) % PROCESSES == drained.process}
    loki = check_loki(arrivals.entries(), kept, by_kind, range(drained.first, drained.last), of_drained)
    ledger = check_ledger([_last(of_process, "ended") for of_process in events[:PROCESSES]], count)
    alerted = check_alerts(expected(cluster, archive), told(kafka.bootstrap, alerts), alertmanager.pages, cluster)
    print(  # noqa: T201 - the figures of the run
        f"\nseed {seed}: {count:,} lines in {said['seconds']} s, {size.rate * size.seconds:,.0f} in the first "
        f"{said['full_s']} s; {len(kills)} SIGKILLs, "
        f"{sum(kill.key is not None for kill in kills)} aimed, {_redone(kills, objects)} of them met an epoch between "
        f"its object and its commit; {len(objects)} objects; Loki {loki.entries:,} entries, {loki.repeats:,} repeats; "
        f"evaluator killed {len(of_evaluator) - 1} times: {alerted}; "
        f"{time.monotonic() - started:.0f} s in all\n{dict(ledger)}"
    )
    assert _redone(kills, objects) >= 1


def _redone(kills: list[Kill], objects: dict[str, Any]) -> int:
    """Aimed kills that hit: the object that was there when the process died was stored once more after it."""
    return sum(kill.key is not None and objects[kill.key] > kill.modified for kill in kills)


def _held(port: int) -> float:
    """Lines that a process holds for the rest of their record; infinite while it cannot be asked."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            said = answer.read().decode()
    except OSError:
        return float("inf")
    return float(next(line for line in said.splitlines() if line.startswith("tailrace_lines_held ")).split()[1])


def _last(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(event for event in reversed(events) if event["event"] == name)
