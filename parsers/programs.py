"""Text of a program that syslog or the journal carries: the grammar of the program, told by its tag.

The kernel, Slurm's daemons, NVIDIA's and CycleCloud's agents and Kubernetes' node components have grammars of their
own; any other text is a message and nothing more. A level word in the text wins over the carrier's priority, and a
usable time in the text over the carrier's.
"""

import re
from collections.abc import Callable

from parsers.azure_agents import AgentStream, agent_text
from parsers.clock import Times
from parsers.dcgm import DcgmStream, engine_text
from parsers.device_plugin import plugin_text
from parsers.fabric_manager import FabricStream, fabric_text
from parsers.json_lines import CONTROLS, object_record
from parsers.kernel_host import LOSS
from parsers.kernel_rules import Fields, apply, by_word
from parsers.kernel_text import Probed, clean, kernel_text, take_stamp, unescape
from parsers.klog import klog_record, logfmt_record
from parsers.record import Line, Record, Stream
from parsers.slurm_stamp import read_stamp
from parsers.slurm_text import daemon_line
from parsers.stamped import StampedStream

_SLURM = re.compile(r"(?:slurm(?:ctld|d|stepd|dbd|restd|scriptd)|sackd|srun|sbatch|salloc|scrun)(?:-[\w.-]+)?")
_LOSS = by_word(LOSS)
# Go programs of a node, which write klog, logfmt or JSON.
_COMPONENTS = (
    "kubelet", "containerd", "dockerd", "crio", "cri-dockerd", "kube-proxy", "kube-apiserver", "kube-scheduler",
    "kube-controller-manager", "etcd", "k3s", "k3s-agent", "rke2", "nvidia-device-plugin", "dcgm-exporter",
)  # fmt: skip
_STAMPED: dict[str, tuple[type[StampedStream], Callable[[str, Fields, set[str]], None]]] = {
    "nv-fabricmanager": (FabricStream, fabric_text),
    "nvidia-fabricmanager": (FabricStream, fabric_text),
    "fabricmanager": (FabricStream, fabric_text),
    "nv-hostengine": (DcgmStream, lambda text, fields, _: engine_text(text, fields)),
    "healthagent": (AgentStream, agent_text),
    "jetpack": (AgentStream, agent_text),
    "jetpackd": (AgentStream, agent_text),
}


class Programs:
    """Reads the texts of one carrier's stream, in their order."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.probed = Probed()

    def read(self, app: str | None, text: str, record: Record, line: Line, *, escaped: bool = True) -> None:
        r"""Fill `record` from the text of program `app`; its `message` at least.

        `escaped`: a kernel text may still hold the kernel's own `\\x0a`.
        """
        name = (app or "").rsplit("/", 1)[-1]
        fields, level = record.fields, record.fields.get("level")
        fields["message"] = clean(text)
        if name == "kernel":
            self._kernel(text, record, escaped)
        elif _SLURM.fullmatch(name):
            self._slurm(text, record, line, controller=name == "slurmctld")
        elif name in _STAMPED:
            stream, more = _STAMPED[name]
            if not self._inner(stream(Stream("", times=self.times)).read(text, line, record.flags), record):
                more(fields["message"], fields, record.flags)
        elif name in _COMPONENTS:
            inner = (
                klog_record(text, line, self.times, record.flags)
                or logfmt_record(text, line, self.times, record.flags)
                or object_record(text, line, self.times, record.flags, klog=True)
            )
            self._inner(inner, record)
            if name == "nvidia-device-plugin":
                plugin_text(fields["message"], fields)
        elif name == "systemd-journald":
            apply(_LOSS, fields["message"], fields, record.flags)
        elif inner := AgentStream(Stream("", times=self.times)).read(text, line, record.flags) if not name else None:
            # Python's SysLogHandler sends a priority and a text, without time, host and tag.
            self._inner(inner, record)
        if "level_raw" not in fields and level:
            fields["level"] = level

    def _kernel(self, text: str, record: Record, escaped: bool) -> None:
        fields = record.fields
        text = take_stamp(text, fields)
        message = clean(unescape(text, record.flags) if escaped else text)
        fields["message"] = message
        kernel_text(message, fields, record.flags)
        self.probed.see(message, fields)

    def _slurm(self, text: str, record: Record, line: Line, *, controller: bool) -> None:
        stamp = read_stamp(text, self.times, line.received, record.flags)
        if stamp:
            record.fields |= stamp.fields
            text = text[stamp.length :]
            if stamp.ts:
                record.ts, record.ts_source = stamp.ts, stamp.source
        daemon_line(text.rstrip(CONTROLS), record.fields, record.flags, controller=controller)

    @staticmethod
    def _inner(inner: Record | None, record: Record) -> bool:
        """Take over what the program's own record says."""
        if inner is None:
            return False
        record.fields |= inner.fields
        if inner.ts and inner.ts_source != "received":
            record.ts, record.ts_source = inner.ts, inner.ts_source
        return True
