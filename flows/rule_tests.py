"""Tests of rules inside a configuration: lines with times in, alerts out.

[[rules.tests]]
kind = "kmsg"
lines = [
  { at = 0, text = "4,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus." },
]
alerts = [{ at = 0, labels = { pci = "0000:3b:00" }, count = 1, resolves = 300 }]
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from flows.batch import Chunk
from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent
from flows.detect.outcome import Outcome
from flows.detect.partials import Detector
from flows.detect.rules import DetectConfig, Rule
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig

_TOPIC = "rule-test"
_STEP_MS = 1_000
_START = datetime.fromisoformat("2026-01-01T00:00:00Z")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TestLine(_Model):
    """A line and when the broker took it."""

    __test__ = False  # no class of tests

    at: float = Field(ge=0, description="Seconds since the start of the test.")
    text: str = Field(description="The line, or several of one message.")
    kind: str = Field("", description="Kind of the line, where it is not that of the test.")
    headers: dict[str, str] = Field({}, description="Message headers, beside those of the test.")


class ExpectedAlert(_Model):
    """An alert as it must have been at the end of the test; what is not given may be anything."""

    labels: dict[str, str] = Field({}, description="Labels that the alert has, among others.")
    at: int | None = Field(None, description="When it starts, in seconds since the start of the test.")
    resolves: int | None = Field(None, description="When it resolves; with `firing` true it must not be given.")
    firing: bool | None = Field(None, description="Whether it still fires at the end of the test.")
    count: int | None = Field(None, description="Occurrences that it counts.")


class RuleTest(_Model):
    """Lines, and the alerts that the rule must make of them: these and no others."""

    name: str = Field("", description="What it shows, for the report of a failure.")
    kind: str = Field("kmsg", description="Kind of the lines.")
    headers: dict[str, str] = Field({"node": "node-1"}, description="Message headers of all lines.")
    start: AwareDatetime = Field(_START, description="Time of second 0; lines with times of their own must fit it.")
    until: int | None = Field(
        None, ge=0, description="Second at which the test ends; unset: when the last line has left all windows."
    )
    lines: tuple[TestLine, ...] = Field(description="The lines, in any order.")
    alerts: tuple[ExpectedAlert, ...] = Field((), description="All alerts of the rule; empty: it must not fire.")


class TestedRule(Rule):
    """An alert rule, with tests that `tailrace check` runs."""

    __test__ = False

    tests: tuple[RuleTest, ...] = Field((), description="Lines with times, and the alerts expected.")


def failures(rules: Iterable[TestedRule], decode: DecodeConfig, config: DetectConfig, cluster: str) -> list[str]:
    """Runs all tests; one text for a person per test that fails."""
    return [
        f"rule {rule.name}, test {test.name or number}: {said}"
        for rule in rules
        for number, test in enumerate(rule.tests, 1)
        if (said := _failure(rule, test, decode, config, cluster))
    ]


def _failure(rule: TestedRule, test: RuleTest, decode: DecodeConfig, config: DetectConfig, cluster: str) -> str:
    start = int(test.start.timestamp())
    found = _run(rule, test, decode, config, cluster)
    left = list(found)
    missing = []
    for wanted in test.alerts:
        match = next((event for event in left if _fits(wanted, event, start)), None)
        if match is None:
            missing.append(wanted)
        else:
            left.remove(match)
    if not missing and not left:
        return ""
    shown = "; ".join(_shown(event, start) for event in found) or "none"
    wished = "; ".join(str(wanted.model_dump(exclude_unset=True)) for wanted in missing)
    return f"{f'no alert like {wished}' if missing else 'more alerts than expected'}; there are: {shown}"


def _run(
    rule: TestedRule, test: RuleTest, decode: DecodeConfig, config: DetectConfig, cluster: str
) -> list[AlertEvent]:
    """The latest event of every alert, by start."""
    pipeline, detector, evaluator = (
        Pipeline(decode, cluster),
        Detector([rule], config, cluster),
        Evaluator([rule], config),
    )
    start_ms = int(test.start.timestamp() * 1000)
    last = max((line.at for line in test.lines), default=0.0)
    until = last + rule.window_s + rule.for_s + 60 if test.until is None else test.until
    lines = sorted(test.lines, key=lambda line: line.at)
    outcome = Outcome()

    def take(chunk: Chunk) -> None:
        delivery, _ = pipeline.process(chunk)
        outcome.take(evaluator.feed(detector.partials(delivery)))
        outcome.take(evaluator.tick(pipeline.now()))

    for offset, line in enumerate(lines):
        take(_chunk([line], test, offset, start_ms + int(line.at * 1000)))
    first_ms = start_ms + int(last * 1000)
    for now_ms in range(first_ms, start_ms + int(until * 1000) + 1, _STEP_MS):
        take(_chunk([], test, 0, now_ms))
    return outcome.alerts()


def _chunk(lines: list[TestLine], test: RuleTest, offset: int, now_ms: int) -> Chunk:
    count = len(lines)
    said = [{**test.headers, **line.headers, "v": "1", "kind": line.kind or test.kind} for line in lines]
    return Chunk(
        [_TOPIC],
        np.zeros(count, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.full(count, offset, dtype=np.int64),
        np.full(count, now_ms, dtype=np.int64),
        [None] * count,
        [tuple((name, value.encode()) for name, value in sorted(headers.items())) for headers in said],
        [line.text.encode() for line in lines],
        now_ms,
    )


def _fits(wanted: ExpectedAlert, event: AlertEvent, start: int) -> bool:
    resolved = event.state == "resolved"
    known: list[tuple[Any, Any]] = [
        (wanted.at, event.starts_at - start),
        (wanted.resolves, event.ends_at - start if resolved else None),
        (wanted.firing, not resolved),
        (wanted.count, event.count),
    ]
    return wanted.labels.items() <= dict(event.labels).items() and all(
        wish is None or wish == is_now for wish, is_now in known
    )


def _shown(event: AlertEvent, start: int) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in event.labels)
    end = f"resolves = {event.ends_at - start}" if event.state == "resolved" else "firing = true"
    return f"at = {event.starts_at - start}, {end}, count = {event.count} ({labels})"
