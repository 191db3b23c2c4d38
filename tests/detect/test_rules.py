"""Rules as configuration: what is refused, and what is said about it."""

from typing import Any

import pytest
from pydantic import ValidationError

from flows.detect.evaluator import Evaluator
from flows.detect.rules import DetectConfig, Rule, default_rules
from tests.detect.scene import Scene, rule, xid


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "every line"),
        ({"regex": "x"}, "every line"),
        ({"events": ["e"], "regex": "("}, "no RE2 pattern"),
        ({"events": ["e"], "regex": "(?=x)"}, "no RE2 pattern"),
        ({"events": ["e"], "name": "no name"}, "name"),
        ({"events": ["e"], "window_s": 1}, "fold_s must be less"),
        ({"events": ["e"], "labels": {"pod": "{pod}"}}, "changes while the alert lasts"),
        ({"events": ["e"], "labels": {"a b": "x"}}, "no name of a label"),
        ({"events": ["e"], "annotations": {"a": "{"}}, "rule Tried, a: "),
        ({"events": ["e"], "annotations": {"a": "{0.__class__}"}}, "no placeholder"),
        ({"events": ["e"], "annotations": {"a": "{x!r}"}}, "no placeholder"),
        ({"events": ["e"], "treshold": 1}, "treshold"),
        ({"events": ["e"], "also": [{"regex": "x"}]}, "every line"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Rule.model_validate({"name": "Tried", **values})


def test_the_default_rules_have_names_of_their_own_and_say_what_they_count() -> None:
    rules = default_rules()
    assert len({one.name for one in rules}) == len(rules) == 6
    assert all(one.annotations["summary"] for one in rules)


@pytest.mark.parametrize("name", ["Tried", "job_nodes"])
def test_two_rules_of_one_name_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"two rules are named {name}"):
        Evaluator([rule(name="Tried", events=["e"]), rule(name=name, events=["e"])], DetectConfig())


def test_labels_and_texts_hold_the_values_of_the_group_and_of_the_first_line() -> None:
    scene = Scene(
        [
            rule(
                events=["gpu_xid"],
                group_by=["node", "xid"],
                severity="page",
                labels={"team": "gpu", "where": "{node}/{xid}"},
                annotations={"a": "{count} of {threshold} in {window_s}: {rule} {pid} {pci} {missing} {hosts} {{x}}"},
            )
        ]
    )
    scene.send(0, "kmsg", xid(31, pid=7), xid(31, pid=8))
    assert dict(scene.only.labels) == {
        "alertname": "Tried", "severity": "page", "node": "gpu-a01", "xid": "31", "team": "gpu",
        "where": "gpu-a01/31",
    }  # fmt: skip
    assert scene.only.annotations == (("a", "2 of 0 in 300: Tried 7 0000:3b:00 unknown gpu-a01 {x}"),)
