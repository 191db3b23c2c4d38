"""Writes the demo's logs: the flood of a training job on four nodes, and in it what `cascade` tells.

One directory per node, as a collector of files would find them. The same number of lines gives the same bytes
and the same times of change, so that what has no time of its own gets the same time in every run.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from flows.demo import cascade, flood
from flows.demo.flood import Writer

LEAST_LINES = 10_000
_SEED = 79
_MANY = 200_000  # lines from which the job makes as many communicators as a large one does
_STEPS_PER_WRITE = 40
_STEPS_PER_REPORT = 25  # steps between two lines of the first node that say how far training is


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


def write(directory: Path, lines: int, progress: Callable[[int], None]) -> Scene:
    """Write the scene with about `lines` lines, at least LEAST_LINES; `progress` is told how many were added.

    Raises OSError when the disk does not take it.
    """
    rng = random.Random(_SEED)  # noqa: S311 - a reproducible scene, nothing secret
    files = [
        _write(directory, "slurmctld.log", "slurmctld", cascade.CONTROLLER, _joined(cascade.slurmctld()), progress)
    ]
    for index, node in enumerate(cascade.NODES):
        files += [
            _write(directory, "dmesg.log", "dmesg", node, _joined(cascade.kernel(node)), progress),
            _write(directory, "slurmd.log", "slurmd", node, _joined(cascade.slurmd(node)), progress),
            _write(directory, f"job_{cascade.JOB}.out", "training", node, _training(index, lines, rng), progress),
        ]
    return Scene(tuple(files))


def _write(
    directory: Path,
    name: str,
    kind: str,
    node: str,
    blocks: Iterator[tuple[bytes, int]],
    progress: Callable[[int], None],
) -> LogFile:
    path, written = directory / node / name, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for text, lines in blocks:
            out.write(text)
            written += lines
            progress(lines)
    changed = cascade.moment(cascade.END_S).timestamp()
    os.utime(path, (changed, changed))
    return LogFile(path, kind, node, written)


def _training(index: int, lines: int, rng: random.Random) -> Iterator[tuple[bytes, int]]:
    """Blocks of the job's output on one node, and their numbers of lines."""
    node = cascade.NODES[index]
    ranks = flood.writers(node, index, rng)
    end = list(cascade.downfall(node, ranks))
    start = flood.startup(ranks, 6 if lines >= _MANY else 1, rng)
    yield from _joined(start)
    left = lines // len(cascade.NODES) - len(start) - len(end)
    yield from _steps(ranks, left, index == 0, rng)
    yield from _joined(end)


def _steps(ranks: list[Writer], lines: int, reports: bool, rng: random.Random) -> Iterator[tuple[bytes, int]]:
    steps = flood.steps(ranks, rng)
    block: list[bytes] = []
    size = 0
    for number in count():
        step = steps[number % len(steps)]
        if lines < step.lines or len(block) >= _STEPS_PER_WRITE:
            yield b"".join(block), size
            block, size = [], 0
        if lines < step.lines:
            return
        block.append(step.text(number * flood.LAYERS))
        size += step.lines
        lines -= step.lines
        if reports and number % _STEPS_PER_REPORT == 0:
            block.append(f"{cascade.iteration(number)}\n".encode())
            size += 1
            lines -= 1


def _joined(lines: "Iterator[str] | list[str]") -> Iterator[tuple[bytes, int]]:
    texts = [f"{line}\n" for line in lines]
    yield "".join(texts).encode(), len(texts)
