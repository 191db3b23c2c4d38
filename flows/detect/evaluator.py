"""The second half of detection: partials in, alert events out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flows.detect.events import AlertEvent, Partial
from flows.detect.rules import DetectConfig, Rule
from sinks.base import Partition


class Evaluator:
    """Pure state machine over the partials of all partitions; not thread-safe.

    `sources`: partitions it must wait for although nothing was heard of them yet.
    """

    def __init__(self, rules: Sequence[Rule], config: DetectConfig, sources: Collection[Partition] = ()) -> None:
        raise NotImplementedError

    def feed(self, partials: Iterable[Partial]) -> list[AlertEvent]:
        """Count partials, repeats or not, in any order of partitions; returns what changed."""
        raise NotImplementedError

    def tick(self, clocks: Mapping[Partition, int]) -> list[AlertEvent]:
        """Move the clocks (ms since the epoch) of source partitions; 0 makes one known. Returns what changed."""
        raise NotImplementedError

    def firing(self) -> list[AlertEvent]:
        """The latest event of each alert that fires: what a receiver must be told again."""
        raise NotImplementedError

    def state(self) -> Any:
        """Picklable; valid until the next call."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        """Go on from a snapshot. Groups of rules that are gone are dropped."""
        raise NotImplementedError
