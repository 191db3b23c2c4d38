"""The lines of the benchmarks: blocks of 500 lines of one node, of which exactly four fifths are NCCL noise.

A cycle of 49 blocks is 40 of job output (490 lines of noise and 10 others each), 5 of slurmctld and 4 of
/dev/kmsg, 24,500 lines. About one line in a hundred is for the stream parsers: an Xid (3 % of the kernel
lines), an event of slurmctld (28 of 500 lines), useful NCCL output (1 of 500). Shapes are those of NCCL 2.28
(NVIDIA/nccl), Slurm (SchedMD/slurm src/slurmctld) and the Linux kernel; names and numbers are invented.

Every line has a number that occurs once: `2` and nine digits. Noise has the highest ones, so that a store can be
checked for lines that are lost, repeated or taken for the wrong sort.
"""

import random
from collections.abc import Iterator, Sequence
from time import gmtime, strftime
from typing import NamedTuple

BLOCK_LINES = 500
_TURN = ("training",) * 8 + ("slurmctld",)
CYCLE: tuple[str, ...] = (*_TURN, "kmsg") * 4 + _TURN
CYCLE_LINES = len(CYCLE) * BLOCK_LINES
NODES = 256
NUMBER = r"\b2(\d{9})\b"  # RE2 and Python; for text without the prefix of /dev/kmsg
UPTIME_S = 2_863_000

FIRST = 2_000_000_000
_RANKS = 8
_NOISE = 490
_XIDS = 15
_EVENTS = 28
_JOBS = 400


class Block(NamedTuple):
    """Lines of one message, joined by line feeds. `second`: seconds since the first block; `numbers`: of each line."""

    kind: str
    node: str
    second: int
    noise: int
    value: bytes
    numbers: Sequence[int]


def node(index: int) -> str:
    return f"gpu-west-ndh100v5-rack{index % NODES // 8:02d}-{index % NODES:04d}"


CONTROLLER = "slurm-ctl-01"


def blocks(cycles: int, start_s: int, reserved: int = 0) -> Iterator[Block]:
    """The blocks of `cycles` cycles in order, the same for the same arguments.

    `start_s` is the time of the first block (s since the epoch). slurmctld writes a block per second, so that
    time goes on by 5 s per cycle. `reserved` numbers between those of noise and of other lines are left to the caller.
    """
    jobs = [_job_template(index) for index in range(NODES)]
    slurm, kernel = _slurm_template(), _kernel_template()
    counts = dict.fromkeys(("training", "slurmctld", "kmsg"), 0)
    noise, other = FIRST + totals(cycles)[1] + reserved, FIRST
    for _ in range(cycles):
        for kind in CYCLE:
            number = counts[kind]
            counts[kind] += 1
            if kind == "training":
                template, order = jobs[number % NODES]
                numbers = [*range(noise, noise + _NOISE), *range(other, other + BLOCK_LINES - _NOISE)]
                placed = tuple(map(numbers.__getitem__, order))
                yield Block(kind, node(number), counts["slurmctld"], _NOISE, template % placed, placed)
                noise += _NOISE
                other += BLOCK_LINES - _NOISE
                continue
            placed = tuple(range(other, other + BLOCK_LINES))
            if kind == "slurmctld":
                stamp = _stamp(start_s + number)
                yield Block(kind, CONTROLLER, number, 0, slurm.replace(b"@", stamp) % placed, placed)
            else:
                second = counts["slurmctld"]
                value = _kernel_block(kernel, number // NODES, second, other)
                yield Block(kind, node(number), second, 0, value, placed)
            other += BLOCK_LINES


def totals(cycles: int) -> tuple[int, int]:
    """Lines that are noise and lines that are not."""
    noise = cycles * CYCLE.count("training") * _NOISE
    return noise, cycles * CYCLE_LINES - noise


def _stamp(second: int) -> bytes:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second)).encode()


