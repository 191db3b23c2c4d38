"""One request to the Logs Ingestion API, and what to do with its answer. Only 204 is success."""

import gzip
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import NamedTuple

from sinks.azure_rows import Row
from sinks.base import MAX_DEAD_BYTES, DeadLetter, DeadLetterWriter, Gap, Partition
from sinks.errors import RetryLater
from sinks.lane import Result

# Answers that pass. 401 and 403 too: a role takes up to 30 minutes to hold, and a person may have to grant it first.
_AGAIN = {401, 403, 404, 408, 429, 500, 502, 503, 504}
_PERSON = {401, 403, 404}


class Reply(NamedTuple):
    """Status of an answer, its text and its Retry-After in seconds; status 0 where there was none."""

    status: int
    text: str
    after_s: float | None = None


Post = Callable[[str, bytes], Reply]


@dataclass(frozen=True, slots=True)
class Desk:
    """What all requests of a part share. `post` sends gzip bytes to a stream."""

    post: Post
    dead: DeadLetterWriter
    pause_s: float


@dataclass
class Upload:
    """Rows of one stream. Meets lane.Task."""

    desk: Desk
    stream: str
    rows: list[Row]

    @cached_property
    def size(self) -> int:
        return sum(len(row.data) + 200 for row in self.rows)

    @cached_property
    def claim(self) -> Sequence[Gap]:
        gaps: dict[Partition, Gap] = {}
        for row in self.rows:
            known = gaps.get(row.place) or Gap(*row.place, row.offset, row.offset, 0)
            gaps[row.place] = Gap(
                *row.place, min(known.first, row.offset), max(known.last, row.offset), known.lines + row.owned
            )
        return list(gaps.values())

    def run(self) -> Result:
        """Send; split what is too large or refused, until a single row is left, which becomes a dead letter."""
        reply = self.desk.post(self.stream, gzip.compress(self.body(), 1))
        if reply.status == 204:
            return Result({"delivered": self._lines()})
        if reply.status in _AGAIN or reply.status == 0 or reply.status >= 500 or 200 <= reply.status < 400:
            pause = self.desk.pause_s if reply.status in _PERSON else reply.after_s
            raise RetryLater(
                f"Azure answers {reply.status} for {self.stream}: {reply.text[:200]}{_advice(reply)}", pause
            )
        if len(self.rows) > 1:
            middle = len(self.rows) // 2
            halves = self.rows[:middle], self.rows[middle:]
            return Result({}, [Upload(self.desk, self.stream, half) for half in halves])
        row = self.rows[0]
        reason = "too_large" if reply.status == 413 else "rejected_azure"
        detail = f"Azure answers {reply.status} for {self.stream}: {reply.text[:500]}"
        raw = row.data[:MAX_DEAD_BYTES]
        self.desk.dead.write([DeadLetter(*row.place, row.offset, row.line, row.owned, reason, detail, raw)])
        return Result({"dead": self._lines()})

    def body(self) -> bytes:
        """The JSON array that is sent."""
        return b"[" + b",".join(row.data for row in self.rows) + b"]"

    def _lines(self) -> Counter[Partition]:
        return Counter({(gap.topic, gap.partition): gap.lines for gap in self.claim})


def _advice(reply: Reply) -> str:
    if reply.status in (401, 403):
        return (
            "; give the identity the role Monitoring Metrics Publisher on the rule, which may take 30 minutes to hold"
        )
    return "; check rule_id and the rule's streams" if reply.status == 404 else ""


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header asks for: a number or an HTTP date (RFC 9110 §10.2.3)."""
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max((when - (now or datetime.now(UTC))).total_seconds(), 0.0)
