"""The Loki sink against servers: the strict receiver, and VictoriaLogs."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSource, run_main
from pydantic import ValidationError

from flows.demo.loki_limits import Limits as ServerLimits
from flows.demo.loki_receiver import Fault, Receiver
from sinks.base import DeadLetter, Delivery, Part, Partition
from sinks.errors import Misconfigured
from sinks.lane import Gap
from sinks.loki import LokiConfig, LokiPart, LokiSink
from sinks.loki_limits import Limits
from tests.services.loki import LokiStore
from tests.sinks.loki_rows import table

WAIT = 30.0
HOUR = 3600
PATIENT = {"barrier_s": WAIT, "outage_s": WAIT, "retry_base_s": 0.01, "retry_max_s": 0.05, "pause_s": 0.01}


class Desk:
    """Account and dead letter writer of a test."""

    def __init__(self) -> None:
        self.fates: dict[str, Counter[Partition]] = {}
        self.letters: list[DeadLetter] = []

    def __call__(self, fate: str, lines: dict[Partition, int], rule: str = "") -> None:
        self.fates.setdefault(fate, Counter()).update(lines)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self.letters.extend(letters)

    @property
    def totals(self) -> dict[str, int]:
        return {fate: count for fate, lines in self.fates.items() if (count := sum(lines.values()))}


@pytest.fixture
def desk() -> Desk:
    return Desk()


Open = Callable[..., LokiPart]


@pytest.fixture
def part(loki_receiver: Receiver, desk: Desk) -> Iterator[Open]:
    """Makes a part of one shard that pushes to the receiver; settings override a patient configuration."""
    parts: list[LokiPart] = []

    def make(resume_state: tuple[Gap, ...] | None = None, **settings: Any) -> LokiPart:
        config = LokiConfig(**{"url": loki_receiver.url, **PATIENT, **settings})
        parts.append(LokiSink(config, ["0000"], desk, desk).build_part("loki", "0000", resume_state))
        return parts[-1]

    yield make
    for one in parts:
        one.close()


def seconds_ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * 1e9)


def rows_of(
    lines: dict[str, list[bytes]], ago: float = 60.0, step: float = 0.001, **columns: Any
) -> list[dict[str, Any]]:
    """A row per line of the streams of `lines`; the first of each is `ago` seconds old, offsets count over all."""
    first, rows = seconds_ago(ago), []
    for stream, texts in enumerate(lines.values()):
        for i, text in enumerate(texts):
            place = {"offset": len(rows), "raw": text, "stream": stream, "ts": first + int(i * step * 1e9)}
            rows.append({**place, **columns})
    return rows


def delivery_of(rows: list[dict[str, Any]], apps: Iterable[str], kind: str = "training") -> Delivery:
    frame = table(rows)
    return Delivery([Part(kind, frame, frame.slice(0, 0), [(("app", app),) for app in apps])])


def delivery(lines: dict[str, list[bytes]], kind: str = "training", **options: Any) -> Delivery:
    """Lines by the label `app`; `options` as of rows_of."""
    return delivery_of(rows_of(lines, **options), lines, kind)


def named(app: str, count: int, width: int = 20) -> list[bytes]:
    return [f"{app} {i:06}".encode().ljust(width, b".") for i in range(count)]


def shown(receiver: Receiver, **labels: str) -> list[str]:
    return [entry.line for entry in receiver.entries(**labels)]


def test_lines_arrive_with_labels_and_metadata_and_are_accounted_for(
    part: Open, loki_receiver: Receiver, desk: Desk
) -> None:
    loki = part()
    loki.write_batch([delivery({"a": [b"one", b"two"], "b": [b"three"]}, level="error", job_id=4711, owned=2)])
    assert loki.snapshot() == ()
    assert shown(loki_receiver, app="a") == ["one", "two"]
    assert [entry.metadata for entry in loki_receiver.entries(app="b")] == [
        {"level": "error", "job_id": "4711", "id": "0:2:0:0"}
    ]
    assert desk.totals == {"delivered": 6}


def test_a_large_stream_has_a_request_of_its_own_and_small_ones_share(part: Open, loki_receiver: Receiver) -> None:
    loki = part()
    loki.write_batch([delivery({**{f"s{i}": named("s", 10) for i in range(50)}, "large": named("large", 1000, 200)})])
    assert loki.snapshot() == ()
    assert loki_receiver.answers == {204: 2}
    assert loki_receiver.lines == 1500


def test_entries_that_loki_might_find_too_late_do_not_share_a_request(part: Open, loki_receiver: Receiver) -> None:
    loki = part()
    loki.write_batch([delivery({"a": [b"x"], "b": [b"y"]}, ago=2 * HOUR), delivery({"c": [b"z"], "d": [b"z"]})])
    assert loki.snapshot() == ()
    assert loki_receiver.answers == {204: 3}


def test_streams_beyond_the_budget_do_not_share_a_request(part: Open, loki_receiver: Receiver) -> None:
    loki = part(limits=Limits(active_streams=3))
    for _ in range(2):
        loki.write_batch([delivery({f"s{i}": [b"x"] for i in range(6)})])
        loki.snapshot()
    assert loki_receiver.answers == {204: 6 + 1}  # alone while they were new


def test_lines_are_sent_by_size_by_age_and_at_the_end_of_an_epoch(part: Open, loki_receiver: Receiver) -> None:
    def settled(lines: int) -> bool:
        end = time.monotonic() + WAIT
        while loki_receiver.lines < lines and time.monotonic() < end:
            time.sleep(0.01)
        return loki_receiver.lines == lines

    loki = part(send_bytes=1 << 16, urgent_s=0, flush_s=3600)
    loki.write_batch([delivery({"a": [b"waits"]})])
    loki.write_batch([delivery({"kernel": [b"goes by age"]}, kind="kmsg")])
    assert settled(1)
    loki.write_batch([delivery({"b": named("b", 1000, 100)})])
    assert settled(1001)
    assert loki.snapshot() == ()
    assert loki_receiver.lines == 1002


def test_late_lines_try_their_own_stream_first_and_then_the_replay_stream(
    part: Open, loki_receiver: Receiver, desk: Desk
) -> None:
    loki = part()
    loki.write_batch([delivery({"a": [b"new"]})])
    assert loki.snapshot() == ()
    loki.write_batch([delivery({"a": named("late", 30)}, ago=1.2 * HOUR, step=60.0)])
    assert loki.snapshot() == ()
    late = shown(loki_receiver, app="a", replay="true")
    assert 10 <= len(late) <= 14
    assert len(shown(loki_receiver, app="a")) == 31
    assert desk.totals == {"delivered": 31}


def test_lines_of_an_impossible_age_are_dead_letters_and_the_rest_is_delivered(
    part: Open, loki_receiver: Receiver, desk: Desk
) -> None:
    loki = part()
    week, days = 604_800, 86_400
    deliveries = [delivery({"a": [text]}, ago=ago) for text, ago in ((b"1970", time.time()), (b"old", week + HOUR))]
    deliveries += [delivery({"a": [text]}, ago=ago) for text, ago in ((b"2100", -74 * 365 * days), (b"ahead", -HOUR))]
    loki.write_batch([*deliveries, delivery({"a": [b"good"]})])
    assert loki.snapshot() == ()
    assert shown(loki_receiver) == ["good"]
    assert sorted((letter.raw, letter.reason) for letter in desk.letters) == [
        (b"1970", "too_old"), (b"2100", "too_new"), (b"ahead", "too_new"), (b"old", "too_old"),
    ]  # fmt: skip
    assert desk.totals == {"delivered": 1, "dead": 4}


def test_a_record_without_a_time_takes_that_of_kafka(part: Open, loki_receiver: Receiver) -> None:
    loki = part()
    at = seconds_ago(5) // 1_000_000
    loki.write_batch([delivery({"a": [b"x"]}, ts=None, appended_at=at)])
    loki.snapshot()
    assert [entry.ts for entry in loki_receiver.entries()] == [at * 1_000_000]


SERVERS: dict[str, tuple[ServerLimits, int, int]] = {
    # limits of the server that differ from what we assume; lines delivered and dead of 100 each of a, b and c
    "shorter lines": (ServerLimits(max_line_size=50), 297, 3),
    "younger lines": (ServerLimits(reject_old_samples_max_age=120 * 10**9), 297, 3),
    "no lines ahead": (ServerLimits(creation_grace_period=60 * 10**9), 297, 3),
    "fewer pairs of metadata": (ServerLimits(max_structured_metadata_entries_count=2), 297, 3),
    "fewer labels": (ServerLimits(max_label_names_per_series=0), 0, 300),
    "shorter label values": (ServerLimits(max_label_value_length=0), 0, 300),
    "small burst": (ServerLimits(ingestion_burst_bytes=90_000, ingestion_rate_bytes=1_000_000), 300, 0),
    "small messages": (ServerLimits(grpc_server_max_recv_msg_size=2000), 300, 0),
    "slow streams": (ServerLimits(per_stream_rate_bytes=50_000, per_stream_burst_bytes=9000), 300, 0),
}


@pytest.mark.parametrize(("limits", "delivered", "dead"), SERVERS.values(), ids=SERVERS)
def test_a_server_with_other_limits_loses_nothing_without_a_word(
    limits: ServerLimits, delivered: int, dead: int, desk: Desk
) -> None:
    width = 1000 if limits.ingestion_burst_bytes == 90_000 else 20
    rows = rows_of({app: named(app, 100, width) for app in "abc"})
    for row in rows[50::100]:
        if limits.max_line_size == 50:
            row["raw"] = b"x" * 60
        if limits.reject_old_samples_max_age < HOUR * 10**9:
            row["ts"] = seconds_ago(HOUR / 2)
        if limits.creation_grace_period < 600 * 10**9:
            row["ts"] = seconds_ago(-300)
        row["fields"] = [("a", "1"), ("b", "2")]
    with Receiver(limits=limits) as receiver:
        loki = LokiSink(LokiConfig(url=receiver.url, **PATIENT), ["0"], desk, desk).build_part("loki", "0", None)
        loki.write_batch([delivery_of(rows, "abc")])
        assert loki.snapshot() == ()
        loki.close()
    assert desk.totals == {fate: count for fate, count in (("delivered", delivered), ("dead", dead)) if count}
    assert receiver.lines == delivered
    assert len(desk.letters) == dead
    assert not [problem for problem in receiver.problems if "without a word" in problem]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(429, "ingestion rate limit exceeded for user rate (limit: 52428 bytes/sec)"),
        Fault(500, "rpc error"),
        Fault(503),
        Fault(260, "ingestion blocked for user 'fake'"),
        Fault(302),
        Fault(401, "no org id"),
        Fault(403),
        Fault(404),
        Fault(400, "snappy: corrupt input"),
        Fault(413, "request body too large"),
        Fault(500, "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5 vs. 4)"),
        Fault(drop=True),
        Fault(drop=True, stored=True),
        Fault(503, stored=True),
    ],
    ids=lambda fault: f"{fault.status}{'-drop' * fault.drop}{'-stored' * fault.stored}",
)
def test_a_fault_that_passes_costs_nothing(fault: Fault, part: Open, loki_receiver: Receiver, desk: Desk) -> None:
    loki_receiver.fail_next(3, fault)
    loki = part()
    loki.write_batch([delivery({"a": named("a", 50), "b": named("b", 50)})])
    assert loki.snapshot() == ()
    assert desk.totals == {"delivered": 100}
    assert shown(loki_receiver, app="a") == [line.decode() for line in named("a", 50)]
    assert loki_receiver.lines == 100


def test_a_store_that_is_down_stops_nothing_and_its_gaps_close_when_it_is_back(
    part: Open, loki_receiver: Receiver, desk: Desk
) -> None:
    loki_receiver.stop()
    loki = part(outage_s=0.1, barrier_s=0.05)
    loki.write_batch([delivery({"a": named("a", 50), "b": named("b", 50)})])
    assert loki.snapshot() == (Gap("logs.job", 0, 0, 99, 100),)
    assert desk.totals == {"gapped": 100}
    loki_receiver.start()
    for _ in range(300):
        if not (gaps := loki.snapshot()):
            break
        time.sleep(0.01)
    assert gaps == ()
    assert desk.totals == {"delivered": 100}
    assert loki_receiver.lines == 100


def test_a_long_outage_is_bounded_in_memory_and_known_by_its_offsets(
    part: Open, loki_receiver: Receiver, desk: Desk
) -> None:
    loki_receiver.stop()
    loki = part(outage_s=0.05, barrier_s=0, max_buffer_bytes=1 << 20, send_bytes=1 << 16)
    for _ in range(30):
        loki.write_batch([delivery({"a": named("a", 1000, 300)})])
    assert loki.snapshot() == (Gap("logs.job", 0, 0, 999, 30_000),)
    assert desk.totals == {"gapped": 30_000}


def test_the_gap_list_of_an_earlier_run_is_kept(part: Open) -> None:
    earlier = (Gap("logs.job", 7, 1, 5, 100),)
    loki = part(resume_state=earlier)
    loki.write_batch([delivery({"a": [b"x"]})])
    assert loki.snapshot() == earlier


def test_closing_sends_nothing(part: Open, loki_receiver: Receiver) -> None:
    loki = part()
    loki.write_batch([delivery({"a": [b"x"]})])
    loki.close()
    assert loki_receiver.answers == {}


def test_it_runs_in_a_dataflow_and_each_shard_is_a_part_of_its_own(
    loki_receiver: Receiver, desk: Desk, tmp_path: Path
) -> None:
    sink = LokiSink(LokiConfig(url=loki_receiver.url, **PATIENT), ["0001", "0000"], desk, desk)
    assert sink.list_parts() == ["0000", "0001"]
    assert [sink.part_fn(shard) for shard in ("0000", "0001")] == [0, 1]
    init_db_dir(tmp_path, 1)
    flow = Dataflow("test")
    items = [(shard, delivery({shard: named(shard, 10)})) for shard in ("0000", "0001", "0000")]
    op.output("out", op.input("in", flow, TestingSource(items)), sink)
    run_main(flow, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(tmp_path))
    assert loki_receiver.lines == 30
    assert desk.totals == {"delivered": 30}


def test_victorialogs_shows_what_was_sent(victorialogs: LokiStore, desk: Desk) -> None:
    app = f"push-{time.time_ns()}"
    config = LokiConfig(url=victorialogs.url, **PATIENT)
    sink = LokiSink(config, ["0"], desk, desk)
    sink.check()
    loki = sink.build_part("loki", "0", None)
    lines = [*named(app, 3000, 200), 'µ → ×, " and \\'.encode()]
    loki.write_batch([delivery({app: lines}, level="info", job_id=4711, fields=[("comm", "0x1")])])
    assert loki.snapshot() == ()
    loki.close()
    found = victorialogs.lines(expected=3001, app=app)
    assert [stored.line for stored in found] == [line.decode() for line in lines]
    assert (
        found[5].fields.items()
        >= {"app": app, "level": "info", "job_id": "4711", "comm": "0x1", "id": "0:5:0:0"}.items()
    )


def test_the_tenant_is_sent_and_a_missing_one_is_told_at_the_start(desk: Desk) -> None:
    with Receiver(auth=True) as receiver:
        LokiSink(LokiConfig(url=receiver.url, tenant="gpu"), ["0"], desk, desk).check()
        with pytest.raises(Misconfigured, match=r"answers 401.*tenant"):
            LokiSink(LokiConfig(url=receiver.url), ["0"], desk, desk).check()
    with pytest.raises(Misconfigured, match=r"no answer from http://127\.0\.0\.1"):
        LokiSink(LokiConfig(url=receiver.url, tenant="gpu"), ["0"], desk, desk).check()


def test_an_address_that_is_not_loki_is_told_at_the_start(loki_receiver: Receiver, desk: Desk) -> None:
    with pytest.raises(Misconfigured, match="answers 404"):
        LokiSink(LokiConfig(url=f"{loki_receiver.url}/elsewhere"), ["0"], desk, desk).check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "loki:3100"}, "http://loki:3100"),
        ({"url": "http://user:secret@loki"}, "must not contain a password"),
        ({"username": "u"}, "go together"),
        ({"username": "u", "password_file": "p", "token_file": "t"}, "exclude each other"),
        ({"send_bytes": 1 << 23}, "max_request_bytes"),
        ({"tennant": "x"}, "tennant"),
        ({"limits": {"max_line_byte": 1}}, "max_line_byte"),
    ],
)
def test_a_wrong_configuration_is_refused_with_a_reason(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LokiConfig(**settings)


def test_the_push_path_is_added_to_a_base_address() -> None:
    assert LokiConfig(url="http://gw/logs/").url == "http://gw/logs/loki/api/v1/push"
    assert LokiConfig(url="http://gw/a/push").url == "http://gw/a/push"
