"""A storm of GPU errors: as many alerts as faults, state that does not grow with lines, and nobody has to wait."""

import dataclasses
import pickle

from flows.detect.events import Partial
from tests.detect.scene import START, Scene, xid

LINES, SECONDS = 800_000, 60
BLOCK = 500  # lines of a message
MESSAGES = LINES // BLOCK
CODES = (79, 31, 48, 13, 74)
FAULTS = [(f"gpu-a{number % 8:02d}", f"0000:{0x1A + number // 8:02x}:00", CODES[number % 5]) for number in range(29)]
OTHERS = {number * 150: f"gpu-b{number:02d}" for number in range(10)}  # message before which another node has a fault
BYTES_PER_MESSAGE = 200  # of state: its identity, and its share of the counts by second and process


def of_message(lines: int, node: str, pci: str = "0000:3b:00", code: int = 79) -> list[Partial]:
    """What the tier makes of a message that holds so many lines of one fault, of some processes."""
    scene = Scene()
    scene.send(0, "kmsg", *(xid(code, pid=4_021 + line % 3, pci=pci) for line in range(lines)), node=node, stamp=0)
    assert sum(count for partial in scene.partials for _, _, count in partial.records) == lines
    return scene.partials


def moved(partials: list[Partial], second: int, offset: int) -> list[Partial]:
    """The same in a later message."""
    return [
        dataclasses.replace(
            partial,
            second=START + second,
            offset=offset,
            appended_ms=(START + second) * 1_000,
            first=partial.first._replace(ts_ns=(START + second) * 10**9, offset=offset),
        )
        for partial in partials
    ]


def test_800_000_lines_of_29_faults_in_a_minute_are_29_alerts() -> None:
    storm = [of_message(BLOCK, *fault) for fault in FAULTS]
    others = {number: of_message(1, node) for number, node in OTHERS.items()}
    scene, incidents = Scene(), len(FAULTS) + len(OTHERS)
    for number in range(MESSAGES):
        second = number * SECONDS // MESSAGES
        if number in others:
            told = len(scene.events)
            scene.take(moved(others[number], second, MESSAGES + number), second)
            assert [dict(event.labels)["node"] for event in scene.events[told:]] == [OTHERS[number]], "it had to wait"
        scene.take(moved(storm[number % len(storm)], second, number), second)
    assert [event.state for event in scene.events] == ["firing"] * incidents
    assert len(scene.firing()) == incidents
    assert sum(event.lines for event in scene.evaluator.firing()) == LINES + len(OTHERS)
    assert len(pickle.dumps(scene.evaluator.state())) < MESSAGES * BYTES_PER_MESSAGE
    scene.clock(10_000)
    assert [event.state for event in scene.events[incidents:]] == ["resolved"] * incidents
    assert sum(scene.evaluator.groups().values()) == 0
    assert len(pickle.dumps(scene.evaluator.state())) < 4_000
