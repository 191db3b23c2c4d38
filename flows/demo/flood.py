"""What NCCL writes while all is well: start-up, the burst of the first collective, and the flood of every step.

Line shapes and their mix are those of NCCL 2.28 with `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL` (texts: NVIDIA/nccl
v2.28.9, `src/`): three of four steady lines are collectives, the rest proxy, allocation, registration and tuning.
About one line in a thousand is torn, as where eight processes share a pipe.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

RANKS = 8  # per node
NODES = 4
WORLD = RANKS * NODES
CHANNELS = 16
LAYERS = 24  # all-reduces of one step

_COMM_ID = "0x7c1e5a2f9d3b4e60"
_VARIANTS = 16  # steps that differ in order and torn lines
_KINDS = (  # collective, elements, bytes as TUNING counts them, data type (9 is bfloat16)
    ("AllReduce", 33_554_432, 67_108_864, 9),
    ("AllGather", 8_388_608, 16_777_216, 9),
    ("ReduceScatter", 8_388_608, 16_777_216, 9),
)


class Writer(NamedTuple):
    """One rank on its node, as its lines name it."""

    head: str
    local: int
    rank: int
    comm: str


class Line(NamedTuple):
    """A line of a step; `operation` numbers the collective whose count stands for `%x` in its text."""

    text: str
    operation: int | None = None


class Step(NamedTuple):
    """Bytes of one training step; `pattern % tuple(count + n for n in operations)` numbers its collectives."""

    pattern: bytes
    operations: tuple[int, ...]
    lines: int

    def text(self, count: int) -> bytes:
        """The step when `count` collectives were before it."""
        return self.pattern % tuple([count + number for number in self.operations])


def pid(local: int) -> int:
    return 4408 + local


def writers(node: str, index: int, rng: random.Random) -> list[Writer]:
    """The eight ranks of a node."""
    return [
        Writer(
            f"{node}:{pid(local)}:{4620 + local} [{local}] NCCL INFO ",
            local,
            index * RANKS + local,
            f"0x55d0c{rng.randrange(16**7):07x}",
        )
        for local in range(RANKS)
    ]


def startup(ranks: Sequence[Writer], communicators: int, rng: random.Random) -> list[str]:
    """Initialisation of all communicators, then the connections that the first collective makes."""
    lines: list[str] = []
    for number in range(communicators):
        lines += _interleaved([list(_init(rank, number)) for rank in ranks], rng)
        lines += _interleaved([list(_connect(rank)) for rank in ranks], rng)
    return lines


def steps(ranks: Sequence[Writer], rng: random.Random) -> list[Step]:
    """Steps to be repeated in turn. Buffers stay the same from step to step, as a framework's do."""
    streams = [_step(rank, rng) for rank in ranks]
    return [_variant(streams, number % 4 == 0, rng) for number in range(_VARIANTS)]


def _interleaved(streams: Sequence[Sequence[T]], rng: random.Random) -> list[T]:
    """Lines of ranks that run side by side: each in its order, the ranks in any."""
    turns = [rank for rank, lines in enumerate(streams) for _ in lines]
    rng.shuffle(turns)
    sources = [iter(lines) for lines in streams]
    return [next(sources[rank]) for rank in turns]


