"""Alertmanager with a webhook that records its notifications, and promtool.

Alertmanager is that of the environment, in Docker, native (Debian's package), or the demo's receiver as the
substitute, which notifies nobody.
"""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from flows.demo.alertmanager_receiver import AlertmanagerReceiver
from tests.services.docker import container
from tests.services.install import ALERTMANAGER, PROMTOOL
from tests.services.process import accepts, free_port, running, scratch
from tests.services.table import Row, Unavailable, choose, rows

WANTED = "Alertmanager 0.25 or newer"
ADDRESS = "TAILRACE_TEST_ALERTMANAGER"  # http(s)://host:port; it must notify the webhook below
HOOK_ADDRESS = "TAILRACE_TEST_ALERTMANAGER_HOOK"  # port of 127.0.0.1 for the webhook of that server
IMAGE = "prom/alertmanager:v0.28.1"

_http = urllib3.PoolManager(timeout=10, retries=False)


@dataclass(slots=True)
class Pages:
    """The webhook receiver: every notification with the time it came."""

    port: int
    notifications: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def of(self, **labels: str) -> list[tuple[float, str, dict[str, Any]]]:
        """(time, firing or resolved, alert) of every notified alert whose labels include `labels`, as they came."""
        return [
            (at, alert["status"], alert)
            for at, notification in list(self.notifications)
            for alert in notification["alerts"]
            if labels.items() <= alert["labels"].items()
        ]


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Answers at `url`. It is shared by the whole run: give alerts a label of their own."""

    url: str
    used: str
    pages: Pages
    real: bool = True
    name: str = "alertmanager"

    def alerts(self, **labels: str) -> list[dict[str, Any]]:
        """The alerts that fire now and whose labels include `labels`."""
        answer = _http.request("GET", f"{self.url}/api/v2/alerts")
        found: list[dict[str, Any]] = json.loads(answer.data)
        return [alert for alert in found if labels.items() <= alert["labels"].items()]

    def until(self, condition: Callable[[], bool], wait_s: float = 30.0) -> None:
        """Wait for a condition, or fail."""
        deadline = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {wait_s:g} s in vain"
            time.sleep(0.02)


@contextlib.contextmanager
def _pages(port: int = 0) -> Iterator[Pages]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            pages.notifications.append((time.time(), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    pages = Pages(server.server_address[1])
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()


def _configuration(home: Path, pages: Pages) -> Path:
    """Every label set is a group of its own, told within a moment."""
    path = home / "alertmanager.yml"
    path.write_text(
        "route: {receiver: test, group_by: ['...'], group_wait: 50ms, group_interval: 100ms, repeat_interval: 1h}\n"
        "receivers:\n- name: test\n"
        f"  webhook_configs: [{{url: 'http://127.0.0.1:{pages.port}/', send_resolved: true}}]\n"
    )
    return path


def _ready(port: int) -> bool:
    if not accepts(port):
        return False
    try:
        return bool(_http.request("GET", f"http://127.0.0.1:{port}/-/ready").status == 200)
    except urllib3.exceptions.HTTPError:
        return False


@contextlib.contextmanager
def from_environment() -> Iterator[Alertmanager]:
    if not (address := os.environ.get(ADDRESS)):
        raise Unavailable(f"{ADDRESS} is not set")
    with _pages(int(os.environ.get(HOOK_ADDRESS, "19094"))) as pages:
        yield Alertmanager(address.rstrip("/"), f"{ADDRESS}={address}", pages)


@contextlib.contextmanager
def in_docker() -> Iterator[Alertmanager]:
    """The image prom/alertmanager. Not exercised on machines without Docker."""
    with scratch("alertmanager") as home, _pages() as pages:
        where = "/etc/alertmanager/alertmanager.yml"
        with container(
            IMAGE,
            9093,
            _ready,
            command=lambda port: [f"--config.file={where}", *_listening(port)],
            files={where: _configuration(home, pages)},
            host_network=True,
        ) as port:
            yield Alertmanager(f"http://127.0.0.1:{port}", f"container {IMAGE}, 127.0.0.1:{port}", pages)


@contextlib.contextmanager
def native(port: int | None = None) -> Iterator[Alertmanager]:
    """A server of its own, on `port` if given; forgets everything when it stops. May be started several times."""
    if (program := _program(ALERTMANAGER)) is None:
        raise Unavailable(f"no Alertmanager in {ALERTMANAGER}")
    with scratch("alertmanager") as home, _pages() as pages:
        port = port or free_port()
        command: list[str | Path] = [
            program,
            f"--config.file={_configuration(home, pages)}",
            f"--storage.path={home / 'data'}",
        ]
        with running("alertmanager", [*command, *_listening(port)], lambda: _ready(port), cwd=home, stop_s=2.0):
            yield Alertmanager(f"http://127.0.0.1:{port}", f"native Alertmanager, 127.0.0.1:{port}", pages)


def _listening(port: int) -> list[str]:
    return [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]


@contextlib.contextmanager
def receiver() -> Iterator[Alertmanager]:
    with AlertmanagerReceiver() as taking:
        yield Alertmanager(taking.url, f"demo receiver (substitute), {taking.url}", Pages(0), real=False)


def alertmanager() -> contextlib.AbstractContextManager[Alertmanager]:
    return choose(WANTED, [from_environment, in_docker, native], receiver)


def promtool() -> Path:
    """The program; skips the test where it is not installed."""
    program = _program(PROMTOOL)
    rows.append(Row("promtool", str(program or "none"), "promtool of Prometheus 2.42 or newer"))
    if program is None:
        # Nothing stands in for it; with TAILRACE_REQUIRE_REAL=1 the report makes this a failure.
        pytest.skip(f"no promtool in {PROMTOOL}: run `make services`")
    return program


def check_metrics(program: Path, text: bytes) -> str:
    """What `promtool check metrics` has to say against metrics; empty when nothing."""
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, timeout=30, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    return said if done.returncode or said else ""


def _program(unpacked: Path) -> Path | None:
    """The unpacked program, else the machine's own."""
    if unpacked.is_file():
        return unpacked
    found = shutil.which(unpacked.name) or shutil.which(unpacked.name.removeprefix("prometheus-"))
    return Path(found) if found else None
