"""Label budgets: what fits is a label, what does not is metadata, and a repeated epoch gives the same labels."""

import pickle
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.batch import Chunk
from flows.pipeline import Pipeline
from flows.steps.budgets import OTHERS, STREAM_PARTS, Budgets
from flows.steps.decode import DecodeConfig
from flows.steps.kinds import JOBS
from flows.steps.label_limits import REFUSED, LabelsConfig
from flows.steps.labels import LABELS, Labelled
from tests.chunks import APPENDED_MS, block_headers, chunk

HOUR_MS = 3_600_000
PLACE = ("logs.job", 0)


def envelope(**values: str) -> tuple[str, ...]:
    """What Budgets.decide is asked for: a training message unless told otherwise."""
    return tuple({"job": "training", **values}.get(name, "") for name in (*LABELS, "tenant"))


def ask(budgets: Budgets, place: tuple[str, int] = PLACE, priority: bool = False, **values: str) -> Labelled:
    return budgets.decide(place, envelope(**values), priority)


def end(budgets: Budgets, at_ms: int = APPENDED_MS) -> None:
    budgets.tell_time(at_ms, at_ms)
    budgets.end_epoch()


def again(budgets: Budgets, config: LabelsConfig, shards: int = 1) -> Budgets:
    """As after a crash: another object with the state of the snapshot."""
    other = Budgets(config, "", shards)
    other.restore(pickle.loads(pickle.dumps(budgets.state())))
    return other


def test_a_value_over_the_limit_is_metadata_and_others_keep_their_label() -> None:
    budgets = Budgets(LabelsConfig(job_id=2))
    found = [ask(budgets, node="n", owner_job=job, namespace="ml") for job in ("1", "2", "3", "1")]
    assert [("job_id" in dict(labelled.shown), dict(labelled.demoted)) for labelled in found] == [
        (True, {}), (True, {}), (False, {"job_id": "3"}), (True, {}),
    ]  # fmt: skip
    assert all(dict(labelled.shown)["node"] == "n" for labelled in found)
    assert (found[2].over, found[2].owner) == (("job_id",), "namespace=ml")


def test_a_value_returns_when_the_hour_has_room() -> None:
    budgets = Budgets(LabelsConfig(job_id=1))
    shown = []
    for minute in range(0, 150, 10):
        now = APPENDED_MS + minute * 60_000
        if minute <= 30:
            ask(budgets, owner_job="old")
        shown.append("job_id" in dict(ask(budgets, owner_job="new").shown))
        end(budgets, now)
    # `old` was seen last in minute 30, so it leaves at the end of the first epoch more than an hour later.
    assert shown == [False] * 11 + [True] * 4


def test_the_hour_is_told_by_messages_and_not_by_one_that_is_far_ahead() -> None:
    budgets = Budgets(LabelsConfig(job_id=1))
    ask(budgets, owner_job="old")
    end(budgets)
    budgets.tell_time(APPENDED_MS + 100 * HOUR_MS, APPENDED_MS)
    budgets.end_epoch()
    assert "job_id" in dict(ask(budgets, owner_job="old").shown)
    budgets.tell_time(APPENDED_MS - HOUR_MS, APPENDED_MS)
    budgets.end_epoch()
    assert "job_id" not in dict(ask(budgets, owner_job="new").shown)


@pytest.mark.parametrize(("shards", "fit"), [(1, 12), (2, 6), (5, 2), (100, 1)])
def test_a_shard_has_its_share_of_a_limit(shards: int, fit: int) -> None:
    budgets = Budgets(LabelsConfig(job_id=12), "", shards)
    found = [ask(budgets, owner_job=str(job)) for job in range(20)]
    assert sum("job_id" in dict(labelled.shown) for labelled in found) == fit


def test_a_limit_of_zero_is_no_label_and_no_overflow() -> None:
    budgets = Budgets(LabelsConfig(job_id=0, priority=0))
    found = ask(budgets, owner_job="1", node="n", priority=True)
    assert (dict(found.shown), dict(found.demoted)) == ({"job": "training", "node": "n"}, {"job_id": "1"})
    assert (found.over, found.priority) == ((), False)


def test_a_lower_limit_holds_at_once_after_a_restart() -> None:
    budgets = Budgets(LabelsConfig(job_id=10))
    for job in range(10):
        ask(budgets, owner_job=str(job))
    end(budgets)
    for job in (3, 7):
        ask(budgets, owner_job=str(job))
    end(budgets, APPENDED_MS + 60_000)
    lower = again(budgets, LabelsConfig(job_id=2))
    assert {job for job in range(10) if "job_id" in dict(ask(lower, owner_job=str(job)).shown)} == {3, 7}


def test_tenants_have_budgets_of_their_own_and_those_beyond_the_limit_share_one() -> None:
    budgets = Budgets(LabelsConfig(job_id=1, tenants=2))
    shown = {
        tenant: ["job_id" in dict(ask(budgets, tenant=tenant, owner_job=job).shown) for job in "12"]
        for tenant in ("", "a", "b", "c", "d")
    }
    assert shown == {tenant: [True, False] for tenant in ("", "a", "b", "c", "d")}
    assert "job_id" not in dict(ask(budgets, tenant="d", owner_job="3").shown)
    assert set(budgets.active) == {"", "a", "b", OTHERS}
    end(budgets)
    ask(budgets, tenant="a")
    end(budgets, APPENDED_MS + 2 * HOUR_MS)
    assert set(budgets.active) == {"", "a", OTHERS}


