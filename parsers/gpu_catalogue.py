"""What the codes of GPUs and NVSwitches mean: severity, action and class of fault.

The tables in `data/` were collected from NVIDIA's Xid catalogue, its open kernel modules and leptonai/gpud.
Their wording of actions is finer than the field dictionary's; `_action` folds it.
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

ACTIONS = (
    "ignore", "restart_app", "reset_gpu", "reboot_node", "drain_p2p", "drain_and_reset", "recover_imex_domain",
    "restart_vm", "restart_fabric_manager", "reset_all_gpus_and_switches", "check_mechanicals", "check_cooling",
    "contact_support",
)  # fmt: skip

# Target of Xid 154 (open kernel modules, NV2080_CTRL_GPU_RECOVERY_ACTION_*): severity and action.
RECOVERY = {
    0: ("info", "none"),
    1: ("critical", "reset_gpu"),
    2: ("critical", "reboot_node"),
    3: ("warning", "drain_p2p"),
    4: ("warning", "drain_and_reset"),
    5: ("critical", "recover_imex_domain"),
}
_FOLDED = {
    "check_app(gpud)": "restart_app",
    "follow_xid154_else_restart_app": "restart_app",
    "decode_regs_then_reset_gpu": "reset_gpu",
    "follow_xid48": "reset_gpu",
    "enable_ecc_or_reboot_node": "reboot_node",
    "plan_replacement_if_power_smoothing_needed": "contact_support",
    "replace_gpu_if_power_smoothing_needed": "contact_support",
    "update_swfw": "contact_support",
    "validate_fabric_partition_routing": "contact_support",
}
_RANK = ("ignore", "restart_app", "reset_gpu")  # of the NVLink 5 table, weakest first


class Meaning(NamedTuple):
    """A row of a catalogue. `action` None: nothing documented, or the line has to say it."""

    name: str
    severity: str
    action: str | None
    fault_class: str


class _Decode(NamedTuple):
    """A row of the NVLink 5 table; `status` None fits every error status."""

    old_low: int  # bits 9:0 of the first word before driver 575: subcode and unit
    new_low: int  # bits 6:0 since then
    reason: int
    status: tuple[int, ...] | None
    action: str
    crossed: str | None  # action when the bit above the subcode is set
    fatal: bool


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("parsers").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def _action(wording: str) -> str | None:
    """The action that the wording folds to, or starts with: `reset_gpu(drain_first_if_with_63_64)`."""
    if wording in _FOLDED:
        return _FOLDED[wording]
    return max((name for name in ACTIONS if wording.startswith(name)), key=len, default=None)


def _catalogue(file: str, key: str) -> dict[int, Meaning]:
    return {
        int(row[key]): Meaning(
            row["name"],
            row["severity"],
            _action(row["action"]),
            "other" if row["cause"] == "unused" else row["cause"].replace("-", "_"),
        )
        for row in _rows(file)
    }


@cache
def _xids() -> dict[int, Meaning]:
    return _catalogue("xid_catalog.tsv", "xid")


@cache
def _sxids() -> dict[int, Meaning]:
    return _catalogue("sxid_catalog.tsv", "sxid")


def xid_meaning(code: int) -> Meaning | None:
    """What an Xid means; None for a code that no catalogue has."""
    return _xids().get(code)


def sxid_meaning(code: int) -> Meaning | None:
    """What an NVSwitch code means; None for a code that no catalogue has."""
    return _sxids().get(code)


@cache
def _nvlink5() -> dict[tuple[int, str], list[_Decode]]:
    table: dict[tuple[int, str], list[_Decode]] = {}
    for row in _rows("xid_nvlink5_decode.tsv"):
        decode = _Decode(
            int(row["v1_subcode_bits9_5"]) << 5 | int(row["v1_unit_bits4_0"]),
            int(row["v2_subcode_bits6_0"]),
            int(row["reason_bits25_20"]),
            tuple(int(word, 16) for word in row["error_status"].split("/")) if row["error_status"] else None,
            _action(row["action"]) or "ignore",
            _action(row["action2"]),
            row["severity"].removeprefix("Link ").startswith("Fatal"),
        )
        for block in {row["sub_v1"].lower(), row["sub_v2"].lower()}:
            table.setdefault((int(row["xid"]), block), []).append(decode)
    return table


def nvlink_meaning(xid: int, block: str, intr_info: int, error_status: int | None) -> tuple[str, str] | None:
    """Severity and action of Xid 144 to 150 by block name and register words; None when the table has no row."""
    rows = [row for row in _nvlink5().get((xid, block.lower()), ()) if row.reason == intr_info >> 20 & 0x3F]
    fitting = [row for row in rows if row.status is None or error_status in row.status]
    if not fitting and xid < 149 and error_status:  # up to 148 the status is a set of bits
        fitting = [row for row in rows if row.status and row.status[0] & error_status]
    if not fitting:
        return None
    actions = {row.crossed if row.crossed and _crossed(row, intr_info) else row.action for row in fitting}
    return "critical" if any(row.fatal for row in fitting) else "warning", max(actions, key=_RANK.index)


def _crossed(row: _Decode, intr_info: int) -> bool:
    """RLW_RXPIPE: bit 7 (bit 10 before driver 575) turns ignore into reset_gpu. The subcode tells the layout."""
    if intr_info & 0x3FF == row.old_low:
        return bool(intr_info & 1 << 10)
    return intr_info & 0x7F == row.new_low and bool(intr_info & 1 << 7)
