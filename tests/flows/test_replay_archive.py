"""Archive → replay → archive gives the same rows, whatever their lines were."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from flows.sources.archive import Messages
from tests.flows.tier import Tier, assert_balanced, rows, tailrace
from tests.services.kafka import Kafka

Message = tuple[bytes, dict[str, str]]

CRI = b"2026-11-30T10:00:00.%dZ stdout %s %s"
MESSAGES: list[Message] = [
    (b"6,1,1000000,-;first\n SUBSYSTEM=pci\n4,2,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
     {"v": "1", "kind": "kmsg", "boot_time": "2026-11-30T09:00:00Z", "boot_id": "abc"}),
    (b"[2026-11-30T10:00:00.100] error: Prolog failed\noutput of it",
     {"v": "1", "kind": "slurmctld", "tz": "Europe/Berlin"}),
    (b"more output\n\n[2026-11-30T10:00:01.100] sched: Allocate JobId=7 NodeList=gpu-[1-2] #CPUs=2 Partition=p",
     {"v": "1", "kind": "slurmctld", "tz": "Europe/Berlin"}),
    (CRI % (1, b"P", b"half a "), {"kind": "pod", "namespace": "ml", "pod": "train-0", "container": "main"}),
    (CRI % (2, b"F", b"line"), {"kind": "pod", "namespace": "ml", "pod": "train-0", "container": "main"}),
    (b"Nov 30 10:00:00 gpu-9 kernel: [    5.000000] usb 1-1: new device",
     {"kind": "syslog", "tz": "UTC", "mtime": "2025-12-01T00:00:00Z"}),
    (b"step 1 loss 2.0\nTraceback (most recent call last):\n  File \"a.py\", line 1\nValueError: x\nstep 2",
     {"v": "1", "kind": "training", "job_id": "70011", "read_at": "2026-11-30T10:00:05.123456Z"}),
    (b"gpu-1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", {"kind": "training", "job_id": "70011"}),
    (b"one event\nof two lines", {"kind": "training"}),
    (b'{"message":"from an agent","host":"gpu-3","file":"/var/log/x.out"}', {}),
    (b"\xff\xfe no text \x00", {"kind": "unheard"}),
]  # fmt: skip


@pytest.fixture
def archived(tmp_path: Path, kafka: Kafka) -> Tier:
    """An archive of MESSAGES, made by a tier."""
    topic = kafka.topic(1, stem="again")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value, headers in MESSAGES:
        producer.produce(topic, value, b"gpu-1", headers=[(name, text.encode()) for name, text in headers.items()])
    assert producer.flush(20) == 0
    config = {
        "source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic]}},
        "sinks": {"parquet": {"storage": {"url": tmp_path / "archive"}}},
        "dead_letter": {"storage": {"url": tmp_path / "dead"}},
        "recovery": {"dir": tmp_path / "recovery", "epoch_s": 0.3},
        "noise": {"summary_s": 0},
    }
    tier = Tier(tmp_path, config)
    with tier.start():
        lines = sum(1 if "v" not in headers else value.count(b"\n") + 1 for value, headers in MESSAGES)
        tier.until(lambda: sum(row["owned"] for row in rows(tmp_path / "archive", "landing")) >= lines - 1)
        assert tier.drain() == 0, tier.tail()
    return tier


def sorted_rows(archive: Path, *directories: str) -> list[dict[str, Any]]:
    found = [row for directory in directories for row in rows(archive, directory) if row["kind"] != "alert"]
    return sorted(found, key=lambda row: (row["offset"], row["line"], row["part"]))


@pytest.mark.parametrize("compacted", [False, True], ids=["as it landed", "compacted"])
def test_the_rows_of_a_replay_are_those_it_was_made_of(tmp_path: Path, archived: Tier, *, compacted: bool) -> None:
    before = sorted_rows(tmp_path / "archive", "landing")
    assert len(before) > 12
    if compacted:
        assert tailrace("compact", "--config", str(archived.config)).returncode == 0
    command = ["--source", "archive", "--into", "parquet", "--target", str(tmp_path / "again")]
    result = tailrace("replay", "--config", str(archived.config), *command)
    assert result.returncode == 0, result.stderr
    again = sorted_rows(tmp_path / "again", "landing")
    assert [(row["offset"], row["line"]) for row in again] == [(row["offset"], row["line"]) for row in before]
    for one, other in zip(before, again, strict=True):
        assert other == one
    assert_balanced(json.loads(result.stderr.splitlines()[-1].removeprefix("tailrace replay: ")))


def test_rows_of_a_job_and_kind_are_selected(tmp_path: Path, archived: Tier) -> None:
    command = ["--source", "archive", "--job", "70011", "--kind", "training"]
    result = tailrace("replay", "--config", str(archived.config), *command)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 3  # two steps and a traceback; NCCL's noise is archived only
    assert tailrace("replay", "--config", str(archived.config), *command, "--to", "2020-01-01T00:00:00Z").stdout == ""


def test_offsets_are_no_bounds_of_an_archive(archived: Tier) -> None:
    result = tailrace("replay", "--config", str(archived.config), "--source", "archive", "--from", "5")
    assert result.returncode == 2
    assert "takes times" in result.stderr


def test_messages_of_one_partition_come_out_in_order_although_a_record_ends_in_a_later_one() -> None:
    def row(offset: int, line: int, raw: bytes, *spans: tuple[int, int]) -> dict[str, Any]:
        known = {"topic": "t", "partition": 0, "appended_at": offset, "ts": None, "ts_source": None, "kind": "pod"}
        empty = dict.fromkeys(
            (
                "node",
                "cluster",
                "tenant",
                "path",
                "unit",
                "namespace",
                "pod",
                "container",
                "app",
                "team",
                "nccl_debug",
                "boot_id",
                "tz",
                "owner_job",
            ),
            "",
        )
        places = [{"offset": at, "line": number} for at, number in spans] or None
        return {**known, **empty, "offset": offset, "line": line, "raw": raw, "spans": places, "monotonic_us": None}

    messages = Messages()
    found = []
    for each in (row(1, 0, b"a\nb\nc", (1, 0), (2, 0), (5, 1)), row(3, 0, b"d"), row(5, 0, b"e"), row(5, 3, b"f")):
        found += list(messages.add(each))
    found += list(messages.rest())
    assert [(offset, message.value()[1]) for _, offset, message in found] == [
        (1, b"a"), (2, b"b"), (3, b"d"), (5, b"e\nc\n\nf"),
    ]  # fmt: skip
