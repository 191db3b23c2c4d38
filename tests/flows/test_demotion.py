"""Label budgets and noise summaries of a whole tier: stores, ledger, metrics, log."""

import logging
import pickle
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from flows.cluster import Runtime, TierLogic
from flows.config import validate
from flows.demo.loki_limits import Limits
from flows.demo.loki_receiver import Receiver
from flows.ledger import Accounted, Accounts
from flows.pipeline import Pipeline
from flows.steps.budgets import Budgets
from flows.steps.decode import DecodeConfig
from flows.steps.label_limits import LabelsConfig
from flows.steps.labels import LABELS
from sinks.dead_letter import DeadLetterConfig, open_writer
from sinks.errors import Misconfigured
from sinks.loki import LokiConfig, LokiSink
from sinks.parquet import ParquetConfig, ParquetSink
from tests.chunks import block_headers, chunk
from tests.flows.tier import rows

N02 = b"gpu-a01:51:51 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"


def runtime(**sections: Any) -> Runtime:
    return Runtime(validate({"source": {"files": {"paths": ["/dev/null"]}}, **sections}, "test"))


def metric(of: Runtime, text: str) -> list[str]:
    page = generate_latest(of.metrics.registry).decode()
    return [line for line in page.splitlines() if line.startswith(text)]


def jobs(numbers: range, namespace: str = "ml") -> Any:
    return chunk([(block_headers("training", job_id=str(job), namespace=namespace), [b"loss 2.1"]) for job in numbers])


def test_overflow_is_logged_once_an_epoch_with_its_owner_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    running = runtime(labels={"job_id": 2})
    logic = TierLogic(running, None)
    with caplog.at_level(logging.WARNING, "tailrace.cluster"):
        logic.on_batch([jobs(range(5)), jobs(range(5), "other")])
        logic.snapshot()
        logic.on_batch([jobs(range(2))])
        logic.snapshot()
    (record,) = caplog.records
    assert record.__dict__["records"] == {"job_id of namespace=ml": 3, "job_id of namespace=other": 3}
    assert "raise the limit in [labels]" in record.message
    assert metric(running, "tailrace_label_demotions_total") == [
        'tailrace_label_demotions_total{label="job_id",owner="namespace=ml"} 3.0',
        'tailrace_label_demotions_total{label="job_id",owner="namespace=other"} 3.0',
    ]
    assert metric(running, 'tailrace_streams_active{tenant=""}') == ['tailrace_streams_active{tenant=""} 6.0']


