"""NVIDIA's device plugin for Kubernetes: klog, and what it says of the health of GPUs.

    I0304 05:06:07.123456  1 health.go:169] XidCriticalError: Xid=48 on Device=GPU-…; marking device as unhealthy.
    I0304 05:06:07.123456  1 server.go:210] 'nvidia.com/gpu' device marked unhealthy: GPU-…
    2020/08/10 19:09:42 XidCriticalError: Xid=69 on Device=GPU-…, the device will go unhealthy.

Source: NVIDIA/k8s-device-plugin internal/rm/health.go and issues 189, 234, 1340: logged at I; a device stays unhealthy
until the plugin starts anew. A MIG device is named by its own UUID, before driver 470 by GPU, instance and compute
instance.
"""

import re
from typing import Any

from parsers.gpu_catalogue import xid_meaning
from parsers.kernel_rules import Fields
from parsers.klog import KlogStream, header
from parsers.nvidia import judge
from parsers.record import Parser, Record

_DEVICE = re.compile(r"\b(?:MIG-)?(?P<uuid>GPU-[0-9a-fA-F-]{8,64})(?:/(?P<gi>\d{1,4})/(?P<ci>\d{1,4}))?", re.ASCII)
_MIG = re.compile(r"\b(?P<uuid>MIG-[0-9a-fA-F-]{8,64})(?:.*?\(gi=(?P<gi>\d{1,4}), ci=(?P<ci>\d{1,4})\))?", re.ASCII)
_XID = re.compile(r"\bXid=(\d{1,9})\b", re.ASCII)
_XID_KEYS = ("xid", "Xid", "XID")
_UNHEALTHY = re.compile(r"\bunhealthy\b")


def plugin_text(text: str, fields: Fields) -> None:
    """Add event and fields of a text of the device plugin to `fields`, whose `attributes` may name code and device."""
    pairs: dict[str, Any] = fields.get("attributes", {})
    xid = _XID.search(text)
    code = xid[1] if xid else next((str(pairs[key]) for key in _XID_KEYS if key in pairs), "")
    if code.isascii() and code.isdigit() and len(code) < 10:
        fields |= {"event": "gpu_xid", "xid": int(code)}
        judge(fields, xid_meaning(fields["xid"]))
    if _UNHEALTHY.search(text):
        fields["event"] = "gpu_unhealthy"
    named = " ".join([text, *(value for value in pairs.values() if isinstance(value, str))])
    if device := _DEVICE.search(named) or _MIG.search(named):
        fields["gpu_uuid"] = device["uuid"]
        if device["gi"]:
            fields |= {"gpu_instance": int(device["gi"]), "compute_instance": int(device["ci"])}


class PluginStream(KlogStream):
    """klog with the texts of the device plugin."""

    def flush(self) -> list[Record]:
        records = super().flush()
        for record in records:
            plugin_text(record.fields["message"], record.fields)
        return records


DEVICE_PLUGIN = Parser(PluginStream, header, r"unhealthy|[Xx]id|XID|GPU-|MIG-", near=True)
