"""The HTTP endpoint authenticates by reference, checks certificates, and tells what is wrong."""

import datetime
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sinks.errors import Misconfigured, RetryLater
from sinks.http import Endpoint


class Handler(BaseHTTPRequestHandler):
    """Answers 418 with the Authorization and X-Key headers and the body it got."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = "|".join(
            (self.headers.get("Authorization", ""), self.headers.get("X-Key", ""), body.decode())
        ).encode()
        self.send_response(418)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...


def serving(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def plain() -> Iterator[str]:
    yield from serving(HTTPServer(("127.0.0.1", 0), Handler))


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """A server with a certificate of its own, which is in `ca.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (tmp_path / "ca.pem").write_bytes(certificate.public_bytes(encoding))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    yield from serving(server)


def test_secrets_are_looked_up_and_a_rotated_one_needs_no_restart(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv("KEY", "k1")
    endpoint = Endpoint(f"http://{plain}", headers={"X-Key": "env:KEY"}, token=f"file:{token}")
    assert endpoint.post(b"x") == (418, "Bearer first|k1|x")
    token.write_text("second\n")
    assert endpoint.post(b"x") == (418, "Bearer second|k1|x")
    token.unlink()
    with pytest.raises(RetryLater, match="cannot read"):
        endpoint.post(b"x")


def test_basic_authentication_takes_any_characters(plain: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pä:ß\n", encoding="utf-8")
    endpoint = Endpoint(f"http://{plain}", headers={}, basic=("user", f"file:{tmp_path}/password"))
    assert endpoint.post(b"").text == "Basic dXNlcjpww6Q6w58=||"  # user:pä:ß


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token": "file:/nowhere/token"}, "token: cannot read /nowhere/token.*check the path"),
        ({"headers": {"X-Key": "env:TAILRACE_NOT_SET"}}, "header X-Key: the environment variable TAILRACE_NOT_SET"),
        ({"ca_file": Path("/nowhere/ca.pem")}, "ca_file: /nowhere/ca.pem cannot be read: No such file.*PEM bundle"),
    ],
)
def test_what_cannot_be_read_at_the_start_is_a_wrong_configuration(settings: dict[str, object], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        Endpoint("http://127.0.0.1:1", **{"headers": {}, **settings})  # type: ignore[arg-type]


def test_a_certificate_is_checked_against_the_given_authority(secured: str, tmp_path: Path) -> None:
    known = Endpoint(f"https://{secured}", headers={}, ca_file=tmp_path / "ca.pem")
    assert known.post(b"x") == (418, "||x")
    with pytest.raises(RetryLater, match="CERTIFICATE_VERIFY_FAILED"):
        Endpoint(f"https://{secured}", headers={}).post(b"x")


def test_a_server_that_is_not_there_is_worth_another_try() -> None:
    with pytest.raises(RetryLater, match=r"no answer from http://127\.0\.0\.1:1: "):
        Endpoint("http://127.0.0.1:1", headers={}).post(b"x")
