"""One push request, and what to do with Loki's answer to it.

A line counts as delivered only by a 204 on a request in which nothing can hide: Loki answers a request
of several streams for the last one only, so whatever goes wrong with several streams is tried again with
fewer. Repeats are harmless: content is identical, and Loki shows an entry of the same stream, time and
text once. Answers are those of Loki 3.7.6 and 3.8 (`pkg/distributor`, `pkg/ingester` in grafana/loki).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sinks.base import MAX_DEAD_BYTES, DeadLetter, DeadLetterWriter, Gap, Partition
from sinks.errors import RetryLater
from sinks.http import Answer
from sinks.lane import Result
from sinks.loki_limits import REPLAY, Limits
from sinks.loki_push import Block, Rows, body

_ATTEMPTS_BEFORE_SPLIT = 3
_SMALLEST_BURST = (
    1 << 16
)  # bytes; below it a refusal for rate means that too much comes, not that a request is too large


class Verdict(Enum):
    """What an answer means for the entries of its request."""

    DELIVERED = auto()
    LATER = auto()  # the same again
    PAUSED = auto()  # the same again, but a person has to act first
    SPLIT = auto()  # never as it is, perhaps in pieces
    STREAM = auto()  # never: the stream itself is refused
    LATE = auto()  # some entries are too far behind the newest of their stream
    ENTRIES = auto()  # some entries are refused


# (status, text in the body, meaning): the first that fits counts.
_ANSWERS = (
    (500, "larger than max", Verdict.SPLIT),  # gRPC limit of 4 MiB decoded; nothing kept, the same again never passes
    (500, "label name is empty", Verdict.SPLIT),  # name of structured metadata; likewise
    (500, "normalization for label name", Verdict.SPLIT),
    (400, "message size too large", Verdict.SPLIT),
    (400, "couldn't parse labels", Verdict.STREAM),
    (400, "label names; limit", Verdict.STREAM),
    (400, "label name too long", Verdict.STREAM),
    (400, "label value too long", Verdict.STREAM),
    (400, "duplicate label name", Verdict.STREAM),
    (400, "mime:", Verdict.PAUSED),  # something on the way changes the request: not the entries' fault
    (400, "snappy:", Verdict.PAUSED),
    (400, "gzip:", Verdict.PAUSED),
    (400, "Content-Encoding", Verdict.PAUSED),
    (400, "tenant ID", Verdict.PAUSED),
    (400, "multiple org IDs", Verdict.PAUSED),
    (400, "missing required labels", Verdict.PAUSED),
    (400, "allow_structured_metadata", Verdict.PAUSED),
    (400, "entry too far behind", Verdict.LATE),
)


def judge(answer: Answer) -> Verdict:
    """The meaning of an answer. Any 2xx but 204 is a failure: a blocked tenant gets 260."""
    status = answer.status
    for known, text, verdict in _ANSWERS:
        if status == known and text in answer.text:
            return verdict
    if status == 204:
        return Verdict.DELIVERED
    if status == 413:
        return Verdict.SPLIT
    if status in (400, 422):
        return Verdict.ENTRIES
    return Verdict.LATER if status in (408, 425, 429) or status >= 500 else Verdict.PAUSED


@dataclass(frozen=True, slots=True)
class Store:
    """What all requests of a part share. `places` gives the (topic, partition) of ROW's `place`."""

    post: Callable[[bytes], Answer]
    dead: DeadLetterWriter
    places: Sequence[Partition]
    limits: Limits
    pause_s: float

    def claim(self, all_rows: Sequence[Rows]) -> list[Gap]:
        """The lines that some rows answer for, by partition."""
        gaps: dict[int, Gap] = {}
        for rows in all_rows:
            for place in np.unique(rows["place"]):
                own = rows[rows["place"] == place]
                topic, partition = self.places[place]
                first, last, lines = int(own["offset"].min()), int(own["offset"].max()), int(own["owned"].sum())
                known = gaps.get(place, Gap(topic, partition, first, last, 0))
                gaps[place] = Gap(topic, partition, min(first, known.first), max(last, known.last), lines + known.lines)
        return list(gaps.values())

    def lines(self, all_rows: Sequence[Rows]) -> dict[Partition, int]:
        """Physical lines by partition."""
        return {(gap.topic, gap.partition): gap.lines for gap in self.claim(all_rows)}


@dataclass
class Burial:
    """Entries that Loki will never take, on their way to the dead letters. Meets lane.Task."""

    store: Store
    letters: list[DeadLetter]

    @cached_property
    def size(self) -> int:
        return sum(len(letter.raw) + 256 for letter in self.letters)

    @cached_property
    def claim(self) -> list[Gap]:
        return [Gap(one.topic, one.partition, one.offset, one.offset, one.lines) for one in self.letters]

    def run(self) -> Result:
        self.store.dead.write(self.letters)
        lines: dict[Partition, int] = {}
        for one in self.letters:
            lines[one.topic, one.partition] = lines.get((one.topic, one.partition), 0) + one.lines
        return Result({"dead": lines})


