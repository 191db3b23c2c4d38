"""Which alerts there must be, counted anew from the archive, compared with what was told."""

import json
import tomllib
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition

from flows.detect.events import AlertEvent
from flows.detect.rules import Rule
from tests.crash.truth import Place
from tests.detect.recount import Alert, Line, last_word, recount
from tests.services.alertmanager import Pages

# The default rules in small, so that alerts come and go while the test lasts.
RULES = r"""
[[rules]]
name = "GpuXid"
events = ["gpu_xid"]
group_by = ["cluster", "node", "pci", "xid"]
fold_by = ["pid"]
window_s = 12

[[rules]]
name = "FabricManagerErrors"
kinds = ["fabric_manager"]
regex = '\[ERROR\]'
group_by = ["cluster", "node"]
window_s = 10
threshold = 3
for_s = 2

[[rules]]
name = "NcclTimeouts"
events = ["collective_timeout"]
group_by = ["cluster", "namespace|job_id|node"]
window_s = 10
threshold = 40
for_s = 3
"""
_XID, _FABRIC, _NCCL = (Rule.model_validate(rule) for rule in tomllib.loads(RULES)["rules"])
_LOST = 79  # happens once, whichever process notices


class AlertFigures(NamedTuple):
    alerts: int
    lines: int
    told: int
    pages: int


def expected(cluster: str, archive: dict[Place, pa.Table]) -> tuple[set[Alert], int]:
    """All alerts that the archived records make, and how many records matched."""
    found: dict[str, list[Line]] = {rule.name: [] for rule in (_XID, _FABRIC, _NCCL)}
    for rows in archive.values():
        seconds = pc.divide(rows["ts"].cast(pa.int64()), 10**9)
        fabric = pc.and_(pc.equal(rows["kind"], "fabric_manager"), pc.match_substring(rows["raw"], "[ERROR]"))
        events = rows["event"].cast(pa.string())
        wanted = pc.or_(pc.is_in(events, pa.array(["gpu_xid", "collective_timeout"])).fill_null(False), fabric)
        for row in rows.drop_columns(["spans", "ts"]).append_column("second", seconds).filter(wanted).to_pylist():
            name, line = _line(cluster, row)
            found[name].append(line)
    alerts = set().union(*(recount(rule, found[rule.name]) for rule in (_XID, _FABRIC, _NCCL)))
    return alerts, sum(map(len, found.values()))


def _line(cluster: str, row: dict[str, Any]) -> tuple[str, Line]:
    where = ("cluster", cluster)
    if row["event"] == "gpu_xid":
        group = (where, ("node", row["node"]), ("pci", row["pci"]), ("xid", str(row["xid"])))
        return _XID.name, Line(group, row["second"], "" if row["xid"] == _LOST else str(row["pid"]))
    if row["event"] == "collective_timeout":
        return _NCCL.name, Line((where, ("job_id", row["owner_job"])), row["second"])
    return _FABRIC.name, Line((where, ("node", row["node"])), row["second"])


def told(bootstrap: str, topic: str) -> list[AlertEvent]:
    """All events of the topic of alerts, repeats too, in the order in which they were told."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "truth", "enable.auto.commit": False})
    events: list[AlertEvent] = []
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, low)])
        for _ in range(high - low):
            message = consumer.poll(30)
            assert message is not None, f"{topic} cannot be read back"
            read = json.loads(message.value() or b"")
            read |= {name: tuple(sorted(read[name].items())) for name in ("labels", "annotations")}
            assert read.pop("v") == 1
            events.append(AlertEvent(**read))
    finally:
        consumer.close()
    return events


def check_alerts(expect: tuple[set[Alert], int], events: list[AlertEvent], pages: Pages, cluster: str) -> AlertFigures:
    """What was told last is what the archive makes, and nobody was paged twice for one incident."""
    alerts, lines = expect
    found = last_word(events)
    assert found == alerts, f"missing {sorted(alerts - found)[:5]}, wrong {sorted(found - alerts)[:5]}"
    incidents = Counter(name for name, *_ in alerts)
    names = {event.labels: event.fingerprint for event in events}
    paged = Counter(
        names[_sorted(alert["labels"])] for _, status, alert in pages.of(cluster=cluster) if status == "firing"
    )
    assert paged.keys() == incidents.keys(), "an incident paged nobody"
    again = {name: (count, incidents[name]) for name, count in paged.items() if count > incidents[name]}
    assert not again, f"pages and incidents: {again}"
    return AlertFigures(len(alerts), lines, len(events), paged.total())


def _sorted(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
