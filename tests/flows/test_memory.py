"""The memory of a process is bounded while it catches up on input that is made to fill it."""

from pathlib import Path

from benchmarks.memory import LIMIT_MIB, catch_up
from tests.services.kafka import Kafka
from tests.services.table import needs_real


def test_long_lines_and_many_streams_do_not_fill_the_memory(kafka: Kafka, tmp_path: Path) -> None:
    needs_real(kafka, "a topic that holds more than its memory")
    topics, run = catch_up(kafka, lines=1_500_000, names=20_000, long_lines=150, home=tmp_path)
    assert run.lines == topics.lines > 1_500_000
    assert run.peak_rss_mib < LIMIT_MIB
