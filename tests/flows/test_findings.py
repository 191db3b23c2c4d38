"""What the tier tells the evaluator survives the topic; what is neither partial nor clock is a dead letter."""

import numpy as np
from prometheus_client import CollectorRegistry

from flows.alert_metrics import MAX_XIDS, AlertMetrics, XidCounts
from flows.batch import Chunk
from flows.config import validate
from flows.detect.evaluator import Evaluator
from flows.detect.events import Evidence, Partial
from flows.detect.rules import DetectConfig, default_rules
from flows.findings import Findings, from_chunk, messages

EVIDENCE = Evidence(1_700_000_000_000_000_000, "logs.kernel", 3, 77, 2, "gpu-a01", "kmsg", "b", "NVRM: Xid")
PARTIAL = Partial(
    "GpuXidCritical", (("node", "gpu-a01"), ("xid", "79")), 1_700_000_000, "logs.kernel", 3, 77, 1_700_000_000_123,
    ((2, 0, 1),), EVIDENCE, "7", "kmsg", nodes=("gpu-a01",), values=(("meaning", "GPU lost"),),
)  # fmt: skip


def chunk(values: list[bytes | None]) -> Chunk:
    count = len(values)
    return Chunk(
        ["tailrace.partials"],
        np.zeros(count, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.arange(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        [None] * count,
        [()] * count,
        values,
        0,
    )


def test_partials_and_clocks_come_back_as_they_were() -> None:
    told = list(messages(Findings([PARTIAL], {("logs.kernel", 3): 5, ("logs.job", 0): 6})))
    assert [message.key for message in told] == [b"logs.kernel/3", b"logs.kernel/3", b"logs.job/0"]
    assert from_chunk(chunk([message.value for message in told])) == Findings(
        [PARTIAL], {("logs.kernel", 3): 5, ("logs.job", 0): 6}, []
    )


def test_anything_else_is_a_dead_letter_with_its_place() -> None:
    bad = [
        None,
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"v":2}',
        b'{"clock":"x","topic":"t","partition":0}',
        b'{"clock":1}',
        b"\xff",
    ]
    found = from_chunk(chunk([*bad, *(message.value for message in messages(Findings([PARTIAL], {})))]))
    assert found.partials == [PARTIAL]
    assert [(letter.offset, letter.reason) for letter in found.dead] == [(n, "bad_partial") for n in range(len(bad))]


def test_series_of_xids_are_bounded_and_those_long_unseen_go_first() -> None:
    counts = XidCounts()
    counts._add({(f"n{number}", "p", "79"): 1 for number in range(MAX_XIDS)})
    counts._add({("n0", "p", "79"): 2})
    counts._add({("new", "p", "79"): 1})
    kept, evicted = counts.read()
    assert (len(kept), evicted) == (MAX_XIDS, 1)
    assert kept["n0", "p", "79"] == 3
    assert ("n1", "p", "79") not in kept


def test_rules_are_evaluated_inline_in_one_process_and_behind_the_topic_in_several() -> None:
    def mode(**tier: int) -> tuple[str, str]:
        config = validate({"source": {"kafka": {}}, "tier": tier}, "t")
        return config.alerts_mode(), config.alerts_topic()

    assert mode() == ("inline", "")
    assert mode(shards=2, processes=2) == ("topic", "tailrace.alerts")


def test_a_rule_of_the_configuration_takes_the_place_of_the_default_of_its_name() -> None:
    rule = {"name": "GpuXidCritical", "events": ["gpu_xid"], "window_s": 60}
    config = validate({"source": {"kafka": {}}, "rules": [rule]}, "t")
    assert [one.window_s for one in config.all_rules() if one.name == "GpuXidCritical"] == [60]
    assert len(config.all_rules()) > 1
    alone = validate({"source": {"kafka": {}}, "rules": [rule], "alerts": {"default_rules": False}}, "t")
    assert [one.name for one in alone.all_rules()] == ["GpuXidCritical"]


def test_the_evaluators_counters_begin_at_zero_with_the_process() -> None:
    def counted(registry: CollectorRegistry) -> float | None:
        return registry.get_sample_value("tailrace_evaluator_late_total", {"rule": "GpuXidCritical"})

    evaluator = Evaluator(default_rules(), DetectConfig())
    evaluator.late["GpuXidCritical"] = 3  # what a snapshot brings
    registry = CollectorRegistry()
    metrics = AlertMetrics(registry)
    metrics.publish(evaluator, {}, 0)
    assert counted(registry) == 0
    evaluator.late["GpuXidCritical"] += 2
    metrics.publish(evaluator, {}, 0)
    assert counted(registry) == 2
