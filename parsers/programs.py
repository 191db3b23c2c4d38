"""Text of a program that syslog or the journal carries: the grammar of the program, told by its tag.

The kernel, Slurm's programs, NVIDIA's and CycleCloud's agents and Kubernetes' node components have grammars of their
own; any other text is a message and nothing more, apart from reports of lost log lines. A level word in the text wins
over the carrier's priority, and a usable time in the text over the carrier's.
"""

import re
from collections.abc import Callable
from typing import Any

from parsers.azure_agents import RULES as AGENT_RULES
from parsers.azure_agents import AgentStream, agent_text
from parsers.clock import Times, boot
from parsers.dcgm import DcgmStream, engine_text
from parsers.device_plugin import plugin_text
from parsers.dmesg import priority
from parsers.fabric_manager import RULES as FABRIC_RULES
from parsers.fabric_manager import FabricStream, fabric_text
from parsers.json_lines import CONTROLS, object_record, plain
from parsers.kernel_rules import Fields, Rule, apply, by_word, gate, rule
from parsers.kernel_text import GATE as KERNEL_GATE
from parsers.kernel_text import Probed, clean, kernel_text, take_stamp, unescape
from parsers.klog import klog_record
from parsers.logfmt import logfmt_record
from parsers.nvidia import RULES as NVIDIA_RULES
from parsers.record import Line, Record, Stream
from parsers.slurm import SLURMCTLD
from parsers.slurm_stamp import read_stamp
from parsers.slurm_text import daemon_line
from parsers.stamped import StampedStream

SLURM = r"(?:slurm(?:ctld|d|stepd|dbd|restd|scriptd)|sackd|srun|sbatch|salloc|scrun)"
_SLURM = re.compile(rf"({SLURM})(?:-[\w.-]+)?")  # builds with several slurmd on a node are `slurmd-NODE`
# Go programs of a node, which write klog, logfmt or JSON.
COMPONENTS = (
    "kubelet", "containerd", "dockerd", "crio", "cri-dockerd", "kube-proxy", "kube-apiserver", "kube-scheduler",
    "kube-controller-manager", "etcd", "k3s", "k3s-agent", "rke2", "podman", "node-problem-detector",
    "nvidia-device-plugin", "dcgm-exporter",
)  # fmt: skip
STAMPED: dict[str, tuple[type[StampedStream], Callable[[str, Fields, set[str]], None]]] = {
    "nv-fabricmanager": (FabricStream, fabric_text),
    "nvidia-fabricmanager": (FabricStream, fabric_text),
    "nvidia-fabricmanager-start.sh": (FabricStream, fabric_text),
    "fabricmanager": (FabricStream, fabric_text),
    "nv-hostengine": (DcgmStream, lambda text, fields, _: engine_text(text, fields)),
    "nvidia-dcgm": (DcgmStream, lambda text, fields, _: engine_text(text, fields)),
    "healthagent": (AgentStream, agent_text),
    "jetpack": (AgentStream, agent_text),
    "jetpackd": (AgentStream, agent_text),
}
# They tell of network devices and of lost kernel messages in the words of the kernel.
_LIKE_KERNEL = ("systemd-journald", "systemd-networkd")

RULES: tuple[Rule, ...] = (
    *(each for each in NVIDIA_RULES if each.event == "gpu_reset"),
    # rsyslog runtime/ratelimit.c and plugins/imuxsock
    rule("log_loss", "lost due to rate-limiting", r"\b(?P<lost>\d+) messages lost due to rate-limiting"),
    rule("log_loss", "imuxsock lost ", r"imuxsock lost (?P<lost>\d+) messages from pid \d+"),
    rule("log_loss", "to drop messages", r"begins? to drop messages (?:from pid \d+ )?due to rate-limiting"),
    # systemd src/journal/journald-syslog.c
    rule("log_loss", "Forwarding to syslog missed ", r"Forwarding to syslog missed (?P<lost>\d+) messages"),
)
_BY_WORD = by_word(RULES)

# RE2, on raw lines: those that can get a field by a rule, or whose text is not the rest of the line.
GATE = "|".join(
    [
        KERNEL_GATE.removeprefix(r"^[ \t]|"),
        SLURMCTLD.gate or "",
        gate((*RULES, *FABRIC_RULES, *AGENT_RULES)),
        "message repeated ",
    ]
)

