"""Kinds of log and their parsers. A new kind is one file, one line here, one test."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import cast

from parsers.record import Parser


@dataclass(frozen=True)
class Kind:
    """`parser` is `module:NAME` of a `Parser`, loaded when first used, or one; `job` is Loki's `job` label.

    `follows`: a line may belong to the record before it, so the last line of a stream is complete only
    when the next one is seen (or after a while). `age_ms`: how long after its last line (broker's time) the rest
    of a record may come, where that is known to be short; None leaves it to the configuration.
    """

    parser: str | Parser
    job: str
    follows: bool = False
    age_ms: int | None = None


# A read of /dev/kmsg returns a whole record with its ` KEY=value` lines (Documentation/ABI/testing/dev-kmsg), and
# dmesg prints one at a time: what reads them sends all lines of a record at once. And an XID must not wait.
_KERNEL_AGE_MS = 100

KINDS: dict[str, Kind] = {
    "kmsg": Kind("parsers.kernel:KMSG", "kmsg", follows=True, age_ms=_KERNEL_AGE_MS),
    "dmesg": Kind("parsers.kernel:DMESG", "kmsg", follows=True, age_ms=_KERNEL_AGE_MS),
    "syslog": Kind("parsers.syslog:SYSLOG", "syslog"),
    "journal": Kind("parsers.journal:JOURNAL", "systemd-journal"),
    "prolog": Kind("parsers.scripts:SCRIPT", "slurm-prolog-epilog"),
    "epilog": Kind("parsers.scripts:SCRIPT", "slurm-prolog-epilog"),
    "slurmctld": Kind("parsers.slurm:SLURMCTLD", "slurmctld", follows=True),
    "slurmd": Kind("parsers.slurm:SLURMD", "slurmd", follows=True),
    "slurmdbd": Kind("parsers.slurm:SLURMD", "slurmdbd", follows=True),
    "slurmrestd": Kind("parsers.slurm:SLURMD", "slurmrestd", follows=True),
    "slurm_sched": Kind("parsers.slurm:SLURM_SCHED", "slurmctld", follows=True),
    "srun": Kind("parsers.training:TRAINING", "slurm-job"),
    "training": Kind("parsers.training:TRAINING", "training"),
    "pod": Kind("parsers.cri:POD", "pod"),
    "docker": Kind("parsers.cri:DOCKER", "pod"),
    "json": Kind("parsers.json_lines:JSON", "json"),
    "fabric_manager": Kind("parsers.fabric_manager:FABRIC_MANAGER", "fabric-manager", follows=True),
    "dcgm": Kind("parsers.dcgm:DCGM", "dcgm", follows=True),
    "device_plugin": Kind("parsers.device_plugin:DEVICE_PLUGIN", "nvidia-device-plugin", follows=True),
    "healthagent": Kind("parsers.azure_agents:HEALTHAGENT", "healthagent", follows=True),
    "jetpack": Kind("parsers.azure_agents:JETPACK", "jetpack", follows=True),
    "jetpackd": Kind("parsers.azure_agents:JETPACK", "jetpack", follows=True),
    "klog": Kind("parsers.klog:KLOG", "klog", follows=True),
    "job_stdout": Kind("parsers.training:TRAINING", "slurm-job"),
    "job_stderr": Kind("parsers.training:TRAINING", "slurm-job"),
    "job_script": Kind("parsers.job_files:JOB_SCRIPT", "slurm-job"),
    "job_env": Kind("parsers.job_files:JOB_ENV", "slurm-job"),
}
PLAIN = Kind("parsers.plain:PLAIN", "other")


@cache
def parser(kind: str) -> Parser:
    """The parser of a kind of tailrace's; of another kind the one that keeps lines as `unparsed` records."""
    return loaded(KINDS.get(kind, PLAIN))


def loaded(kind: Kind) -> Parser:
    """The parser of an entry."""
    if isinstance(kind.parser, Parser):
        return kind.parser
    module, name = kind.parser.split(":")
    return cast(Parser, getattr(import_module(module), name))
