"""Kernel text of NVIDIA's drivers: Xid of all driver generations, SXid of NVSwitches, lost GPUs.

    NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 13, pid=9981, name=trainer, Graphics SM Warp Exception on …
    nvidia-nvswitch2: SXid (PCI:0000:b7:00.0): 22013, Fatal, Link 17 Minion Link DLREQ interrupt

Sources: NVIDIA/open-gpu-kernel-modules 515 to 595, and issues of leptonai/gpud and NVIDIA/NVSentinel for the
forms before those and for cut lines. A body that no pattern knows keeps its code and its `detail`.
"""

import re

from parsers.gpu_catalogue import RECOVERY, Meaning, nvlink_meaning, sxid_meaning, xid_meaning
from parsers.kernel_rules import Fields, Rule, convert, rule

_ASCII = re.ASCII
_XID_OWNER = re.compile(r"pid=(?:(?P<pid>\d+)|'[^']*'|<[^>]*>|[^,\s]*)(?:,\s*|\s*$)", _ASCII)
_SXID_SEVERITY = re.compile(r"^(?P<reported_severity>Fatal|Non-?fatal|Correct(?:able|ed))\b", _ASCII | re.IGNORECASE)
_NULL_NAMES = ("", "<unknown>", "N/A")

# A process name may hold commas, so the text after it starts at the first of these (else at the first comma).
_BODY_STARTS = (
    r"Ch [0-9a-fA-F]{8}|ChID |[Cc]hannel |Graphics |Class |intr |An uncorrectable |Row Remapper|Bank Remapper"
    r"|Dynamic Page |DRAM |NVLink: |GPU has fallen|(?:Unc|C)ontained: |errorString |Timeout |GSP |\w+ interrupt hit "
    r"|[\w/ ]+ (?:Non-?f|F)atal +XC\d|GPU recovery |GPU memory |Retiring |Unable to |Marking |[\w-]+, Uncorrectable "
    r"|[0-9a-f]{4,8}(?:\([0-9a-f]+\))? [0-9a-f]{8}\b"
)
_BEFORE_BODY = re.compile(rf",\s*(?={_BODY_STARTS})", _ASCII)
_AFTER_NAME = re.compile(r",\s+|,?$", _ASCII)

