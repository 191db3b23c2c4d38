"""Zones of local times by kind and node."""

from typing import Any

import pytest
from pydantic import ValidationError

from flows import stored
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from tests.chunks import chunk

ZONES = {
    "tz": "UTC",
    "zones": [
        {"kinds": ["jetpack"], "nodes": ["gpu-e*"], "tz": "Asia/Tokyo"},
        {"nodes": ["gpu-e*", "login"], "tz": "America/New_York"},
        {"kinds": ["jetpack"], "tz": "Europe/Berlin"},
    ],
}
LINES = {"jetpack": "{} INFO    x", "slurmd": "[{}] x"}


def read(kind: str, node: str, text: str, config: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The one record of a line with a time."""
    said = {"v": "1", "kind": kind, "node": node, **headers}
    message = tuple((name, value.encode()) for name, value in said.items()), [LINES[kind].format(text).encode()]
    delivery, _ = Pipeline(DecodeConfig.model_validate(config)).process(chunk([message], ended=True))
    (record,) = stored.records(delivery)
    return record.values


@pytest.mark.parametrize(
    ("kind", "node", "headers", "hour", "zone"),
    [
        ("slurmd", "gpu-w1", {}, "12", "UTC"),
        ("slurmd", "gpu-e1", {}, "17", "America/New_York"),
        ("slurmd", "login", {}, "17", "America/New_York"),
        ("jetpack", "gpu-e1", {}, "03", "Asia/Tokyo"),
        ("jetpack", "gpu-w1", {}, "11", "Europe/Berlin"),
        ("jetpack", "gpu-e1", {"tz": "UTC"}, "12", "UTC"),
    ],
)
def test_the_first_zone_that_fits_holds(kind: str, node: str, headers: dict[str, str], hour: str, zone: str) -> None:
    stamp = "2026-01-04 12:00:00,000" if kind == "jetpack" else "2026-01-04T12:00:00.000"
    row = read(kind, node, stamp, ZONES, **headers)
    assert (row["ts"][11:13], row["tz"], row["ts_source"]) == (hour, zone, "zone")


@pytest.mark.parametrize(
    ("stamp", "ts", "flags"),
    [
        ("2026-03-29T01:59:59.999", "2026-03-29T00:59:59.999", []),
        ("2026-03-29T02:30:00.000", "2026-03-29T01:30:00.000", ["dst_gap"]),
        ("2026-03-29T03:00:00.000", "2026-03-29T01:00:00.000", []),
        ("2026-10-25T01:59:59.999", "2026-10-24T23:59:59.999", []),
        ("2026-10-25T02:30:00.000", "2026-10-25T00:30:00.000", ["dst_fold"]),
        ("2026-10-25T03:00:00.000", "2026-10-25T02:00:00.000", []),
    ],
)
def test_local_times_that_are_missing_or_twice_are_flagged(stamp: str, ts: str, flags: list[str]) -> None:
    row = read("slurmd", "n1", stamp, {"zones": [{"nodes": ["n?"], "tz": "Europe/Berlin"}]})
    assert (row["ts"].removesuffix("000000Z"), row.get("flags", [])) == (ts, flags)


@pytest.mark.parametrize(
    ("zone", "message"),
    [
        ({"tz": "UTC"}, "give it kinds or nodes"),
        ({"tz": "Mars/Olympus", "nodes": ["n1"]}, "unknown time zone 'Mars/Olympus'"),
        ({"tz": "UTC", "kinds": ["jetpak"]}, "unknown kind jetpak; did you mean jetpack?"),
        ({"nodes": ["n1"]}, "Field required"),
    ],
)
def test_a_wrong_zone_is_refused(zone: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("?", r"\?")):
        DecodeConfig.model_validate({"zones": [zone]})
