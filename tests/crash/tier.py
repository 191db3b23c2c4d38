"""The tier under test: processes of `tailrace run`, and `tailrace alerts`; killed, drained and started again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TAILRACE = Path(sys.executable).parent / "tailrace"
_LOOK_S = 0.02


@dataclass(slots=True)
class Process:
    """One process of the layout over all its lives. `statuses`: exit status of each life that has ended."""

    number: int
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    statuses: list[int] = field(default_factory=list)
    running: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(
                self.command, env=dict(self.environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def events(self) -> list[dict[str, Any]]:
        """Its own log, of all lives. A line that a kill cut, or that is none of ours, is left out."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


class Tier:
    """Starts a process again as soon as it has ended, unless it is told to stay down. A context manager.

    One process per port; each serves its metrics there. The evaluator is one more, number `evaluator`.
    """

    def __init__(self, config: Path, ports: Sequence[int], environment: Mapping[str, str], home: Path) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._down: set[int] = set()
        self.processes = [
            Process(
                number,
                [str(TAILRACE), "run", "--config", str(config)],
                {
                    **os.environ,
                    **environment,
                    "TAILRACE_TIER__PROCESS": str(number),
                    "TAILRACE_HTTP__PORT": str(port),
                    "TAILRACE_RECOVERY__DIR": str(home / f"recovery-{number}"),
                },
                home / f"tier-{number}.log",
            )
            for number, port in enumerate(ports)
        ]
        self.evaluator = len(self.processes)
        alone = {"TAILRACE_ALERTS__RECOVERY__DIR": str(home / "recovery-alerts")}
        command = [str(TAILRACE), "alerts", "--config", str(config)]
        self.all = [
            *self.processes,
            Process(self.evaluator, command, {**os.environ, **environment, **alone}, home / "alerts.log"),
        ]
        self._watch = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def __enter__(self) -> "Tier":
        for process in self.all:
            process.start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        for process in self.all:
            if process.running is not None:
                process.running.kill()
                process.running.wait()

    def kill(self, number: int) -> bool:
        """SIGKILL; False when the process was not running."""
        with self._lock:
            running = self.all[number].running
            if running is None or running.poll() is not None:
                return False
            running.send_signal(signal.SIGKILL)
            running.wait()
            return True

    def drain(self, number: int, patience_s: float) -> int:
        """SIGTERM, and the exit status; the process stays down until `revive`."""
        with self._lock:
            self._down.add(number)
            running = self.all[number].running
        assert running is not None
        running.terminate()
        status = running.wait(patience_s)
        with self._lock:
            self.all[number].statuses.append(status)
            self.all[number].running = None
        return status

    def revive(self, number: int) -> None:
        with self._lock:
            self.all[number].start()
            self._down.discard(number)

    def _supervise(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock:
                for process in self.all:
                    if process.number in self._down or process.running is None:
                        continue
                    status = process.running.poll()
                    if status is not None:
                        process.statuses.append(status)
                        process.start()


def wait_for(what: str, true: Any, patience_s: float, pause_s: float = 0.1) -> Any:
    """The first true answer of `true()`. Raises TimeoutError with `what` after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not (answer := true()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(pause_s)
    return answer
