"""The file source: blocks of whole lines, positions that survive, kinds told by names."""

import os
import tempfile
import time
from pathlib import Path

import pytest
from bytewax.inputs import AbortExecution
from hypothesis import given
from hypothesis import strategies as st

from flows.batch import Chunk
from flows.sources.drain import Drain
from flows.sources.files import FilesConfig, FilesPart, FilesSource, Position
from flows.steps.decode import DecodeConfig, decode
from sinks.errors import Misconfigured


def part(config: FilesConfig, resume: Position | None = None, drain: Drain | None = None) -> FilesPart:
    return FilesSource(config, drain).build_part("source", "0000", resume)


def read(reading: FilesPart, seconds: float = 5.0) -> list[Chunk]:
    """All chunks to the end."""
    chunks: list[Chunk] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            batch = list(reading.next_batch())
        except StopIteration:
            reading.close()
            return chunks
        assert all(shard == "0000" for shard, _ in batch)
        chunks += [chunk for _, chunk in batch]
        if not batch:
            time.sleep(0.002)
    raise AssertionError("the source did not end")


def lines(chunks: list[Chunk]) -> list[bytes]:
    found = []
    for chunk in chunks:
        for raw in decode(chunk, DecodeConfig()).raws:
            found += raw.rows["raw"].to_pylist()
    return found


def test_a_file_is_read_to_its_end_and_said_to_have_ended(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_bytes(b"a\nb\nno line feed at the end")
    os.utime(log, (1_796_071_829, 1_796_071_829))
    chunks = read(part(FilesConfig(paths=[str(log)], node="ctl-1", tz="Europe/Berlin")))
    assert [chunk.ended for chunk in chunks] == [False, True]
    assert not chunks[1].values
    (raw,) = decode(chunks[0], DecodeConfig()).raws
    assert (raw.kind, raw.tz) == ("slurmctld", "Europe/Berlin")
    assert raw.rows["raw"].to_pylist() == [b"a", b"b", b"no line feed at the end"]
    row = raw.rows.to_pylist()[0]
    assert (row["topic"], row["path"], row["node"]) == (str(log), str(log), "ctl-1")
    assert row["appended_at"] == 1_796_071_829_000
    assert raw.streams[0].times.mtime_ns == 1_796_071_829_000_000_000


@given(
    st.lists(st.binary(max_size=50).map(lambda text: text.replace(b"\n", b"")), max_size=40),
    st.integers(1, 60),
    st.booleans(),
)
def test_any_file_gives_its_lines_whatever_the_block_size(texts: list[bytes], block: int, feed: bool) -> None:
    content = b"\n".join(texts) + (b"\n" if feed else b"")
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.sources.files._BLOCK", block)
        path = Path(directory) / "x.log"
        path.write_bytes(content)
        chunks = read(part(FilesConfig(paths=[str(path)], kind="json", batch_lines=3)))
        assert lines(chunks) == expected
        values = [
            (int(offset), value) for chunk in chunks for offset, value in zip(chunk.offset, chunk.values, strict=True)
        ]
        assert all(content[offset : offset + len(value or b"")] == value for offset, value in values)


def test_reading_goes_on_where_the_snapshot_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.sources.files._BLOCK", 64)
    expected = []
    for name in ("a.kmsg", "b.kmsg"):
        texts = [f"6,{number},0,-;{name}".encode() for number in range(50)]
        (tmp_path / name).write_bytes(b"\n".join(texts) + b"\n")
        expected += texts
    config = FilesConfig(paths=[str(tmp_path)], batch_lines=5)
    for stop in range(1, 16, 3):
        first = part(config)
        before = [chunk for _ in range(stop) for _, chunk in first.next_batch()]
        position = first.snapshot()
        first.close()
        after = read(part(config, position))
        assert lines(before) + lines(after) == expected
        places = [
            (chunk.topics[topic], int(offset))
            for chunk in before + after
            for topic, offset in zip(chunk.topic, chunk.offset, strict=True)
        ]
        assert len(set(places)) == len(places)


def test_a_run_that_had_ended_gives_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "x.kmsg").write_bytes(b"6,0,0,-;x\n")
    config = FilesConfig(paths=[str(tmp_path)])
    first = part(config)
    read(first)
    assert read(part(config, first.snapshot())) == []


def test_a_line_longer_than_the_limit_is_cut_and_memory_stays_bounded(tmp_path: Path) -> None:
    log = tmp_path / "x.kmsg"
    log.write_bytes(b"x" * 5_000_000 + b"\nshort\n")
    chunks = read(part(FilesConfig(paths=[str(log)], max_line_bytes=1 << 20)))
    found = lines(chunks)
    assert b"".join(found) == b"x" * 5_000_000 + b"short"
    assert found[-1] == b"short"
    assert max(map(len, found)) <= (1 << 20) + (128 << 10)


