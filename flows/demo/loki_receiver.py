"""A Loki that only takes pushes, and takes them as strictly as the real one: for the demo, tests and benchmarks.

Limits, statuses and texts are those of Grafana Loki 3.7 and the 3.8 line with the single binary's defaults. Left
out, because a push does not show them: queries, detected levels, stream shards, time sharding, and streams that
grow inactive. Listens on 127.0.0.1.
"""

import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

from flows.demo.loki_ingester import Answer, Tenant
from flows.demo.loki_limits import Limits
from flows.demo.loki_push import Refused
from flows.demo.loki_push_decode import decode
from flows.demo.loki_store import Count, Entry, KeepAll

PUSH_PATHS: Final = ("/loki/api/v1/push", "/api/prom/push")
TENANT_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!-_.*'()")
DEFAULT_LIMITS: Final = Limits()
PROBLEMS_KEPT: Final = 1000
PROBLEM_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Fault:
    """What one request gets instead of an honest answer: after `delay_s`, `status` and `text`, or a cut connection.

    With `stored` the entries are taken first, as when an answer is lost on its way. Status 0 without `drop`
    only delays.
    """

    status: int = 0
    text: str = ""
    delay_s: float = 0.0
    drop: bool = False
    stored: bool = False


class Receiver:
    """Use as a context manager, or start() and stop(). Thread-safe.

    `limits` hold for every tenant that `tenants` does not name; with `auth` the tenant is X-Scope-OrgID, else
    always `fake`. `clock` gives ns since 1970. `stop()` cuts open connections; `start()` again keeps port and state.
    """

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        tenants: Mapping[str, Limits] | None = None,
        auth: bool = False,
        store: KeepAll | Count | None = None,
        clock: Callable[[], int] = time.time_ns,
        port: int = 0,
    ) -> None:
        self.store: KeepAll | Count = KeepAll() if store is None else store
        self.answers: Counter[int] = Counter()  # by status, injected ones included; 0 is a cut connection
        self.body_bytes = 0
        self.problems: deque[str] = deque(maxlen=PROBLEMS_KEPT)  # answers other than 204, and losses behind a 204
        self.port = port
        self._limits, self._special, self._auth, self._clock = limits, dict(tenants or {}), auth, clock
        self._tenants: dict[str, Tenant] = {}
        self._lock = threading.Lock()
        self._faults: deque[Fault] = deque()
        self._flowing = threading.Event()
        self._flowing.set()
        self._server: _Server | None = None

    # --- reading back

    @property
    def url(self) -> str:
        """Base address; a push goes to /loki/api/v1/push below it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def lines(self) -> int:
        """Entries stored, of all tenants."""
        return self.store.lines

    def streams(self, tenant: str = "fake") -> dict[tuple[tuple[str, str], ...], int]:
        """Number of entries by label set (sorted pairs)."""
        with self._lock:
            return self.store.counts(tenant)

    def entries(self, tenant: str = "fake", **labels: str) -> list[Entry]:
        """Entries of the streams that carry all of `labels`, by time. Needs a store that keeps them."""
        if not isinstance(self.store, KeepAll):
            raise TypeError("this receiver only counts; give it store=KeepAll()")
        with self._lock:
            return self.store.entries(tenant, labels)

    # --- faults

    def fail_next(self, count: int, fault: Fault) -> None:
        """The next `count` pushes meet `fault`, after those already arranged."""
        with self._lock:
            self._faults.extend([fault] * count)

    def hang(self) -> None:
        """Every push waits, before anything of it is stored, until release()."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    # --- pushing

    def push(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Takes one push without HTTP, past faults and counters."""
        headers = {name.lower(): value for name, value in headers.items()}
        try:
            name = self._tenant_name(headers.get("x-scope-orgid", ""))
            streams = decode(headers, body)
            with self._lock:
                tenant = self._tenants.get(name)
                if tenant is None:
                    limits = self._special.get(name, self._limits)
                    tenant = self._tenants[name] = Tenant(name, limits, self.store, self._clock())
                answer = tenant.push(streams, self._clock())
                hidden, tenant.lost_silently = tenant.lost_silently, []
        except Refused as refused:
            answer, hidden = Answer(refused.status, refused.text), []
        self.problems.extend(f"lost without a word: {text[:PROBLEM_CHARACTERS]}" for text in hidden)
        return answer

    def _tenant_name(self, header: str) -> str:
        if not self._auth:
            return "fake"
        if not header:
            raise Refused(401, "no org id")
        if "|" in header:
            raise Refused(400, "multiple org IDs present")
        for character in header:
            if character not in TENANT_CHARACTERS:
                raise Refused(400, f"tenant ID '{header}' contains unsupported character '{character}'")
        if header in (".", ".."):
            raise Refused(400, "tenant ID is '.' or '..'")
        if len(header) > 150:
            raise Refused(400, "tenant ID is too long: max 150 characters")
        return header

    def _answer(self, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """What the handler sends; None cuts the connection."""
        self._flowing.wait()
        with self._lock:
            fault = self._faults.popleft() if self._faults else Fault()
            self.body_bytes += len(body)
        if fault.delay_s:
            time.sleep(fault.delay_s)
        honest = not fault.status and not fault.drop
        answer = self.push(headers, body) if honest or fault.stored else Answer(204)
        if not honest:
            answer = Answer(fault.status, fault.text)
        self._count(answer)
        return None if fault.drop else answer

    def _count(self, answer: Answer) -> None:
        with self._lock:
            self.answers[answer.status] += 1
            if answer.status != 204:
                self.problems.append(f"{answer.status} {answer.text[:PROBLEM_CHARACTERS]}")

    # --- the server

    def start(self) -> Self:
        self._server = _Server(self, self._limits.max_recv_msg_size)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="loki-receiver", daemon=True).start()
        return self

    def stop(self) -> None:
        """Ends the server; pushes under way lose their connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut_connections()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, receiver: Receiver, max_body: int) -> None:
        self.answer, self.count, self.max_body = receiver._answer, receiver._count, max_body
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", receiver.port), _Handler)

    def process_request(self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: object) -> None:
        if isinstance(request, socket.socket):
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: "socket.socket | tuple[bytes, socket.socket]") -> None:
        if isinstance(request, socket.socket):
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are no error of ours."""

    def cut_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is gone already


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        if self.path not in PUSH_PATHS:
            self._send(Answer(404, "404 page not found"))
            return
        answer = self.server.answer(dict(self.headers.items()), body)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._send(answer)

    def do_GET(self) -> None:
        if self.path in PUSH_PATHS:
            self._send(Answer(405))
        else:
            self._send(Answer(200, "ready") if self.path == "/ready" else Answer(404, "404 page not found"))

    def _body(self) -> bytes | None:
        """The request body, or None when there is none to answer: it was too large, which is answered here, or cut."""
        limit = self.server.max_body
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts, size = [], 0
            while size <= limit and (length := int(self.rfile.readline(64).split(b";")[0], 16)):
                parts.append(self.rfile.read(length))
                self.rfile.readline(8)
                size += length
            if size <= limit:
                while self.rfile.readline(65536).strip():
                    pass  # trailers
                return b"".join(parts)
        else:
            size = int(self.headers.get("Content-Length", 0))
            if size <= limit:
                body = self.rfile.read(size)
                return body if len(body) == size else None  # the client went away
        text = f"request body too large: message size too large than max ({size} vs {limit})"
        self.server.count(Answer(413, text))
        self.close_connection = True
        self._send(Answer(413, text))
        return None

    def _send(self, answer: Answer) -> None:
        body = f"{answer.text}\n".encode() if answer.text else b""
        head = [f"HTTP/1.1 {answer.status} {self.responses.get(answer.status, ('', ''))[0]}"]
        if answer.status != 204:
            head.append(f"Content-Length: {len(body)}")
        if body:
            head.append("Content-Type: text/plain; charset=utf-8")
        if self.close_connection:
            head.append("Connection: close")
        self.wfile.write("\r\n".join([*head, "", ""]).encode() + body)

    def log_message(self, *_: object) -> None:
        """One line per request would drown the demo."""