def test_streams_over_the_limit_leave_out_labels_until_they_find_room() -> None:
    budgets = Budgets(LabelsConfig(streams=100))
    found = [ask(budgets, node=f"n{number % 10}", owner_job=str(number), pod=f"p{number}") for number in range(300)]
    assert [len(labelled.over) for labelled in found[:76]] == [0] * 75 + [2]
    assert {labelled.over for labelled in found[75:]} == {("job_id", "pod")}
    assert all(dict(labelled.shown)["node"] for labelled in found)
    assert budgets.active[""] == 75 + 10
    wide = [ask(budgets, node=f"wide{number}", app=f"a{number}") for number in range(300)]
    assert dict(wide[-1].shown) == {"job": "training"}
    assert dict(wide[-1].demoted) == {"node": "wide299", "app": "a299"}
    assert budgets.active[""] <= 100


def test_priority_counts_as_all_its_streams_and_goes_first() -> None:
    budgets = Budgets(LabelsConfig(streams=100))
    found = [ask(budgets, node=f"n{number}", job="kmsg", priority=True) for number in range(30)]
    fit = 50 // STREAM_PARTS
    assert [labelled.priority for labelled in found] == [True] * fit + [False] * (30 - fit)
    assert {labelled.over for labelled in found[fit:]} == {("priority",)}
    assert budgets.active[""] == fit * STREAM_PARTS + 30 - fit


def test_overflow_is_counted_by_label_and_owner_and_the_worst_stay_named() -> None:
    budgets = Budgets(LabelsConfig(job_id=1))
    ask(budgets, owner_job="first")
    for number in range(200):
        budgets.count(ask(budgets, namespace=f"ns{number}", owner_job="x"), 1)
    epoch = budgets.end_epoch()
    assert len(epoch) == 200
    assert len(budgets.overflow) == 101
    assert budgets.overflow["job_id", OTHERS] == 100
    budgets.count(ask(budgets, namespace="worst", owner_job="x"), 5_000)
    assert budgets.end_epoch() == {("job_id", "namespace=worst"): 5_000}
    assert budgets.overflow.most_common(1) == [(("job_id", "namespace=worst"), 5_000)]
    assert len(budgets.overflow) == 101
    assert budgets.overflow.total() == 5_200


@pytest.mark.parametrize(
    ("values", "owner"),
    [
        ({"namespace": "ml", "team": "t", "owner_job": "1"}, "namespace=ml"),
        ({"team": "t", "owner_job": "1"}, "team=t"),
        ({"owner_job": "1"}, "job_id=1"),
        ({}, "job=training"),
    ],
)
def test_the_owner_of_overflow_is_who_can_do_something_about_it(values: dict[str, str], owner: str) -> None:
    assert ask(Budgets(LabelsConfig()), PLACE, False, **values).owner == owner


def test_hundreds_of_thousands_of_values_leave_a_bounded_state() -> None:
    config = LabelsConfig(job_id=50, pod=50, node=50, streams=100)
    budgets = Budgets(config)
    for number in range(30_000):
        ask(budgets, owner_job=f"j{number}", pod=f"p{number}", node=f"n{number}")
    before = len(pickle.dumps(budgets.state()))
    end(budgets)
    after = len(pickle.dumps(budgets.state()))
    assert max(before, after) < 32_000
    assert budgets.active[""] <= 100


class Sent(NamedTuple):
    """A message: its partition, node and job."""

    partition: int
    node: str
    job: str


sent = st.builds(Sent, st.integers(0, 2), st.sampled_from("abcd"), st.sampled_from("123456789"))
epochs = st.lists(st.lists(sent, max_size=25), min_size=1, max_size=6)
TIGHT = LabelsConfig(job_id=5, node=3, streams=200)
SHARDS = 20  # 10 streams


def decisions(budgets: Budgets, messages: Sequence[Sent]) -> dict[tuple[int, int], Labelled]:
    """By partition and number of the message in it."""
    found: dict[tuple[int, int], Labelled] = {}
    count = [0, 0, 0]
    for message in messages:
        place = ("logs.job", message.partition)
        found[message.partition, count[message.partition]] = ask(
            budgets, place, node=message.node, owner_job=message.job
        )
        count[message.partition] += 1
    return found


