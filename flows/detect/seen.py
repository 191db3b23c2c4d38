"""Which records have been counted: exact for a while, by offset before that."""

from collections.abc import Iterable

from flows.detect.events import Partial, Run

_Part = tuple[str, int, int]  # rule, part, lines as the bits of a number
_Message = tuple[int, tuple[_Part, ...]]  # ms of the broker


class Seen:
    """Records of one source partition that were counted, by message.

    A message older than `repeat_ms` by its partition's clock, or one of more than `max_messages`, is forgotten;
    from then on every partial of it or of an earlier offset counts as a repeat. Kafka appends in the order of
    offsets, and a record is held for seconds, so that none comes for the first time so late.
    """

    __slots__ = ("_messages", "_upto")

    def __init__(self) -> None:
        self._messages: dict[int, _Message] = {}
        self._upto = -1  # offsets up to this one are forgotten

    def __len__(self) -> int:
        return len(self._messages)

    def fresh(self, partial: Partial) -> int:
        """How many of a partial's records were not counted yet; they are from now on."""
        if partial.offset <= self._upto:
            return 0
        appended_ms, parts = self._messages.get(partial.offset, (partial.appended_ms, ()))
        new = 0
        for part, bits in _bits(partial.records):
            before = next((old for rule, number, old in parts if (rule, number) == (partial.rule, part)), 0)
            if bits & ~before:
                new += (bits & ~before).bit_count()
                kept = tuple(old for old in parts if old[:2] != (partial.rule, part))
                parts = (*kept, (partial.rule, part, bits | before))
        self._messages[partial.offset] = (appended_ms, parts)
        return new

    def forget(self, before_ms: int, max_messages: int) -> int:
        """Forget old messages; returns how many went before their time, for want of room."""
        early = 0
        for offset, (appended_ms, _) in list(self._oldest(before_ms, max_messages)):
            del self._messages[offset]
            self._upto = max(self._upto, offset)
            early += appended_ms >= before_ms
        return early

    def _oldest(self, before_ms: int, max_messages: int) -> Iterable[tuple[int, _Message]]:
        surplus = len(self._messages) - max_messages
        for offset, message in self._messages.items():
            if message[0] >= before_ms and surplus <= 0:
                return
            surplus -= 1
            yield offset, message


def _bits(runs: Iterable[Run]) -> Iterable[tuple[int, int]]:
    """Runs as (part, bits)."""
    by_part: dict[int, int] = {}
    for line, part, count in runs:
        by_part[part] = by_part.get(part, 0) | ((1 << count) - 1) << line
    return by_part.items()
