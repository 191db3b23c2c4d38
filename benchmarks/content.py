"""What Loki must get of the benchmark's lines: one CRC-32 per line, over its labels and its text.

The labels stand in for what the tier knows of a block: kind and node always, what the headers say if there are
any, and the priority of a kernel line. The text is the line itself; a kernel line comes without its head.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from benchmarks.lines import FIRST, Block

Content = npt.NDArray[np.uint32]

_FROM_HEADERS: Final = ("job_id", "team", "unit")
_PRIORITIES: Final = {b"3": "error", b"6": "info"}


def seed(labels: Iterable[tuple[str, str]]) -> int:
    """The CRC of a label set, from which that of each line of its stream goes on."""
    return crc32("\0".join(f"{name}={value}" for name, value in sorted(labels)).encode())


def note(content: Content, block: Block, headers: Mapping[str, object] | None) -> None:
    """Write the CRCs of the lines of a block, sent with `headers`, to their numbers in `content`."""
    labels = {"cluster": "gpu-west", "job": block.kind, "node": block.node}
    labels |= {name: str(value) for name, value in (headers or {}).items() if name in _FROM_HEADERS}
    lines: Sequence[bytes] = block.value.split(b"\n")
    if block.kind == "kmsg":
        seeds = {code: seed({**labels, "priority": name}.items()) for code, name in _PRIORITIES.items()}
        found = [crc32(text, seeds[head[:1]]) for head, _, text in (line.partition(b";") for line in lines)]
    else:
        start = seed(labels.items())
        found = [crc32(line, start) for line in lines]
    content[np.array(block.numbers) - FIRST] = found
