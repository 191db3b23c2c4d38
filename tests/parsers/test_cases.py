"""Every recorded case of a kind that has a parser, through `tailrace parse` as a user runs it, and through the tier."""

import json
from typing import Any

import pytest

from flows.parse import parse
from flows.pipeline import Pipeline
from flows.steps import summaries
from flows.steps.decode import DecodeConfig
from parsers.registry import KINDS
from tests import recorded
from tests.chunks import chunk

CASES = [case for case in recorded.CASES if case["kind"] in KINDS]
EVENTS = [case for case in CASES if any(record.get("event") for record in case["expect"])]
_HEADERS = {"received-at": "read_at", "boot-time": "boot_time"}  # of the wire contract, where they differ from options

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


def name(case: dict[str, Any]) -> str:
    return f"{case['kind']}-{case['id']}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_recorded_case_gives_the_expected_records(case, tmp_path, capfdbinary):
    file = tmp_path / "input.log"
    file.write_bytes(recorded.data(case))
    options = [part for name, value in case.get("options", {}).items() for part in (f"--{name}", value)]

    assert parse(["--kind", case["kind"], *options, str(file)]) == 0

    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    found = mismatches(case, records)
    if case["id"] in UNMET:
        assert found, f"{case['id']} passes now: take it out of UNMET ({UNMET[case['id']]})"
    else:
        assert not found, case.get("note", "")


@pytest.mark.parametrize("case", EVENTS, ids=name)
def test_what_is_an_event_passes_the_gate(case):
    options = {_HEADERS.get(name, name): value.encode() for name, value in case.get("options", {}).items()}
    headers = {"v": b"1", "kind": case["kind"].encode(), "node": b"gpu-a01", **options}
    block = (tuple(headers.items()), recorded.data(case).removesuffix(b"\n").split(b"\n"))

    delivery, _ = Pipeline(DecodeConfig()).process(chunk([block], ended=True))

    parts = [part for part in delivery.parts if part.kind != summaries.KIND]
    tables = [table.select(["line", "part", "event"]) for part in parts for table in (part.rows, part.noise)]
    rows = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: (row["line"], row["part"]))
    assert len(rows) == len(case["expect"])
    for wanted, row in zip(case["expect"], rows, strict=True):
        assert "event" not in wanted or row["event"] == wanted["event"]


def test_the_table_of_unmet_cases_names_existing_cases():
    ids = [case["id"] for case in CASES]
    assert UNMET.keys() <= set(ids)
    assert len(ids) == len(set(ids))
