"""Stores that take Loki pushes: VictoriaLogs, Grafana Loki (containers only), and the strict receiver.

`LokiStore` is what tests see of each: where to push, and what came.
"""

import contextlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import urllib3

from flows.demo.loki_receiver import Receiver
from tests.services.docker import container, engine_answers
from tests.services.install import VICTORIALOGS, VICTORIALOGS_VERSION
from tests.services.process import accepts, free_port, running, scratch
from tests.services.table import Unavailable, choose, needs_docker

WANTED = f"VictoriaLogs {VICTORIALOGS_VERSION}"
VICTORIALOGS_ADDRESS = "TAILRACE_TEST_VICTORIALOGS"  # http(s)://host:port
VICTORIALOGS_IMAGE = f"victoriametrics/victoria-logs:{VICTORIALOGS_VERSION}"
LOKI_ADDRESS = "TAILRACE_TEST_LOKI"
LOKI_IMAGE = "grafana/loki:3.7.6"

_http = urllib3.PoolManager(timeout=30, retries=False)


class Stored(NamedTuple):
    """One line as the store shows it; `fields` are labels and structured metadata together."""

    ts: int  # ns since 1970
    line: str
    fields: dict[str, str]


class LokiStore(Protocol):
    """Takes pushes at `url` + /loki/api/v1/push."""

    name: str
    used: str
    real: bool
    url: str

    def lines(self, expected: int = 0, wait_s: float = 20.0, **labels: str) -> Sequence[Stored]:
        """Lines whose labels include `labels`, by time.

        Asks again until `expected` came or `wait_s` are over, since stores show new lines late; more than
        `expected` are returned as well.
        """
        ...


def _get(url: str, **parameters: str) -> bytes:
    answer = _http.request("GET", url, fields=parameters)
    if answer.status != 200:
        raise RuntimeError(f"{url} answered {answer.status}: {answer.data[:300]!r}")
    return answer.data


class _Queried(ABC):
    """A store that is asked over HTTP."""

    def __init__(self, name: str, url: str, base: str, used: str) -> None:
        self.name, self.url, self.used, self.real, self._base = name, url, used, True, base

    def lines(self, expected: int = 0, wait_s: float = 20.0, **labels: str) -> Sequence[Stored]:
        deadline = time.monotonic() + wait_s
        while True:
            found = sorted(self._query(labels), key=lambda stored: stored.ts)
            if len(found) >= expected or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    @abstractmethod
    def _query(self, labels: dict[str, str]) -> list[Stored]: ...


