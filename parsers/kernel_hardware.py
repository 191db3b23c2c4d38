"""Kernel text about hardware: NICs, PCI Express, memory, machine checks, heat.

    pcieport 0000:00:01.1: AER: Multiple Corrected error received: 0000:3b:00.0
    mlx5_core 0000:4b:00.0 ens5np0: Link down

Sources: drivers/pci/pcie/{aer,dpc}.c, drivers/edac, drivers/acpi/apei, arch/x86/kernel/cpu/mce and the NIC
drivers of Linux 3.10 to 6.17. Detail lines of one fault stay records of their own.
"""

import re

from parsers.kernel_rules import Fields, Rule, pci, rule

# `mlx5_core 0000:4b:00.0 ens5np0: ` and where in the driver the text comes from: `poll_health:801:(pid 0): `.
_DEVICE = r"mlx5_\w+ (?P<pci>{BDF})(?: (?P<netdev>[^\s:]+))?: "
_PLACE = r"(?P<src_func>\w+):(?P<src_line>\d+):\(pid (?P<pid>\d+)\): "
_MLX5 = rf"{_DEVICE}(?:{_PLACE})?"
_HEALTH_FUNCTIONS = (
    r"(?:print_health|poll_health|health_|mlx5_health|mlx5_handle_bad|mlx5_error_sw|mlx5_enter_error|enter_error)"
)
_SYNDROME = r"(?:.*?syndrome \((?P<syndrome>0x[0-9a-fA-F]+)\))?"
_GHES = r"(?:\{(?P<hw_error_group>\d+)\})?\[Hardware Error\]: +"
_AER_SEVERITY = r"(?P<reported_severity>(?:Un)?[Cc]orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"