_PRIORITY = re.compile(r"<([0-7])>", re.ASCII)
# rsyslog with $RepeatedMsgReduction; older daemons print the second form in place of the text.
_REPEATED = re.compile(r"message repeated (\d{1,9}) times?: \[ ?(.*?)\]?$", re.ASCII | re.DOTALL)
_LAST_REPEATED = re.compile(r"(?:--- )?last message repeated (\d{1,9}) times?", re.ASCII)


def has_grammar(app: str) -> bool:
    """Whether the text of a program, as its tag names it, is more than a message."""
    name = app.rsplit("/", 1)[-1]
    return name == "kernel" or name in STAMPED or name in COMPONENTS or _SLURM.fullmatch(name) is not None


class Programs:
    """Reads the texts of one carrier's stream, in their order."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.probed = Probed()

    def read(
        self, app: str | None, text: str, record: Record, line: Line, *, unit: str | None = None, escaped: bool = True
    ) -> None:
        r"""Fill `record`, which has its carrier's time and fields, from a text of program `app`; at least its message.

        `unit` is the systemd unit without suffix, for programs whose tag does not tell what they are. `escaped`: a
        kernel text may still hold the kernel's own `\\x0a`.
        """
        if repeated := _REPEATED.match(text):
            record.fields["repeat"] = int(repeated[1])
            text = repeated[2]
        near = line._replace(received=record.ts or line.received)  # what a stamp without year lies near
        if unit and app and _SLURM.fullmatch(unit):
            unit = None  # a script or a job under slurmd, with a tag of its own
        for name in (app, unit):
            if name and self._known(name.rsplit("/", 1)[-1], text, record, near, escaped):
                return
        if app is None and (inner := AgentStream(Stream("", times=self.times)).read(text, near, record.flags)):
            # Python's SysLogHandler sends a priority and a text, without time, host and tag.
            self._take(record, inner)
            return
        record.fields["message"] = message = clean(text)
        apply(_BY_WORD, message, record.fields, record.flags)
        if app in _LIKE_KERNEL:
            kernel_text(message, record.fields, record.flags)
        if last := _LAST_REPEATED.match(message):
            record.fields["repeat"] = int(last[1])

    def _known(self, name: str, text: str, record: Record, line: Line, escaped: bool) -> bool:
        """Read the text of a program with a grammar; False for any other program."""
        if name == "kernel":
            self._kernel(text, record, escaped)
            return True
        text = plain(text).rstrip(CONTROLS)
        if slurm := _SLURM.fullmatch(name):
            self._slurm(text, record, line, controller=slurm[1] == "slurmctld")
        elif name in STAMPED:
            stream, more = STAMPED[name]
            if inner := stream(Stream("", times=self.times)).read(text, line, record.flags):
                self._take(record, inner)
            else:
                record.fields["message"] = text
                more(text, record.fields, record.flags)
        elif name in COMPONENTS:
            record.fields["message"] = text
            self._take(
                record,
                klog_record(text, line, self.times, record.flags)
                or logfmt_record(text, line, self.times, record.flags)
                or object_record(text, line, self.times, record.flags, klog=True),
            )
            if name == "nvidia-device-plugin":
                plugin_text(record.fields["message"], record.fields)
        else:
            return False
        return True

    def _kernel(self, text: str, record: Record, escaped: bool) -> None:
        fields = record.fields
        if pri := _PRIORITY.match(text):  # left by a forwarder
            fields |= priority(int(pri[1]))
            text = text[pri.end() :]
        text = take_stamp(text, fields)
        fields["message"] = message = clean(unescape(text, record.flags) if escaped else text)
        kernel_text(message, fields, record.flags)
        self.probed.see(message, fields)
        if record.ts is None and fields.get("monotonic_us") is not None:
            record.ts = boot(fields["monotonic_us"], self.times)
            record.ts_source = "boot" if record.ts else None

    def _slurm(self, text: str, record: Record, line: Line, *, controller: bool) -> None:
        if stamp := read_stamp(text, self.times, line.received, record.flags):
            record.fields |= stamp.fields
            text = text[stamp.length :]
            if stamp.ts:
                record.ts, record.ts_source = stamp.ts, stamp.source
        inner: dict[str, Any] = {}
        daemon_line(text, inner, record.flags, controller=controller)
        if "level_raw" not in inner and record.fields.get("level"):
            del inner["level"]  # without a level word the priority says more
        record.fields |= inner

    @staticmethod
    def _take(record: Record, inner: Record | None) -> None:
        """Take over what the program's own record says."""
        if inner is None:
            return
        record.fields |= {name: value for name, value in inner.fields.items() if value is not None}
        if inner.ts and inner.ts_source != "received":
            record.ts, record.ts_source = inner.ts, inner.ts_source