@dataclass
class Request:
    """A push request of one or more streams, at least one entry each. Meets lane.Task."""

    store: Store
    blocks: list[Block]
    attempts: int = 0

    @cached_property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @cached_property
    def claim(self) -> list[Gap]:
        return self.store.claim([block.rows for block in self.blocks])

    def run(self) -> Result:
        """Send it once; raise RetryLater, or say what became of the lines and what is still to send."""
        answer = self.store.post(body([(self.store.limits.text(block.labels), block) for block in self.blocks]))
        verdict = judge(answer)
        if verdict is Verdict.DELIVERED:
            return Result({"delivered": self.store.lines([block.rows for block in self.blocks])})
        if verdict is Verdict.PAUSED:
            raise RetryLater(f"Loki refuses the tier, see to it: {_brief(answer)}", self.store.pause_s)
        if verdict is Verdict.LATER:
            return self._later(answer)
        if verdict is Verdict.SPLIT or len(self.blocks) > 1:
            return self._split(answer)
        if verdict is Verdict.STREAM:
            return self._bury(self.blocks[0], answer)
        return self._part_with(self.blocks[0], answer, late=verdict is Verdict.LATE)

    def _later(self, answer: Answer) -> Result:
        """The same again; but in pieces if it may be larger than the tenant's burst, or could hide a loss."""
        self.attempts += 1
        if answer.status == 429 and self._entries > 1:
            if "ingestion rate limit" in answer.text:
                if self.attempts >= _ATTEMPTS_BEFORE_SPLIT and self.size > _SMALLEST_BURST:
                    return self._split(answer)
            elif len(self.blocks) > 1:  # limit of a stream, or of their number
                return self._split(answer)
        raise RetryLater(_brief(answer))

    @property
    def _entries(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    def _split(self, answer: Answer) -> Result:
        """Two requests in place of this one; a single entry that is refused becomes a dead letter."""
        block = self.blocks[0]
        if (middle := len(self.blocks) // 2) > 0:
            halves = [self.blocks[:middle], self.blocks[middle:]]
        elif (middle := len(block.rows) // 2) > 0:
            halves = [[block.part(0, middle)], [block.part(middle, len(block.rows))]]
        else:
            return self._bury(block, answer)
        return Result({}, [Request(self.store, half) for half in halves])

    def _part_with(self, block: Block, answer: Answer, late: bool) -> Result:
        """Take out the entries that the answer tells apart, and send the rest again to hear of it alone."""
        refused = _late(block, answer.text) if late else _named(block, answer.text)
        count = int(np.count_nonzero(refused))
        if not count or (late and REPLAY in block.labels):
            return self._split(answer)
        bad, good = _take(block, refused), _take(block, ~refused)
        more: list[Request | Burial] = [Request(self.store, [good])] if len(good.rows) else []
        if late:
            more.append(Request(self.store, [bad._replace(labels=tuple(sorted((*block.labels, REPLAY))))]))
        else:
            more.append(Burial(self.store, self._letters(bad, answer)))
        return Result({}, more)

    def _bury(self, block: Block, answer: Answer) -> Result:
        return Result({}, [Burial(self.store, self._letters(block, answer))])

    def _letters(self, block: Block, answer: Answer) -> list[DeadLetter]:
        detail, places = _brief(answer), self.store.places
        return [
            DeadLetter(
                places[row["place"]][0],
                places[row["place"]][1],
                int(row["offset"]),
                int(row["line"]),
                int(row["owned"]),
                "rejected_loki",
                detail,
                block.line(i)[:MAX_DEAD_BYTES],
            )
            for i, row in enumerate(block.rows)
        ]


def _take(block: Block, mask: npt.NDArray[np.bool_]) -> Block:
    """The entries where `mask` is true."""
    ends = np.cumsum(block.rows["size"], dtype=np.int64)
    starts = ends - block.rows["size"]
    data = b"".join(block.data[starts[i] : ends[i]] for i in np.flatnonzero(mask))
    return Block(block.labels, data, block.rows[mask])


_COUNT = re.compile(r"total ignored: (\d+) out of (\d+)")
_OLDEST = re.compile(r"oldest acceptable timestamp is: (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_LONGEST = re.compile(r"max entry size '(\d+)' bytes exceeded")


def _late(block: Block, text: str) -> npt.NDArray[np.bool_]:
    """Entries that were too far behind. Entries are in order of time, so it is the first ones that were.

    The limit is printed in whole seconds; the count, where it is of the whole stream, is exact.
    """
    count = _COUNT.search(text)
    if count and int(count[2]) == len(block.rows):
        first: npt.NDArray[np.bool_] = np.arange(len(block.rows)) < int(count[1])
        return first
    limits = [_ns(found) for found in _OLDEST.findall(text)]
    return _before(block, max(limits) + 1_000_000_000 if limits else 0)


def _named(block: Block, text: str) -> npt.NDArray[np.bool_]:
    """Entries that the answer tells apart by a limit on length or age; none if it names no such limit."""
    refused = _before(block, max((_ns(found) for found in _OLDEST.findall(text)), default=0))
    if longest := _LONGEST.search(text):
        refused |= block.rows["length"] > int(longest[1])
    return refused


def _before(block: Block, ns: int) -> npt.NDArray[np.bool_]:
    before: npt.NDArray[np.bool_] = block.rows["ts"] < ns
    return before


def _ns(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp()) * 1_000_000_000


def _brief(answer: Answer) -> str:
    """For logs and dead letters: one line, bounded; Loki's own text can be 30 KB."""
    text = " ".join(answer.text.split())
    return f"status {answer.status}: {text[:300]}{'…' if len(text) > 300 else ''}"
