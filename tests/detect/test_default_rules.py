"""The default rules on lines as nodes write them: fires, does not fire, lasts, resolves, folds, comes late."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.detect.scene import START, Scene, kmsg, xid

LOST = kmsg("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
RECOVERED = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
REBOOT = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
TIMEOUT = (
    "[rank{}]: [rank{}]:[E304 05:06:07.829096625 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=110049, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800075 milliseconds "
    "before timing out."
)


def fm(at: int, text: str = "failed to find the GPU handle", level: str = "ERROR") -> str:
    """A line of fabricmanager.log, which bears its own time: seconds after START."""
    stamp = datetime.fromtimestamp(START + at, UTC)
    return f"[{stamp:%b %d %Y %H:%M:%S}] [{level}] [tid 841] {text}"


def switch_error(word: str, code: int) -> str:
    return (
        f"detected NVSwitch {word} error {code} on fid 0 on NVSwitch pci bus id 00000000:C1:00.0 physical id 3 port 33"
    )


def sxid(code: int, rest: str) -> str:
    return kmsg(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, {rest}")


def timeouts(count: int) -> list[str]:
    return [TIMEOUT.format(rank, rank) for rank in range(count)]


@pytest.mark.parametrize(
    ("kind", "lines", "alerts"),
    [
        ("kmsg", [xid(79, "GPU has fallen off the bus.")], ["GpuXidCritical"]),
        ("kmsg", [xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU")], ["GpuXidCritical"]),
        ("kmsg", [xid(74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000)")], ["GpuXidCritical"]),
        ("kmsg", [xid(119, "Timeout after 45s of waiting for RPC response from GPU2 GSP!")], ["GpuXidCritical"]),
        ("kmsg", [LOST], ["GpuXidCritical"]),
        ("kmsg", [xid(154, REBOOT)], ["GpuXidCritical"]),
        ("kmsg", [xid(31)], ["GpuXidWarning"]),
        ("kmsg", [xid(149, "NETIR_INT Fatal XC0 i0 Link 07 (0x1 0x2)")], ["GpuXidCritical"]),
        ("kmsg", [xid(144, "SAW Nonfatal XC0 i0 Link 07 (0x1 0x2)")], ["GpuXidWarning"]),
        ("kmsg", [xid(0)], []),
        ("kmsg", [xid(154, RECOVERED)], []),
        ("kmsg", [xid(45)], []),
        ("kmsg", [xid(45, "Ch 00000008 caused by previous Xid 79")], []),
        ("kmsg", [xid(14)], []),
        ("kmsg", [xid(4711)], []),
        ("kmsg", [kmsg("mlx5_core 0000:4b:00.0 ens5np0: Link down")], []),
        ("kmsg", [sxid(20034, "Fatal, Link 30 LTSSM Fault Up")], ["NvswitchSxidFatal"]),
        ("kmsg", [sxid(22013, "Non-fatal, Link 36 Minion Link DLREQ interrupt")], ["NvswitchSxidNonFatal"]),
        ("kmsg", [sxid(20034, "Severity 1 Engine instance 30 Sub-engine instance 00")], []),
        ("fabric_manager", [fm(0)] * 5, []),
        ("fabric_manager", [fm(0, level="INFO")] * 50, []),
        ("fabric_manager", [fm(0, switch_error("fatal", 20034))], ["NvswitchSxidFatal"]),
        ("fabric_manager", [fm(0, switch_error("non-fatal", 12028))], ["NvswitchSxidNonFatal"]),
        ("training", timeouts(20), []),
        ("training", ["step 41 loss 2.13"] * 50, []),
        ("training", ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."], []),
    ],
)  # fmt: skip
def test_lines_that_page_at_once_and_lines_that_do_not(kind: str, lines: list[str], alerts: list[str]) -> None:
    scene = Scene()
    scene.send(0, kind, *lines)
    assert scene.firing() == alerts
    scene.clock(7_200)
    assert sorted({event.rule for event in scene.events}) == alerts
    assert scene.firing() == []


@pytest.mark.parametrize(
    ("kind", "lines", "more", "rule", "begin", "hold", "window"),
    [
        ("fabric_manager", [*[fm(0)] * 5, fm(10)], {}, "FabricManagerErrors", 10, 120, 300),
        ("training", timeouts(21), {"namespace": "llm"}, "NcclTimeouts", 0, 300, 600),
        ("training", timeouts(21), {"job_id": "70011"}, "NcclTimeouts", 0, 300, 600),
    ],
)
def test_thresholds_fire_when_they_have_been_exceeded_for_long_enough(
    kind: str, lines: list[str], more: dict[str, str], rule: str, begin: int, hold: int, window: int
) -> None:
    scene = Scene()
    scene.send(0, kind, *lines[:-1], **more)
    scene.send(10, kind, lines[-1], **more)
    scene.clock(begin + hold - 1)
    assert scene.told() == []
    scene.clock(begin + hold)
    assert scene.told() == [(rule, "firing", begin + hold, len(lines))]
    scene.clock(window - 1)
    assert scene.firing() == [rule]
    scene.clock(window)
    assert scene.told()[1:] == [(rule, "resolved", begin + hold, len(lines))]
    assert scene.only.ends_at == START + window
    assert scene.firing() == []


def test_a_threshold_that_is_not_exceeded_for_long_enough_pages_nobody() -> None:
    scene = Scene()
    scene.send(0, "fabric_manager", *[fm(0)] * 3)
    scene.send(250, "fabric_manager", *[fm(250)] * 3)
    scene.clock(7_200)
    assert scene.told() == []


@pytest.mark.parametrize(
    ("more", "label"),
    [
        ({"namespace": "llm", "job_id": "70011"}, ("namespace", "llm")),
        ({"job_id": "70011"}, ("job_id", "70011")),
        ({}, ("node", "gpu-a01")),
    ],
)
def test_timeouts_are_counted_by_namespace_else_by_job_else_by_node(
    more: dict[str, str], label: tuple[str, str]
) -> None:
    scene = Scene()
    scene.send(0, "training", *timeouts(21), **more)
    scene.clock(300)
    assert dict(scene.only.labels).items() >= {label, ("cluster", "west"), ("alertname", "NcclTimeouts")}
    assert len(scene.only.labels) == 4


def test_timeouts_of_one_namespace_count_together_and_those_of_two_do_not() -> None:
    scene = Scene()
    scene.send(0, "training", *timeouts(11), namespace="llm", node="gpu-a01")
    scene.send(0, "training", *timeouts(11), namespace="vision", node="gpu-b02")
    scene.clock(300)
    assert scene.firing() == []
    scene.send(301, "training", *timeouts(11), namespace="llm", node="gpu-b02")
    assert scene.firing() == ["NcclTimeouts"]
    assert scene.only.nodes == ("gpu-a01", "gpu-b02")


@pytest.mark.parametrize(
    "line",
    [
        "gpu-a27:6890:7275 [0] NCCL INFO comm 0x7f00fbbb5c00 rank 0 nranks 4 cudaDev 0 busId 6000 - Abort COMPLETE",
        "[rank7]:[E304 05:06:07.493067540 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 7] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 3] NCCL watchdog "
        "thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL",
    ],
)
def test_aborts_and_hangs_count_as_timeouts_do(line: str) -> None:
    scene = Scene()
    scene.send(0, "training", *line.split("\n"), job_id="1")
    assert [partial.rule for partial in scene.partials] == ["NcclTimeouts"]


@pytest.mark.parametrize(
    ("lines", "count", "records"),
    [
        # The four lines of one Xid 13 are one fault; those of two processes are two.
        ([xid(13, text) for text in ("Graphics SM Warp Exception on (GPC 2, TPC 1, SM 1): Illegal Instruction",
          "Graphics SM Global Exception on (GPC 2, TPC 1, SM 1): Multiple Warp Errors",
          "Graphics Exception: ESR 0x51d730=0xc0b000c", "Graphics Exception: ChID 0007, Class 0000c6c0")], 1, 4),
        ([xid(13, pid=1), xid(13, pid=2), xid(13, pid=1)], 2, 3),
        # Channels that an Xid 79 took with it, in whatever order, and the text without a number.
        ([xid(79, "GPU has fallen off the bus."), xid(45, "Ch 00000001 caused by previous Xid 79"),
          xid(45, "Ch 00000002 caused by previous Xid 79"), LOST], 1, 4),
        ([LOST, xid(45, "Ch 00000001 caused by previous Xid 79"), xid(79, "GPU has fallen off the bus.")], 1, 3),
        ([sxid(20034, "Data {0x00000000, 0x10000000}"), sxid(20034, "Fatal, Link 30 LTSSM Fault Up"),
          sxid(20034, "Severity 1 Engine instance 30 Sub-engine instance 00")], 1, 3),
    ],
)  # fmt: skip
def test_lines_of_one_fault_are_one(lines: list[str], count: int, records: int) -> None:
    scene = Scene()
    scene.send(0, "kmsg", *lines)
    scene.clock(300)
    assert (scene.only.state, scene.only.count, scene.only.lines) == ("resolved", count, records)


def test_a_follower_does_not_keep_an_alert_from_resolving() -> None:
    scene = Scene()
    scene.send(0, "kmsg", xid(79), stamp=0)
    scene.send(200, "kmsg", xid(45, "Ch 00000001 caused by previous Xid 79"), stamp=200)
    scene.clock(300)
    assert scene.told()[-1] == ("GpuXidCritical", "resolved", 0, 1)
    assert scene.only.lines == 2


def test_an_alert_starts_once_and_its_end_moves_with_its_lines() -> None:
    scene = Scene()
    for at in range(0, 3_000, 200):
        scene.send(at, "kmsg", xid(95), stamp=at)
    assert scene.told() == [("GpuXidCritical", "firing", 0, 1)]
    (event,) = scene.evaluator.firing()
    assert (event.starts_at, event.ends_at, event.count) == (START, START + 3_100, 15)
    scene.clock(3_100)
    assert scene.told()[1:] == [("GpuXidCritical", "resolved", 0, 15)]


def test_an_event_says_what_happened_what_to_do_and_shows_the_first_lines() -> None:
    scene = Scene()
    scene.send(0, "slurmctld", "[2025-03-04T05:00:00.000] sched: Allocate JobId=70011 NodeList=gpu-a[01-02] #CPUs=96")
    scene.send(1, "kmsg", kmsg("NVRM: GPU at PCI:0000:3b:00: GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"), stamp=1)
    scene.send(2, "kmsg", "6,1,1,-;usb 1-2: reset", xid(48, "An uncorrectable double bit error (DBE)"), stamp=2)
    event = scene.only
    assert (event.rule, event.severity, event.job_id, event.nodes) == (
        "GpuXidCritical", "critical", "70011", ("gpu-a01",),
    )  # fmt: skip
    assert dict(event.labels) == {
        "alertname": "GpuXidCritical", "cluster": "west", "node": "gpu-a01", "pci": "0000:3b:00", "xid": "48",
        "severity": "critical",
    }  # fmt: skip
    texts = dict(event.annotations)
    assert texts["summary"] == "GPU 0000:3b:00 of gpu-a01: Xid 48, uncorrectable (double-bit) ECC error"
    for said in ("hardware_memory", "reset_gpu", "70011", "GPU-aaaaaaaa", "(DBE)"):
        assert said in texts["description"]
    (line,) = event.evidence
    assert (line.topic, line.partition, line.offset, line.line, line.kind) == ("logs", 0, 2, 1, "kmsg")
    assert "Xid" in line.message


def test_evidence_is_the_first_lines_by_their_own_time_whatever_came_first() -> None:
    scene = Scene()
    for at, stamp in enumerate((50, 40, 20, 30, 10)):
        scene.send(100 + at, "kmsg", xid(95, f"at {stamp}"), stamp=stamp)
    assert [line.message.split()[-1] for line in scene.evaluator.firing()[0].evidence] == ["10", "20", "30"]


@pytest.mark.parametrize(
    ("started", "ended", "job"),
    [(True, False, "70011"), (True, True, ""), (False, False, "")],
)
def test_the_job_is_the_one_that_held_the_node(started: bool, ended: bool, job: str) -> None:
    scene = Scene()
    if started:
        scene.send(0, "slurmctld", "[2025-03-04T05:00:00.000] sched: Allocate JobId=70011 NodeList=gpu-a01 #CPUs=96")
    if ended:
        scene.send(1, "slurmctld", "[2025-03-04T05:06:00.000] _job_complete: JobId=70011 done")
    scene.send(2, "kmsg", xid(48), stamp=2)
    assert scene.only.job_id == job


def arrive(*order: int) -> Callable[[Scene], None]:
    def send(scene: Scene) -> None:
        for at, stamp in enumerate(order):
            scene.send(700 + at, "kmsg", xid(95), stamp=stamp)

    return send


@pytest.mark.parametrize(
    ("send", "alerts"),
    [
        (arrive(0, 100, 500), [(0, 400, 2), (500, 800, 1)]),
        (arrive(500, 0, 100), [(0, 400, 2), (500, 800, 1)]),
        (arrive(500, 0, 250), [(0, 800, 3)]),  # the line between joins what was two
        (arrive(301, 0), [(0, 300, 1), (301, 601, 1)]),
        (arrive(300, 0), [(0, 600, 2)]),  # the window is never empty between them
        (arrive(299, 0), [(0, 599, 2)]),  # an older line moves the start
    ],
)
def test_lines_out_of_order_correct_what_was_told(
    send: Callable[[Scene], None], alerts: list[tuple[int, int, int]]
) -> None:
    scene = Scene()
    send(scene)
    scene.clock(20_000)
    known = {}
    for event in scene.events:
        for starts in event.replaces:
            del known[starts]
        known[event.starts_at] = (event.starts_at - START, event.ends_at - START, event.count)
    assert sorted(known.values()) == alerts
    assert scene.evaluator.groups() == dict.fromkeys(scene.evaluator.groups(), 0)


@pytest.mark.parametrize(
    ("stamp", "state", "second", "suspect"),
    [
        (0, "firing", 0, False),
        (600, "firing", 600, False),
        (601, "firing", 0, True),
        (27 * 3_600, "firing", 0, True),
        (10**9, "firing", 0, True),
        (-3_600, "resolved", -3_600, False),
        (-3_601, "late", -3_601, False),
        (-10 * 3_600, "late", -10 * 3_600, False),
        (-START, "late", -START, False),
    ],
)
def test_a_clock_that_is_wrong_neither_hides_an_alert_nor_pages_for_the_past(
    stamp: int, state: str, second: int, suspect: bool
) -> None:
    scene = Scene()
    scene.send(0, "kmsg", xid(79), stamp=stamp)
    assert (scene.only.state, scene.only.starts_at - START, scene.only.clock_suspect) == (state, second, suspect)
    assert scene.only.evidence[0].ts_ns == (START + stamp) * 10**9  # the record keeps its own time
    assert scene.firing() == (["GpuXidCritical"] if state == "firing" else [])


def test_a_line_of_the_boot_before_is_told_when_it_comes_and_names_that_boot() -> None:
    scene = Scene()
    scene.send(600, "kmsg", xid(79), stamp=-60, boot_id="boot-a")
    scene.send(601, "kmsg", kmsg("Linux version 6.8.0"), stamp=601, boot_id="boot-b")
    assert scene.told()[0] == ("GpuXidCritical", "firing", -60, 1)
    assert scene.only.evidence[0].boot_id == "boot-a"


def test_a_fault_of_a_switch_that_the_kernel_and_fabric_manager_tell_is_one_alert() -> None:
    scene = Scene()
    scene.send(0, "kmsg", sxid(20034, "Fatal, Link 30 LTSSM Fault Up"))
    scene.send(1, "fabric_manager", fm(1, switch_error("fatal", 20034)))
    assert scene.firing() == ["NvswitchSxidFatal"]
    assert [event.rule for event in scene.events] == ["NvswitchSxidFatal"]