# Every pattern that fits adds its fields.
_BODIES = tuple(
    re.compile(pattern, _ASCII)
    for pattern in (
        r"^(?:Graphics Exception: )?(?:Ch|ChID|[Cc]hannel(?: ID)?) (?:0x)?(?P<channel>[0-9a-fA-F]{1,16})\b",
        r"caused by previous Xid (?P<caused_by_xid>\d{1,9})",
        r"ENGINE (?P<engine>\w+)",
        r" (?P<client>(?:GPC|HUB)CLIENT_\w+)",
        r"faulted @ (?P<fault_address>0x[0-9a-fA-F_]+)",
        r"of type (?P<fault_type>FAULT_\w+)",
        r"ACCESS_TYPE_(?P<access_type>\w+)",
        r"\(GPC (?P<gpc>\d+), TPC (?P<tpc>\d+)(?:, SM (?P<sm>\d+))?\)(?:: (?P<exception>[^\n]+))?",
        r"\bpartition (?P<fb_partition>\d+), subpartition (?P<fb_subpartition>\d+)",
        r"(?:on|for) link (?P<link>\d+)",
        r"interrupt hit on link \d+ on GPU(?P<gpu_index>\d+)",
        r"failed to train link (?P<link>\d+)",
        r"^(?P<containment>Contained|Uncontained):",
        r"errorString (?P<error_string>.+?)(?:, Info\b|,?$)",
        r"after (?P<timeout_s>\d+)s of waiting for RPC",
        r"from GPU(?P<gsp_index>\d+) GSP!",
        r"from GSP(?P<gsp_index>\d+)!",
        r"Expected function (?:(?P<rpc_function>\d+) \()?(?P<rpc_name>[A-Za-z_]\w*)",
        r"\bsequence (?P<rpc_sequence>\d+)",
        r"changed from 0x(?P<recovery_from>[0-9a-fA-F]{1,8}) .*?to 0x(?P<recovery_to>[0-9a-fA-F]{1,8})\b",
        r"^(?:Retiring|Unable to retire) TPC (?P<tpc>\d+) from GPC (?P<gpc>\d+)",
    )
)
_WORDS = re.compile(r"{0}(?: {0})+".format(r"(?:0x)?[0-9a-fA-F]{4,8}(?:\([0-9a-fA-F]+\))?"), _ASCII)
_ESR = re.compile(r"(0x[0-9a-fA-F]+)=(0x[0-9a-fA-F]+)", _ASCII)
_REGISTERS = re.compile(r"link \d+ ?\(([^)]*)\)", _ASCII)
_ROW = re.compile(r"\(?(0x[0-9a-fA-F]{8,16})\b", _ASCII)
_NVLINK5 = re.compile(
    r"(?P<xid_unit>\w[\w/ ]*?)\s+(?P<reported_severity>Fatal|Non-?fatal)\b"
    r"(?:\s+XC(?P<xc>\d+))?(?:\s+i(?P<injected>\d+))?(?:\s+Link\s+(?P<link>-?\d+))?(?:\s+\((?P<words>[^)]*)(?P<end>\)?))?",
    _ASCII,
)
_OLD_BLOCKS = ("NETIR", "NETIR_LINK_EVT", "TLW_RX", "NVLPW_CTRL")  # subcode in bits 9:5
_NEW_BLOCKS = ("NETIR_INT", "NETIR_LINK_DOWN", "TLW_RX_PIPE0", "TLW_RX_PIPE1", "NVLPW")  # driver 575: bits 6:0
_SXID_COMPANION = re.compile(
    r"Severity (?P<severity_code>\d+) Engine instance (?P<engine_instance>\d+)"
    r"(?: Sub-engine instance (?P<subengine_instance>\d+))?",
    _ASCII,
)
_SXID_LINK = re.compile(r"\bLink (?P<link>\d+)\b", _ASCII)
_SXID_FIRST = re.compile(r"(?P<first>\(First\))\s*$", _ASCII)
_SXID_TEMPERATURE = re.compile(r"Temperature (?P<temperature_c>-?\d+) ?C\b", _ASCII)
_REMAP_FAILURES = {
    "pending": "pending",
    "all reserved rows": "bank_full",
    "full": "table_full",
    "internal": "internal_error",
    "reserved row": "reserved_row",
}


def judge(fields: Fields, meaning: Meaning | None) -> None:
    """Severity, action and class of fault from the catalogue, then severity from the word in the line."""
    if meaning:
        fields |= {"severity": meaning.severity, "action": meaning.action, "fault_class": meaning.fault_class}
    word = fields.get("reported_severity")
    if word in ("fatal", "nonfatal"):
        fields["severity"] = "critical" if word == "fatal" else "warning"


def judge_sxid(fields: Fields) -> None:
    """The same for the code of an NVSwitch; the word also says what to do where the catalogue does not."""
    judge(fields, sxid_meaning(fields["sxid"]))
    word, action = fields.get("reported_severity"), fields.get("action")
    if word == "fatal" and action in (None, "ignore"):
        fields["action"] = "reset_all_gpus_and_switches"
    elif word in ("nonfatal", "corrected") and action is None:
        fields["action"] = "ignore"


def _cut(text: str) -> bool:
    """The text ends inside a bracket: its writer or a limit cut it."""
    return any(text.rfind(left) > text.rfind(right) for left, right in ("()", "{}", "[]"))


