"""What came out of the demo's run, read back from the stores, and whether it adds up with what was written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from flows import alert_records
from flows.cluster import Runtime
from flows.demo.alertmanager_receiver import AlertmanagerReceiver
from flows.demo.cascade import BAD_NODE, BAD_PCI
from flows.demo.loki_receiver import Receiver
from flows.demo.scene import Scene
from flows.run import ledger
from parsers.gpu_catalogue import xid_meaning
from sinks.manifest import LANDING

# Events of the story beside the Xids. Those of the kernel are the bad node's own.
_KERNEL, _OTHERS = {"pcie_aer"}, {
    "nccl_cuda_failure",
    "nccl_connection_closed",
    "nccl_completion_error",
    "collective_timeout",
    "job_exit",
    "node_reason",
}  # fmt: skip


class Xid(NamedTuple):
    """A GPU error in the archive, with what the catalogue says of its code."""

    ts: datetime
    node: str
    pci: str
    xid: int
    meaning: str
    severity: str
    action: str


class Alarm(NamedTuple):
    """An alert as it was last recorded in the archive. `first`: its first line, as path@offset:line."""

    rule: str
    node: str
    pci: str
    xid: str
    faults: int
    lines: int
    since: datetime
    until: datetime | None
    job_id: str
    first: str


class Chapter(NamedTuple):
    """Alike records of the story: how many, on how many nodes, and the first of them."""

    ts: datetime
    node: str
    text: str
    records: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Unit: physical lines, but for `archive_kept` and `receiver_entries`, which count records.

    `paged`: alerts that Alertmanager was told of.
    """

    written: int
    log_bytes: int
    seconds: float
    ledger: dict[str, Any]  # flows.run.ledger
    archive_lines: int
    archive_kept: int  # records that no rule dropped
    archive_bytes: int
    receiver_entries: int
    receiver_streams: int
    receiver_answers: dict[int, int]
    receiver_problems: tuple[str, ...]
    xids: tuple[Xid, ...]
    story: tuple[Chapter, ...]
    alarms: tuple[Alarm, ...]
    paged: int

    @property
    def bad_node(self) -> str | None:
        """The node with the first critical Xid."""
        return next((xid.node for xid in self.xids if xid.severity == "critical"), None)


def find(
    runtime: Runtime, receiver: Receiver, pager: AlertmanagerReceiver, scene: Scene, archive: Path, seconds: float
) -> Findings:
    """Read everything back after a run of `seconds`."""
    objects = ds.dataset(archive / LANDING, format="parquet")
    counted = objects.to_table(columns=["owned", "noise"])
    kept = objects.to_table(
        columns=["ts", "node", "level", "event", "message", "pci", "xid", "severity", "action"],
        filter=ds.field("noise").is_null() & ds.field("event").is_valid() & (ds.field("ts_source") != "received"),
    )
    in_us = kept["ts"].cast(pa.timestamp("us", "UTC"), safe=False)  # Python's datetime holds no more
    events = kept.set_column(0, "ts", in_us).sort_by("ts").to_pylist()
    xids = tuple(_xid(event) for event in events if event["xid"] is not None)
    told = objects.to_table(columns=["raw"], filter=ds.field("kind") == alert_records.KIND)["raw"].to_pylist()
    return Findings(
        written=scene.lines,
        log_bytes=sum(file.path.stat().st_size for file in scene.files),
        seconds=seconds,
        ledger=ledger(runtime),
        archive_lines=pc.sum(counted["owned"]).as_py() or 0,
        archive_kept=counted["noise"].null_count,
        archive_bytes=sum(Path(path).stat().st_size for path in objects.files),
        receiver_entries=receiver.lines,
        receiver_streams=len(receiver.streams()),
        receiver_answers=dict(receiver.answers),
        receiver_problems=tuple(receiver.problems),
        xids=xids,
        story=_story(events, xids[0].node if xids else ""),
        alarms=_alarms(map(orjson.loads, told)),
        paged=len({tuple(alert["labels"].items()) for _, alerts in pager.posts for alert in alerts}),
    )


def problems(found: Findings) -> list[str]:
    """Every number that does not add up, as a sentence. Empty: all is well."""
    counts, sinks = found.ledger, found.ledger["sinks"]
    fates = counts["kept"] + sum(counts["dropped"].values()) + counts["dead"] + counts["held"]
    archived, pushed = sinks["parquet"]["delivered"], sinks["loki"]["delivered"]
    checks = [
        ("lines read", counts["read"], "lines written", found.written),
        ("lines read", counts["read"], "lines kept, dropped, dead and held", fates),
        ("lines without a fate in the pipeline", counts["unbalanced"], "none allowed", 0),
        ("dead lines", counts["dead"], "none expected", 0),
        ("lines delivered to the archive", archived, "lines read", counts["read"]),
        ("lines in the archive's files", found.archive_lines, "lines delivered to it", archived),
        ("lines delivered to Loki", pushed, "lines kept", counts["kept"]),
        ("entries the Loki receiver counted", found.receiver_entries, "records kept", found.archive_kept),
        ("alerts Alertmanager was told of", found.paged, "alerts in the archive", len(found.alarms)),
    ]
    checks += [
        (f"lines without a fate in {name}", sink["difference"], "none allowed", 0) for name, sink in sinks.items()
    ]
    wrong = [f"{what}: {count:,}; {other}: {wanted:,}" for what, count, other, wanted in checks if count != wanted]
    wrong += [f"the Loki receiver says: {text}" for text in found.receiver_problems]
    if [(xid.node, xid.pci) for xid in found.xids if xid.xid == 79] != [(BAD_NODE, BAD_PCI)]:
        wrong.append(f"Xid 79 should be in the archive once, on {BAD_NODE} {BAD_PCI}; found: {found.xids or 'none'}")
    return wrong


def _xid(event: dict[str, Any]) -> Xid:
    meaning = xid_meaning(event["xid"])
    return Xid(
        event["ts"],
        event["node"],
        event["pci"],
        event["xid"],
        meaning.name if meaning else "not in the catalogue",
        event["severity"],
        event["action"],
    )


def _alarms(events: Iterable[dict[str, Any]]) -> tuple[Alarm, ...]:
    """One for each alert, by its first line; what was told when it resolved stands for what was told before."""
    alarms: dict[tuple[str, int], Alarm] = {}
    for event in sorted(events, key=lambda event: (event["state"] == "resolved", event["evidence"][0]["ts_ns"])):
        labels, first = event["labels"], event["evidence"][0]
        alarms[event["fingerprint"], event["starts_at"]] = Alarm(
            event["rule"],
            labels.get("node", ""),
            labels.get("pci", ""),
            labels.get("xid", ""),
            event["count"],
            event["lines"],
            datetime.fromtimestamp(event["starts_at"], UTC),
            datetime.fromtimestamp(event["ends_at"], UTC) if event["state"] == "resolved" else None,
            event["job_id"],
            f"{first['topic']}@{first['offset']}:{first['line']}",
        )
    return tuple(alarms.values())


def _story(events: Sequence[dict[str, Any]], bad_node: str) -> tuple[Chapter, ...]:
    """What happened, in the order in which it first did."""
    chapters: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for event in events:
        mine = event["xid"] is not None or (event["event"] in _KERNEL and event["node"] == bad_node)
        if mine or event["event"] in _OTHERS:
            chapters.setdefault((event["event"], event["level"], event["xid"]), []).append(event)
    return tuple(
        Chapter(first["ts"], first["node"], first["message"].splitlines()[0], len(same), len({e["node"] for e in same}))
        for same in chapters.values()
        for first in same[:1]
    )
