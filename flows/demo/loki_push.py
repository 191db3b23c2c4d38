"""A Loki push as columns: what the decoders make and the checks read."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Labels = tuple[tuple[str, str], ...]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]  # one flag per entry

LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Refused(Exception):
    """The request is answered with `status` and `text`; nothing of it is kept."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(slots=True)
class Metadata:
    """Structured metadata of a stream's entries: one row per pair, rows in the order of the entries.

    `entry` is the index of the entry; `names` and `values` are binary arrays of the same length.
    """

    entry: Ints
    names: pa.BinaryArray
    values: pa.BinaryArray

    def sizes(self, entries: int) -> tuple[Ints, Ints]:
        """Bytes (names and values) and pairs of each entry."""
        if not len(self.entry):
            return np.zeros(entries, np.int64), np.zeros(entries, np.int64)
        weights = lengths(self.names) + lengths(self.values)
        in_bytes = np.bincount(self.entry, weights=weights, minlength=entries).astype(np.int64)
        return in_bytes, np.bincount(self.entry, minlength=entries)

    def where(self, keep: Mask) -> "Metadata":
        """The pairs of the entries that `keep` (one flag per entry) selects, numbered anew."""
        pairs = keep[self.entry]
        mask = pa.array(pairs)
        number = np.cumsum(keep, dtype=np.int64) - 1
        return Metadata(number[self.entry[pairs]], self.names.filter(mask), self.values.filter(mask))


@dataclass(slots=True)
class PushStream:
    """One stream of a push: its labels as sent, and a row per entry; `ts` in ns since 1970."""

    labels: Labels
    ts: Ints
    lines: pa.BinaryArray
    metadata: Metadata

    def where(self, keep: Mask) -> "PushStream":
        """The entries that `keep` selects."""
        return PushStream(self.labels, self.ts[keep], self.lines.filter(pa.array(keep)), self.metadata.where(keep))


def lengths(column: pa.BinaryArray) -> Ints:
    """Bytes of each value."""
    counted: Ints = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return counted
