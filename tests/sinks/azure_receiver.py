"""A Logs Ingestion API and its login, over TLS, as Microsoft's documents describe them.

From "Azure Monitor service limits" and "Logs Ingestion API in Azure Monitor" (learn.microsoft.com): 1 MiB a call, also
once it is decompressed; values above 64 KiB are cut; a body is a JSON array; 204 without a body is success; 403 while
the identity lacks the role; 404 for a rule or stream that is not there; 413 ContentLengthLimitExceeded; 429 with
Retry-After. TimeGenerated older than two days or more than a day ahead becomes the time of receipt.
"""

import gzip
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MAX_BODY = 1_048_576
MAX_VALUE = 65_536
TENANT = "11111111-2222-3333-4444-555555555555"
CLIENT = "66666666-7777-8888-9999-000000000000"
SECRET = "the-secret-of-the-client"
RULE = "dcr-0123456789abcdef0123456789abcdef"
_TOKEN = "a-token"


@dataclass(frozen=True)
class Fault:
    """What one upload gets: a status, `Retry-After`, a delay, or a cut connection (`stored`: after it)."""

    status: int = 0
    after: str = ""
    delay_s: float = 0.0
    drop: bool = False
    stored: bool = False


@dataclass
class Azure:
    """State of the service. `rows`: what it stored, by stream."""

    ca_file: Path
    streams: set[str] | None = None  # those of the rule; None: any
    faults: deque[Fault] = field(default_factory=deque)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # of requests, decompressed
    uploads: int = 0
    poison: str = ""  # a row with this text in it is refused, with its whole request
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def settings(self, **values: Any) -> dict[str, Any]:
        """A configuration of the sink that reaches this service; the secret is in AZURE_TEST_SECRET."""
        return {
            "endpoint": self.url,
            "rule_id": RULE,
            "identity": "secret",
            "tenant_id": TENANT,
            "client_id": CLIENT,
            "client_secret": "env:AZURE_TEST_SECRET",
            "authority": self.url,
            "ca_file": str(self.ca_file),
            **values,
        }

    def take(self, stream: str, body: bytes) -> tuple[int, str]:
        """Status and error code of an upload without faults."""
        if self.streams is not None and stream not in self.streams:
            return 404, "InvalidStream"
        if len(body) > MAX_BODY:
            return 413, "ContentLengthLimitExceeded"
        try:
            rows = json.loads(body)
        except ValueError:
            return 400, "InvalidPayload"
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return 400, "InvalidPayload"
        if self.poison and self.poison in body.decode():
            return 400, "InvalidRecord"
        self.sizes.append(len(body))
        self.rows.setdefault(stream, []).extend(map(_stored, rows))
        return 204, ""


def _stored(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it can be queried."""
    shown = {name: _cut(value) if isinstance(value, str) else value for name, value in row.items()}
    now = datetime.now(UTC)
    when = datetime.fromisoformat(row["TimeGenerated"])
    if not now - timedelta(days=2) <= when <= now + timedelta(days=1):
        shown["TimeGenerated"] = now.isoformat()
    return shown


def _cut(value: str) -> str:
    return value.encode()[:MAX_VALUE].decode(errors="replace")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Azure

    def do_GET(self) -> None:
        base = f"{self.service.url}/{TENANT}"
        known = {"authorization_endpoint": f"{base}/authorize", "token_endpoint": f"{base}/oauth2/v2.0/token"}
        self._answer(200, {**known, "issuer": f"{base}/v2.0", "tenant_discovery_endpoint": base})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = urlsplit(self.path)
        if place.path.endswith("/oauth2/v2.0/token"):
            said = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            if (said.get("client_id"), said.get("client_secret")) != (CLIENT, SECRET):
                self._answer(
                    401, {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret"}
                )
                return
            self._answer(200, {"access_token": _TOKEN, "token_type": "Bearer", "expires_in": 3600})
            return
        self._upload(place.path, body)

    def _upload(self, path: str, body: bytes) -> None:
        service = self.service
        with service.lock:
            service.uploads += 1
            fault = service.faults.popleft() if service.faults else Fault()
        time.sleep(fault.delay_s)
        if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            self._error(401, "InvalidToken")
            return
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        parts = path.split("/")
        if parts[1] != "dataCollectionRules" or parts[2] != RULE:
            self._error(404, "NotFound")
            return
        if fault.drop and not fault.stored:
            self.close_connection = True
            return
        if fault.status:
            self._error(fault.status, "Fault", fault.after)
            return
        with service.lock:
            status, code = service.take(parts[4], body)
        if fault.drop:
            self.close_connection = True
        elif status == 204:
            self.send_response(204)
            self.end_headers()
        else:
            self._error(status, code)

    def _error(self, status: int, code: str, after: str = "") -> None:
        self._answer(status, {"error": {"code": code, "message": f"said for {status}"}}, after)

    def _answer(self, status: int, body: Any, after: str = "") -> None:
        data = json.dumps(body).encode() if status != 204 else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if after:
            self.send_header("Retry-After", after)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def azure(directory: Path) -> Iterator[Azure]:
    """The service on a free port, with a certificate of its own."""
    service = Azure(directory / "azure.pem")
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(service.ca_file))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def _certificate(file: Path) -> Path:
    """A self-signed certificate of localhost at `file`, and its key beside it; returns both in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    file.write_bytes(pem)
    both = file.with_suffix(".both.pem")
    both.write_bytes(
        pem
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return both
