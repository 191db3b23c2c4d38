"""A store for the strict receiver that keeps every entry as it came, repeats too, in the order of arrival."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.demo.loki_push import Labels, PushStream

_UNIT = b"\x1f"


class Seen(NamedTuple):
    """One entry as it was pushed. `metadata`: all pairs, encoded; `id` is the pair of that name."""

    labels: Labels
    ts: int
    line: bytes
    id: bytes
    metadata: bytes


class KeepArrivals:
    """Use as the `store` of a Receiver. Columns stay as they were decoded until `entries` is asked for."""

    def __init__(self) -> None:
        self.lines = 0
        self._pushes: list[tuple[Labels, PushStream]] = []
        self._lock = threading.Lock()

    def add(self, tenant: str, labels: Labels, entries: PushStream) -> None:
        with self._lock:
            self._pushes.append((labels, entries))
            self.lines += len(entries.ts)

    def counts(self, tenant: str) -> dict[Labels, int]:
        with self._lock:
            counted: Counter[Labels] = Counter()
            for labels, entries in self._pushes:
                counted[labels] += len(entries.ts)
        return dict(counted)

    def entries(self) -> Iterator[Seen]:
        """All entries in the order of arrival."""
        for labels, pushed in self._pushes:
            metadata = pushed.metadata
            names, values = metadata.names.cast(pa.binary()), metadata.values.cast(pa.binary())
            pairs = pc.binary_join_element_wise(names, values, b"=")
            counted = np.bincount(metadata.entry, minlength=len(pushed.ts))
            ends = pa.array(np.concatenate([[0], np.cumsum(counted)]), pa.int32())
            texts = pc.binary_join(pa.ListArray.from_arrays(ends, pairs), _UNIT).to_pylist()
            named = pc.equal(names, b"id")
            ids = values.filter(named).to_pylist()
            assert metadata.entry[named.to_numpy(zero_copy_only=False)].tolist() == list(range(len(pushed.ts)))
            for ts, line, identity, text in zip(pushed.ts.tolist(), pushed.lines.to_pylist(), ids, texts, strict=True):
                yield Seen(labels, ts, line, identity, text)
