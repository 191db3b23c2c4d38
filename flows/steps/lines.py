"""Values of messages to lines, by whole buffers: no Python per line."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Place = tuple[int, int, int, int, bytes]  # message, line, origin, received (ns), text


class Rows(NamedTuple):
    """Lines; all of one length. `message` and `origin` are numbers the caller gives, `received` is in ns."""

    message: Ints
    line: Ints
    origin: Ints
    received: Ints
    raw: pa.LargeBinaryArray


def split(values: Sequence[bytes]) -> tuple[Ints, pa.LargeBinaryArray]:
    """The lines of blocks (none empty): number of lines of each, and all of them.

    A line feed at the very end of a block starts no further line.
    """
    pieces = pc.split_pattern(whole(values), b"\n")
    return pieces.value_lengths().to_numpy().astype(np.int64), pieces.flatten()


def whole(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Values as one line each, without the one line feed at their end."""
    return pa.array([value.removesuffix(b"\n") for value in values], pa.large_binary())


def gathered(places: Sequence[Place]) -> Rows:
    """Rows of lines found one by one."""
    message, line, origin, received, texts = zip(*places, strict=True)
    return Rows(_ints(message), _ints(line), _ints(origin), _ints(received), pa.array(texts, pa.large_binary()))


def merged(parts: Sequence[Rows]) -> Rows:
    """Lines of several forms in the order of message and line."""
    if len(parts) == 1:
        return parts[0]
    message, line, origin, received = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[:4])
    order = np.lexsort((line, message))
    raw = pa.concat_arrays([part.raw for part in parts]).take(pa.array(order))
    return Rows(message[order], line[order], origin[order], received[order], raw)


def _ints(values: Any) -> Ints:
    return np.array(values, dtype=np.int64)
