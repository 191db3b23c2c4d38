"""What other lines tell about nodes and GPUs: which job holds a node, and which GPU sits at a PCI address.

It explains alerts and never makes one, so a wrong order of lines can change a text but no alert.
"""

from dataclasses import dataclass, field

from flows.detect.events import Partial
from flows.detect.rules import Rule

_STARTS = ("job_allocate", "job_start", "batch_launch", "step_launch")
_ENDS = ("job_done", "job_killed", "job_lost")

# Found like the records of any rule, but told to Knowledge instead of being counted.
RULES = (
    Rule(
        name="job_nodes",
        kinds=("slurmctld", "slurmd"),
        events=(*_STARTS, *_ENDS),
        group_by=("event", "job_id", "node"),
        annotations={"nodes": "{nodes}"},
    ),
    Rule(
        name="gpu_names",
        events=("gpu_identity",),
        group_by=("node", "pci"),
        annotations={"gpu_uuid": "{gpu_uuid}"},
    ),
)
NAMES = frozenset(rule.name for rule in RULES)

MAX_NODES = 100_000  # remembered nodes, GPUs and ended jobs, each; the one that was told of first goes
MAX_JOBS = 64  # remembered jobs of a node


@dataclass(slots=True)
class Knowledge:
    """Jobs by node with the second they started, the second they ended, and UUIDs by node and PCI address."""

    jobs: dict[str, dict[str, int]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    gpus: dict[tuple[str, str], str] = field(default_factory=dict)

    def learn(self, partial: Partial) -> None:
        """Take in a partial of one of RULES."""
        group, values = dict(partial.group), dict(partial.values)
        if partial.rule == "gpu_names":
            self.gpus[group.get("node", ""), group.get("pci", "")] = values.get("gpu_uuid", "")
            _limit(self.gpus, MAX_NODES)
            return
        job, event = group.get("job_id", ""), group.get("event", "")
        if not job:
            return
        if event in _ENDS:
            self.ended[job] = max(self.ended.get(job, 0), partial.second)
            _limit(self.ended, MAX_NODES)
            return
        nodes = values.get("nodes") or ("" if event in _STARTS[:2] else group.get("node", ""))
        for node in filter(None, nodes.split(",")):
            known = self.jobs.setdefault(node, {})
            known[job] = min(known.get(job, partial.second), partial.second)
            _limit(known, MAX_JOBS)
        _limit(self.jobs, MAX_NODES)

    def job_on(self, node: str, second: int) -> str:
        """The job that held a node, if it was exactly one; else ""."""
        held = [
            job
            for job, start in self.jobs.get(node, {}).items()
            if start <= second and second <= self.ended.get(job, second)
        ]
        return held[0] if len(held) == 1 else ""


def _limit(known: "dict[str, int] | dict[str, dict[str, int]] | dict[tuple[str, str], str]", most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]  # type: ignore[arg-type]
