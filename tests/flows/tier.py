"""`tailrace run` as an operator meets it: a configuration file, a process, its log, its exit status, its stores."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.services.kafka import Kafka

WAIT_S = 60.0  # what a test may wait for a process; it never does unless it is about to fail
ROOT = Path(__file__).parents[2]
HERE = {"PYTHONPATH": str(ROOT)}  # these sources, whatever is installed
COMMAND = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main())"]

Values = Mapping[str, Any]

_STARTING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def toml(values: Values) -> str:
    """A configuration as TOML; its sections are inline tables."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in values.items())


def _key(key: str) -> str:
    return json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def tailrace(*arguments: str, environment: Values | None = None) -> "subprocess.CompletedProcess[str]":
    """A command run to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **HERE, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


class Tier:
    """A process of the tier or of another command. A context manager: it is killed at the end if it still runs."""

    def __init__(self, home: Path, config: Values, environment: Values | None = None, command: str = "run") -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.config, self.log = home, home / "tailrace.toml", home / "log"
        self.config.write_text(toml(config))
        self._command, self.arguments = command, list[str]()
        self._environment = {**os.environ, **HERE, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Tier":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def start(self) -> "Tier":
        """Start it, or start it again."""
        with self.log.open("ab") as log, (self.home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*COMMAND, self._command, "--config", str(self.config), *self.arguments],
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
            )
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def drain(self) -> int:
        """SIGTERM, and its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; fails when the process ends before."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"waited in vain:\n{self.tail()}"
            time.sleep(0.05)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under an event's name, over all starts."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    @property
    def ledger(self) -> dict[str, Any]:
        """The ledger that the latest run ended with."""
        ledger: dict[str, Any] = self.events("ended")[-1]["ledger"]
        return ledger

    @property
    def address(self) -> str:
        """Where it serves HTTP, once it does."""
        self.until(lambda: bool(self.events("serving /metrics, /healthz and /readyz")))
        return str(self.events("serving /metrics, /healthz and /readyz")[-1]["address"])


def assert_balanced(ledger: Mapping[str, Any]) -> None:
    """Every line that was read is accounted for, by the pipeline and by each sink."""
    known = ledger["kept"] + sum(ledger["dropped"].values()) + ledger["dead"] + ledger["held"]
    assert ledger["read"] == known, ledger
    assert ledger["unbalanced"] == 0, ledger
    for name, sink in ledger["sinks"].items():
        assert sink["difference"] == 0, (name, ledger)
        assert sink["offered"] == sum(lines for fate, lines in sink.items() if fate not in ("offered", "difference"))


def rows(archive: Path, directory: str) -> list[dict[str, Any]]:
    """Rows of all objects below a directory of a local archive; `ts` in ns, which no datetime holds."""
    found = []
    for path in sorted((archive / directory).rglob("*.parquet")):
        table = pq.ParquetFile(path).read()
        if "ts" in table.column_names:
            at = table.schema.get_field_index("ts")
            table = table.set_column(at, "ts", table["ts"].cast(pa.int64()))
        found += table.to_pylist()
    return found


def committed(kafka: Kafka, group: str, *places: tuple[str, int]) -> list[int]:
    """Offsets of a consumer group; negative where it has none."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            try:
                found = consumer.committed([TopicPartition(*place) for place in places], WAIT_S)
                return [place.offset for place in found]
            except KafkaException as error:  # the broker has only begun to look after this group
                if error.args[0].code() not in _STARTING or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    finally:
        consumer.close()
