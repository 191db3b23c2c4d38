"""A small Alertmanager for the demo and for tests: takes alerts as strictly as the real one, and tells what it took.

It checks what Alertmanager 0.25 checks (api/v2/api.go `postAlertsHandler`, `model.Alert.Validate`), keeps
the latest state of each label set, and has no routes, silences or notifications.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_PATH = "/api/v2/alerts"

Labels = tuple[tuple[str, str], ...]
Answers = Callable[[list[dict[str, Any]]], int | None]


@dataclass(slots=True)
class AlertmanagerReceiver:
    """Listens on a free port of 127.0.0.1 while used as a context manager.

    `answers`, when set, is asked about each POST: a status is sent instead of taking it, None takes it.
    """

    answers: Answers | None = None
    posts: list[tuple[float, list[dict[str, Any]]]] = field(default_factory=list)  # (time.time() of arrival, body)
    _latest: dict[Labels, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> "AlertmanagerReceiver":
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(*receiver._take(self.path, body))

            def do_GET(self) -> None:
                if self.path == _PATH:
                    self._answer(200, json.dumps(receiver.alerts()))
                else:
                    self._answer(200 if self.path == "/-/ready" else 404, "{}")

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """The demo prints what it shows itself."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="alertmanager", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None  # noqa: S101 - entered before
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Address without a path."""
        assert self._server is not None  # noqa: S101 - entered before
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire now, as GET /api/v2/alerts gives them."""
        now = datetime.now(UTC)
        with self._lock:
            latest = list(self._latest.values())
        return [alert for alert in latest if _time(alert["endsAt"]) > now]

    def _take(self, path: str, body: bytes) -> tuple[int, str]:
        if path != _PATH:
            return 404, '{"code":404,"message":"path was not found"}'
        alerts = json.loads(body)
        with self._lock:
            self.posts.append((time.time(), alerts))
        if self.answers and (status := self.answers(alerts)) is not None:
            return status, '"as the test wishes"'
        wrong = {number: said for number, alert in enumerate(alerts) if (said := _fault(alert))}
        with self._lock:
            for number, alert in enumerate(alerts):
                if number not in wrong:
                    self._latest[tuple(sorted(alert["labels"].items()))] = alert
        return (400, json.dumps("; ".join(wrong.values()))) if wrong else (200, "")


def _fault(alert: dict[str, Any]) -> str | None:
    labels = {name: value for name, value in alert.get("labels", {}).items() if value}
    if not labels:
        return "at least one label pair required"
    for name in (*labels, *alert.get("annotations", {})):
        if not _NAME.fullmatch(name):
            return f'invalid name "{name}"'
    if _time(alert["endsAt"]) < _time(alert["startsAt"]):
        return "start time must be before end time"
    return None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
