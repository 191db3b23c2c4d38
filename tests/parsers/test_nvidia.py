"""Xid of every driver generation, SXid and its companions, lost GPUs, and what the catalogues make of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.gpu_catalogue import ACTIONS, sxid_meaning, xid_meaning
from parsers.nvidia import RULES
from tests.parsers.kernel_records import record, records, shown

Row = tuple[str, dict[str, Any]]

GPU = "NVRM: Xid (PCI:0000:3b:00): "

HEADERS: list[Row] = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=2178, name=python3, GPU has fallen off the bus.",
     {"event": "gpu_xid", "xid": 79, "pci": "0000:3b:00", "pid": 2178, "process": "python3",
      "detail": "GPU has fallen off the bus."}),
    ("NVRM: Xid (0000:03:00): 8, Channel 00000020", {"xid": 8, "pci": "0000:03:00", "channel": 0x20}),
    ("NVRM: Xid (PCI:0000:c1:00.0): 43, Ch 00000008", {"xid": 43, "pci": "0000:c1:00", "channel": 8}),
    ("NVRM: Xid (PCI:00000000:3B:00.0): 43, Ch 00000008", {"xid": 43, "pci": "0000:3b:00"}),
    ("NVRM: Xid (PCI:10000:3B:00): 43, Ch 00000008", {"xid": 43, "pci": "10000:3b:00"}),
    ("NVRM: Xid (PCI:0018:01:00): 79", {"event": "gpu_xid", "xid": 79, "pci": "0018:01:00", "detail": ""}),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 43, pid=7, name=x, Ch 0000000c",
     {"xid": 43, "gpu_instance": 5, "compute_instance": None, "pid": 7, "channel": 12}),
    ("NVRM: Xid (PCI:0000:3b:00 a future word): 43, Ch 0000000c", {"xid": 43, "channel": 12, "pci": "0000:3b:00"}),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 43, pid=7, name=x, Ch 0000000c",
     {"gpu_instance": 5, "compute_instance": 1}),
    (GPU + "0, pid=771, name=python3, informational", {"event": None, "xid": None, "pci": "0000:3b:00"}),
    (GPU + "43, pid=2178, Ch 00000008", {"pid": 2178, "process": None, "channel": 8, "detail": "Ch 00000008"}),
    (GPU + "43, pid=0, Ch 00000008", {"pid": None, "channel": 8}),
    (GPU + "43, pid='<unknown>', name=<unknown>, Ch 00000008", {"pid": None, "process": None, "channel": 8}),
    (GPU + "43, pid='N/A', name=N/A, Ch 00000008", {"pid": None, "process": None, "channel": 8}),
    (GPU + "43, pid=9, name=a, b,c, Ch 00000008", {"process": "a, b,c", "channel": 8}),
    (GPU + "119, pid=9, name=nvc:[driver], Timeout after 6s of waiting for RPC response from GPU0 GSP!",
     {"process": "nvc:[driver]", "timeout_s": 6}),
    (GPU + "45, pid=9, name=ray::Worker, ", {"process": "ray::Worker", "detail": ""}),
    (GPU + "999, pid=9, name=x, a text of the future", {"xid": 999, "detail": "a text of the future", "action": None}),
]  # fmt: skip

BODIES: list[Row] = [
    (GPU + "13, pid=9, name=x, Graphics Exception: channel 0x00000007, Class 0000c6c0, Offset 000001b0, Data 00a1b2c4",
     {"channel": 7, "exception": None}),
    (GPU + "13, pid=9, name=x, Class 0x0 Subchannel 0x0 Mismatch", {"xid": 13, "channel": None}),
    (GPU + "31, pid=9, name=x, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_8 faulted @ "
     "0x7ABC_1c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
     {"channel": 8, "engine": "GRAPHICS", "client": "GPCCLIENT_T1_8", "fault_address": "0x7abc1c000000",
      "fault_type": "FAULT_PDE", "access_type": "VIRT_READ"}),
    (GPU + "31, Ch 00000003, engmask 00000101, intr 10000000", {"channel": 3, "engine": None}),
    (GPU + "32, pid=9, name=x, Channel ID 00000052 intr 00004000", {"channel": 0x52}),
    (GPU + "45, pid=9, name=x, Ch 00000008 caused by previous Xid 149", {"channel": 8, "caused_by_xid": 149}),
    (GPU + "48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr "
     "0x17f2ab40 partition 6, subpartition 1.", {"fb_partition": 6, "fb_subpartition": 1}),
    (GPU + "62, 1e0b(2c3d) 00000000 00000000", {"payload_words": ["1e0b(2c3d)", "00000000", "00000000"]}),
    (GPU + "62, pid=9, name=x, 0001e0b0 2 bad", {"payload_words": None, "detail": "0001e0b0 2 bad"}),
    (GPU + "63, Row Remapper: New row (0x0000000017f2ab40) marked for remapping, reset gpu to activate.",
     {"row_address": "0x0000000017f2ab40", "needs_reset": True, "action": "ignore", "severity": "warning"}),
    (GPU + "63, Dynamic Page Retirement: New page retired, reload the driver to activate. (0x0000000000012ab4)",
     {"row_address": "0x0000000000012ab4", "needs_reset": None}),
    (GPU + "64, Row Remapper Error: (0x0000000017f2ab40) - Remapping table is full", {"remap_failure": "table_full"}),
    (GPU + "64, Row Remapper Error: (0x0000000017f2ab40) - All reserved rows for bank are remapped",
     {"remap_failure": "bank_full"}),
    (GPU + "64, Row Remapper Error: (0x0000000017f2ab40) - Internal error", {"remap_failure": "internal_error"}),
    (GPU + "64, Row Remapper Error: (0x0000000017f2ab40) - Attempt to remap a reserved row",
     {"remap_failure": "reserved_row"}),
    (GPU + "64, Row Remapper: (0x0000000017f2ab40) - Row is already pending for remapping",
     {"remap_failure": "pending"}),
    (GPU + "74, pid=9, name=x, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
     {"link": 14, "nvlink_registers": [0, 0, 0x10000, 0, 0, 0, 0], "severity": "critical", "action": "reset_gpu",
      "fault_class": "nvlink"}),
    (GPU + "74, NVLink: failed to train link 3 to remote PCI:0000:c1:00", {"link": 3, "pci": "0000:3b:00"}),
    (GPU + "94, pid=9, name=x, Contained: SM (0x1). RST: No, D-RST: No",
     {"containment": "contained", "action": "restart_app", "fault_class": "hardware_memory"}),
    (GPU + "95, Uncontained: LTC TAG (0x2, 0x1). physAddr: 0x17f2ab40 RST: Yes, D-RST: No",
     {"containment": "uncontained", "channel": None, "action": "reset_gpu"}),
    (GPU + "46, pid=9, name=x, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
     {"channel": 8, "error_string": "CTX SWITCH TIMEOUT"}),
    (GPU + "119, Timeout waiting for RPC from GSP2! Expected function 10 (FREE) (0x1 0x2).",
     {"gsp_index": 2, "rpc_function": 10, "rpc_name": "FREE", "timeout_s": None}),
    (GPU + "136, NVLink: Link training failed for link 3(0x0, 0x1)", {"link": 3, "nvlink_registers": None}),
    (GPU + "137, pid=9, name=x, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
     {"link": 11, "gpu_index": 0, "process": "x"}),
    (GPU + "156, Retiring TPC 4 from GPC 2 with a spare from the same GPC.", {"tpc": 4, "gpc": 2}),
    (GPU + "160, Marking Channel 3 in FBPA 2 for repair", {"channel": None, "xid": 160}),
]  # fmt: skip

RECOVERIES = [
    ("0x0 (None)", "none", "info"),
    ("0x1 (GPU Reset Required)", "reset_gpu", "critical"),
    ("0x2 (Node Reboot Required)", "reboot_node", "critical"),
    ("0x3 (Drain P2P)", "drain_p2p", "warning"),
    ("0x4 (Drain and Reset)", "drain_and_reset", "warning"),
    ("0x5 (Recover IMEX Domain)", "recover_imex_domain", "critical"),
]

NVLINK5: list[Row] = [
    (GPU + "145, RLW_RXPIPE  Nonfatal XC0 i0 Link 07 (0x00000086 0x00000002 0x00000000 0x00000000)",
     {"severity": "warning", "action": "reset_gpu", "intr_subcode": None}),  # bit 7 of the layout since driver 575
    (GPU + "145, RLW_RXPIPE  Nonfatal XC0 i0 Link 07 (0x000004c2 0x00000002 0x00000000 0x00000000)",
     {"action": "reset_gpu"}),  # bit 10 of the layout before
    (GPU + "145, RLW_REMAP  Fatal   XC1 i1 Link 07 (0x00000004 0x00000040)",
     {"severity": "critical", "action": "reset_gpu", "xc": 1, "injected": True}),
    (GPU + "145, RLW_REMAP  Nonfatal XC1 i0 Link 07 (0x00000004 0x00000140)", {"action": "reset_gpu"}),  # two bits
    (GPU + "146, TLW_TX_PIPE0  Nonfatal XC0 i0 Link 07 (0x0000000c 0x00000004)", {"action": "reset_gpu"}),
    (GPU + "149, NETIR_LINK_DOWN  Fatal   XC0 i0 Link 03 (0x02600011 0x00000000)",
     {"reason_code": 38, "intr_subcode": 17, "action": "ignore", "severity": "critical"}),
    (GPU + "149, NETIR_BER_EVENT  Nonfatal XC0 i0 Link 03 (0x00000013 0x00000001)",
     {"severity": "warning", "action": "ignore"}),
    (GPU + "150, MSE degraded Fatal   XC0 i0 Link -1 (0x00000000 0x00000000)",
     {"xid_unit": "MSE degraded", "link": None, "action": "reset_gpu"}),
    (GPU + "145, pid='<unknown>', name=<unknown>, RLW_SRC_TRACK  Fatal   XC0 i0 Link 02",
     {"xid_unit": "RLW_SRC_TRACK", "link": 2, "intr_info": None, "action": "reset_gpu"}),
    (GPU + "155, NVLINK_SW_DEFINED_ERROR Nonfatal XC0 i0 Link 03 : Link Down While Active.",
     {"link": 3, "reported_severity": "nonfatal", "severity": "warning", "action": "reset_gpu"}),
]  # fmt: skip

SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "

SXIDS: list[Row] = [
    (SWITCH + "20034, Fatal, Link 30 LTSSM Fault Up (First)",
     {"event": "nvswitch_sxid", "sxid": 20034, "switch": 3, "pci": "0000:c1:00", "link": 30, "first": True,
      "reported_severity": "fatal", "severity": "critical", "fault_class": "nvlink"}),
    (SWITCH + "22013, Non-fatal, Link 36 Minion Link DLREQ interrupt",
     {"reported_severity": "nonfatal", "severity": "warning", "action": "ignore", "link": 36, "first": None}),
    (SWITCH + "11012, Correctable, Link 04 NCISOC HDR ECC", {"reported_severity": "corrected", "severity": "info"}),
    (SWITCH + "23001, Fatal, a text, instance=2, chiplet=1", {"link": None, "action": "reboot_node"}),
    (SWITCH + "10004, NVSWITCH Temperature 95C | TSENSE WARN Threshold 90C",
     {"temperature_c": 95, "reported_severity": None, "action": "check_cooling", "fault_class": "thermal_power"}),
    (SWITCH + "26006, SOE HALTED", {"sxid": 26006, "link": None}),
]  # fmt: skip

OTHERS: list[Row] = [
    ("NVRM: GPU at PCI:0000:3b:00: GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
     {"event": "gpu_identity", "pci": "0000:3b:00", "gpu_uuid": "GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"}),
    ("NVRM: GPU Board Serial Number: 1650000000001", {"event": None, "gpu_serial": "1650000000001"}),
    ("NVRM: GPU Board Serial Number: 0", {"gpu_serial": None}),
    ("NVRM: GPU Board Serial Number: ", {"event": None, "gpu_serial": None}),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
     {"event": "gpu_lost", "xid": None, "pci": "0000:3b:00", "severity": "critical", "action": "reboot_node"}),
    ("NVRM: GPU 0000:3b:00.0: GPU serial number is 1650000000001.",
     {"event": None, "pci": "0000:3b:00", "gpu_serial": "1650000000001"}),
    ("NVRM: GPU 0000:3b:00.0: GPU is on Board 0324012345678.", {"pci": "0000:3b:00", "gpu_serial": "0324012345678"}),
    ("NVRM: A GPU crash dump has been created. If possible, please run", {"noise": "nvrm_crash_dump", "event": None}),
    ("NVRM: nvidia-bug-report.sh as root to collect this data before", {"noise": "nvrm_crash_dump"}),
    ("NVRM: The NVIDIA probe routine failed for 1 device(s).", {"event": None}),
    ("GPU reset executed: GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee, success: false",
     {"event": "gpu_reset", "gpu_uuid": "GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "reset_ok": False}),
    ("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU likely",
     {"event": "gpu_rate_limited", "rate_limit_factor": 30, "pci": "0000:9b:00"}),
]  # fmt: skip

ROWS = [*HEADERS, *BODIES, *NVLINK5, *SXIDS, *OTHERS]


@pytest.mark.parametrize(("text", "wanted"), ROWS, ids=[text[:90] for text, _ in ROWS])
def test_driver_text_becomes_fields(text: str, wanted: dict[str, Any]) -> None:
    assert shown(record("dmesg", text), wanted) == wanted


@pytest.mark.parametrize(("target", "action", "severity"), RECOVERIES)
def test_xid_154_takes_severity_and_action_from_its_target(target: str, action: str, severity: str) -> None:
    found = record("dmesg", f"{GPU}154, GPU recovery action changed from 0x0 (None) to {target}").fields
    assert (found["recovery_from"], found["recovery_to"]) == (0, int(target[2]))
    assert (found["severity"], found["action"]) == (severity, action)


def test_a_fallen_gpu_at_probe_time_is_one_record_of_three_lines() -> None:
    text = (
        r"3,9,1943408145,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has"
        r"\x0aNVRM: fallen off the bus and is not responding to commands."
    )
    found = record("kmsg", text)
    assert shown(found, {"event": "", "pci": "", "xid": ""}) == {"event": "gpu_lost", "pci": "0000:b3:00", "xid": None}
    assert found.fields["message"].count("\n") == 2


def test_a_fallen_gpu_in_three_records_is_named_by_the_one_that_says_so() -> None:
    device, model, lost = records(
        "kmsg",
        "3,1,1,-;NVRM: The NVIDIA GPU 0000:b1:00.0\n"
        "3,2,2,-;NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "3,3,3,-;NVRM: fallen off the bus and is not responding to commands.\n",
    )
    assert (device.fields.get("event"), device.fields["pci"], model.fields.get("event")) == (None, "0000:b1:00", None)
    assert (lost.fields["event"], lost.fields["pci"]) == ("gpu_lost", "0000:b1:00")


def test_a_lost_gpu_is_not_taken_for_one_named_long_before() -> None:
    *_, lost = records(
        "dmesg", "NVRM: The NVIDIA GPU 0000:b1:00.0\nusb 1-2: reset\nNVRM: fallen off the bus and is not responding"
    )
    assert lost.fields["event"] == "gpu_lost"
    assert lost.fields.get("pci") is None


def test_companion_lines_of_a_switch_fault_are_marked() -> None:
    first, severity, data = records(
        "dmesg",
        f"{SWITCH}20034, Fatal, Link 30 LTSSM Fault Up\n"
        f"{SWITCH}20034, Severity 1 Engine instance 30 Sub-engine instance 00\n"
        f"{SWITCH}20034, Data {{0x00000000, 0x10000000}}\n",
    )
    assert first.flags == set()
    assert severity.flags == data.flags == {"companion"}
    wanted = {"severity_code": 1, "engine_instance": 30, "subengine_instance": 0, "severity": "critical"}
    assert shown(severity, wanted) == wanted
    assert data.fields["payload_words"] == ["0x00000000", "0x10000000"]


def test_an_xid_that_names_its_cause_is_secondary() -> None:
    assert record("dmesg", f"{GPU}45, Ch 00000008 caused by previous Xid 149").flags == {"secondary"}
    assert record("dmesg", f"{GPU}45, Ch 00000008").flags == set()


@pytest.mark.parametrize(
    ("text", "intr_info", "error_status"),
    [("(0x00000006 0x00000002 0x0000", 6, 2), ("(0x00000006 0x000", 6, None), ("(0x0000", None, None)],
)
def test_a_cut_body_keeps_its_whole_words(text: str, intr_info: int | None, error_status: int | None) -> None:
    found = record("dmesg", f"{GPU}145, RLW_RXPIPE  Nonfatal XC0 i0 Link 07 {text}")
    assert found.flags == {"truncated"}
    assert (found.fields.get("intr_info"), found.fields.get("error_status")) == (intr_info, error_status)


def test_every_code_of_the_catalogues_has_words_of_the_field_dictionary() -> None:
    meanings = [xid_meaning(code) for code in range(1, 177)] + [sxid_meaning(code) for code in range(10_000, 31_000)]
    known = [meaning for meaning in meanings if meaning]
    assert len(known) > 400
    assert {meaning.severity for meaning in known} == {"info", "warning", "critical"}
    assert {meaning.action for meaning in known} <= {*ACTIONS, None}
    assert {meaning.fault_class for meaning in known} <= {
        "application", "driver", "firmware", "hardware_bus", "hardware_memory", "nvlink", "thermal_power", "other",
    }  # fmt: skip


@given(st.integers(1, 200), st.text(max_size=200), st.sampled_from(["", "pid=1, ", "pid=1, name=", "Fatal XC0 ", "("]))
def test_no_body_breaks_the_parser(code: int, body: str, start: str) -> None:
    text = f"{GPU}{code}, {start}{body}".replace("\n", " ")
    found = records("dmesg", text.encode())[0].fields
    assert found["xid"] == code
    assert found["pci"] == "0000:3b:00"


def test_words_of_rules_stand_in_their_texts() -> None:
    for text, _ in ROWS:
        fitting = [rule for rule in RULES if rule.pattern.search(text)]
        assert all(any(word in text for word in rule.words) for rule in fitting), text
