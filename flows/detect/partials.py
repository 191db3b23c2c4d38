"""The first half of detection: records in, partials out."""

from collections.abc import Sequence

from flows.detect.events import Partial
from flows.detect.rules import DetectConfig, Rule
from sinks.base import Delivery


class Detector:
    """Finds the records that rules count. Holds no state: what it returns depends on the delivery alone."""

    def __init__(self, rules: Sequence[Rule], config: DetectConfig, cluster: str = "") -> None:
        """`cluster`: name for records that carry none."""
        raise NotImplementedError

    def partials(self, delivery: Delivery) -> list[Partial]:
        """Partials of the rows of a delivery (not of its noise), by place."""
        raise NotImplementedError