def test_a_file_of_empty_lines_is_read_in_small_chunks(tmp_path: Path) -> None:
    log = tmp_path / "x.kmsg"
    log.write_bytes(b"\n" * 1_000_000)
    chunks = read(part(FilesConfig(paths=[str(log)])))
    sizes = [sum(len(value or b"") for value in chunk.values) for chunk in chunks]
    assert sum(sizes) == 1_000_000
    assert max(sizes) <= 200_000
    assert all(not decode(chunk, DecodeConfig()).dead for chunk in chunks)


def test_standard_input_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as stdin, os.fdopen(into, "wb") as writer:
        monkeypatch.setattr("sys.stdin", stdin)
        reading = part(FilesConfig(paths=["-"], kind="training"))
        assert list(reading.next_batch()) == []
        assert reading.next_awake() is not None
        with monkeypatch.context() as patience:
            patience.setattr("flows.sources.files._TICK_S", 0.0)
            ((_, silent),) = reading.next_batch()  # only the time, so that what is held does not wait for a line
        assert not silent.values
        assert not silent.ended
        writer.write(b"a\nb")
        writer.flush()
        (batch,) = reading.next_batch()
        writer.close()
        assert lines([batch[1], *read(reading)]) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("slurmctld.log", "slurmctld"),
        ("slurmd.log.1", "slurmd"),
        ("slurmdbd.log", "slurmdbd"),
        ("gpu-a01.kmsg", "kmsg"),
        ("dmesg.txt", "dmesg"),
        ("pods/ml_t-0_u1/worker/0.log", "pod"),
        ("containers/abc/abc-json.log", "docker"),
        ("slurm-81001.out", "training"),
        ("job.err", "training"),
        ("fabricmanager.log", "fabric_manager"),
        ("syslog", "syslog"),
    ],
)
def test_the_name_of_a_file_tells_its_kind(tmp_path: Path, name: str, kind: str) -> None:
    log = tmp_path / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"x\n")
    (chunk, _) = read(part(FilesConfig(paths=[str(log)])))
    assert dict(chunk.headers[0])["kind"] == kind.encode()


def test_nodes_are_found_in_paths(tmp_path: Path) -> None:
    for node in ("gpu-a01", "gpu-b02"):
        (tmp_path / f"{node}.kmsg").write_bytes(b"x\n")
    (chunk, _) = read(part(FilesConfig(paths=[str(tmp_path / "*.kmsg")], node_regex=r"([^/.]+)\.kmsg$")))
    assert [dict(headers)["node"] for headers in chunk.headers] == [b"gpu-a01", b"gpu-b02"]


def test_directories_are_read_without_hidden_and_compressed_files(tmp_path: Path) -> None:
    for name in ("b/x.kmsg", "a.kmsg", ".hidden.kmsg", "a.kmsg.1.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert lines(read(part(FilesConfig(paths=[str(tmp_path)])))) == [b"a.kmsg", b"b/x.kmsg"]


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["missing.log"], "there is no file missing.log"),
        (["*.nothing"], "there is no file"),
        (["empty"], "has no log files"),
        (["odd-name"], "set kind"),
        (["-"], "standard input does not tell the kind"),
        (["x.kmsg.gz"], "unpack it first"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("odd-name", "x.kmsg.gz"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(Misconfigured, match=said):
        FilesSource(FilesConfig(paths=paths))


@pytest.mark.parametrize(
    "wrong", [{"kind": "kmsgg"}, {"node_regex": "("}, {"node_regex": "x"}, {"tz": "Mars"}, {"path": "x"}]
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FilesConfig.model_validate(wrong)


def test_draining_ends_the_run_once_the_epoch_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.sources.files._BLOCK", 8)
    (tmp_path / "x.kmsg").write_bytes(b"one\ntwo\nthree\nfour\n")
    config, drain = FilesConfig(paths=[str(tmp_path)], batch_lines=1), Drain()
    reading = part(config, drain=drain)
    before = [chunk for _, chunk in reading.next_batch()]
    drain.set()
    before += [chunk for _, chunk in reading.next_batch()]  # the epoch is not closed yet
    position = reading.snapshot()
    with pytest.raises(AbortExecution):
        list(reading.next_batch())
    assert lines(before) + lines(read(part(config, position))) == [b"one", b"two", b"three", b"four"]
