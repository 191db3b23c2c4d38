"""A Loki that is cheap enough to share two cores with the tier: it decodes and checks all lines, and knows no limits.

Every push is unpacked and parsed whole by Google's protobuf. Of every line it checks that its number has not come
before, and that its text and its labels are those that were sent. What is wrong is counted, not refused. Pushes that
cannot be read are answered as Loki answers them, and only the first empty push, by which a tier sees that Loki is
there, is meant so.

Not checked, and left to the strict receiver of the tests (`flows.demo.loki_receiver`): Loki's limits, the times and
their order, structured metadata beyond its encoding, compressions and forms that the tier does not send.
"""

import asyncio
import time
from bisect import bisect_right
from collections import Counter, deque
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from benchmarks.content import Content, seed
from flows.demo.loki_apart import ReceiverApart, Report
from flows.demo.loki_ingester import Answer
from flows.demo.loki_push import Ints, Refused
from flows.demo.loki_push_decode import unsnap
from flows.demo.loki_push_protobuf import parse_labels
from flows.demo.loki_receiver import PROBLEM_CHARACTERS, PROBLEMS_KEPT
from flows.demo.loki_store import Numbers, by_regex
from tests.sinks.loki_pushes import PushRequest

_HEAD_BYTES: Final = 64 << 10  # largest head of a request; also what is read at once of a body
_KEEP_BYTES: Final = 30 << 20  # below M_MMAP_THRESHOLD_MAX of mallopt(3)
_REQUEST: Final = b"POST /loki/api/v1/push HTTP/1.1"
_PROTOBUF: Final = b"application/x-protobuf"
_NUMBER: Final = r"2(\d{9})"  # quicker than lines.NUMBER; digits that are no number would not fit the content
_NOTHING: Final = Answer(422, "error at least one valid stream is required for ingestion")


def checker(content: Content) -> ReceiverApart:
    """A receiver in a process of its own for the lines 0 to len(content) - 1; `content` as of benchmarks.content."""
    return ReceiverApart(_serve, content)


class Checks:
    """What came, and whether it is what was sent."""

    def __init__(self, content: Content) -> None:
        self.lines = self.changed = 0
        self.numbers = Numbers(len(content), by_regex(_NUMBER))
        self.answers: Counter[int] = Counter()
        self.problems: deque[str] = deque(maxlen=PROBLEMS_KEPT)
        self._content = content
        self.seeds: dict[bytes, int] = {}  # by label text

    def answer(self, head: bytes, body: bytes) -> Answer:
        """The answer to one request, counted."""
        try:
            answer = self._take(head, body)
        except Refused as refused:
            answer = Answer(refused.status, refused.text)
        self.answers[answer.status] += 1
        if answer.status != 204 and answer is not _NOTHING:
            self.problems.append(f"{answer.status} {answer.text[:PROBLEM_CHARACTERS]}")
        return answer

    def _take(self, head: bytes, body: bytes) -> Answer:
        if not head.startswith(_REQUEST) or _header(head, b"content-type") != _PROTOBUF:
            raise Refused(404, f"this receiver takes protobuf pushes only, not {head[:80]!r}")
        try:
            push = PushRequest.FromString(unsnap(body))
        except DecodeError as error:
            raise Refused(400, f"proto: PushRequest: {error}") from None
        lines: list[bytes] = []
        found: list[int] = []
        ends: list[int] = []  # of each stream in `lines`
        for stream in push.streams:
            text = stream.labels
            if (start := self.seeds.get(text)) is None:
                start = self.seeds[text] = seed(parse_labels(text))
            own = [entry.line for entry in stream.entries]
            lines += own
            ends.append(len(lines))
            found += map(crc32, own, repeat(start))
        if not push.streams:
            return _NOTHING
        for row in self._wrong(lines, np.array(found, np.uint32))[:PROBLEMS_KEPT].tolist():
            labels = push.streams[bisect_right(ends, row)].labels
            line = f"{lines[row][:PROBLEM_CHARACTERS]!r} under {labels.decode()}"
            self.problems.append(f"not as sent, or under other labels: {line}")
        return Answer(204)

    def _wrong(self, lines: list[bytes], found: Content) -> Ints:
        """Counts lines with these CRCs; returns the places of those that nobody sent."""
        numbers = self.numbers.add(pa.array(lines, pa.binary()))
        known = (numbers >= 0) & (numbers < len(self._content))
        wrong = known & (self._content[np.where(known, numbers, 0)] != found)
        self.lines += len(lines)
        self.changed += int(np.count_nonzero(wrong))
        return np.flatnonzero(wrong | ~known)

    def report(self, total: int | None) -> Report:
        return Report(
            lines=self.lines,
            streams=len(self.seeds),
            missing=len(self.numbers.missing(total)),
            repeated=self.numbers.repeated,
            foreign=self.numbers.foreign,
            answers=dict(self.answers),
            problems=tuple(self.problems),
            cpu_s=time.process_time(),
            changed=self.changed,
            unmeant=self.answers.total() - self.answers[204] - min(self.answers[422], 1),
        )


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header, empty where it is missing."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip()
    return b""


def _serve(pipe: Connection, content: Content) -> None:
    bytes(_KEEP_BYTES)  # freeing so much at once tells glibc to keep what is freed: no page faults with every push
    asyncio.run(_run(pipe, Checks(content)))


async def _run(pipe: Connection, checks: Checks) -> None:
    """Serves HTTP on 127.0.0.1, and reports to the pipe until its other end is closed."""
    ended = asyncio.Event()

    def tell() -> None:
        try:
            pipe.send(checks.report(pipe.recv()))
        except (EOFError, OSError):
            ended.set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(_header(head, b"content-length") or b"0"))
                answer = checks.answer(head, body)
                text = answer.text.encode()
                size = b"" if answer.status == 204 else b"Content-Length: %d\r\n" % len(text)
                writer.write(b"HTTP/1.1 %d -\r\n%s\r\n%s" % (answer.status, size, text))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the tier has closed the connection, or this receiver ends
        finally:
            writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(connected, "127.0.0.1", limit=_HEAD_BYTES) as server:
        loop.add_reader(pipe.fileno(), tell)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await ended.wait()
        loop.remove_reader(pipe.fileno())
