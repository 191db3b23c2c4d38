"""A receiver in a process of its own, so that its CPU can be stated apart from the tier's."""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self

from flows.demo.loki_limits import MB, Limits
from flows.demo.loki_receiver import Receiver
from flows.demo.loki_store import Count, Numbers, by_regex

# As a Loki that was set up for bulk: every other limit stays.
BULK: Final = Limits(
    ingestion_rate_bytes=10_000 * MB,
    ingestion_burst_bytes=10_000 * MB,
    per_stream_rate_bytes=10_000 * MB,
    per_stream_burst_bytes=10_000 * MB,
    max_global_streams_per_user=200_000,
)
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the receiver saw until now. `missing` counts the numbers below the `total` that was asked for.

    A receiver that knows what was sent also tells `changed`, lines that are not as sent, and `unmeant`, answers
    that no sound sender gets.
    """

    lines: int
    streams: int
    missing: int
    repeated: int
    foreign: int
    answers: Mapping[int, int]
    problems: tuple[str, ...]
    cpu_s: float
    changed: int = 0
    unmeant: int = 0


class ReceiverApart:
    """A context manager: `url` takes pushes, `report(total)` tells what came.

    `serve(pipe, *arguments)` is the process: it sends the address, then a Report for every total it gets.
    """

    def __init__(self, serve: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self._theirs, *arguments), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()  # else neither end would see that the other is gone
        if not self._pipe.poll(START_SECONDS):
            self._process.kill()
            raise RuntimeError(f"the Loki receiver did not start within {START_SECONDS:.0f} s")
        self.url = self._pipe.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()  # it ends when it reads nothing more
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def report(self, total: int | None = None) -> Report:
        """Raises EOFError when the receiver has died."""
        self._pipe.send(total)
        report: Report = self._pipe.recv()
        return report


def strict(pattern: str, capacity: int, limits: Limits = BULK) -> ReceiverApart:
    """The strict receiver, which counts lines and checks their numbers.

    `pattern` (RE2, one group) finds the number in each line; numbers run from 0 to `capacity` - 1.
    """
    return ReceiverApart(_serve, pattern, capacity, limits)


def _serve(pipe: Connection, pattern: str, capacity: int, limits: Limits) -> None:
    numbers = Numbers(capacity, by_regex(pattern))
    with Receiver(limits=limits, store=Count(numbers)) as receiver:
        pipe.send(receiver.url)
        while True:
            try:
                total = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            pipe.send(
                Report(
                    lines=receiver.lines,
                    streams=len(receiver.streams()),
                    missing=len(numbers.missing(total)),
                    repeated=numbers.repeated,
                    foreign=numbers.foreign,
                    answers=dict(receiver.answers),
                    problems=tuple(receiver.problems),
                    cpu_s=time.process_time(),
                )
            )
