"""The HTTP server of one process: /metrics, /healthz and /readyz, without authentication, so on loopback by default."""

import errno
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sinks.errors import Misconfigured

Reason = Callable[[], str | None]


def check(host: str, port: int) -> None:
    """Raise Misconfigured unless the address can be listened on."""
    _listen(host, port, BaseHTTPRequestHandler).server_close()


def serve(host: str, port: int, registry: CollectorRegistry, stuck: Reason, not_ready: Reason) -> ThreadingHTTPServer:
    """Serve /metrics, /healthz and /readyz until the process ends.

    `stuck` and `not_ready` give the reason for a 503 of /healthz and /readyz, or None. Raises Misconfigured
    when the address cannot be listened on.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a client that says nothing keeps no thread

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
            elif self.path == "/healthz":
                self._judge("healthy", stuck())
            elif self.path == "/readyz":
                self._judge("ready", not_ready())
            else:
                self._answer(404, b"known paths: /metrics /healthz /readyz\n", "text/plain")

        def _judge(self, name: str, reason: str | None) -> None:
            body = json.dumps({name: reason is None, "reason": reason}).encode() + b"\n"
            self._answer(200 if reason is None else 503, body, "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no events."""

    server = _listen(host, port, Handler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _listen(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        known = {errno.EADDRINUSE: "something listens there already; end it, or change http.port"}
        advice = known.get(error.errno or 0, "set http.host to an address of this machine, or change http.port")
        raise Misconfigured(f"http: cannot listen on {host}:{port}: {error.strerror}; {advice}") from error
    server.daemon_threads = True
    return server
