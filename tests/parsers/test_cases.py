"""Every recorded case of a kind that has a parser, through `tailrace parse` as a user runs it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from flows.parse import parse
from parsers.registry import KINDS

_FILES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))
_LINES = [line for file in _FILES for line in file.read_text("utf-8").split("\n") if line]
CASES = [case for case in map(json.loads, _LINES) if case.get("kind") in KINDS]  # the rest are scenarios and cascades

# Cases that are not met, each with the reason. One that begins to pass fails here until it is taken out.
UNMET: dict[str, str] = {}


def same(expected: Any, got: Any) -> bool:
    """Equal as JSON values: true is not 1, but 1 is 1.0; null stands for an absent key too."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(same(value, got[key]) for key, value in expected.items())
    return bool(expected == got)


def mismatches(case: dict[str, Any], records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What differs, as (record, field, expected, got)."""
    if len(case["expect"]) != len(records):
        return [("records", len(case["expect"]), len(records), records)]
    return [
        (number, name, value, record.get(name))
        for number, (wanted, record) in enumerate(zip(case["expect"], records, strict=True))
        for name, value in wanted.items()
        if not same(value, record.get(name))
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['id']}")
def test_a_recorded_case_gives_the_expected_records(case, tmp_path, capfdbinary):
    file = tmp_path / "input.log"
    file.write_bytes(base64.b64decode(case["input_b64"]) if "input_b64" in case else case["input"].encode())
    options = [part for name, value in case.get("options", {}).items() for part in (f"--{name}", value)]

    assert parse(["--kind", case["kind"], *options, str(file)]) == 0

    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    found = mismatches(case, records)
    if case["id"] in UNMET:
        assert found, f"{case['id']} passes now: take it out of UNMET ({UNMET[case['id']]})"
    else:
        assert not found, case.get("note", "")


def test_the_table_of_unmet_cases_names_existing_cases():
    ids = [case["id"] for case in CASES]
    assert UNMET.keys() <= set(ids)
    assert len(ids) == len(set(ids))
