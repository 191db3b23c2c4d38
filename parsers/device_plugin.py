"""NVIDIA's device plugin for Kubernetes: klog, and what it says of the health of GPUs.

    I0304 05:06:07.123456  1 health.go:169] XidCriticalError: Xid=48 on Device=GPU-…; marking device as unhealthy.
    I0304 05:06:07.123456  1 server.go:210] 'nvidia.com/gpu' device marked unhealthy: GPU-…

Source: NVIDIA/k8s-device-plugin internal/rm/health.go and issues 189, 234, 1340: logged at I; a device stays unhealthy
until the plugin starts anew.
"""

import re

from parsers.gpu_catalogue import xid_meaning
from parsers.json_lines import no_header
from parsers.kernel_rules import Fields
from parsers.klog import KlogStream
from parsers.nvidia import judge
from parsers.record import Parser, Record

_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{8,64}(?:/\d+/\d+)?", re.ASCII)
_XID = re.compile(r"\bXid=(\d{1,9})\b", re.ASCII)
_UNHEALTHY = re.compile(r"\bunhealthy\b")


def plugin_text(text: str, fields: Fields) -> None:
    """Add event and fields of a text of the device plugin to `fields`, whose `attributes` may name the device."""
    xid = _XID.search(text)
    if _UNHEALTHY.search(text):
        fields["event"] = "gpu_unhealthy"
    elif xid:
        fields["event"] = "gpu_xid"
    else:
        return
    if xid:
        fields["xid"] = int(xid[1])
        judge(fields, xid_meaning(fields["xid"]))
    named = " ".join([text, *map(str, fields.get("attributes", {}).values())])
    if uuid := _UUID.search(named):
        fields["gpu_uuid"] = uuid[0]


class PluginStream(KlogStream):
    """klog with the texts of the device plugin."""

    def flush(self) -> list[Record]:
        records = super().flush()
        for record in records:
            plugin_text(record.fields["message"], record.fields)
        return records


DEVICE_PLUGIN = Parser(PluginStream, no_header)
