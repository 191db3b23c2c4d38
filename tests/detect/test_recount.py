"""Whatever batches, order of partitions, crashes and repeats: the same alerts, those of an independent recount."""

import pickle
from typing import NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent, Evidence, Partial
from flows.detect.rules import DetectConfig, Rule
from tests.detect.recount import Line, last_word, recount

CONFIG = DetectConfig(skew_s=600, horizon_s=60, repeat_s=60)
BASE = 1_741_064_400
PARTITIONS = 3

RULES = (
    Rule(name="at_once", events=("e",), window_s=20),
    Rule(name="folded", events=("e",), window_s=20, fold_by=("pid",), fold_s=2),
    Rule(name="many", events=("e",), window_s=30, threshold=3),
    Rule(name="lasting", events=("e",), window_s=30, threshold=2, for_s=12),
    Rule(name="long_for", events=("e",), window_s=10, for_s=25),
    Rule(name="many_folded", events=("e",), window_s=30, threshold=2, fold_by=("pid",), fold_s=1),
)


class Record(NamedTuple):
    """A record in a message of its own or shared: `gap` seconds after the one before it, `age` seconds old."""

    gap: int
    age: int
    line: Line


records = st.builds(
    Record,
    gap=st.sampled_from([0, 0, 0, 1, 1, 2, 5, 11, 19, 20, 21, 40, 75, 130]),
    age=st.sampled_from([0, 0, 0, 1, 3, 10, 35, 60]),
    line=st.builds(
        Line,
        group=st.sampled_from([(("node", "a"),), (("node", "b"),), ()]),
        second=st.just(0),
        key=st.sampled_from(["1", "2"]),
        carrier=st.sampled_from(["", "kmsg", "syslog", "journal"]),
        weight=st.sampled_from([1, 1, 1, 4]),
        follower=st.sampled_from([False, False, False, True]),
    ),
)


class Message(NamedTuple):
    """A Kafka message: its offset, the broker's second, and lines."""

    partition: int
    offset: int
    appended: int
    lines: list[Line]


@st.composite
def streams(draw: st.DrawFn) -> list[list[Message]]:
    """Messages of some partitions, each in order."""
    result = []
    for partition in range(PARTITIONS):
        messages: list[Message] = []
        now = BASE
        for record in draw(st.lists(records, max_size=10)):
            now += record.gap
            line = record.line._replace(second=now - record.age)
            if messages and messages[-1].appended == now and draw(st.booleans()):
                messages[-1].lines.append(line)
            else:
                messages.append(Message(partition, len(messages), now, [line]))
        result.append(messages)
    return result


def partials(rule: Rule, message: Message, start: int, end: int) -> list[Partial]:
    """Partials of some of the lines of a message: alike neighbours in one."""
    found: list[Partial] = []
    for number in range(start, end):
        line = message.lines[number]
        alike = found and (found[-1].group, found[-1].second, found[-1].key, found[-1].carrier) == line[:4]
        if alike and (found[-1].weight, found[-1].follower) == line[4:]:
            (first, part, count) = found[-1].records[0]
            found[-1] = _replaced(found[-1], ((first, part, count + 1),))
            continue
        place = ("logs", message.partition, message.offset)
        found.append(
            Partial(
                rule.name, line.group, line.second, *place, message.appended * 1_000, ((number, 0, 1),),
                Evidence(line.second * 10**9, *place, number, "n", "kmsg", "", ""),
                key=line.key if rule.fold_by is not None else "",
                carrier=line.carrier, weight=line.weight, follower=line.follower,
            )
        )  # fmt: skip
    return found


def _replaced(partial: Partial, records: tuple[tuple[int, int, int], ...]) -> Partial:
    fields = {name: getattr(partial, name) for name in Partial.__dataclass_fields__}
    return Partial(**{**fields, "records": records})


class Run:
    """An evaluator that is fed, ticks, and may be put back to any earlier snapshot."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.evaluator = self._new()
        self.events: list[AlertEvent] = []
        self.events += self.evaluator.tick({("logs", partition): 0 for partition in range(PARTITIONS)})

    def _new(self) -> Evaluator:
        return Evaluator([self.rule], CONFIG)

    def snapshot(self) -> bytes:
        return pickle.dumps(self.evaluator.state())

    def crash(self, snapshot: bytes) -> None:
        self.evaluator = self._new()
        self.evaluator.restore(pickle.loads(snapshot))

    def end(self) -> None:
        """All clocks move on until all is settled; state must be gone then."""
        self.events += self.evaluator.tick(
            {("logs", partition): (BASE + 10**6) * 1_000 for partition in range(PARTITIONS)}
        )
        assert self.evaluator.firing() == []
        assert self.evaluator.groups() == {self.rule.name: 0}


@settings(max_examples=100)
@given(rule=st.sampled_from(RULES), read=streams(), data=st.data())
def test_any_order_of_partitions_cuts_crashes_and_repeats_give_the_alerts_of_a_recount(
    rule: Rule, read: list[list[Message]], data: st.DataObject
) -> None:
    lines = [line for messages in read for message in messages for line in message.lines]
    if rule.fold_by is None:
        lines = [line._replace(key="") for line in lines]
    expected = recount(rule, lines)
    event(f"{rule.name}: {min(len(expected), 3)} alerts")
    run = Run(rule)
    at = [0] * PARTITIONS
    snapshots = [(run.snapshot(), list(at))]
    steps = 0
    while any(place < len(messages) for place, messages in zip(at, read, strict=True)):
        steps += 1
        partition = data.draw(st.sampled_from([n for n in range(PARTITIONS) if at[n] < len(read[n])]))
        taken = read[partition][at[partition] : at[partition] + data.draw(st.integers(1, 4))]
        at[partition] += len(taken)
        batch = []
        for message in taken:
            cut = data.draw(st.integers(0, len(message.lines)))
            batch += partials(rule, message, 0, cut) + partials(rule, message, cut, len(message.lines))
        batch += data.draw(st.lists(st.sampled_from(batch), max_size=3))
        run.events += run.evaluator.feed(batch)
        run.events += run.evaluator.tick({("logs", partition): taken[-1].appended * 1_000})
        what = data.draw(st.sampled_from(["go on", "go on", "snapshot", "crash", "resend"])) if steps < 60 else "go on"
        if what == "snapshot":
            snapshots.append((run.snapshot(), list(at)))
        elif what == "crash":
            last = data.draw(st.integers(0, len(snapshots) - 1))
            del snapshots[last + 1 :]
            at = list(snapshots[last][1])
            run.crash(snapshots[last][0])
        elif what == "resend":  # the tier restarts: it makes partials again that the evaluator has
            at[partition] = data.draw(st.integers(0, at[partition]))
    run.end()
    assert last_word(run.events) == expected


@given(rule=st.sampled_from(RULES), read=streams())
def test_one_run_without_disturbance_gives_the_alerts_of_a_recount(rule: Rule, read: list[list[Message]]) -> None:
    lines = [line for messages in read for message in messages for line in message.lines]
    if rule.fold_by is None:
        lines = [line._replace(key="") for line in lines]
    run = Run(rule)
    for message in sorted((message for messages in read for message in messages), key=lambda one: one.appended):
        run.events += run.evaluator.feed(partials(rule, message, 0, len(message.lines)))
        run.events += run.evaluator.tick({("logs", number): message.appended * 1_000 for number in range(PARTITIONS)})
    run.end()
    assert last_word(run.events) == recount(rule, lines)
    assert not run.evaluator.forgotten["too_old"]
