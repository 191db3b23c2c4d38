"""What the events of an evaluator come to: the alerts that were, as far as they are known."""

from collections.abc import Iterable

from flows.detect.events import AlertEvent


class Outcome:
    """The latest event of every alert."""

    def __init__(self) -> None:
        self._alerts: dict[tuple[str, int], AlertEvent] = {}

    def take(self, events: Iterable[AlertEvent]) -> None:
        """Take events in their order; late ones are for the record only."""
        for event in events:
            for replaced in event.replaces:
                self._alerts.pop((event.fingerprint, replaced), None)
            if event.state != "late":
                self._alerts[event.fingerprint, event.starts_at] = event

    def alerts(self) -> list[AlertEvent]:
        """By start; what was taken back is left out."""
        kept = [event for event in self._alerts.values() if event.count]
        return sorted(kept, key=lambda event: (event.starts_at, event.rule, event.fingerprint))
