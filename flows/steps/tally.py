"""Counts physical lines of whole tables: by partition, and by noise rule and partition."""

from collections import Counter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from flows.steps.labels import distinct
from sinks.base import Partition

Longs: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def by_partition(rows: pa.Table, weight: str | None = None) -> Counter[Partition]:
    """Rows (or the sum of a column) by (topic, partition)."""
    places, names = _places(rows)
    return _sums(places, None if weight is None else _numbers(rows, weight), names)


def by_rule(noise: pa.Array, rows: pa.Table, weight: str | None = None) -> dict[str, Counter[Partition]]:
    """The same for each value of `noise` (a dictionary column without nulls, aligned with `rows`)."""
    if not len(rows):
        return {}
    places, names = _places(rows)
    codes = np.asarray(noise.indices).astype(np.int64)
    weights = None if weight is None else _numbers(rows, weight)
    sums = np.bincount(codes * len(names) + places, weights, minlength=len(noise.dictionary) * len(names))
    rules = noise.dictionary.to_pylist()
    return {
        rules[code]: Counter({names[place]: int(lines[place]) for place in np.flatnonzero(lines).tolist()})
        for code, lines in enumerate(sums.reshape(-1, len(names)))
        if lines.any()
    }


def _places(rows: pa.Table) -> tuple[Longs, list[Partition]]:
    """Number of the partition of each row, and the partitions by number."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64), []
    topics = rows["topic"].unify_dictionaries().combine_chunks()
    partition = _numbers(rows, "partition")
    span = int(partition.max()) + 1
    pairs, places = distinct(np.asarray(topics.indices).astype(np.int64) * span + partition)
    words = topics.dictionary.to_pylist()
    return places, [(words[pair // span], pair % span) for pair in pairs.tolist()]


def _sums(places: Longs, weights: Longs | None, names: list[Partition]) -> Counter[Partition]:
    sums = np.bincount(places, weights, minlength=len(names))
    return Counter({name: int(lines) for name, lines in zip(names, sums.tolist(), strict=True) if lines})


def _numbers(rows: pa.Table, name: str) -> Longs:
    return np.asarray(rows[name].combine_chunks().to_numpy(), dtype=np.int64)
