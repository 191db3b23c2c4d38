"""The events of the demo: how a GPU of one node is lost, and what everybody writes about it.

The PCIe port above a GPU of gpu-b02 reports corrected errors, five minutes later a fatal one; the GPU falls off
the bus (Xid 79), its process aborts, the other nodes see connections close, then time out, and Slurm ends the
job. gpu-d04 reports harmless corrected errors all the time. Line shapes are those of `dmesg --follow --decode
--time-format iso`, Slurm, NCCL 2.28 and PyTorch 2.9; hosts, addresses and numbers are invented.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from flows.demo.flood import WORLD, Writer, pid

JOB = 81004
NODES = ("gpu-a01", "gpu-b02", "gpu-c03", "gpu-d04")
CONTROLLER = "slurm-ctl-01"
BAD_NODE, BAD_PCI, BAD_PORT, BAD_GPU = "gpu-b02", "0000:9b:00", "0000:97:01", 4
START = datetime(2025, 11, 25, 3, 0, 0, tzinfo=UTC)
LOST_S = 1200.0  # seconds after START
END_S = LOST_S + 720

_TIMEOUT_S = 600
_FRAMES = (  # of a watchdog that ends its process: function and library
    ("c10::Error::Error(c10::SourceLocation, std::string)", "libc10.so"),
    ("c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >)", "libtorch_cuda.so"),
    ("c10d::ProcessGroupNCCL::Watchdog::runLoop()", "libtorch_cuda.so"),
    ("c10d::ProcessGroupNCCL::Watchdog::run()", "libtorch_cuda.so"),
    ("<unknown function>", "libstdc++.so.6"),
    ("<unknown function>", "libc.so.6"),
    ("clone", "libc.so.6"),
)


def moment(seconds: float) -> datetime:
    """The time `seconds` after the job was submitted."""
    return START + timedelta(seconds=seconds)


def slurmctld() -> Iterator[str]:
    """The controller's log."""
    yield _slurm(0.0, f"_slurm_rpc_submit_batch_job: JobId={JOB} InitPrio=4294901717 usec=1445")
    yield _slurm(1.113, f"sched: Allocate JobId={JOB} NodeList={','.join(NODES)} #CPUs=768 Partition=train")
    yield _slurm(END_S - 1.1, f"_job_complete: JobId={JOB} WEXITSTATUS 1")
    yield _slurm(END_S - 1.09, f"_job_complete: JobId={JOB} done")
    yield _slurm(END_S, f"update_node: node {BAD_NODE} reason set to: Xid 79 on {BAD_PCI}")
    yield _slurm(END_S, f"update_node: node {BAD_NODE} state set to DRAINING")


def slurmd(node: str) -> Iterator[str]:
    """The log of a node's daemon."""
    if node == NODES[0]:
        yield _slurm(1.702, f"Launching batch job {JOB} for UID 41007")
    yield _slurm(4.2, f"launch task StepId={JOB}.0 request from UID:41007 GID:41007 HOST:10.77.0.11 PORT:36536")
    yield _slurm(END_S - 2.4, f"[{JOB}.0] done with step")
    if node == NODES[0]:
        yield _slurm(END_S - 1.8, f"[{JOB}.batch] done with step")