def _selector(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


class VictoriaLogs(_Queried):
    """Answers 204 to nearly everything and takes lines of any age; strictness is the receiver's part."""

    def __init__(self, base: str, used: str) -> None:
        super().__init__("victorialogs", f"{base}/insert", base, used)

    def _query(self, labels: dict[str, str]) -> list[Stored]:
        _get(f"{self._base}/internal/force_flush")
        body = _get(
            f"{self._base}/select/logsql/query", query=_selector(labels), limit="0", start="0", end="2200-01-01Z"
        )
        return [self._row(json.loads(line)) for line in body.splitlines()]

    @staticmethod
    def _row(row: dict[str, str]) -> Stored:
        fields = {name: value for name, value in row.items() if not name.startswith("_")}
        return Stored(_nanoseconds(row["_time"]), row.get("_msg", ""), fields)


def _nanoseconds(text: str) -> int:
    """RFC 3339 in UTC with up to nine digits of fraction."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int(f"{fraction:0<9}")


class GrafanaLoki(_Queried):
    """Shows what came within the last week."""

    def __init__(self, base: str, used: str) -> None:
        super().__init__("loki", base, base, used)

    def _query(self, labels: dict[str, str]) -> list[Stored]:
        now = time.time_ns()
        span = {"start": str(now - 8 * 86400 * 10**9), "end": str(now + 900 * 10**9), "limit": "5000"}
        body = json.loads(_get(f"{self._base}/loki/api/v1/query_range", query=_selector(labels), **span))
        streams: list[dict[str, Any]] = body["data"]["result"]
        return [Stored(int(value[0]), value[1], stream["stream"]) for stream in streams for value in stream["values"]]


class ReceiverStore:
    """The strict receiver in this process, seen as a store."""

    name, real = "victorialogs", False

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self.url, self.used = receiver, receiver.url, f"strict receiver (substitute), {receiver.url}"

    def lines(self, expected: int = 0, wait_s: float = 20.0, **labels: str) -> Sequence[Stored]:
        return [Stored(e.ts, e.line, e.labels | e.metadata) for e in self._receiver.entries(**labels)]


@contextlib.contextmanager
def _victorialogs_from_environment() -> Iterator[LokiStore]:
    if not (address := os.environ.get(VICTORIALOGS_ADDRESS)):
        raise Unavailable(f"{VICTORIALOGS_ADDRESS} is not set")
    yield VictoriaLogs(address.rstrip("/"), f"{VICTORIALOGS_ADDRESS}={address}")


# Tests push lines of any year, and JSON lines that must stay whole.
_OPTIONS = ["-retentionPeriod=100y", "-futureRetention=100y", "-loki.disableMessageParsing"]


@contextlib.contextmanager
def _victorialogs_in_docker() -> Iterator[LokiStore]:
    """The image victoriametrics/victoria-logs. Not exercised on machines without Docker."""
    with container(VICTORIALOGS_IMAGE, 9428, _healthy, command=lambda _: _OPTIONS) as port:
        yield VictoriaLogs(f"http://127.0.0.1:{port}", f"container {VICTORIALOGS_IMAGE}, 127.0.0.1:{port}")


@contextlib.contextmanager
def _victorialogs_native() -> Iterator[LokiStore]:
    if not VICTORIALOGS.is_file():
        raise Unavailable(f"no VictoriaLogs in {VICTORIALOGS}")
    with scratch("victorialogs") as home:
        port = free_port()
        where = [
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={home / 'data'}",
            "-memory.allowedBytes=256MiB",
        ]
        with running("victorialogs", [VICTORIALOGS, *where, *_OPTIONS], lambda: _healthy(port), cwd=home):
            yield VictoriaLogs(f"http://127.0.0.1:{port}", f"native {WANTED}, 127.0.0.1:{port}")


def _healthy(port: int, path: str = "/health") -> bool:
    if not accepts(port):
        return False
    try:
        return bool(_http.request("GET", f"http://127.0.0.1:{port}{path}").status == 200)
    except urllib3.exceptions.HTTPError:
        return False


@contextlib.contextmanager
def _receiver() -> Iterator[LokiStore]:
    with Receiver() as receiver:
        yield ReceiverStore(receiver)


def victorialogs() -> contextlib.AbstractContextManager[LokiStore]:
    ways = [_victorialogs_from_environment, _victorialogs_in_docker, _victorialogs_native]
    return choose(WANTED, ways, _receiver)


@contextlib.contextmanager
def _loki_from_environment() -> Iterator[LokiStore]:
    if not (address := os.environ.get(LOKI_ADDRESS)):
        raise Unavailable(f"{LOKI_ADDRESS} is not set")
    yield GrafanaLoki(address.rstrip("/"), f"{LOKI_ADDRESS}={address}")


@contextlib.contextmanager
def _loki_in_docker() -> Iterator[LokiStore]:
    """The image grafana/loki with its own configuration. Not exercised on machines without Docker."""
    with container(LOKI_IMAGE, 3100, lambda port: _healthy(port, "/ready")) as port:
        yield GrafanaLoki(f"http://127.0.0.1:{port}", f"container {LOKI_IMAGE}, 127.0.0.1:{port}")


def loki() -> contextlib.AbstractContextManager[LokiStore]:
    """Grafana Loki; skips the test where there is neither an address nor Docker."""
    if not os.environ.get(LOKI_ADDRESS) and not engine_answers():
        needs_docker("loki", LOKI_IMAGE, f"no Docker engine answers and {LOKI_ADDRESS} is not set")
    return choose(LOKI_IMAGE, [_loki_from_environment, _loki_in_docker], _receiver)
