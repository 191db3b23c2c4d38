"""What is measured: the cases, and the figures of one run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """`single`: one line per message. `archived`, `dropped`: what becomes of noise. `goal`: lines/s on 2 cores.

    `roomy`: the budgets of labels have room for all, so that the labels of a line do not depend on when it is read.
    """

    name: str
    title: str
    single: bool
    archived: bool
    dropped: bool = True
    goal: int | None = None
    roomy: bool = True


CASES = (
    Case("blocks", "blocks of 500 lines, archive without noise", single=False, archived=False, goal=1_000_000),
    Case("archive-noise", "blocks of 500 lines, archive with noise", single=False, archived=True, goal=600_000),
    Case("lines", "one line per message, archive without noise", single=True, archived=False, goal=300_000),
    Case("all-kept", "blocks of 500 lines, nothing is dropped", single=False, archived=True, dropped=False),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times in s, `*_cpu` in CPU seconds from the tier's event `started` to lag zero."""

    case: str
    lines: int
    lines_per_s: float
    whole_epochs: int
    end_to_end_s: float
    tier_cpu: float
    threads_cpu: dict[str, float]
    broker_cpu: float | None
    receiver_cpu: float
    peak_rss_mib: float
    archive_bytes: int
    loki_lines: int
    loki_repeated: int

    @property
    def cpu_s_per_million(self) -> float:
        return self.tier_cpu / self.lines * 1e6
