"""The Azure sink by Microsoft's own client and login, against a receiver that keeps the documented limits."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sinks.azure_answers import Desk, Reply, Upload, retry_after
from sinks.azure_logs import AzureConfig, AzurePart, AzureSink
from sinks.azure_rows import Row, json_rows, stream_of
from sinks.errors import Misconfigured, RetryLater
from tests.sinks.archive_rows import Ledger, delivery, log, record
from tests.sinks.azure_receiver import MAX_BODY, SECRET, Azure, Fault, azure

PATIENT = {"barrier_s": 20.0, "outage_s": 20.0, "retry_base_s": 0.01, "retry_max_s": 0.05, "pause_s": 0.05}
STREAM = "Custom-tailrace_training_CL"


class Buried:
    """A writer of dead letters that keeps them."""

    def __init__(self) -> None:
        self.letters: list[Any] = []

    def write(self, letters: Any) -> None:
        self.letters.extend(letters)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    monkeypatch.setenv("AZURE_TEST_SECRET", SECRET)
    with azure(tmp_path) as running:
        yield running


@pytest.fixture
def buried() -> Buried:
    return Buried()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


Open = Callable[..., AzurePart]


@pytest.fixture
def part(service: Azure, buried: Buried, ledger: Ledger) -> Iterator[Open]:
    parts: list[AzurePart] = []

    def make(**settings: Any) -> AzurePart:
        config = AzureConfig(**service.settings(**{**PATIENT, **settings}))
        parts.append(AzureSink(config, ["0000"], ledger, buried).build_part("azure", "0000", None))
        return parts[-1]

    yield make
    for one in parts:
        one.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fresh(number: int, **values: Any) -> dict[str, Any]:
    """A record of a minute ago."""
    return record(number, **{"ts": datetime.now(UTC) - timedelta(minutes=1), "appended_at": now_ms(), **values})


def test_rows_arrive_whole_with_types_and_an_identity(part: Open, service: Azure, ledger: Ledger) -> None:
    sink = part()
    one = fresh(7, xid=79, pci="0000:3b:00", nodes=["a", "b"], fields=[("tid", "9")], message='ü "q"\n', part=1)
    sink.write_batch([delivery([one, fresh(8)])])
    assert sink.snapshot() == ()
    first, second = service.rows[STREAM]
    assert (first["RecordId"], first["Xid"], first["Pci"], first["Nodes"]) == (
        "logs.job/0/7/0/1",
        79,
        "0000:3b:00",
        ["a", "b"],
    )
    assert (first["Message"], json.loads(first["Fields"]), first["RawData"]) == ('ü "q"\n', {"tid": "9"}, "line 7")
    assert "Xid" not in second
    assert datetime.fromisoformat(first["EventTime"]) == one["ts"].replace(microsecond=one["ts"].microsecond)
    assert ledger.total("delivered") == 2


def test_the_raw_profile_is_that_of_slurm_log_collection(part: Open, service: Azure) -> None:
    sink = part(profile="raw")
    sink.write_batch(
        [delivery([fresh(1, kind=kind, path="/var/log/x.log")]) for kind in ("slurmd", "slurmdbd", "job_env")]
    )
    sink.snapshot()
    assert set(service.rows) == {
        "Custom-Text-slurmd_raw_CL", "Custom-Text-slurmdb_raw_CL", "Custom-Text-slurmjobs_raw_CL",
    }  # fmt: skip
    (row,) = service.rows["Custom-Text-slurmd_raw_CL"]
    assert list(row) == ["TimeGenerated", "RawData", "Computer", "FilePath"]
    assert (row["RawData"], row["Computer"], row["FilePath"]) == ("line 1", "gpu-1", "/var/log/x.log")


@pytest.mark.parametrize("late", [timedelta(days=-3), timedelta(days=2)], ids=["old", "ahead"])
def test_a_time_that_azure_would_replace_is_kept_as_event_time(part: Open, service: Azure, late: timedelta) -> None:
    sink = part()
    said = datetime.now(UTC) + late
    sink.write_batch([delivery([fresh(1, ts=said, appended_at=now_ms() - 1_000)])])
    sink.snapshot()
    (row,) = service.rows[STREAM]
    assert datetime.fromisoformat(row["EventTime"]) == said
    assert abs((datetime.fromisoformat(row["TimeGenerated"]) - datetime.now(UTC)).total_seconds()) < 60


ANSWERS = [
    *(Fault(status) for status in (408, 429, 500, 502, 503, 504)),
    Fault(429, after="0"),
    Fault(503, after="Tue, 04 Mar 2025 05:06:37 GMT"),
    Fault(403), Fault(401), Fault(404), Fault(200),
    Fault(drop=True), Fault(drop=True, stored=True), Fault(delay_s=1.5),
]  # fmt: skip


@pytest.mark.parametrize("fault", ANSWERS, ids=str)
def test_what_passes_is_sent_again_until_it_is_taken(part: Open, service: Azure, ledger: Ledger, fault: Fault) -> None:
    sink = part(timeout_s=1.0)
    service.faults.extend([fault] * 5 if not fault.delay_s else [fault])
    sink.write_batch([delivery([fresh(1)])])
    assert sink.snapshot() == ()
    rows = service.rows[STREAM]
    assert {row["RecordId"] for row in rows} == {"logs.job/0/1/0/0"}
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == 1, "a repeat has other content"
    assert ledger.total("delivered") == 1


def test_a_refused_row_is_found_and_buried_and_the_others_arrive(
    part: Open, service: Azure, ledger: Ledger, buried: Buried
) -> None:
    sink = part()
    service.poison = "line 13"
    sink.write_batch([delivery([fresh(number) for number in range(10, 60)])])
    assert sink.snapshot() == ()
    assert len(service.rows[STREAM]) == 49
    (letter,) = buried.letters
    assert (letter.offset, letter.reason) == (13, "rejected_azure")
    assert "InvalidRecord" in letter.detail
    assert (ledger.total("delivered"), ledger.total("dead")) == (49, 1)


def test_requests_stay_below_the_limit_with_brackets_and_commas(part: Open, service: Azure) -> None:
    sink = part(max_request_bytes=MAX_BODY)
    sink.write_batch([delivery([fresh(number, raw=b"x" * (number % 700)) for number in range(6_000)])])
    assert sink.snapshot() == ()
    assert len(service.rows[STREAM]) == 6_000
    assert max(service.sizes) <= MAX_BODY
    assert len(service.sizes) == -(-sum(service.sizes) // MAX_BODY), "requests are not filled"


def test_a_request_that_the_service_finds_too_large_is_split(part: Open, service: Azure) -> None:
    sink = part()
    service.faults.append(Fault(413))
    sink.write_batch([delivery([fresh(number) for number in range(4)])])
    assert sink.snapshot() == ()
    assert sorted(row["RecordId"].split("/")[2] for row in service.rows[STREAM]) == ["0", "1", "2", "3"]
    assert service.uploads == 3


@pytest.mark.parametrize("text", ["a" * 70_000, "é" * 40_000, "😀" * 20_000])
def test_a_long_field_is_cut_at_a_character(part: Open, service: Azure, text: str) -> None:
    sink = part()
    sink.write_batch([delivery([fresh(1, raw=text.encode())])])
    sink.snapshot()
    (row,) = service.rows[STREAM]
    assert 65_532 <= len(row["RawData"].encode()) <= 65_536
    assert text.startswith(row["RawData"])


def test_no_rows_make_no_request_and_text_is_sent_as_utf8(part: Open, service: Azure) -> None:
    sink = part()
    assert sink.snapshot() == ()
    assert service.uploads == 0
    (row,) = json_rows(_table(fresh(1, raw=("é" * 1_000).encode())), "raw")
    assert ("é" * 1_000).encode() in row.data


def test_what_is_not_acknowledged_at_the_end_of_an_epoch_is_a_gap(part: Open, service: Azure, ledger: Ledger) -> None:
    sink = part(barrier_s=0.1, pause_s=60.0)
    service.faults.extend([Fault(403)] * 100)
    sink.write_batch([delivery([fresh(number, partition=number % 2) for number in range(4)])])
    gaps = sink.snapshot()
    assert [(gap.partition, gap.first, gap.last, gap.lines) for gap in gaps] == [(0, 0, 2, 2), (1, 1, 3, 2)]
    assert ledger.total("gapped") == 4


def _table(*records: dict[str, Any]) -> Any:
    import pyarrow as pa

    rows = log(records)
    return rows.append_column("body", pa.nulls(len(rows), pa.large_binary()))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("12", 12.0),
        ("Tue, 04 Mar 2025 05:06:37 GMT", 30.0),
        ("Tue, 04 Mar 2025 05:06:00 GMT", 0.0),
        ("soon", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)) == seconds


def test_the_wish_of_the_service_bounds_the_next_attempt() -> None:
    upload = Upload(Desk(lambda *_: Reply(429, "slow down", 17.0), Buried(), 1.0), "s", [Row(b"{}", ("t", 0), 1, 0, 1)])
    with pytest.raises(RetryLater) as error:
        upload.run()
    assert error.value.after_s == 17.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"endpoint": "http://x"}, "must look like https://"),
        ({"rule_id": "dcr-1"}, "immutable id"),
        ({"client_secret": "hunter2"}, "env:NAME or file:PATH"),
        ({"tenant_id": None}, "identity secret needs tenant_id"),
        ({"max_request_bytes": 2 << 20}, "less than or equal to 1048576"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says) as error:
        AzureConfig(**{**Azure(tmp_path / "ca").settings(), "endpoint": "https://x", **change})
    assert "hunter2" not in str(error.value.errors(include_input=False))


def test_a_denied_secret_is_one_message_that_does_not_show_it(
    service: Azure, monkeypatch: pytest.MonkeyPatch, buried: Buried
) -> None:
    monkeypatch.setenv("AZURE_TEST_SECRET", "wrong-secret")
    sink = AzureSink(AzureConfig(**service.settings()), ["0000"], Ledger(), buried)
    with pytest.raises(Misconfigured, match="Azure gives no token") as error:
        sink.check()
    assert "wrong-secret" not in str(error.value)


def test_a_good_identity_passes_the_check(service: Azure, buried: Buried) -> None:
    AzureSink(AzureConfig(**service.settings()), ["0000"], Ledger(), buried).check()
    assert service.uploads == 0


def test_streams_may_be_named() -> None:
    assert stream_of("kmsg", "parsed", {"kmsg": "Custom-mine"}) == "Custom-mine"
    assert stream_of("dmesg", "raw", {}) == "Custom-Text-dmesg_raw_CL"
