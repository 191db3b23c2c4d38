"""What the text of an NCCL record says: its event, and the fields of the event.

Wordings of NCCL 2.4 to 2.30 and of the plugins that copy its net_ib transport.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from parsers import nccl

MAX_OPCODE = 255  # the field is garbage when a completion failed (NVIDIA/nccl#1664)

# Words of ibv_event_type_str (rdma-core libibverbs/enum_strs.c) and numbers of enum ibv_event_type.
_ASYNC = {
    1: "qp_error", 2: "qp_error", 3: "qp_error", 8: "local_catastrophic", 9: "port_active", 10: "port_error",
    18: "gid_change",
}  # fmt: skip
_ASYNC_WORDS = (
    (re.compile(r"\bon QP \(|work queue"), "qp_error"),
    (re.compile(r"local catastrophic error"), "local_catastrophic"),
    (re.compile(r"port active"), "port_active"),
    (re.compile(r"port err"), "port_error"),
    (re.compile(r"GID table change"), "gid_change"),
)
# Words of strerror for the errors of a lost peer (asm-generic/errno.h).
_ERRNO = {
    "Broken pipe": 32, "Address already in use": 98, "Cannot assign requested address": 99,
    "Network is unreachable": 101, "Connection reset by peer": 104, "Connection timed out": 110,
    "Connection refused": 111, "No route to host": 113, "Invalid argument": 22, "Cannot allocate memory": 12,
}  # fmt: skip


def text_fields(message: str, level_raw: str, fields: dict[str, Any], flags: set[str]) -> None:
    """Add the event of an NCCL text, and what it tells, to `fields`; flag consequences as `secondary`."""
    if level_raw in ("CALL", "TRACE"):
        return
    if hit := _find(message):
        rule, found = hit
        if rule.event:
            fields["event"] = rule.event
        if rule.read:
            rule.read(found, fields)
    flushed = fields.get("wc_status") == 5  # after an earlier error
    if flushed or fields.get("event") == "nccl_connection_closed" or "Socket recv failed while polling" in message:
        flags.add("secondary")


def _find(message: str) -> "tuple[Rule, re.Match[str]] | None":
    for rule in _RULES:
        for word in rule.words:
            if word in message:
                if found := rule.pattern.search(message):
                    return rule, found
                break
    return None


def _peer(message: str, fields: dict[str, Any], after: str = "") -> None:
    if found := re.search(rf"{after}([^\s<>]+?)<(\d{{1,5}})>", message):
        fields |= {"peer": found[1], "peer_port": int(found[2])}


def _errno(message: str, fields: dict[str, Any]) -> None:
    number = r"\berrno[ :=]{1,2}(\d{1,4})\b|\b(?:with|returned|failed|error)[: ]+(\d{1,4})[ (]+[A-Z]"
    if found := re.search(number, message):
        fields["errno"] = int(found[1] or found[2])
        return
    for words, code in _ERRNO.items():
        if words in message:
            fields["errno"] = code
            return


def _retry(message: str, fields: dict[str, Any]) -> None:
    if found := re.search(r"retrying \(?(\d{1,6})/\d+|\battempt[ =#](\d{1,6})", message):
        fields["retry_attempt"] = int(found[1] or found[2])


def _gids(message: str, fields: dict[str, Any]) -> None:
    # The label is glued to the address: remoteGids::ffff:192.0.2.5, remoteGids2001:db8::7.
    for name, pattern in (
        ("local_gid", r"local ?G(?:id|ID)s? ?(?!index)([0-9a-fA-F:.]*:[0-9a-fA-F:.]+)"),
        ("remote_gid", r"remote ?G(?:id|ID)s? ?(?!index)([0-9a-fA-F:.]*:[0-9a-fA-F:.]+)"),
    ):
        if found := re.search(pattern, message):
            fields[name] = found[1]


def _device(message: str, fields: dict[str, Any], pattern: str) -> None:
    if found := re.search(pattern, message):
        fields["hca"] = found[1]
        if found[2]:
            fields["hca_port"] = int(found[2])


def _completion(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    _peer(message, fields, "from peer ")
    status = re.search(r"with (?:error|status)[ =](?:[A-Z_]+\()?(\d{1,9})", message)
    if status:
        fields["wc_status"] = int(status[1])
    opcode = re.search(r"opcode[ =](?:[A-Z_]+\()?(\d{1,9})", message)
    if opcode and int(opcode[1]) <= MAX_OPCODE:
        fields["wc_opcode"] = int(opcode[1])
    if vendor := re.search(r"vendor[ _]err[ =](\d{1,9})", message):
        fields["vendor_err"] = int(vendor[1])
    if request := re.search(r"req_type=(\w+)|vendor err \d+ \((\w+)\)|\((Send|Recv|Flush|IPut|GPUput)\)", message):
        fields["request_type"] = request[1] or request[2] or request[3]
    _gids(message, fields)
    _device(message, fields, r"\bhca ([\w.-]+?)(?::(\d{1,3}))?(?:\s|$)")


def _failover(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    if "Got completion" in message:
        _completion(found, fields)


def _async(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    _device(message, fields, r"NET/IB\w* ?: ?([\w.-]+):(\d{1,3}) ")
    number = re.search(r"(?:event type |[a-z] ?)\((\d{1,3})\)", message)
    if number and int(number[1]) in _ASYNC:
        fields["async_event"] = _ASYNC[int(number[1])]
        return
    fields["async_event"] = next((name for pattern, name in _ASYNC_WORDS if pattern.search(message)), "other")


def _closed(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    _peer(message, fields, "remote peer ")


def _socket(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    _peer(message, fields)
    _errno(message, fields)
    _retry(message, fields)


def _qp(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    _errno(message, fields)
    _retry(message, fields)
    _gids(message, fields)
    _device(message, fields, r"\bdev ([\w.-]+?)(?::(\d{1,3}))?(?:[,\s]|$)")
    if index := re.search(r"local GID index (\d{1,6})", message):
        fields["gid_index"] = int(index[1])


def _cuda(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    if found[1]:
        fields["cuda_error"] = int(found[1])


def _comm(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    fields |= {"comm": found[1], "comm_rank": int(found[2]), "nranks": int(found[3])}
    if found[4]:
        fields["comm_state"] = f"{found[4]}_{found[5]}".lower()
    if identity := re.search(r"\bcommId (0x[0-9a-f]+)", message):
        fields["comm_id"] = identity[1]
    if parent := re.search(r"\bparent (0x[0-9a-f]+)", message):
        fields["parent_comm"] = parent[1]
    if color := re.search(r"\bcolor (-?\d{1,12})\b", message):
        fields["color"] = int(color[1])


def _timings(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    if ranks := re.search(r"\brank (\d{1,9}) n[rR]anks (\d{1,9})", message):
        fields |= {"comm_rank": int(ranks[1]), "nranks": int(ranks[2])}
    if total := re.search(r"\btotal (\d{1,9}(?:\.\d+)?)", message):
        fields["init_total_s"] = float(total[1])


def _path(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    fields |= {"nccl_origin": found[1], "nccl_code": int(found[2])}


def _env(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    value = found[2]
    if re.fullmatch(r"-?\d+\.", value):  # integers end with a full stop
        value = value[:-1]
    fields |= {"env_name": found[1], "env_value": value}


def _network(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    fields["network"] = found[1]


def _version(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    nccl.version_fields(message, fields)


def _devices(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    message = found.string
    if "NET/IB" in message:
        devices = re.findall(r"\[\d+\]([\w.-]+):(\d{1,3})/", message)
        if len(devices) == 1:
            fields |= {"hca": devices[0][0], "hca_port": int(devices[0][1])}
        place = re.search(r"OOB ([^\s:\[\]]+):(\S+?)<\d+>", message)
    else:
        place = re.search(r"Using (?:\[\d+\])?([^\s:\[\]]+):(\S+?)<\d+>", message)
    if place:
        fields |= {"interface": place[1], "ip": place[2]}


def _channel(found: "re.Match[str]", fields: dict[str, Any]) -> None:
    fields["transport"] = found[1]
    if found[1].startswith("NET/"):
        fields["gpu_direct"] = "GDRDMA" in found[1]


class Rule(NamedTuple):
    """`words`: one of them is in every text that `pattern` finds, a cheap test before the regex."""

    words: tuple[str, ...]
    pattern: "re.Pattern[str]"
    event: str | None
    read: Callable[["re.Match[str]", dict[str, Any]], None] | None


def _rule(
    words: str,
    pattern: str,
    event: str | None,
    read: Callable[["re.Match[str]", dict[str, Any]], None] | None = None,
) -> Rule:
    return Rule(tuple(words.split("|")), re.compile(pattern), event, read)


_COMM_STATE = (
    r"\bcomm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9}) .*- ?(Init|Destroy|Abort|Revoke) (START|COMPLETE)"
)

# In this order: the first that fits names the event.
_RULES = (
    _rule(" via ", r"^(?:Channel|Ring|Coll(?:Net)?) \d+.* via (\S.*?) *$", None, _channel),
    _rule("esiliency", r"esiliency", "nccl_failover", _failover),
    _rule("Got completion", r"\bGot completion\b", "nccl_completion_error", _completion),
    _rule("NET/IB: ", r"^NET/IB: \w+: (?:Device \d+|Marking device|Replacing QP|Retransmitting)", "nccl_failover"),
    _rule("event|GID table", r"^NET/IB\w* ?:.*(?:\basync (?:\w+ )?event\b|unknown event type|GID table change)",
          "nccl_async_event", _async),
    _rule("ibv_modify_qp", r"ibv_modify_qp (?:failed|returned|error)", "nccl_qp_error", _qp),
    _rule("Connection closed by remote peer", r"Connection closed by remote peer", "nccl_connection_closed", _closed),
    _rule("Cuda failure", r"Cuda failure(?: ?: ?)?(?: (\d{1,6}))?", "nccl_cuda_failure", _cuda),
    _rule("RAS ", r"^(?:Continuing in spite of a )?RAS ", "nccl_ras"),
    _rule("ocket|Net ", r"^(?:nccl(?:Os)?Socket\w*|socket\w+|Net) ?:? .*(?:fail|refused|reset|timed out|unreachable"
          r"|returned|retrying|wrong|magic|error|exceed|closed|No route)|^Socket (?:recv|send) failed"
          r"|socket magic mismatch|didn.t receive a valid magic", "nccl_socket_error", _socket),
    _rule("Call to ", r"Call to (?:connect|recv\w*|send\w*|bind|accept|poll|listen|getsockname|[gs]etsockopt|socket)\b"
          r".*(?:fail|returned|error)", "nccl_socket_error", _socket),
    _rule("comm 0x", _COMM_STATE, "nccl_comm", _comm),
    _rule("comm 0x", r"^comm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: nNodes)()()", None, _comm),
    _rule("Init timings", r"^Init timings", "nccl_init_timing", _timings),
    _rule(" -> ", rf"^{nccl.PATH.pattern}", "nccl_call_path", _path),
    _rule(" set ", r"^([A-Z][A-Z0-9_]{3,60}) set (?:by environment )?to (.*?)\s*$", "nccl_env", _env),
    _rule("version", rf"^{nccl.VERSION.pattern}", "nccl_version", _version),
    _rule("Using network", r"^Using network (\S.*?)\s*$", "nccl_network", _network),
    _rule("No device found|open |dlsym|dlvsym", r"^NET/\w+ ?: ?No device found|^Failed to open lib|^Count not open "
          r"|^dlv?sym failed", "nccl_net_missing"),
    _rule("NET/Plugin", r"^NET/Plugin ?:? ?.*(?:No plugin found|Could not find|load returned|dlerror=|Using internal)",
          "nccl_net_missing"),
    _rule("plugin", r"^Failed to initialize (?:NET|any NET|external) ?plugin", "nccl_net_missing"),
    _rule("Using ", r"^(?:NET/\w+|Bootstrap) ?: Using (?:\[\d+\]|[^\s:\[\]]+:\S+<\d+>)", "nccl_net_devices", _devices),
    _rule("GPU Direct RDMA Disabled|GDR 0", r"GPU Direct RDMA Disabled|^Connected all rings, use ring PXN \d GDR 0",
          "nccl_degraded"),
    _rule("P2P|peer query|Legacy IPC", r"^P2P is disabled between|^P2P not supported|^Could not enable P2P"
          r"|^peer query failed|^Legacy IPC not", "nccl_degraded"),
    _rule("falling back to|host alloc|without NVLS", r"falling back to|^cuMem host alloc|Proceeding without NVLS",
          "nccl_degraded"),
    _rule("CollNet", r"^Communicator has \d+ nodes", "nccl_degraded"),
    _rule("CUDA error", r"\bCUDA error (\d{1,6})\b", None, _cuda),
)  # fmt: skip
