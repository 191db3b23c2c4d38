"""The load: a GPU cluster that writes into Kafka at a steady rate. Run as a process of its own.

    python -m tests.crash.load BOOTSTRAP RATE SECONDS TOPIC_JOB TOPIC_SLURM TOPIC_KERNEL

It writes RATE lines a second for SECONDS, and a tenth of that until its standard input ends.

Every stream (kind, node) is endless and cut into blocks wherever a block ends, so that tracebacks, CRI pieces
and kernel continuation lines are torn apart. Every line differs from all others of its node: it carries a
number that rises per node. Prints one JSON object at the end: lines by kind, and the seconds it took.
"""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import Producer

TICK_S = 0.05
BOOTED_S = 3_600  # how long the nodes have been up
JOBS = 3  # over all nodes
FAULTS = ((79, "3b"), (31, "4c"), (48, "3b"), (13, "5d"), (74, "4c"))  # Xid and bus of a node, each for FAULT_S
FAULT_S = 10

Lines = Callable[[str, "itertools.count[int]"], Iterator[str]]


class Kind(NamedTuple):
    """`share` of all lines, nodes that write it, lines of a block; `topic` indexes the topics of the command."""

    lines: Lines
    topic: int
    share: float
    nodes: tuple[str, ...]
    block: int


def training(node: str, number: "itertools.count[int]") -> Iterator[str]:
    """90 lines of NCCL INFO noise in 100; of the others some are tracebacks, some two lines torn into one another."""
    for turn in itertools.count():
        for gpu in range(90):
            n = next(number)
            yield f"{node}:4021:{n} [{gpu % 8}] NCCL INFO Channel {gpu % 32:02d}/0 : 0[0] -> 1[1] via P2P/IPC"
        yield f"step {next(number)} of {node}: loss 2.13, 48112 tokens/s"
        if _turn(_index(node) % JOBS, 6, JOBS):
            yield _timed_out(next(number))
        rank = next(number)
        yield f"[rank{rank}]: Traceback (most recent call last):"
        yield f'[rank{rank}]:   File "/app/train.py", line {next(number)}, in <module>'
        yield f"[rank{rank}]:     batch = load({next(number)})"
        yield f"[rank{rank}]: ValueError: shard {next(number)} of {node} is empty"
        yield f"{node}:4021:{next(number)} [2] misc/socket.cc:49 NCCL WARN Connection closed by remote peer b<41877>"
        for _ in range(2):
            yield f"epoch {turn}, step {next(number)} of {node}: saved"
        n = next(number)
        yield (
            f"{node}:4021:{n} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P"
            f"{node}:4022:{n} [1] alloc.h:1 NCCL WARN Cuda failure 'out of memory' {n}"
        )
        yield f"evaluation of step {next(number)} on {node} begins"


def pod(node: str, number: "itertools.count[int]") -> Iterator[str]:
    """CRI lines: whole ones, one in pieces, and a traceback. The nanoseconds are the line's number, as is its `#`."""
    texts = (
        f"stdout F request # served by {node}",
        f"stdout P long line # of {node} that ",
        "stdout P the runtime # cut in ",
        "stdout F three pieces #",
        f"stdout F request # served by {node}",
        "stderr F Traceback (most recent call last):",
        'stderr F   File "/srv/app.py", line #, in serve',
        f"stderr F RuntimeError: {node} has no shard #",
        f"stdout F health check # of {node}",
    )
    for text in itertools.cycle(texts):
        n = next(number)
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        yield f"{now}.{n:09d}Z {text.replace('#', str(n))}"


def slurmctld(node: str, number: "itertools.count[int]") -> Iterator[str]:
    """A line without a stamp continues the one before."""
    while True:
        yield f"[{_local()}] sched: Allocate JobId={next(number)} NodeList=gpu-01 #CPUs=96 Partition=train"
        yield f"[{_local()}] debug:  backfill: pass {next(number)} of {node}: nothing to do"
        yield f"[{_local()}] error: Nodes gpu-02 not responding, try {next(number)}"
        yield f"    the second line of message {next(number)} of {node}"
        yield f"[{_local()}] _job_complete: JobId={next(number)} WEXITSTATUS 1"


def slurmd(node: str, number: "itertools.count[int]") -> Iterator[str]:
    while True:
        job = next(number)
        yield f"[{_local()}] launch task StepId={job}.0 request from UID:1000 GID:1000 HOST:10.0.0.1 PORT:4021"
        yield f"[{_local()}] [{job}.0] debug:  {node} waits for task {next(number)}"
        yield f"[{_local()}] [{job}.0] error: *** STEP {next(number)}.0 ON {node} CANCELLED DUE TO TIME LIMIT ***"


