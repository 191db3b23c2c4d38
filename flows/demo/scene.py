"""Writes the logs of a 4-node training job that dies of XID 79 on one node, inside a flood of NCCL output.

Line shapes are those of the Linux kernel ABI, Slurm, NCCL 2.28 and PyTorch 2.9; hosts, addresses and
numbers are invented. The same seed gives the same bytes.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

JOB = 81001
NODES = ("gpu-a01", "gpu-b02", "gpu-c03", "gpu-d04")
CONTROLLER = "slurm-ctl-01"
BAD_NODE, BAD_PCI, BAD_LOCAL_RANK = "gpu-c03", "0000:9b:00", 6
RANKS = 8
START = datetime(2031, 2, 3, 3, 0, 0, tzinfo=UTC)
DEATH_S = 1200.0  # seconds after START
_UPTIME_US = 2_863_000_000_000


class LogFile(NamedTuple):
    """One written file and what a forwarder would know of it."""

    path: Path
    kind: str
    node: str
    lines: int


@dataclass(frozen=True, slots=True)
class Scene:
    """All files of the scene."""

    files: tuple[LogFile, ...]

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)


def write(directory: Path, lines: int, progress: Callable[[int], None], seed: int = 79) -> Scene:
    """Write the scene with about `lines` lines; `progress` is told how many were written since its last call."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible scene, nothing secret
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    per_node = max(lines // len(NODES) - 200, 100)
    contents: list[tuple[str, str, str, Iterator[str]]] = [("slurmctld.log", "slurmctld", CONTROLLER, _slurmctld())]
    for node in NODES:
        contents += [
            (f"{node}.kmsg", "kmsg", node, _kmsg(node, rng)),
            (f"{node}.slurmd.log", "slurmd", node, _slurmd(node)),
            (f"{node}.job_{JOB}.out", "training", node, _training(node, per_node, rng)),
        ]
    for name, kind, node, content in contents:
        path, written = directory / name, 0
        with path.open("w", encoding="utf-8", newline="\n") as out:
            block: list[str] = []
            for line in content:
                block.append(line)
                if len(block) == 10_000:
                    out.write("".join(f"{text}\n" for text in block))
                    written += len(block)
                    progress(len(block))
                    block = []
            out.write("".join(f"{text}\n" for text in block))
            written += len(block)
            progress(len(block))
        files.append(LogFile(path, kind, node, written))
    return Scene(tuple(files))


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _slurm(seconds: float, text: str) -> str:
    return f"[{_at(seconds):%Y-%m-%dT%H:%M:%S}.{int(seconds % 1 * 1000):03d}] {text}"


def _slurmctld() -> Iterator[str]:
    yield _slurm(0.0, f"_slurm_rpc_submit_batch_job: JobId={JOB} InitPrio=4294901687 usec=1019")
    yield _slurm(1.113, f"sched: Allocate JobId={JOB} NodeList={','.join(NODES)} #CPUs=768 Partition=train")
    for minute in range(2, 20):
        yield _slurm(minute * 60 + 0.4, f"sched: Running job scheduler for everything, {minute} jobs considered")
    yield _slurm(DEATH_S + 41.2, f"_job_complete: JobId={JOB} WEXITSTATUS 1")
    yield _slurm(DEATH_S + 41.213, f"_job_complete: JobId={JOB} done")
    yield _slurm(DEATH_S + 42.0, f"update_node: node {BAD_NODE} reason set to: xid79 {BAD_PCI}")
    yield _slurm(DEATH_S + 42.0, f"update_node: node {BAD_NODE} state set to DRAINING")


def _slurmd(node: str) -> Iterator[str]:
    if node == NODES[0]:
        yield _slurm(1.702, f"Launching batch job {JOB} for UID 41007")
    yield _slurm(4.2, f"launch task StepId={JOB}.0 request from UID:41007 GID:41007 HOST:10.77.0.11 PORT:43781")
    yield _slurm(DEATH_S + 40.6, f"[{JOB}.0] done with step")
    if node == NODES[0]:
        yield _slurm(DEATH_S + 41.0, f"[{JOB}.batch] done with step")


def _kmsg(node: str, rng: random.Random) -> Iterator[str]:
    seq = 41_000

    def record(priority: int, seconds: float, text: str) -> str:
        nonlocal seq
        seq += 1
        return f"{priority},{seq},{_UPTIME_US + int(seconds * 1e6)},-;{text}"

    for minute in range(20):
        yield record(6, minute * 60 + rng.random() * 50, "audit: type=1400 audit(1738551600.000:77): apparmor=ALLOWED")
    if node != BAD_NODE:
        return
    for index in range(4):
        yield record(
            4, DEATH_S - 90 + index * 20, f"pcieport {BAD_PCI[:5]}98:00.0: AER: Corrected error received: {BAD_PCI}.0"
        )
    yield record(6, DEATH_S - 0.1, f"NVRM: GPU at PCI:{BAD_PCI}: GPU-5f2c1a9e-7d31-4c0b-9e55-0a7d4b1c6e02")
    yield record(3, DEATH_S, f"NVRM: Xid (PCI:{BAD_PCI}): 79, pid=5107, name=python, GPU has fallen off the bus.")
    yield " SUBSYSTEM=pci"
    yield f" DEVICE=+pci:{BAD_PCI}.0"
    yield record(3, DEATH_S + 0.0001, f"NVRM: GPU {BAD_PCI}.0: GPU has fallen off the bus.")
    yield record(
        3,
        DEATH_S + 0.3,
        f"NVRM: Xid (PCI:{BAD_PCI}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )


def _training(node: str, lines: int, rng: random.Random) -> Iterator[str]:
    index = NODES.index(node)
    heads = [f"{node}:{5101 + rank}:{5320 + rank} [{rank}] NCCL INFO " for rank in range(RANKS)]
    comms = [f"0x55d0c{rng.randrange(16**7):07x}" for _ in range(RANKS)]
    written = 0
    for rank, head in enumerate(heads):
        for line in _init(head, rank, index, comms[rank]):
            written += 1
            yield line
    step, op = 0, 0
    datatypes = "datatype 9 op 0 root 0"
    while written < lines:
        op += 1
        sendbuff = f"0x7f3a{rng.randrange(16**8):08x}"
        for rank, head in enumerate(heads):
            yield (
                f"{head}AllReduce: opCount {op:x} sendbuff {sendbuff} recvbuff {sendbuff} count 16777216 {datatypes} "
                f"comm {comms[rank]} [nranks=32] stream 0x55d0b0000000"
            )
        written += RANKS
        if op % 40 == 0 and index == 0:
            step += 1
            written += 1
            yield f"step {step} loss {2.9 - step / 20_000:.4f} tokens/s 418032"
    yield from _end(node, index)


def _init(head: str, rank: int, index: int, comm: str) -> Iterator[str]:
    host_rank = index * RANKS + rank
    yield f"{head}NCCL version 2.28.9+cuda13.0"
    yield f"{head}NCCL_IB_TIMEOUT set by environment to 23."
    yield f"{head}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [RO]; OOB eth0:192.0.2.{index + 1}<0>"
    yield f"{head}Using network IB"
    yield f"{head}ncclCommInitRankConfig comm {comm} rank {host_rank} nranks 32 cudaDev {rank} nvmlDev {rank} busId {rank + 1}b000 commId 0x7c1e5a2f9d3b4e60 - Init START"
    yield f"{head}Setting affinity for GPU {rank} to 0-95"
    for channel in range(16):
        yield f"{head}Channel {channel:02d}/0 : {host_rank}[{rank}] -> {(host_rank + 1) % 32}[{(rank + 1) % RANKS}] via P2P/IPC"
        yield f"{head}Channel {channel:02d}/0 : {host_rank}[{rank}] -> {(host_rank + 8) % 32}[{rank}] [send] via NET/IB/{rank % 4}/GDRDMA"
    yield f"{head}Connected all rings, use ring PXN 0 GDR 1"
    yield f"{head}threadThresholds 8/8/64 | 256/8/64 | 512 | 512"
    yield f"{head}16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer"
    yield f"{head}ncclCommInitRankConfig comm {comm} rank {host_rank} nranks 32 cudaDev {rank} nvmlDev {rank} busId {rank + 1}b000 commId 0x7c1e5a2f9d3b4e60 - Init COMPLETE"


def _end(node: str, index: int) -> Iterator[str]:
    stamp = f"[{_at(DEATH_S + 1):%Y-%m-%d %H:%M:%S}] "
    if node == BAD_NODE:
        rank = index * RANKS + BAD_LOCAL_RANK
        yield f"{stamp}{node}:5107:5326 [6] include/alloc.h:228 NCCL WARN Cuda failure 'unspecified launch failure'"
        yield f"{node}:5107:5326 [6] NCCL INFO transport/net.cc:1356 -> 1"
        yield f"[rank{rank}]: Traceback (most recent call last):"
        yield f'[rank{rank}]:   File "/app/train.py", line 214, in <module>'
        yield f"[rank{rank}]:     main()"
        yield f"[rank{rank}]: RuntimeError: CUDA error: unspecified launch failure"
        return
    yield (
        f"{stamp}{node}:5104:5323 [3] transport/net_ib.cc:2543 NCCL WARN NET/IB: Got completion from peer 192.0.2.3<47110> with "
        "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(0) reqSize=1048576 vendor_err=129 req_type=Send hca mlx5_3"
    )
    yield f"{stamp}{node}:5104:5323 [3] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer {BAD_NODE}<40217>"
    rank = index * RANKS + 3
    yield (
        f"[rank{rank}]:[E203 03:30:05.640100048 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=902, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000) ran for 600052 milliseconds before timing out."
    )
