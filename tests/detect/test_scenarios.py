"""Scenarios of detection, by their ids in tests/cases/scenarios.jsonl: what operators and other tools' bugs taught."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flows.detect.rules import default_rules
from flows.steps.noise import NoiseConfig
from tests.chunks import APPENDED_MS
from tests.detect.scene import START, Scene, kmsg, rule, xid

CASES = Path(__file__).parents[1] / "cases" / "scenarios.jsonl"
SCENARIOS = {case["id"]: case for case in map(json.loads, CASES.read_text(encoding="utf-8").splitlines())}


def lines(name: str) -> list[str]:
    """The input of a scenario, line by line."""
    given = SCENARIOS[name]["input"]
    return given.rstrip("\n").split("\n") if isinstance(given, str) else list(given)


def sent(name: str, kind: str, *rules: Any, noise: NoiseConfig | None = None, **more: str) -> Scene:
    """The lines of a scenario, seen by some rules."""
    scene = Scene(rules or None, noise)
    scene.send(0, kind, *(map(kmsg, lines(name)) if kind == "kmsg" else lines(name)), **more)
    return scene


def k053_one_fault() -> None:
    assert (sent("k053-one-fault", "kmsg").only.count, sent("k053-one-fault", "kmsg").only.lines) == (1, 4)


def k055() -> None:
    counted = rule(events=["nic_command_failed"], group_by=["node", "pci", "nic_command", "syndrome"])
    kept = NoiseConfig(drop=False)
    assert sent("k055", "kmsg", counted, noise=kept).only.count == 2
    assert sent("k055", "kmsg", counted).events == []  # noise is not counted


def k056() -> None:
    counted = rule(events=["gpu_xid"], where={"xid": 45}, group_by=["node", "pci", "xid"], fold_by=["pid"])
    scene = Scene([counted])
    for at, pid in enumerate((771, 772)):
        scene.send(at, "kmsg", *(xid(45, f"Ch {channel:08x}", pid=pid) for channel in range(64)), stamp=at)
    scene.clock(3_600)
    assert (scene.only.count, scene.only.lines) == (2, 128)


def k057() -> None:
    scene = Scene()
    for at in (10, 500):
        scene.send(at, "kmsg", xid(31), stamp=at)
    assert [told[1:] for told in scene.told()] == [("firing", 10, 1), ("resolved", 10, 1), ("firing", 500, 1)]


def k059_same_as_79() -> None:
    for order in (1, -1):
        scene = Scene()
        texts = [*lines("k059-same-as-79"), "[ 300.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]
        for at, text in enumerate(texts[::order]):
            scene.send(at * 100, "dmesg", text, stamp=at * 100)
        scene.clock(100)
        assert [told[:2] for told in scene.told()] == [("GpuXidCritical", "firing")]
        assert dict(scene.only.labels)["xid"] == "79"


def k069() -> None:
    scene = Scene()
    scene.send(0, "kmsg", xid(79, "GPU has fallen off the bus."))
    assert "GPU: unknown" in dict(scene.only.annotations)["description"]
    assert scene.firing() == ["GpuXidCritical"]


def k070() -> None:
    scene = Scene()
    scene.send(900, "kmsg", xid(79), stamp=0, boot_id="A")
    assert scene.events[0].state == "firing"
    assert scene.only.evidence[0].boot_id == "A"


def k073_one_fault() -> None:
    only = sent("k073-one-fault", "kmsg").only
    assert (only.rule, only.count, only.lines) == ("NvswitchSxidFatal", 1, 3)


def k084_total() -> None:
    only = sent("k084-total", "kmsg", rule(events=["lustre_error"])).only
    assert (only.count, only.lines) == (25, 2)


def k087_one_error() -> None:
    report = rule(
        events=["hardware_error"],
        group_by=["node", "hw_error_group"],
        fold_by=[],
        annotations={"summary": "{reported_severity} {hw_section} {pci}"},
    )
    only = sent("k087-one-error", "kmsg", report).only
    assert (only.count, only.lines) == (1, 5)
    assert dict(only.annotations)["summary"] == "fatal PCIe error 0000:43:00"


def slurm_injection_notify_trust() -> None:
    down = rule(events=["node_down", "node_not_responding"], group_by=["cluster"])
    trusted = "slurm-injection-notify-trust"
    assert sent(trusted, "slurmd", down).events == []
    assert sent(trusted, "slurmctld", down).firing() == ["Tried"]


def slurm_cancelled_twice_one_incident() -> None:
    cancelled = rule(events=["job_cancelled"], group_by=["job_id"], fold_by=["cause"])
    only = sent("slurm-cancelled-twice-one-incident", "job_stderr", cancelled).only
    assert (only.count, only.lines) == (1, 2)


def xid_dup_ring() -> None:
    """Once by the ring and once by dmesg; a rule with a threshold counts what one of them shows."""
    scene = Scene([*default_rules(), rule(events=["gpu_xid"], group_by=["node", "xid"], threshold=2)])
    scene.send(0, "kmsg", xid(31), xid(31))
    scene.send(1, "dmesg", *["[91011.100000] NVRM: Xid (PCI:0000:3b:00): 31, pid=4021, name=python3, Ch 00000008"] * 2)
    assert scene.firing() == ["GpuXidWarning"]
    scene.clock(600)
    assert (scene.only.count, scene.only.lines) == (1, 4)
    scene.send(700, "kmsg", *[xid(31)] * 3, stamp=700)
    assert scene.firing() == ["GpuXidWarning", "Tried"]


def k018() -> None:
    """One second apart in two renderings: still one."""
    scene = Scene()
    scene.send(0, "kmsg", xid(31), stamp=0)
    scene.send(1, "dmesg", "[91011.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=4021, name=python3, Ch 00000008", stamp=1)
    scene.clock(600)
    assert (scene.only.count, scene.only.lines) == (1, 2)


def k015() -> None:
    """Ten hours late by a clock that slept: it is told of, and pages nobody."""
    scene = Scene()
    scene.send(36_000, "kmsg", xid(79), boot_time=str(START - 1))
    assert [told[:2] for told in scene.told()] == [("GpuXidCritical", "late")]
    assert scene.evaluator.late == {"GpuXidCritical": 1}


def k016() -> None:
    """The alert has the time of syslog; that of dmesg -T, five days off, is told of as late and pages nobody."""
    scene = Scene()
    text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4021, name=python3, Ch 00000008"
    scene.send(0, "dmesg", f"[Thu Feb 27 05:06:07 2025] {text}")
    scene.send(0, "syslog", f"2025-03-04T05:06:07.5+00:00 gpu-a01 kernel: {text}")
    scene.clock(3_600)
    assert [told[1:3] for told in scene.told()] == [("late", -5 * 86_400), ("firing", 0), ("resolved", 0)]


def year_old_file() -> None:
    given = SCENARIOS["year-old-file"]["input"]
    received, written = (datetime.fromisoformat(given[name]) for name in ("received_at", "file_mtime"))
    scene = Scene([rule(kinds=["syslog"], regex="slurmd")])
    at = int(received.timestamp()) - START
    scene.send(at, "syslog", given["line"], mtime=str(written.timestamp()))
    assert scene.told() == [("Tried", "late", 0, 1)]  # 2025-03-04T05:06:07Z, which is START


def c077_wrong_digits() -> None:
    """A time without a date is not used at all; of any other no rule looks at less than a second."""
    scene = Scene([rule(events=["nccl_network"])])
    scene.send(0, "training", *lines("c077-wrong-digits"))
    assert scene.only.evidence[0].ts_ns == START * 10**9
    closed = "gpu-a01:51:51 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu-a03<1>"
    told = []
    for digits in ("125", "999"):
        scene = Scene([rule(events=["nccl_connection_closed"])])
        scene.send(0, "training", f"[2025-03-04 05:05:07.{digits}] {closed}", f"[2025-03-04 05:05:07.500] {closed}")
        told.append(scene.told())
    assert told[0] == told[1] == [("Tried", "firing", -60, 2)]


def slurm_hostlist_no_fan_out() -> None:
    scene = Scene([rule(kinds=["slurmctld"], regex="health check")])
    for at in range(3):
        scene.send(at, "slurmctld", SCENARIOS["slurm-hostlist-no-fan-out"]["input"], node="ctl-1")
    assert (scene.evaluator.firing()[0].lines, scene.only.nodes) == (3, ("ctl-1",))


def ts_future() -> None:
    ahead = rule(kinds=["slurmctld"], events=["job_allocate"], group_by=["job_id"])
    scene = Scene([ahead])
    line = SCENARIOS["ts-future"]["input"]["line"].removesuffix("x") + "sched: Allocate JobId=7 NodeList=gpu-1 #CPUs=1"
    assert APPENDED_MS // 1_000 == 1_741_064_767  # 2025-03-04T05:06:07Z, the scenario's received_at
    scene.send(0, "slurmctld", line)
    assert (scene.only.starts_at, scene.only.clock_suspect) == (START, True)
    assert scene.only.evidence[0].ts_ns == (START + 28 * 3_600) * 10**9


def c033_event_time_order() -> None:
    stuck = rule(events=["collective_timeout", "watchdog_stuck"], group_by=["cluster"])
    texts = [text.replace("E728 06:", "E304 04:") for text in lines("c033-event-time-order")]
    scene = Scene([stuck])
    scene.send(0, "training", *texts)
    assert "Rank 2" in scene.only.evidence[0].message


def c036_one_group() -> None:
    raised = rule(events=["python_exception"], group_by=["job_id", "error_class"], annotations={"who": "{hosts}"})
    only = sent("c036-one-group", "training", raised, job_id="70011").only
    assert (only.count, only.nodes) == (2, ("node-a", "node-b"))
    assert dict(only.annotations)["who"] == "node-a, node-b"


def c048_one_port_event() -> None:
    port = rule(events=["nccl_async_event"], where={"async_event": "port_error"}, group_by=["host"], fold_by=[])
    only = sent("c048-one-port-event", "training", port).only
    assert (dict(only.labels)["host"], only.count, only.lines) == ("gpu-a38", 1, 2)
    c048_points_back()


def c048_points_back() -> None:
    peer = rule(events=["nccl_completion_error"], group_by=["host"], annotations={"summary": "cannot reach {peer}"})
    only = sent("c048-one-port-event", "training", peer).only
    assert dict(only.labels)["host"] == "gpu-a41"
    assert dict(only.annotations)["summary"] == "cannot reach gpu-a38"


def c046_rank_by_class() -> None:
    """Rules tell the cause from its consequence by their events; which of them stands first does not matter."""
    cause = rule(name="Cause", events=["nccl_cuda_failure"], severity="critical", annotations={"gpu": "{cuda_dev}"})
    effect = rule(name="Effect", events=["nccl_connection_closed"], severity="info")
    texts = [line for line in lines("c046-rank-by-class") if line]
    for ordered in (texts, [*texts[2:], *texts[:2]]):
        scene = Scene([cause, effect])
        scene.send(0, "training", *ordered)
        by_rank = sorted(scene.events, key=lambda event: event.severity)
        assert [(event.rule, event.count) for event in by_rank] == [("Cause", 1), ("Effect", 1)]
        assert dict(by_rank[0].annotations)["gpu"] == "3"


def c051_network_alert() -> None:
    socket = rule(events=["nccl_network"], where={"network": "Socket"}, group_by=["job_id"])
    only = sent("c051-network-alert", "training", socket, job_id="70011").only
    assert (only.state, dict(only.labels)["job_id"]) == ("firing", "70011")


def c065_hidden_reporters() -> None:
    only = sent("c065-hidden-reporters", "training", rule(events=["collective_timeout"])).only
    assert (only.count, only.lines) == (8, 1)


SHOWN = {
    "k053-one-fault": k053_one_fault, "k055": k055, "k056": k056, "k057": k057, "k059-same-as-79": k059_same_as_79,
    "k069": k069, "k070": k070, "k073-one-fault": k073_one_fault, "k084-total": k084_total,
    "k087-one-error": k087_one_error, "slurm-injection-notify-trust": slurm_injection_notify_trust,
    "slurm-cancelled-twice-one-incident": slurm_cancelled_twice_one_incident, "xid-dup-ring": xid_dup_ring,
    "k018": k018, "k015": k015, "ts-future": ts_future, "c033-event-time-order": c033_event_time_order,
    "c036-one-group": c036_one_group, "c048-one-port-event": c048_one_port_event,
    "c046-rank-by-class": c046_rank_by_class, "k016": k016, "year-old-file": year_old_file,
    "c077-wrong-digits": c077_wrong_digits, "slurm-hostlist-no-fan-out": slurm_hostlist_no_fan_out,
    "c051-network-alert": c051_network_alert, "c065-hidden-reporters": c065_hidden_reporters,
}  # fmt: skip


ANSWERED = {
    "dcgm-xid-gauge": "No metric is scraped, so no gauge is read as events. Xids are counted from what the driver "
    "printed, where each is a record of its own, and a restart of an exporter prints none.",
    "c059-open-inits": "A rule counts what was said and cannot count what was not. Both halves are events with their "
    "communicator (`nccl_comm`, `comm_state`, `comm`, `comm_id`), so one query over the archive lists what is open.",
}


@pytest.mark.parametrize("scenario", SHOWN.values(), ids=SHOWN.keys())
def test_scenario(scenario: Callable[[], None]) -> None:
    scenario()


def test_every_scenario_of_detection_is_shown_or_answered() -> None:
    ours = {name for name, case in SCENARIOS.items() if case["area"] in ("alerting", "cardinality", "clock")}
    assert ours == SHOWN.keys() | ANSWERED.keys()
