"""Loki's streams: eleven names and no other, the same for one record and for columns, numbered as they are met."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.steps.kinds import JOBS
from flows.steps.label_limits import LabelsConfig
from flows.steps.labels import LABELS, WITH_PRIORITY, Labelled, LabelSets, distinct, label_pairs
from parsers.schema import CODE, ENVELOPE

ELEVEN = {
    "cluster", "namespace", "pod", "container", "node", "app", "team", "job_id", "unit", "job", "priority",
}  # fmt: skip


def envelope(**values: str) -> dict[str, str | None]:
    """One message's words, empty where it says nothing."""
    return {name: values.get(name, "") for name in ENVELOPE.names}


def levels(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode().cast(CODE)


def numbered(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int32())


def test_labels_are_the_eleven_and_nothing_else_and_each_has_a_limit() -> None:
    assert {"job_id" if name == "owner_job" else name for name in LABELS} | {"priority"} == ELEVEN
    assert set(LabelsConfig.model_fields) == ELEVEN | {"streams", "tenants"}
    everything = label_pairs({name: f"<{name}>" for name in ENVELOPE.names}, "ours")
    assert {name for name, _ in everything} == ELEVEN - {"priority"}
    assert dict(everything)["job_id"] == "<owner_job>"
    assert list(everything) == sorted(everything)


@pytest.mark.parametrize(
    ("words", "cluster", "expected"),
    [
        ({"node": "gpu-1", "job": "kmsg"}, "", {"node": "gpu-1", "job": "kmsg"}),
        ({"node": "gpu-1"}, "ours", {"node": "gpu-1", "cluster": "ours"}),
        ({"node": "gpu-1", "cluster": "theirs"}, "ours", {"node": "gpu-1", "cluster": "theirs"}),
        ({"path": "/x", "tenant": "t", "boot_id": "b", "nccl_debug": "TRACE"}, "", {}),
        ({}, "", {}),
    ],
)
def test_the_labels_of_one_message(words: dict[str, str], cluster: str, expected: dict[str, str]) -> None:
    assert dict(label_pairs(envelope(**words), cluster)) == expected


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_only_kernel_and_journal_streams_are_cut_by_priority(kind: str) -> None:
    sets = LabelSets(kind, [Labelled((("node", "a"),))])
    numbers = sets.column(numbered([0, 0, 0]), levels(["err", "info", None])).to_pylist()
    cut = kind in WITH_PRIORITY
    assert len(sets.streams) == (3 if cut else 1)
    assert [dict(sets.streams[number]).get("priority") for number in numbers] == (
        ["err", "info", None] if cut else [None] * 3
    )
    assert sets.demoted == []
    assert {"kmsg", "dmesg", "journal"} == WITH_PRIORITY


def test_priority_that_finds_no_room_is_a_demoted_pair_like_any_other() -> None:
    sets = LabelSets("kmsg", [Labelled((("job", "kmsg"),), (("node", "a"),), False, ("node", "priority"), "job=kmsg")])
    assert sets.column(numbered([0, 0, 0]), levels(["err", "info", "err"])).to_pylist() == [0, 1, 0]
    assert sets.streams == [(("job", "kmsg"),)] * 2
    assert sets.demoted == [(("node", "a"), ("priority", "err")), (("node", "a"), ("priority", "info"))]
    assert list(sets.over.values()) == [3]


pairs = st.dictionaries(st.sampled_from(["node", "pod"]), st.sampled_from("ab")).map(lambda d: tuple(sorted(d.items())))
shows = st.builds(Labelled, pairs, pairs, st.booleans(), st.sampled_from([(), ("pod",)]))
lines = st.tuples(st.integers(0, 3), st.sampled_from([None, "err", "info"]))


@given(
    st.sampled_from(["kmsg", "training"]),
    st.lists(shows, min_size=4, max_size=4),
    st.lists(lines, min_size=1, max_size=30),
)
def test_columns_and_single_records_agree(
    kind: str, labelled: list[Labelled], given_lines: list[tuple[int, str | None]]
) -> None:
    level = [priority for _, priority in given_lines]
    sets, single = LabelSets(kind, labelled), LabelSets(kind)
    column = sets.column(numbered([number for number, _ in given_lines]), levels(level))
    assert column.type == pa.int32()
    one_by_one = [single.number(labelled[number], priority) for number, priority in given_lines]
    met, met_singly = list(sets.numbers), list(single.numbers)
    assert [met[number] for number in column.to_pylist()] == [met_singly[number] for number in one_by_one]
    assert sets.over == single.over
    # Records that come later in the same part share the numbers.
    again = [sets.number(labelled[number], priority) for number, priority in given_lines]
    assert again == column.to_pylist()


def test_a_kind_without_levels_has_no_priority() -> None:
    sets = LabelSets("kmsg", [Labelled((("node", "a"),))])
    assert sets.column(numbered([0]), None).to_pylist() == [0]
    assert sets.streams == [(("node", "a"),)]


@pytest.mark.parametrize("kind", ["kmsg", "training"])
def test_no_rows_have_no_streams(kind: str) -> None:
    sets = LabelSets(kind, [Labelled(())])
    assert len(sets.column(numbered([]), levels([]))) == 0
    assert sets.streams == []


@given(st.lists(st.integers(0, 500), max_size=60))
def test_distinct_is_what_a_sort_would_find(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    values, places = distinct(given_numbers)
    known, inverse = np.unique(given_numbers, return_inverse=True)
    assert values.tolist() == known.tolist()
    assert places.tolist() == inverse.tolist()
