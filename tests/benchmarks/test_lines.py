"""The lines of the benchmarks are what the benchmarks say of them, by the rules of the product."""

import re
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.lines import BLOCK_LINES, CYCLE, CYCLE_LINES, NUMBER, Block, blocks, totals
from parsers.registry import parser

CYCLES = 2


@pytest.fixture(scope="module")
def written() -> list[Block]:
    return list(blocks(CYCLES, 1_764_547_200))


def lines(written: list[Block], kind: str) -> list[bytes]:
    return [line for block in written if block.kind == kind for line in block.value.split(b"\n")]


def test_exactly_four_fifths_are_noise(written: list[Block]) -> None:
    column = parser("training").noise(pa.array(lines(written, "training"), pa.large_binary()))  # type: ignore[misc]
    noise, other = totals(CYCLES)
    assert len(column) - column.null_count == noise
    assert noise * 5 == (noise + other) * 4 == CYCLES * CYCLE_LINES * 4
    assert len(set(column.drop_null().to_pylist())) > 10


def test_a_line_has_one_number_and_no_number_comes_twice(written: list[Block]) -> None:
    texts = [
        line.partition(b";")[2] if block.kind == "kmsg" else line
        for block in written
        for line in block.value.split(b"\n")
    ]
    found = [re.findall(NUMBER.encode(), text) for text in texts]
    assert {len(numbers) for numbers in found} == {1}
    assert sorted(int(numbers[0]) for numbers in found) == list(range(CYCLES * CYCLE_LINES))


def test_noise_has_the_highest_numbers(written: list[Block]) -> None:
    texts = pa.array(lines(written, "training"), pa.large_binary())
    kept = texts.filter(pc.is_null(parser("training").noise(texts)))  # type: ignore[misc]
    assert max(int(re.findall(NUMBER.encode(), line)[0]) for line in kept.to_pylist()) < totals(CYCLES)[1]


def test_one_line_in_a_hundred_is_for_the_stream_parsers(written: list[Block]) -> None:
    gated: Counter[str] = Counter()
    for kind in set(CYCLE):
        texts = pa.array(lines(written, kind), pa.large_binary())
        each = parser(kind)
        if each.noise:
            texts = texts.filter(pc.is_null(each.noise(texts)))
        gated[kind] = pc.sum(pc.match_substring_regex(texts, each.gate)).as_py()
    assert gated == {"training": 40 * CYCLES, "slurmctld": 5 * 28 * CYCLES, "kmsg": 4 * 15 * CYCLES}


def test_blocks_have_the_same_length_and_the_usual_size(written: list[Block]) -> None:
    assert {block.value.count(b"\n") + 1 for block in written} == {BLOCK_LINES}
    assert 170 < sum(len(block.value) + 1 for block in written) / (CYCLES * CYCLE_LINES) < 210


def test_the_same_call_gives_the_same_lines(written: list[Block]) -> None:
    assert list(blocks(CYCLES, 1_764_547_200)) == written
