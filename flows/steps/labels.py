"""Loki streams: which labels a record carries. Everything else is structured metadata.

A label set comes from the message (its headers) and, for kernel and journal kinds, the level as
`priority`; ids that a line merely mentions (a job id in slurmctld.log) never become labels, since they
would make a stream of almost every line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

Labels = tuple[tuple[str, str], ...]

# Envelope columns that cut streams; `owner_job` becomes the label `job_id`, `priority` is added per record.
LABELS = ("cluster", "namespace", "pod", "container", "node", "app", "team", "owner_job", "unit", "job")
WITH_PRIORITY = frozenset({"kmsg", "dmesg", "journal"})


def label_set(envelope: Mapping[str, str | None], cluster: str, priority: str | None) -> Labels:
    """The label set of one record, sorted by name; empty values are left out."""
    pairs = [("job_id" if name == "owner_job" else name, value) for name in LABELS if (value := envelope.get(name))]
    if cluster and not envelope.get("cluster"):
        pairs.append(("cluster", cluster))
    if priority:
        pairs.append(("priority", priority))
    return tuple(sorted(pairs))


@dataclass(slots=True)
class LabelSets:
    """Label sets of one part, numbered as they are met."""

    kind: str
    cluster: str
    numbers: dict[Labels, int] = field(default_factory=dict)

    def number(self, envelope: Mapping[str, str | None], level: str | None) -> int:
        """The number of one record's label set."""
        labels = label_set(envelope, self.cluster, level if self.kind in WITH_PRIORITY else None)
        return self.numbers.setdefault(labels, len(self.numbers))

    def column(self, envelope: Mapping[str, pa.DictionaryArray], level: pa.Array | None) -> pa.Array:
        """The numbers (int32) of whole columns: `envelope` is schema.ENVELOPE with shared indices."""
        index = envelope["node"].indices.to_numpy()
        words = {name: column.dictionary.to_pylist() for name, column in envelope.items()}
        levels: list[str | None] = [None]
        code = np.zeros(len(index), dtype=np.int64)
        if level is not None and self.kind in WITH_PRIORITY:
            levels += level.dictionary.to_pylist()
            code = level.indices.fill_null(-1).to_numpy().astype(np.int64) + 1
        pairs, inverse = distinct(index.astype(np.int64) * len(levels) + code)
        numbers = [
            self.number(
                {name: values[pair // len(levels)] for name, values in words.items()}, levels[pair % len(levels)]
            )
            for pair in pairs.tolist()
        ]
        return pa.array(np.array(numbers, dtype=np.int32)[inverse])


def distinct(
    numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]":
    """The distinct values of small numbers (0 to a few million), and the place of each number among them.

    A table of what occurs instead of the sort of np.unique: 5 against 200 ns a number.
    """
    table = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.int64)
    table[numbers] = 1
    values = np.flatnonzero(table)
    table[values] = np.arange(len(values))
    return values, table[numbers]
