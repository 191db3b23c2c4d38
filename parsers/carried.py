"""Text that syslog or the journal carries, read by the grammar of the program that wrote it.

The kernel, Slurm's programs and components of Kubernetes are known by their tag, and so are the agents whose files
are a kind of their own: their text is read as a line of such a file would be. Any other text is a message and
nothing more, apart from reports of lost log lines.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsers.clock import Stamp, boot
from parsers.dmesg import priority
from parsers.json_lines import CONTROLS, object_record, plain
from parsers.kernel_rules import Rule, apply, by_word, rule
from parsers.kernel_text import GATE as KERNEL_GATE
from parsers.kernel_text import Probed, clean, kernel_text, take_stamp, unescape
from parsers.klog import klog_record, logfmt_record
from parsers.nvidia import RULES as NVIDIA_RULES
from parsers.record import Line, Record, Stream
from parsers.registry import KINDS, parser
from parsers.slurm import SLURMCTLD
from parsers.slurm_stamp import read_stamp
from parsers.slurm_text import daemon_line

# Names as in tags and unit names. Builds with several slurmd on a node call themselves `slurmd-NODE`.
SLURM = r"(?:slurm(?:ctld|d|stepd|dbd|restd|scriptd)(?:-[\w.-]+)?|sackd|srun|sbatch|salloc|scrun)"
NODE_COMPONENTS = (
    "kubelet", "kube-proxy", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "dockerd",
    "cri-dockerd", "crio", "k3s", "rke2", "etcd", "node-problem-detector", "podman",
)  # fmt: skip
AGENTS = {
    "nv-fabricmanager": "fabric_manager",
    "nvidia-fabricmanager": "fabric_manager",
    "nv-hostengine": "dcgm",
    "nvidia-dcgm": "dcgm",
    "dcgm-exporter": "dcgm",
    "nvidia-dcgm-exporter": "dcgm",
    "nvidia-device-plugin": "device_plugin",
    "healthagent": "healthagent",
    "jetpack": "jetpack",
    "jetpackd": "jetpackd",
}
# Programs that tell of the kernel's network devices and of its lost messages in the kernel's words.
_LIKE_KERNEL = ("systemd-journald", "systemd-networkd")

RULES: tuple[Rule, ...] = (
    *(each for each in NVIDIA_RULES if each.event == "gpu_reset"),
    # rsyslog runtime/ratelimit.c, plugins/imuxsock
    rule("log_loss", "lost due to rate-limiting", r"\b(?P<lost>\d+) messages lost due to rate-limiting"),
    rule("log_loss", "imuxsock lost ", r"imuxsock lost (?P<lost>\d+) messages from pid \d+"),
    rule("log_loss", "to drop messages", r"begins? to drop messages (?:from pid \d+ )?due to rate-limiting"),
    # systemd src/journal/journald-syslog.c
    rule("log_loss", "Forwarding to syslog missed ", r"Forwarding to syslog missed (?P<lost>\d+) messages"),
)
_BY_WORD = by_word(RULES)
REPEATED = "message repeated "

# RE2, on raw lines: those that can get a field by a rule, whichever program wrote them.
GATE = "|".join(
    [
        KERNEL_GATE.removeprefix(r"^[ \t]|"),
        SLURMCTLD.gate or "",
        *sorted({re.escape(word) for each in RULES for word in each.words}),
        REPEATED,
    ]
)

_SLURM = re.compile(SLURM)
_PRIORITY = re.compile(r"<([0-7])>", re.ASCII)
# rsyslog ($RepeatedMsgReduction), and what older daemons print in place of the text
_REPEATED = re.compile(r"message repeated (\d{1,9}) times?: \[ ?(.*?)\]?$", re.ASCII | re.DOTALL)
_LAST_REPEATED = re.compile(r"(?:--- )?last message repeated (\d{1,9}) times?", re.ASCII)


class Carried:
    """Reads the texts of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.probed = Probed()

    def read(self, record: Record, text: str, line: Line, unit: str | None = None, kernel: bool = False) -> Record:
        """Add message, fields and own time of `text` to the record of its carrier, which is returned.

        `record.fields` has the carrier's `app`, `level` and so on, `record.ts` its time. `unit` names the systemd
        unit without suffix, for programs whose tag does not tell what they are. `kernel`: the carrier says that
        the kernel wrote it.
        """
        if repeated := _REPEATED.match(text):
            record.fields["repeat"] = int(repeated[1])
            text = repeated[2]
        app = record.fields.get("app")
        if kernel or app == "kernel":
            self._kernel(record, text)
        elif name := next((name for name in (app, unit) if name and _SLURM.fullmatch(name)), None):
            self._slurm(record, name, text, line)
        elif name := next((name for name in (app, unit) if name in NODE_COMPONENTS or name in AGENTS), None):
            self._component(record, name, text, line)
        else:
            record.fields["message"] = message = clean(text)
            apply(_BY_WORD, message, record.fields, record.flags)
            if app in _LIKE_KERNEL:
                kernel_text(message, record.fields, record.flags)
            if last := _LAST_REPEATED.match(message):
                record.fields["repeat"] = int(last[1])
        return record

    def _kernel(self, record: Record, text: str) -> None:
        fields = record.fields
        text = unescape(text, record.flags)
        if pri := _PRIORITY.match(text):
            fields |= priority(int(pri[1]))
            text = text[pri.end() :]
        fields["message"] = message = clean(take_stamp(text, fields))
        kernel_text(message, fields, record.flags)
        self.probed.see(message, fields)
        if record.ts is None and fields.get("monotonic_us") is not None:
            record.ts = boot(fields["monotonic_us"], self.stream.times)
            record.ts_source = "boot" if record.ts else None

    def _slurm(self, record: Record, name: str, text: str, line: Line) -> None:
        text = plain(text).rstrip(CONTROLS)
        stamp = read_stamp(text, self.stream.times, _near(record, line), record.flags)
        if stamp:
            text = text[stamp.length :]
            if stamp.ts:
                record.ts, record.ts_source = stamp.ts, stamp.source
        inner: dict[str, Any] = {}
        daemon_line(text, inner, record.flags, controller=name.startswith("slurmctld"))
        if "level_raw" not in inner and record.fields.get("level"):
            del inner["level"]  # only a level word says more than the priority
        _merge(record, (stamp.fields if stamp else {}) | inner)

    def _component(self, record: Record, name: str, text: str, line: Line) -> None:
        text = plain(text).rstrip(CONTROLS)
        near, times = line._replace(received=_near(record, line)), self.stream.times
        flags: set[str] = set()
        if name in NODE_COMPONENTS:
            inner = (
                object_record(text, near, times, flags)
                or klog_record(text, near, times, flags)
                or logfmt_record(text, near, times, flags)
            )
        else:
            inner = self._agent(AGENTS[name], text, near)
        if inner is None:
            record.fields["message"] = text
            return
        record.flags |= inner.flags | flags
        if inner.ts and inner.ts_source != "received":
            record.ts, record.ts_source = inner.ts, inner.ts_source
        _merge(record, inner.fields)

    def _agent(self, kind: str, text: str, line: Line) -> Record | None:
        """The text as a line of the agent's own file; None when it is none."""
        if kind not in KINDS:
            return None
        reader = parser(kind).stream(replace(self.stream, kind=kind, path=None))
        found = [*reader.feed(line._replace(raw=text.encode(errors="replace"))), *reader.flush()]
        return found[0] if len(found) == 1 and "unparsed" not in found[0].flags else None


def _near(record: Record, line: Line) -> Stamp | None:
    """The time that a stamp inside the text lies near."""
    return record.ts or line.received


def _merge(record: Record, inner: Mapping[str, Any]) -> None:
    record.fields |= {name: value for name, value in inner.items() if value is not None}
    record.fields.setdefault("message", "")
