"""Loki's streams: eleven names and no other, the same for one record and for columns, numbered as they are met."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.steps.kinds import JOBS
from flows.steps.labels import LABELS, WITH_PRIORITY, LabelSets, distinct, label_set
from parsers.schema import CODE, ENVELOPE

ELEVEN = {
    "cluster", "namespace", "pod", "container", "node", "app", "team", "job_id", "unit", "job", "priority",
}  # fmt: skip


def envelope(**values: str) -> dict[str, str]:
    """One message's words, empty where it says nothing."""
    return {name: values.get(name, "") for name in ENVELOPE.names}


def columns(lines: list[Mapping[str, str]]) -> dict[str, pa.DictionaryArray]:
    """Envelopes of lines as decode makes them: one dictionary entry per distinct envelope, shared indices."""
    known = [dict(pairs) for pairs in dict.fromkeys(tuple(line.items()) for line in lines)]
    index = pa.array([known.index(dict(line)) for line in lines], pa.int32())
    return {
        name: pa.DictionaryArray.from_arrays(index, pa.array([words[name] for words in known], pa.string()))
        for name in ENVELOPE.names
    }


def levels(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode().cast(CODE)


def test_labels_are_the_eleven_and_nothing_else() -> None:
    assert {"job_id" if name == "owner_job" else name for name in LABELS} | {"priority"} == ELEVEN
    everything = label_set({name: f"<{name}>" for name in ENVELOPE.names}, "ours", "err")
    assert {name for name, _ in everything} == ELEVEN
    assert dict(everything)["job_id"] == "<owner_job>"
    assert list(everything) == sorted(everything)


@pytest.mark.parametrize(
    ("words", "cluster", "priority", "expected"),
    [
        ({"node": "gpu-1", "job": "kmsg"}, "", None, {"node": "gpu-1", "job": "kmsg"}),
        ({"node": "gpu-1"}, "ours", None, {"node": "gpu-1", "cluster": "ours"}),
        ({"node": "gpu-1", "cluster": "theirs"}, "ours", None, {"node": "gpu-1", "cluster": "theirs"}),
        ({"node": "gpu-1"}, "", "err", {"node": "gpu-1", "priority": "err"}),
        ({"path": "/x", "tenant": "t", "boot_id": "b", "nccl_debug": "TRACE"}, "", None, {}),
        ({}, "", "", {}),
    ],
)
def test_the_label_set_of_one_record(
    words: dict[str, str], cluster: str, priority: str | None, expected: dict[str, str]
) -> None:
    assert dict(label_set(envelope(**words), cluster, priority)) == expected


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_only_kernel_and_journal_streams_are_cut_by_priority(kind: str) -> None:
    sets = LabelSets(kind, "ours")
    numbers = sets.column(columns([envelope(node="a")] * 3), levels(["err", "info", None])).to_pylist()
    cut = kind in WITH_PRIORITY
    assert len(sets.numbers) == (3 if cut else 1)
    assert [dict(list(sets.numbers)[number]).get("priority") for number in numbers] == (
        ["err", "info", None] if cut else [None] * 3
    )
    assert {"kmsg", "dmesg", "journal"} == WITH_PRIORITY


words = st.fixed_dictionaries({name: st.sampled_from(["", "a", "b"]) for name in ("node", "cluster", "pod", "path")})
lines = st.tuples(words, st.sampled_from([None, "err", "info"]))


@given(st.sampled_from(["kmsg", "training"]), st.sampled_from(["", "ours"]), st.lists(lines, min_size=1, max_size=30))
def test_columns_and_single_records_agree(
    kind: str, cluster: str, given_lines: list[tuple[dict[str, str], str | None]]
) -> None:
    envelopes = [envelope(**line) for line, _ in given_lines]
    level = [priority for _, priority in given_lines]
    sets, single = LabelSets(kind, cluster), LabelSets(kind, cluster)
    column = sets.column(columns(envelopes), levels(level))
    assert column.type == pa.int32()
    one_by_one = [single.number(line, priority) for line, priority in zip(envelopes, level, strict=True)]
    met, met_singly = list(sets.numbers), list(single.numbers)
    assert [met[number] for number in column.to_pylist()] == [met_singly[number] for number in one_by_one]
    # Records that come later in the same part share the numbers.
    assert [sets.number(line, priority) for line, priority in zip(envelopes, level, strict=True)] == column.to_pylist()


def test_a_kind_without_levels_has_no_priority() -> None:
    sets = LabelSets("kmsg", "")
    assert sets.column(columns([envelope(node="a")]), None).to_pylist() == [0]
    assert list(sets.numbers) == [(("node", "a"),)]


def test_no_rows_have_no_streams() -> None:
    sets = LabelSets("kmsg", "")
    assert len(sets.column(columns([envelope()]), levels([None])).slice(0, 0)) == 0
    assert (
        len(LabelSets("training", "").column({n: c.slice(0, 0) for n, c in columns([envelope()]).items()}, None)) == 0
    )


@given(st.lists(st.integers(0, 500), max_size=60))
def test_distinct_is_what_a_sort_would_find(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    values, places = distinct(given_numbers)
    known, inverse = np.unique(given_numbers, return_inverse=True)
    assert values.tolist() == known.tolist()
    assert places.tolist() == inverse.tolist()