def _template(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


def _job_template(index: int) -> tuple[bytes, list[int]]:
    """A block of job output with `%d` for each number, and the place of each number in [noise…, other…]."""
    rng = random.Random(index)  # noqa: S311 - reproducible lines, nothing secret
    lines = list(enumerate([*_noise(rng), *_useful(rng)]))
    rng.shuffle(lines)
    name = node(index)
    heads = [f"{name}:{51_000 + 13 * rank}:%d [{rank}] NCCL INFO " for rank in range(_RANKS)]
    texts = [text if "%d" in text else heads[rng.randrange(_RANKS)] + text for _, text in lines]
    return _template(texts), [place for place, _ in lines]


def _noise(rng: random.Random) -> list[str]:
    """Texts of NCCL lines that the rules drop, two thirds of them of collectives (NCCL_DEBUG_SUBSYS=ALL)."""

    def rank() -> int:
        return rng.randrange(NODES * _RANKS)

    def channel() -> str:
        return f"Channel {rng.randrange(32):02d}/0 : {rank()}[{rank() % 8}] -> {rank()}[{rank() % 8}]"

    def pointer() -> str:
        return f"0x7f{rng.choice('abcdef')}{rng.randrange(16**9):09x}"

    trees = [
        "Trees " + " ".join(f"[{lane}] {rank()}/-1/-1->{rank()}->{rank()}" for lane in range(16)) for _ in range(26)
    ]
    ops = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")
    return [
        *trees,
        *(
            f"{rng.choice(ops)}: opCount {rng.randrange(16**4):x} sendbuff {pointer()} recvbuff {pointer()} acc (nil) "
            f"count {rng.choice((4096, 1048576, 16777216))} datatype 9 op 0 root 0 "
            f"comm 0x55d{rng.randrange(16**8):08x} [nranks={NODES * _RANKS}] stream 0x55e{rng.randrange(16**8):08x}"
            for _ in range(250)
        ),
        *(f"{channel()} via P2P/IPC" for _ in range(78)),
        *(f"{channel()} [send] via NET/IB/{rank() % 8}/GDRDMA" for _ in range(50)),
        *(
            f"AllReduce: {2**power} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
            for power in range(10, 30)
        ),
        *["Connected all rings", "Connected all trees"] * 8,
        *(f"NET/OFI Libfabric provider associates MRs with domains, device {rank() % 8}" for _ in range(8)),
        *(f"NET/Plugin: Loaded net plugin Libfabric (v{rng.randrange(5, 10)})" for _ in range(4)),
        *(f"New proxy send connection {rank()} from local rank {rank() % 8}, transport 2" for _ in range(8)),
        *(f"Connected to proxy localRank {rank() % 8} -> connection {pointer()}" for _ in range(4)),
        *(f"Allocated 4194656 bytes of shared memory in /dev/shm/nccl-{rng.randrange(16**6):06x}" for _ in range(6)),
        *(f"Channel {rng.randrange(32):02d}/32 : " + " ".join(str(rank()) for _ in range(32)) for _ in range(6)),
        *(f"Setting affinity for GPU {rank() % 8} to 0-47,96-143" for _ in range(4)),
        *["threadThresholds 8/8/64 | 16384/8/64 | 512 | 512"] * 4,
        *["32 coll channels, 32 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer"] * 4,
        *(f"register comm 0x55d{rng.randrange(16**8):08x} buffer {pointer()} size 33554432" for _ in range(2)),
    ]


def _useful(rng: random.Random) -> list[str]:
    return [
        *(
            f"step %d loss {2 + rng.random():.4f} grad_norm {rng.random():.3f} lr 3.0e-04 "
            f"tokens/s {rng.randrange(400_000, 430_000)} mem {rng.randrange(60, 79)}.{rng.randrange(100):02d}GiB"
            for _ in range(BLOCK_LINES - _NOISE - 1)
        ),
        "Using network IB",
    ]


def _slurm_template() -> bytes:
    rng = random.Random(1)  # noqa: S311
    plain = (
        "debug2: Processing RPC: REQUEST_JOB_INFO_SINGLE from UID=41007 JobId={job} filter none flags 0x2 usec=%d",
        "debug2: found 64 usable nodes from config containing gpu-west-ndh100v5 for JobId={job} usec=%d",
        "debug:  sched/backfill: _attempt_backfill: testing JobId={job} in 3 partitions with 512 depth usec=%d",
        "debug2: select/cons_tres: job_test: evaluating JobId={job} on 64 of 256 nodes, mode test only usec=%d",
        "debug3: Writing job id {job} to header record of job_state file, hash.7, 1877 bytes usec=%d",
    )
    events = (
        "sched: Allocate JobId=%d NodeList=gpu-west-ndh100v5-rack02-[0016-0023] #CPUs=768 Partition=train",
        "_slurm_rpc_submit_batch_job: JobId=%d InitPrio=4294901687 usec=1019",
        "_job_complete: JobId=%d WEXITSTATUS 0",
        "_job_complete: JobId=%d done",
    )
    texts = [rng.choice(plain).format(job=70_000 + rng.randrange(_JOBS)) for _ in range(BLOCK_LINES - _EVENTS)]
    texts += [rng.choice(events) for _ in range(_EVENTS)]
    rng.shuffle(texts)
    return _template([f"[@.{2 * index:03d}] {text}" for index, text in enumerate(texts)])


def _kernel_template() -> bytes:
    rng = random.Random(2)  # noqa: S311
    plain = (
        'audit: type=1400 audit(1764.337:%d): apparmor="ALLOWED" operation="open" profile="crio-default" '
        'name="/proc/sys/net/core/somaxconn" comm="python3" requested_mask="r" denied_mask="r" fsuid=41007 ouid=0',
        "perf: interrupt took too long (%d > 3971), lowering kernel.perf_event_max_sample_rate to 50000",
        "workqueue: delayed_fput hogged CPU for >10000us %d times, consider switching to WQ_UNBOUND",
    )
    xids = (
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=%d, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS "
        "GPCCLIENT_T1_8 faulted @ 0x7abc_1c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=%d, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
        "NVRM: Xid (PCI:0000:db:00): 79, pid=%d, name=python3, GPU has fallen off the bus.",
    )
    texts = [rng.choice(plain) for _ in range(BLOCK_LINES - _XIDS)] + [rng.choice(xids) for _ in range(_XIDS)]
    rng.shuffle(texts)
    return _template([f"{3 if 'Xid' in text else 6},%d,%d,-;{text}" for text in texts])


def _kernel_block(template: bytes, turn: int, second: int, first: int) -> bytes:
    """A block with record numbers, times since boot and numbers."""
    values: list[int] = []
    seq, us = 41_000 + turn * BLOCK_LINES, (UPTIME_S + second) * 1_000_000
    for index in range(BLOCK_LINES):
        values += (seq + index, us + index * 1_000, first + index)
    return template % tuple(values)