@settings(max_examples=100)
@given(epochs=epochs, data=st.data())
def test_a_repeated_epoch_gives_the_same_labels_however_partitions_interleave(
    epochs: list[list[Sent]], data: st.DataObject
) -> None:
    limits = LabelsConfig(**{**TIGHT.model_dump(), "job_id": 5 * SHARDS, "node": 3 * SHARDS})
    budgets = Budgets(limits, "", SHARDS)
    for partition in range(3):  # so that all of them have an allowance
        ask(budgets, ("logs.job", partition))
    end(budgets)
    for number, messages in enumerate(epochs):
        now = APPENDED_MS + number * HOUR_MS // 2
        crashed = again(budgets, limits, SHARDS)
        decisions(crashed, messages[: data.draw(st.integers(0, len(messages)), label="until the crash")])
        other = again(budgets, limits, SHARDS)
        shuffled = data.draw(st.permutations(messages), label="another interleaving")
        by_partition = {p: iter([m for m in messages if m.partition == p]) for p in range(3)}
        interleaved = [next(by_partition[message.partition]) for message in shuffled]
        assert decisions(other, interleaved) == decisions(budgets, messages)
        assert budgets.active[""] <= 10
        end(other, now)
        end(budgets, now)
        assert other.state() == budgets.state()
        for name, limit in (("job_id", 5), ("node", 3), ("streams", 10)):
            budget = budgets.state().tenants[""][name]
            assert sum(weight for _, weight in budget.known.values()) == budget.taken <= limit


def mixed(messages: Sequence[Sent], first: Sequence[int], appended_ms: int) -> Chunk:
    """A chunk of one block for each message; `first`: offset of the next message of each partition."""
    count = len(messages)
    partition = np.array([message.partition for message in messages], dtype=np.int32)
    offset = np.zeros(count, dtype=np.int64)
    for number in range(3):
        mine = partition == number
        offset[mine] = np.arange(first[number], first[number] + mine.sum())
    kinds = ["training", "slurmd", "kmsg"]
    return Chunk(
        topics=["logs.job"],
        topic=np.zeros(count, dtype=np.int32),
        partition=partition,
        offset=offset,
        appended_ms=np.full(count, appended_ms, dtype=np.int64),
        keys=[None] * count,
        headers=[block_headers(kinds[int(message.job) % 3], message.node, job_id=message.job) for message in messages],
        values=[b"loss 2.1\nTraceback (most recent call last):\n  File x"] * count,
        now_ms=appended_ms,
    )


def shown(pipeline: Pipeline, messages: Sequence[Sent], cuts: Sequence[int], at_ms: int) -> dict[object, object]:
    """Labels and demoted pairs by record identity, of an epoch cut into chunks."""
    found: dict[object, object] = {}
    offsets = [0, 0, 0]
    for start, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        part_of = messages[start:stop]
        delivery, _ = pipeline.process(mixed(part_of, [at_ms + offset for offset in offsets], at_ms))
        for message in part_of:
            offsets[message.partition] += 1
        for part in delivery.parts:
            columns = part.rows.select(["partition", "offset", "line", "part", "stream"]).to_pydict()
            for *place, stream in zip(*columns.values(), strict=True):
                assert tuple(place) not in found
                found[tuple(place)] = (part.streams[stream], part.demoted[stream] if part.demoted else ())
    return found


@settings(max_examples=20)
@given(epochs=epochs, data=st.data())
def test_batches_of_the_pipeline_and_crashes_do_not_change_labels(
    epochs: list[list[Sent]], data: st.DataObject
) -> None:
    def started(state: bytes | None) -> Pipeline:
        pipeline = Pipeline(DecodeConfig(), labels=LabelsConfig(job_id=4, node=3, streams=100))
        if state is not None:
            pipeline.restore(pickle.loads(state))
        return pipeline

    state = None
    for number, messages in enumerate(epochs):
        at_ms = APPENDED_MS + number * HOUR_MS // 3
        whole, cut, crashed = started(state), started(state), started(state)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(messages))), label="cuts"))
        shown(crashed, messages[: len(messages) // 2], [], at_ms)
        assert shown(cut, messages, cuts, at_ms) == shown(whole, messages, [], at_ms)
        assert cut.end_epoch() == whole.end_epoch()
        assert cut.state()["budgets"] == whole.state()["budgets"]
        state = pickle.dumps(whole.state())


def test_a_line_about_many_nodes_is_one_record_of_the_node_that_wrote_it() -> None:
    line = b"[2025-03-04T05:06:07.089] debug:  health check started for ccx-7-3-gpu-[1-3,5-9,11-400]"
    pipeline = Pipeline(DecodeConfig())
    delivery, _ = pipeline.process(chunk([(block_headers("slurmctld", "ctl-1"), [line] * 3)], ended=True))
    assert sum(len(part.rows) for part in delivery.parts) == 3
    streams = {labels for part in delivery.parts for labels in part.streams}
    assert [dict(labels) for labels in streams] == [{"job": "slurmctld", "node": "ctl-1"}]
    assert len(pipeline.state()["budgets"].tenants[""]["node"].fresh[-1]) == 1


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_name_that_would_make_endless_streams_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"{name} cannot be a label: it \w+") as caught:
        LabelsConfig.model_validate({name: 10})
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"job": 5}, f"at least {len(set(JOBS.values()))}"),
        ({"priority": 3}, "must be 0 or at least 8"),
        ({"node": -1}, "greater than or equal to 0"),
        ({"streams": 10}, "greater than or equal to 100"),
        ({"region": 5}, "region"),
    ],
)
def test_limits_that_cannot_work_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LabelsConfig.model_validate(values)
