"""Host lists and task lists expand as Slurm writes them, and never beyond their bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import hostlist

WRITTEN = {
    "gpu-007": ["gpu-007"],
    "gpu-[001-004,007]": ["gpu-001", "gpu-002", "gpu-003", "gpu-004", "gpu-007"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[08-11]": ["n08", "n09", "n10", "n11"],
    "n[3,1-2]": ["n3", "n1", "n2"],
    "gpu-[003,007-009],login1": ["gpu-003", "gpu-007", "gpu-008", "gpu-009", "login1"],
    "login1,gpu-[1-2],c7": ["login1", "gpu-1", "gpu-2", "c7"],
    "rack[1-2]n[01-02]": ["rack1n01", "rack1n02", "rack2n01", "rack2n02"],
    "n[1-2]-ib": ["n1-ib", "n2-ib"],
    "a.example.org,b[5].example.org": ["a.example.org", "b5.example.org"],
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_host_list_expands_in_written_order(text: str) -> None:
    assert hostlist.expand(text) == WRITTEN[text]
    assert hostlist.fields(text) == {
        "nodes": WRITTEN[text], "node_count": len(WRITTEN[text]), "nodes_raw": text,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "n[", "n[1-2", "n]1[", "n[]", "n[a-b]", "n[2-1]", "n[1--2]", "n[[1]]", "a,,b", ",a", "a,", "a b", "n[1-2+"],
)
def test_a_malformed_host_list_has_no_names(text: str) -> None:
    assert hostlist.expand(text) is None


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[0-65536]", "r[0-255]n[0-256]", "n[0-65535],x", "n[" + "9" * 400 + "]"]
)
def test_a_list_above_the_bound_keeps_its_text_only(text: str) -> None:
    assert hostlist.fields(text) == {"nodes": None, "node_count": None, "nodes_raw": text}


def test_a_list_at_the_bound_is_expanded() -> None:
    assert hostlist.fields("n[0-65535]")["node_count"] == hostlist.MAX_NAMES
    assert hostlist.fields("r[0-255]n[0-255]")["node_count"] == hostlist.MAX_NAMES


def test_null_is_no_host_list() -> None:
    assert hostlist.fields("(null)") == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12", [12]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("[0-1,4]", [0, 1, 4]),
        ("0-1,", None),
        ("3-1", None),
        ("0-99999999", None),
    ],
)
def test_task_lists(text: str, numbers: list[int] | None) -> None:
    assert hostlist.tasks(text) == numbers


@given(st.text(alphabet="n0123456789[],-x", max_size=40))
def test_expansion_is_bounded_whatever_is_written(text: str) -> None:
    names = hostlist.expand(text)
    assert names is None or 0 < len(names) <= hostlist.MAX_NAMES


@given(st.lists(st.integers(0, 9_999), min_size=1, max_size=20), st.integers(1, 5))
def test_single_numbers_come_back_as_written(numbers: list[int], width: int) -> None:
    written = [str(number).zfill(width) for number in numbers]
    assert hostlist.expand(f"n[{','.join(written)}]") == [f"n{number}" for number in written]