def _dpc_source(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - Rule.read
    """The source is an address since 6.17, before that a requester id that is 0 when nobody sent a message."""
    source = found["_source"] or ""
    if address := pci(source):
        fields["pci"] = address
    elif int(source or "0", 16):
        fields["requester_id"] = source


def _aer_bit(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - Rule.read
    fields["aer_bits"] = [found["_bit"]]


NIC: tuple[Rule, ...] = (
    rule(
        "nic_link",
        "Port: ",
        r"mlx5_\w+ (?P<pci>{BDF})(?: (?P<ibdev>[^\s:]+))?: "
        r"Port: (?P<port>\d+) Link (?P<link_state>(?i:down|up|init|active|armed))\b",
    ),
    rule("nic_link", "Link ", rf"{_MLX5}Link (?P<link_state>(?i:down|up))\b"),
    rule(
        "nic_command_failed",
        "ACCESS_REG",
        rf"{_MLX5}(?P<nic_command>ACCESS_REG)\(0x[0-9a-f]+\) op_mod\(\w+\) failed{_SYNDROME}",
        noise="mlx5_access_reg",
    ),
    rule(
        "nic_command_failed",
        "mlx5_",
        rf"{_MLX5}(?P<nic_command>[A-Z][A-Z0-9_]+)\(0x[0-9a-f]+\)(?: op_mod\(\w+\))? (?:timeout|failed){_SYNDROME}",
    ),
    rule(
        "nic_module",
        "mlx5_",
        rf"{_MLX5}(?:Port module event|High temperature on sensors|Detected insufficient power on the PCIe slot)",
    ),
    rule(
        "net_watchdog",
        "TX timeout",
        rf"{_MLX5}TX timeout (?:detected|on queue: (?P<qid>\d+))",
    ),
    rule(
        "net_watchdog",
        "NETDEV WATCHDOG",
        r"(?:(?P<pci>{BDF}) (?P<netdev>[^\s:]+): )?NETDEV WATCHDOG: CPU: (?P<cpu>\d+): "
        r"transmit queue (?P<qid>\d+) timed out",
    ),
    rule(
        "net_watchdog",
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?P<netdev>\S+) \(.*?\): transmit queue (?P<qid>\d+) timed out",
    ),
    rule(
        "nic_health",
        "mlx5_",
        rf"{_MLX5}(?:synd (?P<syndrome>0x[0-9a-fA-F]+)|ext_synd |assert_|device's health compromised"
        r"|Health issue observed|Fatal error \d+ detected|.*unrecoverable hardware error|handling bad device"
        r"|health recovery)",
    ),
    rule("nic_health", "mlx5_", _DEVICE + _PLACE.replace(r"\w+", rf"{_HEALTH_FUNCTIONS}\w*", 1)),
    rule(None, "mlx5_", _DEVICE + _PLACE),
    rule("nic_link", "mlx4_en: ", r"mlx4_en: (?P<netdev>[^\s:]+): Link (?P<link_state>(?i:up|down))\b"),
    rule(
        "nic_link",
        "link status ",
        r"\(slave (?P<netdev>\S+)\): link status (?:definitely )?(?P<link_state>up|down)\b",
    ),
    rule(
        "nic_link",
        "link status definitely",
        r"link status definitely (?P<link_state>up|down) for interface (?P<netdev>[^\s,]+)",
    ),
    rule(
        "nic_link",
        "ADDRCONF(NETDEV_",
        r"ADDRCONF\(NETDEV_\w+\): (?P<netdev>\S+): link (?:is (?P<link_state>not ready)|becomes ready)",
        link_state="up",
    ),
    rule("nic_link", "ost carrier", r"(?:^|\s)(?P<netdev>[\w.@-]+): [Ll]ost carrier", link_state="down"),
    rule("nic_link", "ained carrier", r"(?:^|\s)(?P<netdev>[\w.@-]+): [Gg]ained carrier", link_state="up"),
    rule(
        "nic_link",
        "ink is ",
        r"(?:(?P<pci>{BDF}):? )?(?P<netdev>[\w.@-]+):? (?:\w+: )?(?:NIC )?[Ll]ink is (?P<link_state>(?i:up|down))\b",
    ),
)

PCIE: tuple[Rule, ...] = (
    rule(
        "pcie_aer",
        "rror received|rror message received",
        r"(?P<pci_port>{BDF})(?::pcie\d+)?: (?:AER: )?(?P<multiple>Multiple )?"
        rf"{_AER_SEVERITY} error (?:message )?received(?: from|:)? "
        r"(?:id=(?P<requester_id>[0-9a-fA-F]{4})|(?P<pci>{BDF}))?",
    ),
    rule(
        "pcie_aer",
        "PCIe Bus Error: ",
        r"(?P<pci>{BDF}): (?:AER: )?PCIe Bus Error: "
        rf"severity={_AER_SEVERITY}, type=(?P<aer_layer>[\w ]+)(?:, (?:id=(?P<requester_id>[0-9a-fA-F]{{4}}))?)?",
    ),
    rule(
        None,
        "error status/mask=",
        r"(?P<pci>{BDF}): .*error status/mask=(?P<aer_status>[0-9a-fA-F]{1,8})/(?P<aer_mask>[0-9a-fA-F]{1,8})",
    ),
    rule(
        None,
        ":    [",
        r"(?P<pci>{BDF}): (?:AER:)?\s+\[ ?\d{1,2}\] (?P<_bit>\S[^(]*?)\s*(?P<first>\(First\))?\s*$",
        _aer_bit,
    ),
    rule(
        "pcie_aer",
        "aer_status: 0x",
        r"(?P<pci>{BDF}): (?:AER: )?aer_status: 0x(?P<aer_status>[0-9a-fA-F]{1,8}), "
        r"aer_mask: 0x(?P<aer_mask>[0-9a-fA-F]{1,8})",
    ),
    rule(None, "aer_layer=", r"(?P<pci>{BDF}): (?:AER: )?aer_layer=(?P<aer_layer>[^,]+)"),
    rule(
        "pcie_aer",
        "find device of ID",
        r"(?P<pci_port>{BDF}): (?:AER: )?can't find device of ID(?P<requester_id>[0-9a-fA-F]{4})",
    ),
    rule("pcie_aer", ": AER: ", r"pcieport (?P<pci_port>{BDF}): AER: .*(?:recover|reset)"),
    rule("pcie_aer", ": AER: ", r"(?P<pci>{BDF}): AER: .*(?:recover|reset)"),
    rule(
        "pcie_dpc",
        "DPC: containment event",
        r"(?P<pci_port>{BDF}): DPC: containment event, status:0x[0-9a-f]+"
        r"(?:,? source:(?P<_source>{BDF}|0x[0-9a-fA-F]{4})|.*received from (?P<pci>{BDF}))?",
        _dpc_source,
    ),
    rule("pcie_dpc", ": DPC: ", r"(?P<pci_port>{BDF}): DPC: (?!error containment capab).*(?:error|ERR_)"),
    rule("pcie_dpc", "Link Down", r"(?P<pci_port>{BDF}): pciehp: Slot\([^)]*\): Link (?P<link_state>Down)"),
    rule("pcie_dpc", "Card not present", r"(?P<pci_port>{BDF}): pciehp: Slot\([^)]*\): Card not present"),
    rule(None, "pcieport ", r"pcieport (?P<pci_port>{BDF}): (?:DPC|pciehp): "),
)

MEMORY: tuple[Rule, ...] = (
    rule(
        "memory_error",
        "EDAC ",
        r"EDAC (?:\w+ )?MC\d+: (?:(?P<error_count>\d+) )?(?:(?P<reported_severity>CE)|UE)\b",
    ),
    rule("hardware_error", "Hardware error from APEI", rf"{_GHES}Hardware error from APEI"),
    rule(
        "hardware_error",
        "event severity: ",
        rf"{_GHES}event severity: (?P<reported_severity>\w+)",
    ),
    rule(
        "hardware_error",
        "section_type: |section type: ",
        rf"{_GHES}section[_ ]type: (?P<hw_section>.*\S)",
    ),
    rule(
        "hardware_error",
        "device_id: ",
        rf"{_GHES}device_id: (?P<pci>{{BDF}})",
    ),
    rule(
        "hardware_error",
        "}[Hardware Error]",
        r"\{(?P<hw_error_group>\d+)\}\[Hardware Error\]:(?: +Error \d+, type: (?P<reported_severity>\w+))?",
    ),
    rule(
        "thermal_throttle",
        "temperature above threshold",
        r"CPU(?P<cpu>\d+): (?:Core|Package) temperature above threshold",
    ),
    rule(None, "temperature/speed normal", r"CPU(?P<cpu>\d+): (?:Core|Package) temperature/speed normal"),
    rule("machine_check", "[Hardware Error]: ", r"\[Hardware Error\]: (?:CPU[ :](?P<cpu>\d+))?"),
    rule("machine_check", "mce: ", r"mce: (?:Uncorrected hardware|Memory error|CPU\d+: .*exception)"),
)
