"""A kernel line waits a moment for the rest of its record, the same moment live and replayed."""

import pickle
from dataclasses import replace

import pytest

from flows.cluster import Runtime, TierLogic
from flows.config import validate
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from tests.chunks import APPENDED_MS, block_headers, chunk, tick

XID = b"3,341,80123999,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
MORE = b" DEVICE=+pci:0000:3b:00.0"
HEADERS = block_headers("kmsg")


def messages(pipeline: Pipeline, *chunks: object) -> list[tuple[str, int]]:
    """Message and number of physical lines of each record."""
    found = []
    for one in chunks:
        delivery, _ = pipeline.process(one)  # type: ignore[arg-type]
        for part in delivery.parts:
            rows = part.rows.select(["message", "raw", "spans"]).to_pylist()
            found += [((row["message"] or row["raw"].decode()).strip(), len(row["spans"] or [0])) for row in rows]
    return found


def pipeline() -> Pipeline:
    return Pipeline(DecodeConfig())


def test_an_xid_line_alone_comes_out_within_a_quarter_of_a_second() -> None:
    one = pipeline()
    assert messages(one, chunk([(HEADERS, [XID])]), tick(APPENDED_MS + 250)) == []
    assert one.streams.hurries
    assert len(messages(one, tick(APPENDED_MS + 251))) == 1
    assert not one.streams.hurries


@pytest.mark.parametrize(("after_ms", "records"), [(0, 1), (100, 1), (101, 2), (1_900, 2)])
@pytest.mark.parametrize("live", [True, False])
def test_what_belongs_together_is_decided_by_the_brokers_time_alone(after_ms: int, records: int, live: bool) -> None:
    one = pipeline()
    found = messages(one, chunk([(HEADERS, [XID])]))
    if live:  # the reader is a little behind the broker, and its clock ticks meanwhile
        for now_ms in range(APPENDED_MS, APPENDED_MS + min(after_ms + 140, 250), 50):
            found += messages(one, tick(now_ms))
    found += messages(one, chunk([(HEADERS, [MORE])], 1, appended_ms=APPENDED_MS + after_ms))
    found += messages(one, tick(APPENDED_MS + 10_000, ended=True))
    assert len(found) == records


def test_a_traceback_is_still_given_time() -> None:
    one = pipeline()
    lines = [b"Traceback (most recent call last):", b'  File "/app/train.py", line 214, in <module>']
    assert messages(one, chunk([(block_headers("training"), lines)]), tick(APPENDED_MS + 1_900)) == []
    assert not one.streams.hurries


def test_a_restart_goes_on_with_the_clocks_of_silent_partitions_and_with_what_is_held() -> None:
    before = pipeline()
    messages(before, chunk([(HEADERS, [XID])]), tick(APPENDED_MS + 200))
    assert before.now() == {("logs.job", 0): APPENDED_MS + 200}
    after = pipeline()
    after.restore(pickle.loads(pickle.dumps(before.state())))
    assert after.now() == before.now()
    assert after.streams.hurries
    restarted_ms = APPENDED_MS + 3_600_000  # no time passes while nothing runs, so the rest of a record still joins
    assert messages(after, tick(restarted_ms)) == []
    assert len(messages(after, tick(restarted_ms + 51))) == 1
    assert after.now() == {("logs.job", 0): APPENDED_MS + 251}


@pytest.mark.parametrize(("behind", "records"), [(frozenset({("logs.job", 0)}), []), (frozenset(), [1])])
def test_no_kernel_line_is_hurried_while_messages_of_its_partition_wait_to_be_read(
    behind: frozenset[tuple[str, int]], records: list[int]
) -> None:
    logic = TierLogic(Runtime(validate({"source": {"kafka": {}}}, "test")), None)
    logic.on_batch([replace(chunk([(HEADERS, [XID])]), behind=behind)])  # by the machine's clock its age is over
    (hurried,), _ = logic.on_notify()
    assert [len(part.rows) for part in hurried.delivery.parts] == records
