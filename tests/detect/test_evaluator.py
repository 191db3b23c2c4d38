"""The evaluator's bounds: what it waits for, what it forgets, and that it says so."""

import dataclasses
import pickle

import pytest

from flows.detect.evaluator import Evaluator
from flows.detect.events import Evidence, Partial
from flows.detect.rules import DetectConfig, Rule
from sinks.base import Partition
from tests.detect.scene import rule

AT = 1_741_064_767
A, B = ("logs", 0), ("logs", 1)
TRIED = rule(events=["e"], window_s=60)


def partial(second: int = 0, offset: int = 0, node: str = "a", source: Partition = A, lines: int = 1) -> Partial:
    """A partial of a message that came at its own second."""
    place = (*source, offset)
    first = Evidence((AT + second) * 10**9, *place, 0, node, "kmsg", "", "x")
    return Partial("Tried", (("node", node),), AT + second, *place, (AT + second) * 1_000, ((0, 0, lines),), first)


def evaluator(*rules: Rule, sources: tuple[Partition, ...] = (), **config: int) -> Evaluator:
    return Evaluator(rules or (TRIED,), DetectConfig.model_validate(config), sources)


def ms(second: int) -> int:
    return (AT + second) * 1_000


def test_repeats_are_counted_as_such_and_change_nothing() -> None:
    tried = evaluator()
    tried.feed([partial(lines=5), partial(lines=5), partial(lines=7)])
    assert tried.firing()[0].count == 7
    assert tried.repeated == {A: 10}
    tried.feed([dataclasses.replace(partial(lines=1), records=((3, 0, 1), (9, 0, 1), (3, 1, 1)))])
    assert tried.firing()[0].count == 9
    assert tried.repeated == {A: 11}


def test_a_repeat_older_than_what_is_remembered_is_still_a_repeat() -> None:
    tried = evaluator(repeat_s=60)
    tried.feed([partial(0, offset=5)])
    tried.tick({A: ms(61)})
    assert tried.feed([partial(0, offset=5), partial(0, offset=4)]) == []
    assert tried.repeated == {A: 2}


def test_a_slow_partition_holds_the_end_of_an_alert_back_until_it_ticks() -> None:
    tried = evaluator(sources=(A, B))
    (fired,) = tried.feed([partial(0)])
    assert fired.state == "firing"
    assert tried.tick({A: ms(1_000)}) == []
    assert tried.tick({B: ms(59)}) == []
    assert [event.state for event in tried.tick({B: ms(60)})] == ["resolved"]


def test_a_line_behind_all_that_is_settled_is_counted_as_forgotten() -> None:
    tried = evaluator(horizon_s=60, repeat_s=60)
    tried.tick({A: ms(1_000)})
    assert tried.feed([dataclasses.replace(partial(879), appended_ms=ms(1_000))]) == []
    assert tried.forgotten["too_old"] == 1
    (event,) = tried.feed([dataclasses.replace(partial(940, offset=1), appended_ms=ms(1_000))])[:1]
    assert event.state == "firing"


@pytest.mark.parametrize("bound", [{"max_groups": 3}, {"max_cells": 3}])
def test_of_too_many_groups_the_one_longest_without_lines_goes_and_its_alert_is_resolved(bound: dict[str, int]) -> None:
    tried = evaluator(**bound)
    tried.feed([partial(0, offset, node) for offset, node in enumerate("abc")])
    events = tried.feed([partial(0, 3, "a"), partial(0, 4, "d")])
    assert [(event.state, dict(event.labels)["node"]) for event in events] == [("firing", "d"), ("resolved", "b")]
    assert tried.forgotten["groups"] == 1
    assert tried.groups() == {"Tried": 3}


def test_of_too_many_messages_the_oldest_are_forgotten_early_and_counted() -> None:
    tried = evaluator(max_messages=2)
    tried.feed([partial(0, offset) for offset in range(5)])
    tried.tick({A: ms(0)})
    assert tried.forgotten["messages"] == 3
    tried.feed([partial(0, 2), partial(0, 3), partial(0, 5)])
    assert tried.repeated == {A: 2}
    assert tried.firing()[0].count == 6


def test_an_alert_that_lasts_for_days_keeps_its_start_its_count_and_its_first_line() -> None:
    tried = evaluator(horizon_s=60, repeat_s=60)
    events = []
    for number in range(5_000):
        events += tried.feed([partial(number * 50, number)])
        events += tried.tick({A: ms(number * 50)})
    assert [event.state for event in events] == ["firing"]
    (event,) = tried.firing()
    assert (event.starts_at, event.count, event.evidence[0].offset) == (AT, 5_000, 0)
    assert len(pickle.dumps(tried.state())) < 20_000
    (resolved,) = tried.tick({A: ms(10**6)})
    assert (resolved.count, resolved.ends_at) == (5_000, AT + 4_999 * 50 + 60)
    assert tried.groups() == {"Tried": 0}


def test_a_restart_tells_nothing_twice_and_drops_rules_that_are_gone() -> None:
    before = evaluator(TRIED, rule(name="Gone", events=["e"]))
    before.feed([partial(0), dataclasses.replace(partial(0, 1), rule="Gone")])
    after = evaluator()
    after.restore(pickle.loads(pickle.dumps(before.state())))
    assert after.feed([partial(0), dataclasses.replace(partial(0, 1), rule="Gone")]) == []
    assert after.tick({A: ms(1)}) == []
    assert [event.rule for event in after.firing()] == ["Tried"]
    assert after.forgotten["unknown_rule"] == 1
    assert [event.state for event in after.tick({A: ms(60)})] == ["resolved"]


def test_a_rule_whose_window_was_changed_resolves_what_it_no_longer_sees() -> None:
    before = evaluator(rule(events=["e"], window_s=60, threshold=1))
    before.feed([partial(0, 0), partial(50, 1)])
    after = evaluator(rule(events=["e"], window_s=30, threshold=1))
    after.restore(pickle.loads(pickle.dumps(before.state())))
    assert [event.state for event in after.tick({A: ms(50)})] == ["resolved"]
    assert after.firing() == []


def test_fingerprints_are_for_good() -> None:
    (event,) = evaluator().feed([partial()])
    assert event.fingerprint == "cd712f88c3868697"
