"""What the tier hands to the evaluator: partials and clocks, in one process or over the topic of partials.

On the topic a message is a partial (`flows.detect.events`) or the clock of a source partition,
`{"v": 1, "clock": ms, "topic": …, "partition": …}`. The key is the source partition, so that a clock never
overtakes the partials before it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from flows.batch import Chunk
from flows.detect.events import VERSION, Partial, partial_from_json
from sinks.base import MAX_DEAD_BYTES, DeadLetter, Partition
from sinks.kafka_topic import Message


class Findings(NamedTuple):
    """`clocks`: ms since the epoch by source partition. `dead`: messages of the topic that are neither."""

    partials: Sequence[Partial]
    clocks: Mapping[Partition, int]
    dead: Sequence[DeadLetter] = ()


def messages(findings: Findings) -> Iterator[Message]:
    """The messages of findings."""
    for partial in findings.partials:
        yield Message(_key(partial.source), partial.to_json())
    for source, clock in findings.clocks.items():
        told = {"v": VERSION, "clock": clock, "topic": source[0], "partition": source[1]}
        yield Message(_key(source), orjson.dumps(told))


def from_chunk(chunk: Chunk) -> Findings:
    """What the messages of a chunk say. Of a source's clocks in one chunk the last holds."""
    partials: list[Partial] = []
    clocks: dict[Partition, int] = {}
    dead: list[DeadLetter] = []
    for at, value in enumerate(chunk.values):
        try:
            read = orjson.loads(value or b"")
            if isinstance(read, dict) and "clock" in read:
                clocks[str(read["topic"]), int(read["partition"])] = int(read["clock"])
            else:
                partials.append(partial_from_json(value or b""))
        except (ValueError, KeyError, TypeError) as error:
            topic, place = chunk.topics[int(chunk.topic[at])], (int(chunk.partition[at]), int(chunk.offset[at]))
            raw = (value or b"")[:MAX_DEAD_BYTES]
            dead.append(DeadLetter(topic, *place, 0, 1, "bad_partial", str(error)[:200], raw))
    return Findings(partials, clocks, dead)


def joined(findings: Iterable[Findings]) -> Findings:
    """Findings in their order as one."""
    partials: list[Partial] = []
    clocks: dict[Partition, int] = {}
    dead: list[DeadLetter] = []
    for one in findings:
        partials += one.partials
        clocks.update(one.clocks)
        dead += one.dead
    return Findings(partials, clocks, dead)


def _key(source: Partition) -> bytes:
    return f"{source[0]}/{source[1]}".encode()
