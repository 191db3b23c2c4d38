"""Lines through the real pipeline, detector and evaluator: what an operator's rules make of them."""

from collections.abc import Sequence
from typing import Any

from flows.detect.evaluator import Evaluator
from flows.detect.events import AlertEvent, Partial
from flows.detect.partials import Detector
from flows.detect.rules import DetectConfig, Rule, default_rules
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from flows.steps.noise import NoiseConfig
from tests.chunks import APPENDED_MS, block_headers, chunk

START = APPENDED_MS // 1_000
TOPIC = "logs"


class Scene:
    """One partition. Times are seconds after START."""

    def __init__(self, rules: Sequence[Rule] | None = None, noise: NoiseConfig | None = None) -> None:
        self.rules = default_rules() if rules is None else tuple(rules)
        self._pipeline = Pipeline(DecodeConfig(), "west", noise or NoiseConfig())
        self.detector = Detector(self.rules, DetectConfig(), "west")
        self.evaluator = Evaluator(self.rules, DetectConfig())
        self.events: list[AlertEvent] = []
        self.partials: list[Partial] = []
        self._offset = 0

    def send(
        self, at: int, kind: str, *lines: str, node: str = "gpu-a01", stamp: int | None = None, **more: str
    ) -> None:
        """One message that Kafka has at `at`; `stamp`: the time its lines bear, where they bear none themselves."""
        read_at = {} if stamp is None else {"read_at": str(START + stamp)}
        headers = block_headers(kind, node, **read_at, **more)
        message = chunk(
            [(headers, [line.encode() for line in lines])], self._offset, TOPIC, 0, (START + at) * 1_000, ended=True
        )
        self._offset += 1
        delivery, _ = self._pipeline.process(message)
        self.take(self.detector.partials(delivery), at)

    def take(self, partials: Sequence[Partial], at: int) -> None:
        """Give partials to the evaluator, at a time."""
        self.partials += partials
        self.events += self.evaluator.feed(partials)
        self.clock(at)

    def clock(self, at: int) -> None:
        """Nothing came until then."""
        self.events += self.evaluator.tick({(TOPIC, 0): (START + at) * 1_000})

    def firing(self) -> list[str]:
        """Names of the alerts that fire."""
        return sorted(event.rule for event in self.evaluator.firing())

    def told(self) -> list[tuple[str, str, int, int]]:
        """(rule, state, startsAt, count) of all events so far; seconds after START."""
        return [(event.rule, event.state, event.starts_at - START, event.count) for event in self.events]

    @property
    def only(self) -> AlertEvent:
        """The latest event, where there is one alert in all."""
        assert len({event.fingerprint for event in self.events}) == 1, self.told()
        return self.events[-1]


def rule(**values: Any) -> Rule:
    """A rule as configuration gives it."""
    return Rule.model_validate({"name": "Tried", **values})


_seq = iter(range(10**9))


def kmsg(text: str) -> str:
    """A kernel record, without a time of its own."""
    return f"3,{next(_seq)},1000000,-;{text}"


def xid(code: int, detail: str = "Ch 00000008", pid: int | None = 4021, pci: str = "0000:3b:00") -> str:
    """An Xid as the kernel prints it."""
    owner = "" if pid is None else f"pid={pid}, name=python3, "
    return kmsg(f"NVRM: Xid (PCI:{pci}): {code}, {owner}{detail}")
