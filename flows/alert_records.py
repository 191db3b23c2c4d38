"""An alert event as an ordinary record, and as Alertmanager gets it."""

from collections.abc import Sequence

from flows.detect.events import AlertEvent
from flows.steps.columns import ROWS, rich_rows
from flows.steps.labels import Labelled, LabelSets
from flows.steps.reassemble import Finished
from parsers.clock import Stamp
from parsers.record import Record, Ref
from parsers.schema import ENVELOPE
from sinks.alert_senders import Alert
from sinks.base import Part

KIND = "alert"
JOB = "alerts"
TOPIC = "tailrace.alerts"  # of the identity; the records are read from no topic
_PARTS = {"firing": 0, "resolved": 1, "late": 2}
_LEVELS = {"critical": "critical", "error": "error", "warning": "warning", "info": "info"}
_TYPED = ("pci", "severity")
_NUMBERS = ("xid", "sxid", "job_id")
_NS = 1_000_000_000


def alert(event: AlertEvent) -> Alert | None:
    """What Alertmanager is told; None for what is only recorded."""
    if event.state == "late":
        return None
    annotations = dict(event.annotations)
    if event.job_id:
        annotations.setdefault("job_id", event.job_id)
    if event.evidence:
        first = event.evidence[0]
        annotations["evidence"] = first.message
        annotations["evidence_at"] = f"{first.topic}/{first.partition}@{first.offset}:{first.line}"
    return Alert(
        event.fingerprint,
        event.starts_at * 1000,
        event.ends_at * 1000 if event.state == "resolved" else None,
        event.labels,
        tuple(sorted(annotations.items())),
        tuple(starts * 1000 for starts in event.replaces),
    )


def part(events: Sequence[AlertEvent], cluster: str) -> Part:
    """Records of kind `alert` (schema.LOG) that own no line.

    Their identity is (fingerprint, startsAt, state), written as offset, line and part, so that another event of the
    same episode and state is known as its repeat. `ts` is when the alert started, or resolved.
    """
    labels = LabelSets(KIND)
    rows = rich_rows([_finished(event, cluster) for event in events], labels) if events else ROWS.empty_table()
    return Part(KIND, rows, ROWS.empty_table(), labels.streams, labels.demoted)


def _finished(event: AlertEvent, cluster: str) -> Finished:
    named = dict(event.labels)
    seconds = event.ends_at if event.state == "resolved" else event.starts_at
    fields: dict[str, object] = {
        "event": "alert",
        "level": _LEVELS.get(event.severity, "warning"),
        "message": f"{event.rule} {event.state}: {dict(event.annotations).get('summary', '')}".rstrip(": "),
        "nodes": list(event.nodes) or None,
        "state": event.state,
        "rule": event.rule,
        "fingerprint": event.fingerprint,
        "starts_at": event.starts_at,
        "ends_at": event.ends_at,
        "count": event.count,
        "lines": event.lines,
        "labels": named,
        "annotations": dict(event.annotations),
        "evidence": [line._asdict() for line in event.evidence],
    }
    fields |= {name: named.get(name) for name in _TYPED}
    for name in _NUMBERS:
        value = named.get(name) or (event.job_id if name == "job_id" else "")
        fields[name] = int(value) if value.isdecimal() and len(value) < 18 else None
    envelope: dict[str, str | None] = dict.fromkeys(ENVELOPE.names, "")
    envelope |= {name: named[name] for name in ("node", "cluster", "namespace") if name in named}
    envelope["job"] = JOB
    where = named.get("cluster", "") or cluster
    return Finished(
        Record(
            fields,
            (Ref(int(event.fingerprint, 16) >> 1, min(max(event.starts_at, 0), 2**31 - 1)),),
            Stamp(seconds * _NS),
            "received",
            {"clock_suspect"} if event.clock_suspect else set(),
            part=_PARTS[event.state],
        ),
        KIND,
        TOPIC,
        0,
        envelope,
        Labelled(
            tuple(sorted({"job": JOB, **({"cluster": where} if where else {})}.items())),
            tuple((name, value) for name, value in event.labels if name != "cluster"),
        ),
        seconds * 1000,
        event.to_json(),
        owned=0,
        row=-1,
        plain=False,
    )
