"""One HTTP endpoint: pooled connections, TLS, authentication by reference. Judges no answer."""

import base64
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import urllib3

from sinks.errors import Misconfigured, RetryLater

_MAX_ANSWER = 64 * 1024


class Answer(NamedTuple):
    """Status and the first 64 KiB of the body as text."""

    status: int
    text: str


def secret(reference: str, what: str) -> str:
    """The value of `env:NAME` or `file:PATH`; any other text stands for itself. Raises Misconfigured."""
    scheme, _, place = reference.partition(":")
    if scheme == "env":
        if place not in os.environ:
            raise Misconfigured(f"{what}: the environment variable {place} is not set; set it, or change {what}")
        return os.environ[place]
    if scheme == "file":
        try:
            return Path(place).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise Misconfigured(f"{what}: cannot read {place}: {error}; check the path and its permissions") from error
    return reference


class Endpoint:
    """POSTs to one URL from up to `connections` threads, without redirects or retries of its own.

    `headers` are references as `secret` takes them, looked up for every request, so that a rotated
    secret needs no restart. `basic` is (user name, password reference), `token` a reference. Raises
    Misconfigured for a reference or CA file that cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        basic: tuple[str, str] | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        connections: int = 4,
        timeout_s: float = 10.0,
    ) -> None:
        if ca_file is not None:
            try:
                ssl.create_default_context(cafile=ca_file)
            except OSError as error:  # ssl.SSLError is one
                said = error.strerror or error
                raise Misconfigured(
                    f"ca_file: {ca_file} cannot be read: {said}; give the PEM bundle of the server's authority"
                ) from error
        self._url = url
        self._headers = dict(headers)
        self._basic = basic
        self._token = token
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=connections,
            retries=False,
            timeout=urllib3.Timeout(connect=min(5.0, timeout_s), read=timeout_s),
            ca_certs=str(ca_file) if ca_file else None,
        )
        self._lookup()

    def _lookup(self) -> dict[str, str]:
        found = {name: secret(value, f"header {name}") for name, value in self._headers.items()}
        if self._basic:
            user, password = self._basic
            pair = f"{user}:{secret(password, 'password')}".encode()
            found["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if self._token:
            found["Authorization"] = f"Bearer {secret(self._token, 'token')}"
        return found

    def post(self, body: bytes) -> Answer:
        """Send and return the answer. Raises RetryLater when there was none, or a secret cannot be read now."""
        try:
            response = self._pool.request(
                "POST", self._url, body=body, headers=self._lookup(), redirect=False, preload_content=False
            )
            try:
                text = response.read(_MAX_ANSWER).decode(errors="replace")
                response.drain_conn()
            finally:
                response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RetryLater(f"no answer from {self._url}: {error}") from error
        except Misconfigured as error:
            raise RetryLater(str(error)) from error
        return Answer(response.status, text.strip())

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()
