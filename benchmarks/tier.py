"""One `tailrace run` process under measurement."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from benchmarks.generate import PARTITIONS, Topics
from benchmarks.observe import cpu_s, peak_rss_mib, threads_cpu_s
from tests.flows.tier import COMMAND, HERE, toml
from tests.services.kafka import Kafka

POLL_S = 0.1
_START_S = 60.0
_DRAIN_S = 120.0


class TierProcess:
    """A context manager; the process is killed at the end if it still runs. `home` must be empty: no recovery store."""

    def __init__(self, home: Path, config: dict[str, Any]) -> None:
        home.mkdir(parents=True)
        self._home, self._log = home, home / "log"
        (home / "tailrace.toml").write_text(toml(config))
        self.started_at = 0.0  # s since the epoch: its log's event `started`, before it connects to anything
        self.started_cpu_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*COMMAND, "run", "--config", "tailrace.toml"],
                cwd=self._home,
                env={name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")} | HERE,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_for(lambda: bool(self.events("started")), _START_S, 0.01)
        self.started_at, self.started_cpu_s = time.time(), self.cpu_s()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the tier has not been started; use `with`")
        return self._process

    def wait_for(self, condition: Callable[[], bool], seconds: float, poll_s: float = POLL_S) -> None:
        """Raises RuntimeError with the end of the log when the process ends or takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the tier ended or took more than {seconds:.0f} s; its log ends:\n{self._tail()}")
            time.sleep(poll_s)

    def drain(self) -> dict[str, Any]:
        """SIGTERM; returns the ledger it ends with."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(_DRAIN_S)
        if status:
            raise RuntimeError(
                f"the tier ended with status {status}:\n{self._log.read_text(errors='replace')[-4_000:]}"
            )
        ledger: dict[str, Any] = self.events("ended")[-1]["ledger"]
        return ledger

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under the name of an event."""
        lines = self._log.read_text(errors="replace").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == name]

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def threads(self) -> dict[str, float]:
        return threads_cpu_s(self.process.pid)

    def peak_rss_mib(self) -> float:
        return peak_rss_mib(self.process.pid)


class Lag:
    """Messages of a set of topics that a group has not committed yet."""

    def __init__(self, kafka: Kafka, group: str, topics: Topics) -> None:
        self._consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
        self._places = [TopicPartition(name, part) for name in topics.names.values() for part in range(PARTITIONS)]
        self._messages = topics.messages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._consumer.close()

    def __call__(self) -> int:
        try:
            found = self._consumer.committed(self._places, timeout=10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return self._messages  # the broker is still taking over the group
        return self._messages - sum(max(place.offset, 0) for place in found)
