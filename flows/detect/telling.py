"""Writes an episode as an alert event: labels, texts with the values in them, the lines that stand for it."""

from collections import defaultdict

from flows.detect.episodes import Crossing
from flows.detect.events import AlertEvent, Group, State
from flows.detect.groups import Slot
from flows.detect.knowledge import Knowledge
from flows.detect.rules import Rule

UNKNOWN = "unknown"  # stands for a placeholder whose value no line has shown


def event(
    rule: Rule,
    fingerprint: str,
    group: Group,
    state: State,
    episode: Crossing,
    shown: Slot,
    job_id: str,
    knowledge: Knowledge,
    replaces: tuple[int, ...] = (),
) -> AlertEvent:
    """The event of an episode as it is now. Only texts depend on `shown` and `knowledge`."""
    labels = dict(group)
    values = {name: value for name, (_, _, value) in shown.values.items()}
    uuid = knowledge.gpus.get((labels.get("node", ""), labels.get("pci", "")))
    if uuid:
        values.setdefault("gpu_uuid", uuid)
    if job_id:
        values.setdefault("job_id", job_id)
    own = {
        "count": episode.faults,
        "lines": episode.lines,
        "rule": rule.name,
        "window_s": rule.window_s,
        "threshold": rule.threshold,
        "hosts": ", ".join(shown.nodes),
    }
    texts = defaultdict(lambda: UNKNOWN, {**values, **labels, **{name: str(value) for name, value in own.items()}})
    fixed = {**labels, **{name: text.format_map(texts) for name, text in rule.labels.items()}}
    return AlertEvent(
        rule=rule.name,
        fingerprint=fingerprint,
        state=state,
        starts_at=episode.starts,
        ends_at=episode.starts if state == "late" else episode.ends,
        count=episode.faults,
        lines=episode.lines,
        severity=rule.severity,
        labels=tuple(sorted({**fixed, "alertname": rule.name, "severity": rule.severity}.items())),
        annotations=tuple(sorted((name, text.format_map(texts)) for name, text in rule.annotations.items())),
        evidence=tuple(shown.first),
        nodes=tuple(shown.nodes),
        job_id=job_id,
        clock_suspect=shown.clock_suspect,
        replaces=replaces,
    )
