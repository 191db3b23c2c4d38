"""Tests inside a configuration, run by `tailrace check`: lines with times in; records, drops, labels and alerts out.

[[tests]]
kind = "kmsg"
lines = ["4,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]
records = [{ event = "gpu_xid", xid = 79, labels = { job = "kmsg" } }]
alerts = [{ rule = "GpuLost", at = 0 }]

`[[rules.tests]]` are the same with that rule alone.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from flows import stored
from flows.batch import Chunk
from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent
from flows.detect.outcome import Outcome
from flows.detect.partials import Detector
from flows.detect.rules import DetectConfig, Rule
from flows.pipeline import Pipeline
from flows.steps import summaries
from parsers.clock import parse_rfc3339
from sinks.base import Delivery

_TOPIC = "config-test"
_STEP_MS = 1_000
_START = datetime.fromisoformat("2026-01-01T00:00:00Z")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TestLine(_Model):
    """A line and when the broker took it."""

    __test__ = False  # no class of tests

    at: float = Field(0.0, ge=0, description="Seconds since the start of the test.")
    text: str = Field(description="The line, or several of one message.")
    kind: str = Field("", description="Kind of the line, where it is not that of the test.")
    headers: dict[str, str] = Field({}, description="Message headers, beside those of the test.")


class ExpectedAlert(_Model):
    """An alert as it must have been at the end of the test; what is not given may be anything."""

    rule: str = Field("", description="Name of its rule.")
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
    lines: tuple[TestLine, ...] = Field(description="The lines, in any order of time; a text alone is one at second 0.")
    alerts: tuple[ExpectedAlert, ...] = Field((), description="All alerts of the rule; empty: it must not fire.")

    @field_validator("lines", mode="before")
    @classmethod
    def _texts(cls, lines: Any) -> Any:
        if not isinstance(lines, list | tuple):
            return lines
        return tuple({"text": line} if isinstance(line, str) else line for line in lines)


class ConfigTest(RuleTest):
    """Lines, and what becomes of them."""

    records: tuple[dict[str, Any], ...] | None = Field(
        None,
        description="All records in the order of their lines, each with fields as `tailrace parse` prints them, "
        "`labels` (Loki's, among others), `dropped` (whether a noise rule drops it) and `flags`; what is not given may "
        "be anything. Unset: not looked at.",
    )
    alerts: tuple[ExpectedAlert, ...] | None = Field(  # type: ignore[assignment]
        None, description="All alerts of all rules. Unset: not looked at."
    )


class TestedRule(Rule):
    """An alert rule, with tests that `tailrace check` runs."""

    __test__ = False

    tests: tuple[RuleTest, ...] = Field((), description="Lines with times, and the alerts expected.")


class Setting(NamedTuple):
    """What tests run in: the pipeline of the configuration, its rules, and how they are evaluated."""

    pipeline: Callable[[], Pipeline]
    rules: Sequence[Rule]
    detect: DetectConfig
    cluster: str


def failures(tests: Iterable[ConfigTest], rules: Iterable[TestedRule], setting: Setting) -> list[str]:
    """Runs all tests; one text for a person per test that fails."""
    named = [(f"test {test.name or number}", test, setting) for number, test in enumerate(tests, 1)]
    named += [
        (f"rule {rule.name}, test {test.name or number}", test, setting._replace(rules=[rule]))  # type: ignore[misc]
        for rule in rules
        for number, test in enumerate(rule.tests, 1)
    ]
    return [f"{name}: {said}" for name, test, each in named if (said := _failure(test, each))]


def _failure(test: RuleTest, setting: Setting) -> str:
    found = _run(test, setting)
    said = []
    if isinstance(test, ConfigTest) and test.records is not None:
        said.append(_wrong_records(test.records, found.records))
    if test.alerts is not None:
        said.append(_wrong_alerts(test.alerts, found.alerts, int(test.start.timestamp())))
    return "; ".join(filter(None, said))


class _Found(NamedTuple):
    """The records as objects, in the order of their lines; the latest event of every alert, by start."""

    records: list[dict[str, Any]]
    alerts: list[AlertEvent]


def _run(test: RuleTest, setting: Setting) -> _Found:
    pipeline, rules = setting.pipeline(), setting.rules
    detector, evaluator = Detector(rules, setting.detect, setting.cluster), Evaluator(rules, setting.detect)
    start_ms = int(test.start.timestamp() * 1000)
    last = max((line.at for line in test.lines), default=0.0)
    windows = max((rule.window_s + rule.for_s for rule in rules), default=0) if test.alerts is not None else 0
    until = last + windows + 60 if test.until is None else test.until
    lines = sorted(test.lines, key=lambda line: line.at)
    outcome, deliveries = Outcome(), list[Delivery]()

    def take(chunk: Chunk) -> None:
        delivery, _ = pipeline.process(chunk)
        deliveries.append(delivery)
        outcome.take(evaluator.feed(detector.partials(delivery)))
        outcome.take(evaluator.tick(pipeline.now()))

    for offset, line in enumerate(lines):
        take(_chunk([line], test, offset, start_ms + int(line.at * 1000)))
    first_ms = start_ms + int(last * 1000)
    for now_ms in range(first_ms, start_ms + int(until * 1000) + 1, _STEP_MS):
        take(_chunk([], test, 0, now_ms))
    records = [record.values for delivery in deliveries for record in stored.records(delivery)]
    own = [record for record in records if record["kind"] != summaries.KIND]
    return _Found(sorted(own, key=lambda each: (each["offset"], each["line"], each["part"])), outcome.alerts())


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


def _wrong_records(wanted: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> str:
    """What is wrong with the records, or nothing."""
    for number, (wish, record) in enumerate(zip(wanted, found, strict=False), 1):
        for name, value in wish.items():
            if not _is(name, value, got := record.get(name)):
                return f"record {number}: {name} is {_shown_value(got)}, not {_shown_value(value)}"
    if len(wanted) == len(found):
        return ""
    texts = "; ".join(repr(record.get("message")) for record in found) or "none"
    return f"{len(found)} records instead of {len(wanted)}; their messages: {texts}"


def _is(name: str, wanted: Any, got: Any) -> bool:
    """Whether a field is as wanted; a table holds when each of its keys does."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(_is(key, value, got.get(key)) for key, value in wanted.items())
    if name == "ts":
        when = wanted.astimezone(UTC).isoformat() if isinstance(wanted, datetime) else str(wanted)
        stamp, is_now = parse_rfc3339(when), parse_rfc3339(str(got))
        return stamp is not None and is_now is not None and stamp.ns == is_now.ns
    return _shown_value(wanted) == _shown_value(got)


def _shown_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _wrong_alerts(wanted: Sequence[ExpectedAlert], found: Sequence[AlertEvent], start: int) -> str:
    """What is wrong with the alerts, or nothing."""
    left = list(found)
    missing = []
    for wish in wanted:
        match = next((event for event in left if _fits(wish, event, start)), None)
        if match is None:
            missing.append(wish)
        else:
            left.remove(match)
    if not missing and not left:
        return ""
    shown = "; ".join(_shown(event, start) for event in found) or "none"
    wished = "; ".join(str(wish.model_dump(exclude_unset=True)) for wish in missing)
    return f"{f'no alert like {wished}' if missing else 'more alerts than expected'}; there are: {shown}"


def _fits(wanted: ExpectedAlert, event: AlertEvent, start: int) -> bool:
    resolved = event.state == "resolved"
    known: list[tuple[Any, Any]] = [
        (wanted.rule or None, event.rule),
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