def test_a_thousand_nodes_and_five_thousand_jobs_stay_within_the_streams_and_lose_no_line(
    loki_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Every job on three nodes; 4 shards, each with its share of the limit that Loki has as well."""
    lines, limit = 15_000, Limits().max_global_streams_per_user
    running = runtime(
        source={"kafka": {"bootstrap": "127.0.0.1:1", "topics": ["logs.job"]}},
        tier={"shards": 4},
        labels={"job_id": 20_000, "streams": limit},
        sinks={"loki": {"url": loki_receiver.url, "barrier_s": 60.0, "outage_s": 60.0}},
        alerts={"mode": "off"},
    )
    writer = open_writer(DeadLetterConfig())
    config = running.config.sinks.loki
    assert config
    delivered: list[str] = []
    for shard in range(4):
        logic, name = TierLogic(running, None), f"{shard:04d}"
        sink = LokiSink(config, [name], lambda fate, *_: delivered.append(fate), writer).build_part("loki", name, None)
        mine = [number for number in range(lines) if number % 1_000 % 4 == shard]
        for epoch in range(3):
            blocks = [
                (
                    block_headers(
                        "training",
                        f"gpu-{number % 1_000:04}",
                        job_id=str(number * 7 % 5_000),
                        namespace="greedy" if number % 5 else "modest",
                    ),
                    [b"loss 2.1"],
                )
                for number in mine[epoch::3]
            ]
            first = epoch * len(blocks)
            batches, _ = logic.on_batch([chunk(blocks, first, partition=shard, appended_ms=time.time_ns() // 10**6)])
            sink.write_batch([batch.delivery for batch in batches])
            with caplog.at_level(logging.WARNING, "tailrace.cluster"):
                logic.snapshot()
            assert sink.snapshot() == ()
        sink.close()
    entries = loki_receiver.entries(job="training")
    assert (len(entries), loki_receiver.problems) == (lines, deque())
    assert limit // 2 < len(loki_receiver.streams()) <= limit
    jobs = Counter(entry.metadata.get("job_id") or dict(entry.labels)["job_id"] for entry in entries)
    assert jobs == dict.fromkeys(map(str, range(5_000)), 3)
    named = [record.__dict__["records"] for record in caplog.records]
    assert all(next(iter(records)) == "job_id of namespace=greedy" for records in named)
    demoted = sum("job_id" in entry.metadata for entry in entries)
    assert sum(sum(records.values()) for records in named) == demoted
    worst, other = metric(running, "tailrace_label_demotions_total{")
    assert worst.startswith('tailrace_label_demotions_total{label="job_id",owner="namespace=greedy"}')
    assert float(worst.split()[1]) > float(other.split()[1]) > 0


def test_the_snapshot_holds_what_the_next_epoch_admits() -> None:
    logic = TierLogic(runtime(labels={"job_id": 2}), None)
    logic.on_batch([jobs(range(2))])
    state = pickle.loads(logic.snapshot())["budgets"]
    assert (state.epoch, set(state.tenants[""]["job_id"].known)) == (1, {"0", "1"})
    resumed = Budgets(LabelsConfig(job_id=2))
    resumed.restore(state)
    envelopes = [
        tuple({"owner_job": job, "job": "training"}.get(name, "") for name in (*LABELS, "tenant")) for job in "12"
    ]
    shown = [dict(resumed.decide(("logs.job", 0), envelope, False).shown) for envelope in envelopes]
    assert shown == [{"job": "training", "job_id": "1"}, {"job": "training"}]


def test_loki_and_the_archive_take_summaries_and_the_ledger_balances(loki_receiver: Receiver, tmp_path: Path) -> None:
    blocks = [(block_headers("training", f"gpu-{n}", job_id=str(n)), [N02] * 3 + [b"loss 2.1"]) for n in range(3)]
    pipeline = Pipeline(DecodeConfig(), "west", labels=LabelsConfig(job_id=1))
    delivery, counts = pipeline.process(chunk(blocks, appended_ms=time.time_ns() // 10**6, ended=True))
    config = LokiConfig(url=loki_receiver.url, barrier_s=30.0, outage_s=30.0)
    archive = ParquetConfig.model_validate({"storage": {"url": str(tmp_path / "archive")}})
    writer = open_writer(DeadLetterConfig.model_validate({"storage": {"url": str(tmp_path / "dead")}}))
    accounts = Accounts()
    differences: list[object] = []
    sinks: dict[str, tuple[bool, Any]] = {
        "loki": (False, lambda account: LokiSink(config, ["0000"], account, writer)),
        "parquet": (True, lambda account: ParquetSink(archive, 1, ["0000"], account)),
    }
    for name, (takes_noise, make) in sinks.items():
        sink = Accounted(name, ["0000"], make, accounts, takes_noise, lambda *found: differences.append(found))
        part = sink.build_part(name, "0000", None)
        part.write_batch([delivery])
        part.snapshot()
        part.close()
    assert differences == []
    totals = accounts.totals()
    assert (totals["loki"]["delivered"], totals["loki"]["dropped"]) == (3, 9)
    assert totals["parquet"]["delivered"] == counts.read.total() == 12
    texts = [f"N02 × 3 (gpu-{n}, job {n}, 60 s)" for n in range(3)]
    stored = [row for row in rows(tmp_path / "archive", "landing") if row["kind"] == "noise_summary"]
    assert sorted((row["message"], row["owned"]) for row in stored) == [(text, 0) for text in texts]
    shown = loki_receiver.entries(job="noise-summary", cluster="west")
    assert sorted(entry.line for entry in shown) == texts
    assert sorted(entry.metadata["job_id"] for entry in shown) == ["0", "1", "2"]
    lines = loki_receiver.entries(job="training")
    assert sorted(entry.metadata.get("job_id", "a label") for entry in lines) == ["1", "2", "a label"]


def test_a_refused_label_is_an_error_of_the_configuration_that_gives_the_reason() -> None:
    with pytest.raises(Misconfigured, match=r"labels: pod_uid cannot be a label: it is a new value .* and use pod"):
        runtime(labels={"pod_uid": 100})


def test_summaries_are_counted_as_records_without_lines_and_only_those_of_this_process() -> None:
    block = [(block_headers("training"), [N02] * 3)]
    running = runtime()
    logic = TierLogic(running, None)
    logic.on_batch([chunk(block, ended=True)])
    state = logic.snapshot()
    assert metric(running, "tailrace_records_synthetic_total") == [
        'tailrace_records_synthetic_total{kind="noise_summary"} 1.0'
    ]
    again = runtime()
    TierLogic(again, state)
    assert metric(again, "tailrace_records_synthetic_total") == [
        'tailrace_records_synthetic_total{kind="noise_summary"} 0.0'
    ]


def test_summaries_count_lines_that_no_sink_stores() -> None:
    pipeline = Pipeline(DecodeConfig(), stores_noise=False)
    delivery, _ = pipeline.process(chunk([(block_headers("training"), [N02] * 3)], ended=True))
    (said,) = [row for part in delivery.parts for row in part.rows.to_pylist()]
    assert (said["kind"], said["owned"]) == ("noise_summary", 0)
    assert said["message"].startswith("N02 × 3 (")
    assert (delivery.kept, sum(delivery.dropped["N02"].values())) == ({}, 3)
    assert pipeline.unbalanced == 0
