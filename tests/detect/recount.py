"""An independent recount: which alerts records make, second by second, without any of the code under test."""

from collections.abc import Iterable
from typing import NamedTuple

from flows.detect.events import AlertEvent, fingerprint
from flows.detect.rules import Rule

Alert = tuple[str, int, int, int]  # fingerprint, startsAt, endsAt, count


class Line(NamedTuple):
    """One matching record."""

    group: tuple[tuple[str, str], ...]
    second: int
    key: str = ""
    carrier: str = ""
    weight: int = 1
    follower: bool = False


def recount(rule: Rule, lines: Iterable[Line]) -> set[Alert]:
    """All alerts of one rule."""
    groups: dict[tuple[tuple[str, str], ...], list[Line]] = {}
    for line in lines:
        if not line.follower:
            groups.setdefault(line.group, []).append(line)
    return {
        (fingerprint(rule.name, group), *found) for group, mine in groups.items() for found in _of_group(rule, mine)
    }


def _of_group(rule: Rule, lines: list[Line]) -> list[tuple[int, int, int]]:
    begin = min(line.second for line in lines)
    end = max(line.second for line in lines) + rule.window_s
    found, since = [], None
    for now in range(begin, end + 1):
        above = _total([line for line in lines if now - rule.window_s < line.second <= now]) > rule.threshold
        if above and since is None:
            since = now
        if since is not None and not above:
            if now > since + rule.for_s:
                mine = [line for line in lines if since - rule.window_s < line.second < now]
                found.append((since + rule.for_s, now, _faults(rule, mine, lines)))
            since = None
    assert since is None
    return found


def _total(lines: list[Line]) -> int:
    """Occurrences: kernel text may be carried several ways, and the way that shows most counts."""
    by_carrier = {
        carrier: sum(line.weight for line in lines if line.carrier == carrier)
        for carrier in {line.carrier for line in lines}
    }
    return by_carrier.pop("", 0) + max(by_carrier.values(), default=0)


def _faults(rule: Rule, mine: list[Line], lines: list[Line]) -> int:
    if rule.fold_by is None:
        return _total(mine)
    seconds = {(line.key, line.second) for line in lines}
    return sum(
        not any((key, second - back) in seconds for back in range(1, rule.fold_s + 1))
        for key, second in {(line.key, line.second) for line in mine}
    )


def last_word(events: Iterable[AlertEvent]) -> set[Alert]:
    """The alerts that a receiver of all events is left with."""
    known: dict[tuple[str, int], AlertEvent] = {}
    for event in events:
        if event.state == "late":
            continue
        void = [
            key
            for key, old in known.items()
            if key[0] == event.fingerprint and old.starts_at < event.ends_at and event.starts_at < old.ends_at
        ]
        for key in void:
            del known[key]
        known[event.fingerprint, event.starts_at] = event
    assert all(event.state == "resolved" for event in known.values())
    return {(event.fingerprint, event.starts_at, event.ends_at, event.count) for event in known.values()}
