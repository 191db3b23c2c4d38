"""Alertmanager, API v2: every alert to every replica, again and again while it fires.

`startsAt` never moves while an alert lasts. `endsAt` lies a few minutes ahead and moves with every sending, so
that an alert whose sender has died resolves by itself; a resolved one is repeated with its true end for a while.
"""

from pathlib import Path

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sinks.alert_senders import Alert, Outcome, Pace, Senders, Told
from sinks.base import DeadLetterWriter
from sinks.errors import Misconfigured, RetryLater
from sinks.http import Endpoint
from sinks.lane import Backoff

_API = "/api/v2/alerts"
PART = "alerts"

State = tuple[Told, ...]


class AlertmanagerConfig(BaseModel):
    """Prometheus Alertmanager: all its replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: tuple[str, ...] = Field(
        ("http://127.0.0.1:9093",),
        min_length=1,
        description=f"Address of every replica, not of a balancer before them; {_API} is added.",
    )
    username: str | None = Field(None, description="User of basic authentication; needs password_file.")
    password_file: Path | None = Field(None, description="File that holds the password of basic authentication.")
    token_file: Path | None = Field(None, description="File that holds a bearer token; read again for every request.")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Further headers; a value env:NAME or file:PATH is looked up, so that no secret stands here.",
    )
    ca_file: Path | None = Field(None, description="PEM bundle that the server's certificate is checked against.")
    timeout_s: float = Field(5.0, gt=0, description="Longest wait for an answer.")
    resend_s: float = Field(60.0, gt=0, description="Seconds between sendings of an alert that fires.")
    lifetime_s: float = Field(
        240.0, gt=0, description="How long an alert goes on when it is not sent again: endsAt is so far ahead."
    )
    repeat_resolved_s: float = Field(300.0, ge=0, description="How long a resolved alert is sent again.")
    max_alerts_per_request: int = Field(200, ge=1, description="Alerts of one request.")
    barrier_s: float = Field(
        0.5, ge=0, description="Longest wait for answers at an epoch's end; what is missing then is told later."
    )
    retry_base_s: float = Field(0.25, gt=0, description="Delay before the first retry; doubled for each further one.")
    retry_max_s: float = Field(15.0, gt=0, description="Longest delay between retries.")

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            scheme, _, rest = url.partition("://")
            host = rest.partition("/")[0]
            if scheme not in ("http", "https") or not host:
                raise ValueError("must look like http://alertmanager:9093 or https://…")
            if "@" in host:
                raise ValueError("must not contain a password; use username and password_file")
        if len(set(urls)) < len(urls):
            raise ValueError("names a replica twice")
        return tuple(url if url.endswith(_API) else url.rstrip("/") + _API for url in urls)

    @model_validator(mode="after")
    def _consistent(self) -> "AlertmanagerConfig":
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file go together: set both or none")
        if self.token_file and self.username:
            raise ValueError("token_file and username exclude each other: keep one")
        if self.lifetime_s < 2 * self.resend_s:
            raise ValueError("lifetime_s must be at least twice resend_s, or one lost request resolves alerts")
        return self

    def endpoint(self, url: str) -> Endpoint:
        """Connections to one replica. Raises Misconfigured for a secret or CA file that cannot be read."""
        return Endpoint(
            url,
            headers={"Content-Type": "application/json", "User-Agent": "tailrace", **self.headers},
            basic=(self.username, f"file:{self.password_file}") if self.username else None,
            token=f"file:{self.token_file}" if self.token_file else None,
            ca_file=self.ca_file,
            connections=1,
            timeout_s=self.timeout_s,
        )


class AlertmanagerSink(FixedPartitionedSink[Alert, State]):
    """Takes (any key, Alert). At least once; state: the alerts that fire, and those resolved a moment ago.

    Nothing waits for a replica that is away: what it has not taken is in the state, and told again after a
    restart. `outcome` is told of each request, from other threads.
    """

    def __init__(self, config: AlertmanagerConfig, dead: DeadLetterWriter, outcome: Outcome) -> None:
        self._config, self._dead, self._outcome = config, dead, outcome

    def list_parts(self) -> list[str]:
        return [PART]

    def part_fn(self, item_key: str) -> int:  # noqa: ARG002 - Bytewax's signature
        return 0

    def build_part(self, step_id: str, for_part: str, resume_state: State | None) -> "AlertmanagerPart":  # noqa: ARG002 - Bytewax's signature
        config = self._config
        senders = Senders(
            [(url, config.endpoint(url)) for url in config.urls],
            Pace(config.resend_s, config.lifetime_s, config.repeat_resolved_s, config.max_alerts_per_request),
            Backoff(config.retry_base_s, config.retry_max_s),
            self._dead,
            self._outcome,
            resume_state or (),
        )
        return AlertmanagerPart(senders, config.barrier_s)

    def check(self) -> None:
        """Raise Misconfigured unless one replica at least answers and none refuses us. Sends no alert."""
        down: dict[str, RetryLater] = {}
        for url in self._config.urls:
            endpoint = self._config.endpoint(url)
            try:
                answer = endpoint.post(b"[]")
            except RetryLater as error:
                down[url] = error
                continue
            finally:
                endpoint.close()
            if answer.status != 200 and answer.status < 500:
                raise Misconfigured(
                    f"sinks.alertmanager: {url} answers {answer.status} to an empty list: {answer.text[:200]}; "
                    "check urls and credentials"
                )
        if len(down) == len(self._config.urls):
            said = "; ".join(str(error) for error in down.values())
            raise Misconfigured(f"sinks.alertmanager: {said}; check urls, ca_file and the network") from next(
                iter(down.values())
            )


class AlertmanagerPart(StatefulSinkPartition[Alert, State]):
    """All alerts of a process."""

    def __init__(self, senders: Senders, barrier_s: float) -> None:
        self._senders, self._barrier_s = senders, barrier_s

    def write_batch(self, values: list[Alert]) -> None:
        """Hand over; the senders begin at once."""
        for alert in values:
            self._senders.put(alert)

    def snapshot(self) -> State:
        return self._senders.settle(self._barrier_s)

    def close(self) -> None:
        self._senders.close()
