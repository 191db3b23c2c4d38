"""Asks the budgets which labels the messages of a chunk show: once for each distinct envelope and partition."""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flows.batch import Chunk, Raw
from flows.steps.budgets import Budgets
from flows.steps.labels import LABELS, WITH_PRIORITY, Labelled, distinct
from flows.steps.reassemble import whole

_ASKED = (*LABELS, "tenant")
_COLUMN = pa.field("labels", pa.int32())


def label(chunk: Chunk, raws: Sequence[Raw], budgets: Budgets) -> list[Raw]:
    """The Raws of a chunk with `labelled`, and the column `labels` (int32) that indexes it.

    The budgets are asked in reading order over all kinds, so it does not matter how lines are grouped.
    """
    if len(chunk.values):
        budgets.tell_time(int(chunk.appended_ms.max()), chunk.now_ms)
    groups = [_Groups(chunk, raw) for raw in raws]
    asked = [(at, of, row) for of in groups for row, at in enumerate(of.first)]
    for _, of, row in sorted(asked, key=itemgetter(0)):
        of.labelled.append((row, budgets.decide(*of.question(row))))
    return [of.answered() for of in groups]


class _Groups:
    """The distinct (partition, envelope) of one Raw; `first` is the place in the chunk (message, line) of each.

    Rows of one message stand together, so columns are looked at where a message or an envelope begins.
    """

    def __init__(self, chunk: Chunk, raw: Raw) -> None:
        self._raw, self._topics = raw, chunk.topics
        self.labelled: list[tuple[int, Labelled]] = []
        offset, partition = (whole(raw.rows[name]).to_numpy() for name in ("offset", "partition"))
        topic, shared = whole(raw.rows["topic"]).indices.to_numpy(), whole(raw.rows["node"])
        envelope = shared.indices.to_numpy()  # one index for all columns of ENVELOPE
        changes = (np.diff(offset) != 0) | (np.diff(partition) != 0) | (np.diff(envelope) != 0)
        starts = np.flatnonzero(np.append(True, changes))
        self._lengths = np.diff(np.append(starts, len(offset)))
        span = int(chunk.partition.max()) + 1
        places, place = distinct(topic[starts].astype(np.int64) * span + partition[starts])
        width = len(shared.dictionary)
        groups, self._group = distinct(place * width + envelope[starts])
        first = np.empty(len(groups), dtype=np.int64)
        first[self._group[::-1]] = np.arange(len(starts))[::-1]
        self._topic, self._partition = np.divmod(places[groups // width], span)
        self._envelopes = list(zip(*(whole(raw.rows[name]).dictionary.to_pylist() for name in _ASKED), strict=True))
        self._envelope = groups % width
        rows = starts[first]
        message = _messages(chunk, self._topic, self._partition, offset[rows])
        line = whole(raw.rows["line"]).to_numpy()[rows]
        self.first = list(zip(message.tolist(), line.tolist(), strict=True))

    def question(self, row: int) -> tuple[tuple[str, int], tuple[str, ...], bool]:
        """The arguments of Budgets.decide."""
        place = (self._topics[self._topic[row]], int(self._partition[row]))
        return place, self._envelopes[self._envelope[row]], self._raw.kind in WITH_PRIORITY

    def answered(self) -> Raw:
        numbers = np.zeros(len(self.labelled), dtype=np.int32)
        for number, (row, _) in enumerate(self.labelled):
            numbers[row] = number
        column = pa.array(np.repeat(numbers[self._group], self._lengths))
        rows = self._raw.rows.append_column(_COLUMN, column)
        return Raw(self._raw.kind, self._raw.tz, rows, self._raw.streams, [labelled for _, labelled in self.labelled])


def _messages(
    chunk: Chunk, topic: npt.NDArray[np.int64], partition: npt.NDArray[np.int64], offset: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The places in the chunk of some messages."""
    found = np.zeros(len(offset), dtype=np.int64)
    for number, index in {*zip(topic.tolist(), partition.tolist(), strict=True)}:
        wanted = (topic == number) & (partition == index)
        messages = np.flatnonzero((chunk.topic == number) & (chunk.partition == index))
        found[wanted] = messages[np.searchsorted(chunk.offset[messages], offset[wanted])]
    return found