def _init(rank: Writer, number: int) -> Iterator[str]:
    of = f"comm {rank.comm} rank {rank.rank} nranks {WORLD} cudaDev {rank.local} nvmlDev {rank.local}"
    ids = f"busId {rank.local + 1}b000 commId {_COMM_ID}"
    texts = [
        f"ncclCommInitRankConfig {of} {ids} - Init START",
        "RAS client listening socket at 127.0.0.1<28028>",
        f"Bootstrap timings total 0.{61 + rank.local}2109 (create 0.000031, send 0.000118, recv 0.3{rank.local}1442, "
        "ring 0.041507, delay 0.000000)",
        f"Setting affinity for GPU {rank.local} to 0-95",
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        f"comm {rank.comm} rank {rank.rank} nRanks {WORLD} nNodes {NODES} localRanks {RANKS} localRank {rank.local} "
        "MNNVL 0",
        "Trees " + " ".join(f"[{c}] {(rank.rank + 1) % WORLD}/-1/-1->{rank.rank}->{rank.rank - 1}" for c in range(8)),
        "P2P Chunksize set to 131072",
        "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1",
        f"[Proxy Service] Device {rank.local} CPU core {12 * rank.local + 3}",
        f"[Proxy Service UDS] Device {rank.local} CPU core {12 * rank.local + 5}",
        "threadThresholds 8/8/64 | 256/8/64 | 512 | 512",
        "16 coll channels, 16 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer",
        "CC Off, workFifoBytes 1048576",
        "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
        f"ncclCommInitRankConfig {of} {ids} - Init COMPLETE",
        f"Init timings - ncclCommInitRankConfig: rank {rank.rank} nranks {WORLD} total 3.{71 + rank.local} (kernels "
        "0.32, alloc 1.97, bootstrap 0.38, allgathers 0.01, topo 0.07, graphs 0.01, connections 0.89, rest 0.06)",
    ]
    if number == 0:
        texts[:0] = [
            "NCCL version 2.28.9+cuda13.0",
            "Bootstrap: Using eth0:192.0.2.1<0>",
            "NCCL_IB_TIMEOUT set by environment to 23.",
            "ENV/Plugin: Could not find: libnccl-env.so",
            "PROFILER/Plugin: Could not find: libnccl-profiler.so",
            "NET/Plugin: Failed to find ncclNetPlugin_v11 symbol",
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [RO]; OOB eth0:192.0.2.1<0>",
            "Using network IB",
            *(f"NET/IB: NCCL Dev {d} IbDev {d} Port 1 qpn {3000 + rank.local} mtu 5 LID 14" for d in range(4)),
        ]
    if rank.rank == 0:
        ring = " ".join(f"{member:2d}" for member in range(WORLD))
        texts += [f"Channel {channel:02d}/{CHANNELS} : {ring}" for channel in range(CHANNELS)]
    return (rank.head + text for text in texts)


def _connect(rank: Writer) -> Iterator[str]:
    me, after = f"{rank.rank}[{rank.local}]", (rank.rank + 1) % WORLD
    before = (rank.rank - 1) % WORLD
    texts = ["New proxy recv connection 0 from local rank 0, transport 2"]
    for channel in range(CHANNELS):
        texts += [f"Channel {channel:02d}/0 : {me} -> {to}[{to % RANKS}] via P2P/CUMEM" for to in (after, before)]
        if channel % 4 < 3:
            peer = (rank.rank + RANKS) % WORLD
            nic = f"NET/IB/{channel % 4}/GDRDMA"
            texts.append(f"Channel {channel:02d}/0 : {me} -> {peer}[{rank.local}] [send] via {nic}")
    texts += ["Connected all rings, use ring PXN 0 GDR 1", "Connected all trees"]
    return (rank.head + text for text in texts)


def _step(rank: Writer, rng: random.Random) -> list[Line]:
    """Lines of one rank in one step."""
    lines = []
    for number in range(LAYERS):
        name, count, size, kind = _KINDS[0 if number % 4 < 2 else number % 4 - 1]
        buffer = f"0x7f3a{rng.randrange(16**8):08x}"
        if number % 6 == 0:
            lines.append(Line(f"{name}: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}"))
        if number % 8 == 1:
            lines.append(Line(f"register comm {rank.comm} buffer {buffer} size {size}"))
        text = (
            f"{name}: opCount %x sendbuff {buffer} recvbuff {buffer} count {count} datatype {kind} op 0 root 0 "
            f"comm {rank.comm} [nranks={WORLD}] stream 0x55d0b0{rank.local}00000"
        )
        lines.append(Line(text, number))
    lines.insert(9, Line(f"proxyProgressAsync opId=0x7f21{rng.randrange(16**8):08x} op.type=5 op.respSize=16 done"))
    lines.insert(15, Line(f"channel.cc:41 Cuda Alloc Size {1152 << rank.local % 4} pointer 0x7f3a{rank.local}0000000"))
    return [Line(rank.head + line.text, line.operation) for line in lines]


def _variant(streams: Sequence[Sequence[Line]], torn: bool, rng: random.Random) -> Step:
    """One order of a step's lines; `torn`: one of them by its neighbour, as when a pipe's buffer ends there."""
    lines = _interleaved(streams, rng)
    texts = [line.text for line in lines]
    if torn:
        _tear(texts, rng.randrange(len(texts) // 2))
    pattern = "".join(f"{text}\n" for text in texts)
    return Step(pattern.encode(), tuple(line.operation for line in lines if line.operation is not None), len(texts))


def _tear(texts: list[str], start: int) -> None:
    """Let the first collective from `start` on whose neighbour is another rank's be cut by that."""
    for at in range(start, len(texts) - 1):
        cut = texts[at].find(" recvbuff") + 5
        if cut > 5 and texts[at].split(" NCCL ")[0] != texts[at + 1].split(" NCCL ")[0]:
            texts[at : at + 2] = [texts[at][:cut] + texts[at + 1], texts[at][cut:]]
            return
