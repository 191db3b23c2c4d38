"""What /proc tells of a process: CPU seconds by thread, memory."""

import os
from collections import defaultdict
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process, ended threads included."""
    return _ticks(Path(f"/proc/{pid}/stat"))


def threads_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds by thread: `worker` is the main thread, librdkafka names its own, all others are `pools`.

    The pools are the threads of the sinks and of Arrow. Threads that have ended are not in it.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            seconds = _ticks(task / "stat")
        except OSError:
            continue  # it has just ended
        group = "worker" if int(task.name) == pid else "kafka client" if name.startswith("rdk:") else "pools"
        found[group] += seconds
    return dict(found)


def _ticks(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def peak_rss_mib(pid: int) -> float:
    """Largest resident memory so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def children(pid: int) -> list[int]:
    """Processes started by any thread of `pid`."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def child_running(word: str) -> int | None:
    """The child of this process whose command line holds `word`."""
    for pid in children(os.getpid()):
        if word in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
            return pid
    return None
