"""Loki streams: which labels a record carries. Everything else is structured metadata.

A label set comes from the message (its headers) and, for kernel and journal kinds, the level as
`priority`; ids that a line merely mentions (a job id in slurmctld.log) never become labels, since they
would make a stream of almost every line. Which labels of a message are shown is decided when it is read
(flows.steps.budgets) and goes with its rows as column `labels`, so a record that is held keeps its labels.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

Labels = tuple[tuple[str, str], ...]

# Envelope columns that cut streams; `owner_job` becomes the label `job_id`, `priority` is added per record.
LABELS = ("cluster", "namespace", "pod", "container", "node", "app", "team", "owner_job", "unit", "job")
WITH_PRIORITY = frozenset({"kmsg", "dmesg", "journal"})


class Labelled(NamedTuple):
    """What the records of one message show: sorted (name, value) pairs.

    `shown` are labels, `demoted` structured metadata; the level goes to the former as `priority` where
    `priority` is true. `over` names the labels that are demoted for want of room, `owner` whom it is due to;
    `place` is the (topic, partition) of the message.
    """

    shown: Labels
    demoted: Labels = ()
    priority: bool = True
    over: tuple[str, ...] = ()
    owner: str = ""
    place: tuple[str, int] = ("", -1)
    tenant: str = ""


def label_pairs(envelope: Mapping[str, str | None], cluster: str) -> Labels:
    """All labels of a message but `priority`, sorted by name; empty values are left out."""
    pairs = [("job_id" if name == "owner_job" else name, value) for name in LABELS if (value := envelope.get(name))]
    if cluster and not envelope.get("cluster"):
        pairs.append(("cluster", cluster))
    return tuple(sorted(pairs))


@dataclass(slots=True)
class LabelSets:
    """Label sets of one part, numbered as they are met: what is shown, and what is demoted."""

    kind: str
    labelled: list[Labelled] = field(default_factory=list)  # what the column `labels` indexes
    numbers: dict[tuple[Labels, Labels], int] = field(default_factory=dict)
    over: Counter[Labelled] = field(default_factory=Counter)  # records of which labels found no room

    def number(self, labelled: Labelled, level: str | None, records: int = 1) -> int:
        """The number of the label set of one record, or of some that are alike."""
        shown, demoted = labelled.shown, labelled.demoted
        if level and self.kind in WITH_PRIORITY:
            if labelled.priority:
                shown = tuple(sorted((*shown, ("priority", level))))
            else:
                demoted = tuple(sorted((*demoted, ("priority", level))))
        if labelled.over:
            self.over[labelled] += records
        return self.numbers.setdefault((shown, demoted), len(self.numbers))

    def column(self, labels: pa.Array, level: pa.Array | None) -> pa.Array:
        """The numbers (int32) of whole columns: `labels` (int32) indexes `labelled`."""
        index = labels.to_numpy().astype(np.int64)
        levels: list[str | None] = [None]
        if level is not None and self.kind in WITH_PRIORITY:
            levels += level.dictionary.to_pylist()
            index *= len(levels)
            index += level.indices.fill_null(-1).to_numpy() + np.int64(1)
        pairs, inverse = distinct(index)
        numbers = [
            self.number(self.labelled[pair // len(levels)], levels[pair % len(levels)], records)
            for pair, records in zip(pairs.tolist(), np.bincount(inverse).tolist(), strict=True)
        ]
        return pa.array(np.array(numbers, dtype=np.int32)[inverse])

    @property
    def streams(self) -> list[Labels]:
        """The labels of each number."""
        return [shown for shown, _ in self.numbers]

    @property
    def demoted(self) -> list[Labels]:
        """The demoted pairs of each number; empty when none has any."""
        pairs = [demoted for _, demoted in self.numbers]
        return pairs if any(pairs) else []


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