def kmsg(node: str, number: "itertools.count[int]") -> Iterator[str]:
    """Records of /dev/kmsg, some with dictionary lines."""

    def head(priority: int, text: str) -> str:
        n = next(number)
        return f"{priority},{n},{_up_us()},-;{text} {n}"

    while True:
        yield head(6, f"usb 1-2: reset high-speed USB device of {node}")
        yield head(3, "mlx5_core 0000:4b:00.0 ens5np0: Link down")
        yield f" SUBSYSTEM=pci-{next(number)}"
        yield f" DEVICE=+pci:{node}-{next(number)}"
        xid, bus = FAULTS[(int(time.time()) // FAULT_S + _index(node)) % len(FAULTS)]
        yield head(3, f"NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid={4020 + next(number) % 2}, name=python3, Ch")


def dmesg(node: str, number: "itertools.count[int]") -> Iterator[str]:
    while True:
        n, up = next(number), _up_us()
        yield f"[{up // 1_000_000:5d}.{up % 1_000_000:06d}] EXT4-fs (nvme0n1p1): mounted filesystem {n} of {node}"


def fabric_manager(node: str, number: "itertools.count[int]") -> Iterator[str]:
    while True:
        level, what = ("ERROR", "failed") if _turn(_index(node), 8, 3) else ("INFO", "trained")
        yield f"[{time.strftime('%b %d %Y %H:%M:%S', time.gmtime())}] [{level}] [tid 4021] link {next(number)} {what}"


def _timed_out(number: int) -> str:
    now = time.time_ns()
    utc = time.gmtime(now // 10**9)
    return (
        f"[rank{number % 8}]:[E{utc.tm_mon}{time.strftime('%d %H:%M:%S', utc)}.{now % 10**9:09d} "
        f"ProcessGroupNCCL.cpp:632] [Rank {number % 8}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=98, NumelOut=98, Timeout(ms)=600000) "
        "ran for 600020 milliseconds before timing out."
    )


def _index(node: str) -> int:
    return int(node[-2:])


def _turn(whose: int, seconds: int, of: int) -> bool:
    """Whether it is the turn of one of `of`; each has one of so many seconds, again and again."""
    return int(time.time()) // seconds % of == whose % of


def _local() -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.{time.time_ns() // 1_000_000 % 1000:03d}"


def _up_us() -> int:
    return BOOTED_S * 1_000_000 + time.monotonic_ns() // 1_000 % 600_000_000


GPU = tuple(f"gpu-{index:02d}" for index in range(24))
JOB, SLURM, KERNEL = range(3)
KINDS = {
    "training": Kind(training, JOB, 0.889, GPU, 250),  # so that 80 % of all lines are NCCL INFO
    "pod": Kind(pod, JOB, 0.04, GPU[:8], 40),
    "slurmctld": Kind(slurmctld, SLURM, 0.03, ("ctl-0",), 60),
    "slurmd": Kind(slurmd, SLURM, 0.02, GPU, 25),
    "kmsg": Kind(kmsg, KERNEL, 0.02, GPU, 23),
    "dmesg": Kind(dmesg, KERNEL, 0.0005, GPU[:6], 3),
    "fabric_manager": Kind(fabric_manager, KERNEL, 0.0005, GPU[6:12], 1),
}


def _headers(kind: str, node: str, boot_time: str) -> list[tuple[str, str | bytes | None]]:
    said = {"kind": kind, "node": node, "tz": "UTC", "boot_time": boot_time, "boot_id": f"b-{node}"}
    if KINDS[kind].block > 1:
        said["v"] = "1"  # without it a message is one line
    if kind == "pod":
        said |= {"namespace": "ml", "pod": f"serve-{node}", "container": "app"}
    else:
        said["path"] = f"/var/log/{kind}-{node}.log"
    if kind == "training":
        said["job_id"] = str(70_000 + _index(node) % JOBS)
    return list(said.items())


def produce(bootstrap: str, rate: int, seconds: float, topics: list[str]) -> dict[str, object]:
    """Write about `rate` lines a second for `seconds`, and a tenth of that until standard input has ended."""
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 10,
            "log_level": 2,  # retries are no news
            "enable.idempotence": True,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    boot_time = f"{time.time() - BOOTED_S - time.monotonic_ns() // 1_000 % 600_000_000 / 1e6:.6f}"
    numbers = {node: itertools.count(1) for kind in KINDS.values() for node in kind.nodes}
    streams = {
        (name, node): (kind.lines(node, numbers[node]), _headers(name, node, boot_time))
        for name, kind in KINDS.items()
        for node in kind.nodes
    }
    turns = {name: itertools.cycle(kind.nodes) for name, kind in KINDS.items()}
    sent = dict.fromkeys(KINDS, 0)
    started = time.monotonic()
    due = full_s = 0.0
    while due < seconds or not told.is_set():
        due += TICK_S
        owed = rate * (min(due, seconds) + max(due - seconds, 0.0) / 10)
        for name, kind in KINDS.items():
            while sent[name] + kind.block <= owed * kind.share:
                node = next(turns[name])
                lines, headers = streams[name, node]
                block = "\n".join(itertools.islice(lines, kind.block))
                producer.produce(topics[kind.topic], block, node, headers=headers)
                sent[name] += kind.block
            producer.poll(0)
        time.sleep(max(0.0, started + due - time.monotonic()))
        if due <= seconds:
            full_s = time.monotonic() - started
    if left := producer.flush(60):
        raise RuntimeError(f"{left} messages were not taken by the broker")
    return {"lines": sent, "full_s": round(full_s, 1), "seconds": round(time.monotonic() - started, 1)}


if __name__ == "__main__":
    _, address, lines_per_s, duration, *names = sys.argv
    print(json.dumps(produce(address, int(lines_per_s), float(duration), names)))  # noqa: T201 - read by the test
