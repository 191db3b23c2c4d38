"""Labels that found no room: Loki gets them as structured metadata of every line."""

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from flows.demo.loki_receiver import Receiver
from sinks.base import DeadLetter, Delivery, Part, Partition
from sinks.loki import LokiConfig, LokiSink
from sinks.loki_limits import MAX_VALUE_BYTES, Labels
from tests.sinks.loki_rows import table

PATIENT = {"barrier_s": 30.0, "outage_s": 30.0, "retry_base_s": 0.01}


class Desk:
    """Account and dead letter writer of a test."""

    def __init__(self) -> None:
        self.fates: Counter[str] = Counter()

    def __call__(self, fate: str, lines: dict[Partition, int], rule: str = "") -> None:
        self.fates[fate] += sum(lines.values())

    def write(self, letters: Sequence[DeadLetter]) -> None:
        raise AssertionError(letters)


def deliver(receiver: Receiver, part: Part) -> Desk:
    desk = Desk()
    loki = LokiSink(LokiConfig(url=receiver.url, **PATIENT), ["0000"], desk, desk).build_part("loki", "0000", None)
    loki.write_batch([Delivery([part])])
    assert loki.snapshot() == ()
    loki.close()
    return desk


def part_of(demoted: Sequence[Labels], streams: Sequence[Labels], **columns: object) -> Part:
    """One row for each of `streams`."""
    rows = table(
        [
            {"offset": number, "raw": b"line %d" % number, "stream": number, "ts": time.time_ns() - 10**9 + number}
            | columns
            for number in range(len(streams))
        ]
    )
    return Part("training", rows, rows.slice(0, 0), streams, demoted)


def test_demoted_labels_are_metadata_of_their_lines_and_of_no_others(loki_receiver: Receiver) -> None:
    shown = (("job", "training"), ("node", "a"))
    streams = [(("job", "training"), ("job_id", "1"), ("node", "a")), shown, shown]
    demoted: list[Labels] = [(), (("job_id", "2"), ("pod", "train-0")), (("job_id", "3"),)]
    desk = deliver(loki_receiver, part_of(demoted, streams))
    found = {entry.line: entry.metadata for entry in loki_receiver.entries(node="a")}
    assert [line["id"] for line in found.values()] == ["0:0:0:0", "0:1:0:0", "0:2:0:0"]
    assert {line: {k: v for k, v in pairs.items() if k != "id"} for line, pairs in found.items()} == {
        "line 0": {}, "line 1": {"job_id": "2", "pod": "train-0"}, "line 2": {"job_id": "3"},
    }  # fmt: skip
    assert [entry.line for entry in loki_receiver.entries(job_id="1")] == ["line 0"]
    assert desk.fates == {"delivered": 3}


def test_a_demoted_label_takes_the_place_of_a_column_or_field_of_its_name(loki_receiver: Receiver) -> None:
    fields = [("pod", "of the line"), ("comm", "0x1")]
    part = part_of([(("job_id", "2"), ("pod", "train-0"))], [(("job", "training"),)], job_id=77, fields=fields)
    deliver(loki_receiver, part)
    (entry,) = loki_receiver.entries(job="training")
    assert entry.metadata == {"job_id": "2", "pod": "train-0", "comm": "0x1", "id": "0:0:0:0"}


def test_a_long_demoted_value_is_cut_like_any_metadata(loki_receiver: Receiver) -> None:
    deliver(loki_receiver, part_of([(("pod", "µ" * 1000),)], [(("job", "training"),)]))
    (entry,) = loki_receiver.entries(job="training")
    assert entry.metadata["pod"] == "µ" * (MAX_VALUE_BYTES // 2)


@pytest.mark.parametrize("count", [90, 300])
def test_all_labels_demoted_beside_many_fields_stay_within_lokis_limits(loki_receiver: Receiver, count: int) -> None:
    names = ("app", "cluster", "container", "job_id", "namespace", "node", "pod", "priority", "team", "unit")
    demoted = tuple((name, "x" * 300) for name in names)
    every = {"level": "info", "event": "e", "job_id": 1, "step_id": "0", "rank": 1, "host": "h", "pid": 1, "pci": "p",
             "xid": 1, "sxid": 1, "exit_code": 1, "signal": 1, "noise": "N02", "flags": ["f"]}  # fmt: skip
    fields = [(f"f{number}", "y" * 500) for number in range(count)]
    desk = deliver(loki_receiver, part_of([demoted], [(("job", "training"),)], fields=fields, **every))
    (entry,) = loki_receiver.entries(job="training")
    assert set(names) < set(entry.metadata)
    assert desk.fates == {"delivered": 1}