def _owner(rest: str, fields: Fields) -> str:
    """Read `pid=…, name=…` into `fields`; return the text after them."""
    rest = rest.lstrip()
    if found := _XID_OWNER.match(rest):
        convert(found.groupdict(), fields)
        rest = rest[found.end() :]
    if rest.startswith("name="):
        rest = rest.removeprefix("name=")
        end = _BEFORE_BODY.search(rest) or _AFTER_NAME.search(rest)
        name = rest[: end.start()] if end else rest
        fields["process"] = None if name.strip() in _NULL_NAMES else name
        rest = rest[end.end() :] if end else ""
    return rest.strip()


def _xid(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:
    code = int(found["_code"])
    detail = _owner(found["_rest"], fields)
    fields["detail"] = detail
    if code == 0:  # not a fault (leptonai/gpud#164)
        return
    fields |= {"event": "gpu_xid", "xid": code}
    if _cut(detail):
        flags.add("truncated")
    for body in _BODIES:
        if match := body.search(detail):
            convert(match.groupdict(), fields)
    if "fault_address" in fields:
        fields["fault_address"] = fields["fault_address"].replace("_", "").lower()
    if code == 13 and "ESR " in detail:
        fields["esr"] = dict(_ESR.findall(detail))
    if code in (13, 61, 62) and _WORDS.fullmatch(detail):
        fields["payload_words"] = detail.split()
    if code == 74 and (registers := _REGISTERS.search(detail)):
        words = [word.strip() for word in registers[1].split(",")]
        if all(re.fullmatch(r"0x[0-9a-fA-F]{1,8}", word) for word in words):
            fields["nvlink_registers"] = [int(word, 16) for word in words]
    if code == 45 and "caused_by_xid" in fields:
        flags.add("secondary")
    if code in (63, 64):
        _remap(code, detail, fields)
    decoded = _nvlink5(code, detail, fields) if 144 <= code <= 150 or code == 155 else None
    judge(fields, xid_meaning(code))
    if code == 154:
        _recovery(fields)
    elif decoded:
        fields["action"] = decoded[1]
        if "reported_severity" not in fields:
            fields["severity"] = decoded[0]
    elif 144 <= code <= 150 and fields.get("reported_severity") == "fatal":
        fields["action"] = "reset_gpu"


def _remap(code: int, detail: str, fields: Fields) -> None:
    if row := _ROW.search(detail):
        fields["row_address"] = row[1].lower()
    if code == 63 and "reset gpu to activate" in detail.lower():
        fields["needs_reset"] = True
    if code == 64:
        reason = detail.lower()
        fields["remap_failure"] = next((name for word, name in _REMAP_FAILURES.items() if word in reason), None)


def _nvlink5(code: int, detail: str, fields: Fields) -> tuple[str, str] | None:
    """Read an NVLink 5 body; return severity and action of its register words."""
    found = _NVLINK5.match(detail)
    if not found:
        return None
    groups = found.groupdict()
    words, end, injected = groups.pop("words"), groups.pop("end"), groups.pop("injected")
    convert(groups, fields)
    block = groups["xid_unit"]
    if fields.get("link") == -1:
        fields["link"] = None
    if injected is not None:
        fields["injected"] = injected != "0"
    # Without a closing bracket the last word may be a piece.
    whole = re.findall(r"0x([0-9a-fA-F]{1,8})\b" if end else r"0x([0-9a-fA-F]{1,8})\s", words or "")
    if not whole:
        return None
    info = int(whole[0], 16)
    status = int(whole[1], 16) if len(whole) > 1 else None
    fields |= {"intr_info": info, "error_status": status, "reason_code": info >> 20 & 0x3F}
    if block in _OLD_BLOCKS:
        fields["intr_subcode"] = info >> 5 & 0x1F
    elif block in _NEW_BLOCKS:
        fields["intr_subcode"] = info & 0x7F
    return nvlink_meaning(code, block, info, status)


def _recovery(fields: Fields) -> None:
    target = fields.get("recovery_to")
    if target is not None:
        fields["severity"], fields["action"] = RECOVERY.get(target, ("critical", None))


def _sxid(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:
    """`CODE, [SEVERITY, ][Link N ]text`, or one of the companions `CODE, Severity …` and `CODE, Data {…}`."""
    code, rest = int(found["_code"]), found["_rest"]
    fields["sxid"] = code
    meaning = sxid_meaning(code)
    if _cut(rest):
        flags.add("truncated")
    if companion := _SXID_COMPANION.match(rest):
        flags.add("companion")
        convert(companion.groupdict(), fields)
        judge(fields, meaning)
        if "severity_code" in fields:
            fields["severity"] = "critical" if fields["severity_code"] else "warning"
        return
    if rest.startswith("Data {"):
        flags.add("companion")
        fields["payload_words"] = re.findall(r"0x[0-9a-fA-F]+(?=\s*[,}])", rest)
        judge(fields, meaning)
        return
    for pattern in (_SXID_SEVERITY, _SXID_LINK, _SXID_FIRST, _SXID_TEMPERATURE):
        if match := pattern.search(rest):
            convert(match.groupdict(), fields)
    judge_sxid(fields)


def _lost(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - contract of Rule.read
    """A GPU that has fallen off the bus is what Xid 79 says."""
    judge(fields, xid_meaning(79))


RULES: tuple[Rule, ...] = (
    rule(
        None,
        "NVRM: Xid (",
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F.:]+)(?: GPU-I:(?P<gpu_instance>\d+))?"
        r"(?: GPU-CI:(?P<compute_instance>\d+))?[^)]*\)\s*:\s*(?P<_code>\d{1,9})\b\s*,?(?P<_rest>(?s:.*))",
        _xid,
    ),
    rule(
        "nvswitch_sxid",
        ": SXid (",
        r"nvidia-nvswitch(?P<switch>\d+): SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F.:]+)\)\s*:\s*"
        r"(?P<_code>\d{1,9})\b,?\s*(?P<_rest>(?s:.*))",
        _sxid,
    ),
    rule(
        "gpu_lost",
        "fallen off the bus",
        r"NVRM: (?:(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{BDF})(?s:.)*?)?\bfallen off the bus",
        _lost,
    ),
    rule(
        "gpu_identity",
        "NVRM: GPU at ",
        r"NVRM: GPU at (?:PCI:)?(?P<pci>[0-9a-fA-F.:]*[0-9a-fA-F]): (?P<gpu_uuid>GPU-[0-9a-fA-F-]+)",
    ),
    rule(
        "gpu_rate_limited",
        "printing 1 of every ",
        r"NVRM: Rate limiting .* for GPU at (?:PCI:)?(?P<pci>{BDF}) \(printing 1 of every (?P<rate_limit_factor>\d+)\)",
    ),
    rule(
        None,
        "NVRM: GPU ",
        r"NVRM: (?:GPU (?P<pci>{BDF}): )?GPU (?:serial number is|is on Board|Board Serial Number:) (?P<gpu_serial>\d+)",
    ),
    rule(
        None,
        "crash dump|nvidia-bug-report.sh|NVIDIA kernel module",
        r"NVRM: (?:A GPU crash dump has been|nvidia-bug-report\.sh as root|the NVIDIA kernel module is unloaded)",
        noise="nvrm_crash_dump",
    ),
    rule(
        "gpu_reset",
        "GPU reset executed: ",
        r"GPU reset executed: (?P<gpu_uuid>GPU-[0-9a-fA-F-]+)(?:, success: (?P<reset_ok>true|false))?",
    ),
    rule(None, "NVRM: The NVIDIA GPU ", r"NVRM: The NVIDIA GPU (?P<pci>{BDF})"),
    rule(None, "NVRM: GPU ", r"NVRM: GPU (?P<pci>{BDF}): "),
    rule(None, "NVRM: (PCI ID: ", r"NVRM: \(PCI ID: "),
)
