"""The two forms of the noise rules agree, and so do columns and stream parser on lines that the gate lets pass."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parsers.job_gate import NOISE
from parsers.nccl_noise import CLOSED, RULES, noise_id
from parsers.record import Line, Record, Ref, Stream
from parsers.training import TRAINING, TrainingStream

HEAD = "gpu-a01:4021:4388 [2] NCCL INFO "

# One text of every rule of data/nccl_rules.json, as NCCL 2.4 to 2.30 and aws-ofi-nccl print it.
NOISY = {
    "N01": "Channel 00/08 :    0   1   2   3",
    "N02": "Channel 02/0 : 3[201c0] -> 8[101c0] [send] via NET/AWS Libfabric/1/GDRDMA",
    "N03": "Coll 00 : 3 [receive] via COLLNET/SHARP/0/GDRDMA",
    "N04": "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "N05": "Connected all rings",
    "N06": "Setting affinity for GPU 3 to ffff,ffffffff",
    "N07": "threadThresholds 8/8/64 | 64/8/64 | 512 | 512",
    "N08": "8 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer",
    "N09": "P2P Chunksize set to 131072",
    "N10": "comm 0x55d0 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0",
    "N11": "[Proxy Service] Device 0 CPU core 12",
    "N12": "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
    "N13": "NET/Plugin: Loaded net plugin AWS Libfabric (v6)",
    "N14": "NET/OFI Selected Provider is efa (found 4 nics)",
    "N15": "NVLS multicast support is not available on dev 0",
    "N16": "Bootstrap timings total 0.000931 (create 0.000026, send 0.000093)",
    "N17": "Connected to proxy localRank 0 -> connection 0x7f0",
    "N18": "Allocated 4194656 bytes of shared memory in /dev/shm/nccl-a1b2",
    "N19": "AllReduce: opCount 1a sendbuff 0x7f01 recvbuff 0x7f02 acc (nil) count 1024 datatype 7 op 0 root 0",
    "N20": "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
    "N21": "register comm 0x55d0 buffer 0x7f01 size 4096",
    "N22": "GPU/0-7000 (0) - NVL/12 (1)",
    "N23": "NET/IB : [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000",
    "N24": "RAS handling local addPeers request",
}
USEFUL = [
    "Using network IB", "NCCL version 2.28.9+cuda13.0", "NCCL_IB_TIMEOUT set by environment to 23.", "unknown words",
    "comm 0x55d0 rank 3 nranks 8 cudaDev 3 busId 7000 - Init COMPLETE", "transport/net.cc:1298 -> 6",
    "Connected all rings, use ring PXN 0 GDR 0", "cudaDriverVersion 12040", "NET/OFI Creating endpoint failed",
    "NET/Plugin: Could not find: libnccl-net.so.", "[Service thread] Connection closed by localRank 2", "",
    "Channel 00/0 : 0[0] -> 1[1] via CARRIER/7", "Comm config CTAPolicy reset to NCCL_CTA_POLICY=2", "ÿ",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.3<0>", "NVLS falling back to rings",
    "AllReduce: opCount 1 sendbuff falling back to",
    "Allocated with Cuda failure 'out of memory'", "socketPollConnect: retrying (1/34)",
]  # fmt: skip
PLAIN = [
    "step 41 loss 2.13", "", " iteration 110/ 5000 | lm loss: 2.1E+00 |", "Epoch: 5", "ValueError: x", "  0: x",
    "Train:  32%|###       | 210/640 [02:33<04:45,  1.42it/s]", "node-a: text", "[5] x", "12: y",
    "2031-03-09 17:03:02 a",
    "Traceback (most recent call last):", "[E728 07:34:54.803881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught",
    "srun: error: gpu-c03: task 1: Out Of Memory", "============", "INFO:root:ready", "loss: nan", "{'loss': 0.49}",
    "NCCL WARN retry", "NCCL version 2.20.5+cuda12.4", "terminate called after throwing", "E0203 x", "a [default1]:b",
    "tab\t", "red \x1b[31mtext\x1b[0m", "100%|##########| 100/100 [00:10<00:00,  9.9it/s]\r\x00", "naïve", "a: b: c",
    "I0821 11:40:43.585718 319407 ProcessGroupNCCL.cpp:482] text", "w.x.Y: z", "torch.cuda.OutOfMemoryError: x",
]  # fmt: skip
PREFIXES = [
    "", "", "", "[default3]:", "03: ", "[1,3]<stdout>:", "[rank3]: ", "[rank3]:", "[2] ", "node-a: ", "192.0.2.7: ",
    "(Actor pid=1, ip=192.0.2.9) ", "[70748] ", "[2031-05-04 18:45:17] ", "[trainer1]:", "[other1]:", "[pod/a/b] ",
]  # fmt: skip
HEADS = [
    HEAD, "gpu-a01:4021:4388 NCCL INFO ", "gpu-a01:1:2 [0] misc/socket.cc:49 NCCL WARN ", "h:1:2 NCCL CALL ",
    "h:1:2 [0] 12.345678 func:8 NCCL TRACE ", "h:0:2 [32767] NCCL INFO ", "h:1:2 [0] file.cc:1 NCCL INFO ",
]  # fmt: skip


def texts() -> st.SearchStrategy[str]:
    """Lines as they come: whole, cut anywhere, glued to another, padded to lengths where writers cut."""
    nccl = st.builds("".join, st.tuples(st.sampled_from(HEADS), st.sampled_from([*NOISY.values(), *USEFUL])))
    line = st.builds("".join, st.tuples(st.sampled_from(PREFIXES), nccl | st.sampled_from(PLAIN)))
    cut = st.builds(lambda text, at: text[: at % (len(text) + 1)], line, st.integers(0, 200))
    tail = st.builds(lambda text, at: text[at % (len(text) + 1) :], line, st.integers(0, 200))
    padded = st.builds(lambda text, size: text + "x" * (size - len(text)), line, st.sampled_from([127, 128, 129, 1023]))
    return st.one_of(line, line, cut, tail, padded, st.builds("".join, st.tuples(cut, line)), st.text(max_size=40))


def read(raw: bytes) -> list[Record]:
    """The records of a stream that holds one line."""
    stream = TrainingStream(Stream("training"))
    return [*stream.feed(Line(raw, (Ref(0, 0),))), *stream.flush()]


def column(raw: bytes) -> str | None:
    assert TRAINING.noise
    ids: list[str | None] = TRAINING.noise(pa.array([raw], pa.large_binary())).to_pylist()
    return ids[0]


@pytest.mark.parametrize(("name", "text"), NOISY.items(), ids=list(NOISY))
def test_each_rule_names_its_text_in_both_forms(name: str, text: str) -> None:
    assert noise_id(text, "INFO") == name
    assert column((HEAD + text).encode()) == name


def test_there_is_a_text_for_every_rule() -> None:
    assert list(NOISY) == [rule["id"] for rule in RULES["noise"]]
    assert {rule.id for rule in NOISE} | {"N02"} == set(NOISY)
    assert set(CLOSED) <= set(NOISY)


@pytest.mark.parametrize("text", USEFUL)
def test_useful_info_is_kept(text: str) -> None:
    assert noise_id(text, "INFO") in (None, "N02")  # a transport that nobody knows is noise, but not whole for sure
    assert column((HEAD + text).encode()) is None


@pytest.mark.parametrize("text", NOISY.values())
@pytest.mark.parametrize("level", ["WARN", "ABORT"])
def test_warnings_are_never_noise(text: str, level: str) -> None:
    assert noise_id(text, level) is None
    assert column(f"gpu-a01:1:2 [0] net.cc:4 NCCL {level} {text}".encode()) is None


@given(texts())
@example(HEAD + NOISY["N02"].ljust(96, "7"))
@example("[rank3]:" + HEAD + NOISY["N14"].ljust(96, "x"))
@example("Train:  32%|### | 210/640 [02:33<04:45,  1.42it/s]" + HEAD + "x")
def test_a_line_that_is_noise_by_columns_is_that_noise_alone_and_whole(text: str) -> None:
    raw = text.encode()
    name = column(raw)
    if name is not None:
        records = read(raw)
        assert [record.fields["noise"] for record in records] == [name]
        assert not records[0].flags


@given(texts().map(str.encode) | st.binary(max_size=60))
@example(b"[default3]: iteration 110/ 5000")
@example(b"[1,3]<stdout>:step 4")
def test_a_line_that_passes_the_gate_has_the_columns_of_its_record(raw: bytes) -> None:
    lines = pa.array([raw], pa.large_binary())
    header = TRAINING.header(lines, None)
    assert header.rich is not None
    assert header.message is not None
    assert header.level is not None
    assert TRAINING.gate is not None
    gated = pc.match_substring_regex(lines, TRAINING.gate)[0].as_py() or header.rich[0].as_py()
    if gated or column(raw) is not None:
        return
    (record,) = read(raw)
    shown = {name: values[0].as_py() for name, values in header.columns.items()}
    assert header.message[0].as_py() == record.fields["message"]
    assert header.level[0].as_py() == record.fields.get("level")
    for name in ("rank", "host", "pid"):
        assert shown.get(name) == record.fields.get(name)
    assert record.fields.get("event") is None
    assert record.fields.get("noise") is None
    assert not record.flags
    assert record.ts is None


def test_plain_text_needs_no_stream_parser() -> None:
    assert TRAINING.gate is not None
    lines = [
        b"step 41 loss 2.13", b" iteration 110/ 5000 | lm loss: 2.1E+00 |", b"[default3]:saved", b"03: epoch 4 done",
        b"{'loss': 0.49, 'step': 2}", b"loss=1.2 lr=3e-4 tokens/s 41234", HEAD.encode() + b"words nobody knows",
    ]  # fmt: skip
    assert not any(pc.match_substring_regex(pa.array(lines, pa.large_binary()), TRAINING.gate).to_pylist())


def test_columns_of_many_lines_are_those_of_each() -> None:
    assert TRAINING.noise
    lines = [(prefix + HEAD + text).encode() for prefix in PREFIXES for text in [*NOISY.values(), *USEFUL]]
    lines += [(prefix + text).encode() for prefix in PREFIXES for text in PLAIN]
    together = pa.array([b"skipped", *lines], pa.large_binary()).slice(1)
    assert TRAINING.noise(together).to_pylist() == [column(line) for line in lines]
    header = TRAINING.header(together, None)
    assert header.message is not None
    for line, message in zip(lines, header.message.to_pylist(), strict=True):
        alone = TRAINING.header(pa.array([line], pa.large_binary()), None)
        assert alone.message is not None
        assert alone.message[0].as_py() == message