def kernel(node: str) -> Iterator[str]:
    """The kernel's log of a node, from the job's start on."""
    for minute in range(0, int(LOST_S) // 60, 4):
        yield _dmesg("info", minute * 60 + 17.3, "perf: interrupt took too long (2511 > 2500), lowering rate to 79500")
        if node == NODES[3]:
            at = minute * 60 + 30.5
            yield _dmesg("warn", at, "pcieport 0000:16:01.0: AER: Corrected error message received from 0000:19:00.0")
            yield _dmesg("warn", at, "nvidia 0000:19:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer")
    if node != BAD_NODE:
        return
    port = f"pcieport {BAD_PORT}.0:"
    told = f"message received from {BAD_PORT}.0"
    yield _dmesg("warn", LOST_S - 300.4, f"{port} AER: Multiple Corrected error {told}")
    yield _dmesg("warn", LOST_S - 300.4, f"{port} PCIe Bus Error: severity=Corrected, type=Data Link Layer")
    yield _dmesg("err", LOST_S - 0.4, f"{port} AER: Uncorrected (Fatal) error {told}")
    yield _dmesg("err", LOST_S - 0.3, f"{port} PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer")
    xid = f"NVRM: Xid (PCI:{BAD_PCI}):"
    process = f"pid={pid(BAD_GPU)}, name=python3"
    yield _dmesg("err", LOST_S, f"{xid} 79, {process}, GPU has fallen off the bus.")
    yield _dmesg("err", LOST_S + 0.0001, f"NVRM: GPU {BAD_PCI}.0: GPU has fallen off the bus.")
    yield _dmesg("err", LOST_S + 0.1, "mlx5_core 0000:98:00.0: poll_health:801:(pid 0): Fatal error 1 detected")
    change = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    yield _dmesg("err", LOST_S + 0.3, f"{xid} 154, {change}")


def iteration(number: int) -> str:
    """The line that the first node prints now and then while the job makes progress."""
    loss = 2.9 - number / 4000
    return f" iteration {number:8d}/  500000 | elapsed time per iteration (ms): 1838.7 | lm loss: {loss:.6E} |"


def downfall(node: str, ranks: Sequence[Writer]) -> Iterator[str]:
    """The end of the job's output on a node."""
    if node == BAD_NODE:
        yield from _killed(ranks[BAD_GPU])
    else:
        for rank in ranks:
            yield from _cut_off(node, rank)
        for rank in ranks:
            yield from _timed_out(rank)
    if node == NODES[0]:
        others = ",".join(name for name in NODES if name != BAD_NODE)
        yield f"srun: error: {BAD_NODE}: task 1: Exited with exit code 1"
        yield f"srun: error: {others}: tasks 0,2-3: Exited with exit code 1"


def _killed(rank: Writer) -> Iterator[str]:
    prefix = rank.head.removesuffix("NCCL INFO ")
    yield f"[{_clock(1.0)}] {prefix}include/alloc.h:228 NCCL WARN Cuda failure 'unspecified launch failure'"
    yield f"{rank.head}transport/net.cc:1356 -> 1"
    yield f"[rank{rank.rank}]: Traceback (most recent call last):"
    yield f'[rank{rank.rank}]:   File "/app/train.py", line 214, in <module>'
    yield f"[rank{rank.rank}]:     main()"
    yield f"[rank{rank.rank}]: torch.AcceleratorError: CUDA error: unspecified launch failure"
    yield (
        f"E{moment(LOST_S + 2):%m%d %H:%M:%S}.000000 4300 torch/distributed/elastic/multiprocessing/api.py:882] "
        f"failed (exitcode: -6) local_rank: {rank.local} (pid: {pid(rank.local)}) of binary: /opt/venv/bin/python"
    )


def _cut_off(node: str, rank: Writer) -> Iterator[str]:
    prefix = rank.head.removesuffix("NCCL INFO ")
    closed = 2.4 + NODES.index(node) + rank.local / 4
    yield ""
    yield (
        f"[{_clock(closed)}] {prefix}misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer "
        f"{BAD_NODE}<{40217 + rank.local}>"
    )
    yield ""
    yield (
        f"[{_clock(31 + rank.local / 4)}] {prefix}transport/net_ib.cc:2543 NCCL WARN NET/IB: Got completion from peer "
        f"192.0.2.2<{51877 + rank.local}> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(0) "
        f"reqSize=1048576 vendor_err=129 req_type=Send hca mlx5_{rank.local % 4}"
    )
    for place in ("transport/net.cc:1356", "proxy.cc:728", "proxy.cc:912"):
        yield f"{rank.head}{place} -> 6"


def _timed_out(rank: Writer) -> Iterator[str]:
    when = moment(LOST_S + _TIMEOUT_S + 1 + rank.local / 8)
    stamp = f"{when.month}{when:%d %H:%M:%S}.{246_644_235 + 1_003_451 * rank.rank:09d}"
    head = f"[rank{rank.rank}]:[E{stamp} ProcessGroupNCCL.cpp"
    text = (
        f"[Rank {rank.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=902, OpType=ALLREDUCE, "
        f"NumelIn=33554432, NumelOut=33554432, Timeout(ms)={_TIMEOUT_S}000) ran for "
        f"{_TIMEOUT_S}0{rank.rank + WORLD} milliseconds before timing out."
    )
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank.rank}]"
    yield f"{head}:632] {text}"
    yield (
        f"{head}:2057] {group}  failure detected by watchdog at work sequence id: 902 PG status: last enqueued work: "
        "902, last completed work: 901"
    )
    yield f"{head}:2057] {group} Process group watchdog thread terminated with exception: {text}"
    yield from _frames(rank)
    yield "terminate called after throwing an instance of 'c10::DistBackendError'"
    yield f"  what():  {group} Process group watchdog thread terminated with exception: {text}"
    yield from _frames(rank)


def _frames(rank: Writer) -> Iterator[str]:
    yield "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:685 (most recent call first):"  # noqa: E501 - one line of the log
    for number, (function, library) in enumerate(_FRAMES):
        address = 0x7F1C_0000_0000 + rank.rank * 0x100_0000 + number * 0x1337
        where = "/opt/venv/lib/python3.11/site-packages/torch/lib" if "torch" in library or "c10" in library else "/lib"
        yield f"frame #{number}: {function} + {hex(0x98 + number * 64)} ({hex(address)} in {where}/{library})"
    yield ""


def _clock(seconds: float) -> str:
    """As NCCL stamps its warnings: local time, whole seconds, after the GPU was lost."""
    return f"{moment(LOST_S + seconds):%Y-%m-%d %H:%M:%S}"


def _slurm(seconds: float, text: str) -> str:
    return f"[{moment(seconds).isoformat(timespec='milliseconds').removesuffix('+00:00')}] {text}"


def _dmesg(level: str, seconds: float, text: str) -> str:
    when = moment(seconds).isoformat(timespec="microseconds").replace(".", ",")
    return f"kern  :{level:<6}: {when} {text}"
