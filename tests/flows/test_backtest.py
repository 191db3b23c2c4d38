"""`tailrace replay --rules` says what other rules would have made of the same lines."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.flows.tier import Tier, tailrace
from tests.services.kafka import Kafka

ALERT = "pcie (alertname=pcie, node=gpu-1, severity=warning)"
START_S = 1_764_547_200
RULE = """
[[rules]]
name = "pcie"
regex = "PCIe link (lost|down)"
kinds = ["kmsg"]
group_by = ["node"]
window_s = 60
threshold = {threshold}
severity = "{severity}"
"""


@pytest.fixture
def logged(tmp_path: Path, kafka: Kafka) -> Tier:
    """Six lines that the rule finds, ten seconds apart, and a configuration whose rule fires for more than two."""
    topic = kafka.topic(1, stem="backtest")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(6):
        line = b"3,%d,%d,-;pcieport: PCIe link lost" % (number, number)
        headers = [("kind", b"kmsg"), ("node", b"gpu-1")]
        producer.produce(topic, line, b"gpu-1", headers=headers, timestamp=1_000 * (START_S + 10 * number))
    assert producer.flush(20) == 0
    tier = Tier(tmp_path, {"source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic]}}})
    tier.config.write_text(tier.config.read_text() + RULE.format(threshold=2, severity="warning"))
    return tier


@pytest.mark.parametrize(
    ("threshold", "status", "said"),
    [
        (2, 0, ""),
        (
            4,
            1,
            f"~ {ALERT} at 2025-12-01T00:00:40Z, count 6, 20 s later, ends otherwise",
        ),
        (
            0,
            1,
            f"~ {ALERT} at 2025-12-01T00:00:00Z, count 6, 20 s earlier, ends otherwise",
        ),
        (9, 1, f"- {ALERT} at 2025-12-01T00:00:20Z, count 6"),
    ],
    ids=["the same", "later", "earlier", "never"],
)
def test_a_changed_threshold_is_told_in_one_line(
    logged: Tier, tmp_path: Path, threshold: int, status: int, said: str
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(RULE.format(threshold=threshold, severity="warning"))
    result = tailrace("replay", "--config", str(logged.config), "--rules", str(other))
    assert (result.returncode, result.stdout.strip()) == (status, said), result.stderr


def test_a_rule_that_is_new_or_gone_is_told(logged: Tier, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(RULE.format(threshold=2, severity="warning").replace('"pcie"', '"links"'))
    result = tailrace("replay", "--config", str(logged.config), "--rules", str(other))
    assert [line[:7] for line in result.stdout.splitlines()] == ["- pcie ", "+ links"]


def test_a_wrong_rule_file_is_named(logged: Tier, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[[rules]]\nname = 'x'\nregexx = 'a'\n")
    result = tailrace("replay", "--config", str(logged.config), "--rules", str(other))
    assert result.returncode == 2
    assert "other.toml" in result.stderr
    assert "regexx" in result.stderr
