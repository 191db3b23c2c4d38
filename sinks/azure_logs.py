"""Azure Monitor Logs: the Logs Ingestion API by azure-monitor-ingestion, one table for each kind, at least once.

The client's own splitting counts neither brackets nor separators and sends what is too large, and its retries leave out
429 without Retry-After, 408, 502 and refused connections (azure-monitor-ingestion 1.1.0). So it is given whole requests
as streams of bytes, which it sends as they are, with its retries off; size, retries and bisecting are ours.
"""

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from bytewax.outputs import StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sinks.azure_answers import Desk, Post, Reply, Upload, retry_after
from sinks.azure_rows import COLUMNS, Profile, Row, json_rows, stream_of
from sinks.base import Account, DeadLetterWriter, Delivery, Gap, GapWriter, Site
from sinks.errors import Misconfigured, RetryLater
from sinks.http import secret
from sinks.lane import Backoff, Lane
from sinks.sharded import ShardedSink

_BRACKETS = 2


class AzureConfig(BaseModel):
    """Azure Monitor Logs by a data collection rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    endpoint: str = Field(description="Logs ingestion address of the data collection endpoint or rule, https://….")
    rule_id: str = Field(description="Immutable id of the data collection rule, dcr-….")
    profile: Profile = Field(
        "parsed",
        description="raw: tables and columns of slurm-log-collection; parsed: typed columns, EventTime, RecordId.",
    )
    streams: dict[str, str] = Field(
        default_factory=dict,
        description="Stream of the rule by kind, where it is not Custom-tailrace_KIND_CL (raw: …Text-KIND_raw_CL).",
    )
    identity: Literal["default", "managed", "workload", "secret"] = Field(
        "default", description="Whom Azure knows us as; default tries the others in the order of azure-identity."
    )
    tenant_id: str | None = Field(None, description="Tenant of the identity, for workload and secret.")
    client_id: str | None = Field(None, description="Client of a user-assigned, workload or secret identity.")
    client_secret: str | None = Field(None, description="Where the client's secret is: env:NAME or file:PATH.")
    authority: str | None = Field(None, description="Login address of another cloud, such as login.microsoftonline.us.")
    scope: str = Field(
        "https://monitor.azure.com/.default",
        description="Audience of the token; monitor.azure.us and monitor.azure.cn in those clouds.",
    )
    ca_file: Path | None = Field(None, description="PEM bundle that the servers' certificates are checked against.")
    timeout_s: float = Field(30.0, gt=0, description="Longest wait for an answer.")
    pool: int = Field(4, ge=1, le=64, description="Requests under way at once, over all shards of a process.")
    max_request_bytes: int = Field(
        1_000_000, ge=1 << 16, le=1_048_576, description="Largest request before compression; the service takes 1 MiB."
    )
    urgent_s: float = Field(1.0, ge=0, description="Longest wait of a row of an urgent kind before it is sent.")
    flush_s: float = Field(5.0, ge=0, description="Longest wait of other rows; an epoch's end sends all.")
    urgent_kinds: tuple[str, ...] = Field(
        ("alert", "kmsg", "dmesg", "fabric_manager", "dcgm"), description="Kinds whose rows are urgent."
    )
    barrier_s: float = Field(
        0.5, ge=0, description="Longest wait for acknowledgements at an epoch's end; what is missing then is a gap."
    )
    outage_s: float = Field(5.0, gt=0, description="So long without a delivery is an outage: full buffers become gaps.")
    retry_base_s: float = Field(0.5, gt=0, description="Delay before the first retry; doubled for each further one.")
    retry_max_s: float = Field(60.0, gt=0, description="Longest delay between retries.")
    pause_s: float = Field(30.0, gt=0, description="Delay before a retry where Azure refuses us, until a person acts.")
    max_buffer_bytes: int = Field(
        64 << 20, ge=1 << 20, description="Memory for rows that wait or are under way, over all shards of a process."
    )

    @field_validator("endpoint")
    @classmethod
    def _address(cls, endpoint: str) -> str:
        if not re.fullmatch(r"https://[^/@\s]+/?", endpoint):
            raise ValueError("must look like https://NAME.REGION-1.ingest.monitor.azure.com")
        return endpoint.rstrip("/")

    @field_validator("rule_id")
    @classmethod
    def _rule(cls, rule: str) -> str:
        if not re.fullmatch(r"dcr-[0-9a-f]{32}", rule):
            raise ValueError("must be the immutable id of the rule: dcr- and 32 hexadecimal digits")
        return rule

    @field_validator("client_secret")
    @classmethod
    def _reference(cls, reference: str | None) -> str | None:
        if reference is not None and not reference.startswith(("env:", "file:")):
            raise ValueError("must name where the secret is: env:NAME or file:PATH")
        return reference

    @model_validator(mode="after")
    def _whole(self) -> "AzureConfig":
        needed = {"secret": ("tenant_id", "client_id", "client_secret"), "workload": ("tenant_id", "client_id")}
        for name in needed.get(self.identity, ()):
            if getattr(self, name) is None:
                raise ValueError(f"identity {self.identity} needs {name}")
        return self


class AzureSink(ShardedSink[tuple[Gap, ...]]):
    """Azure Monitor Logs as a sink; its state is the gap list. Memory: `max_buffer_bytes` for all shards."""

    def __init__(
        self,
        config: AzureConfig,
        shards: Sequence[str],
        account: Account,
        dead: DeadLetterWriter,
        gaps: GapWriter | None = None,
    ) -> None:
        super().__init__(shards)
        self._config, self._account, self._dead, self._gaps = config, account, dead, gaps

    @classmethod
    def at(cls, config: AzureConfig, site: Site) -> "AzureSink":
        """The sink of a site; see sinks.registry."""
        return cls(config, site.shards, site.account, site.dead, site.gaps)

    def check(self) -> None:
        """Raise Misconfigured unless Azure gives us a token. Sends no row."""
        from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError

        try:
            credential(self._config).get_token(self._config.scope)
        except (ServiceRequestError, ServiceResponseError) as error:
            raise Misconfigured(f"sinks.azure: {error}; check authority and the network") from RetryLater(str(error))
        except AzureError as error:
            said = str(error).partition("\n")[0]
            raise Misconfigured(
                f"sinks.azure: Azure gives no token: {said}; check identity, tenant_id, client_id, secret, authority"
            ) from error

    def build_part(self, step_id: str, for_part: str, resume_state: tuple[Gap, ...] | None) -> "AzurePart":  # noqa: ARG002 - Bytewax's signature
        config, shards = self._config, len(self._shards)
        lane = Lane(
            f"azure-{for_part}",
            self._account,
            threads=max(1, config.pool // shards),
            max_bytes=config.max_buffer_bytes // shards,
            outage_s=config.outage_s,
            backoff=Backoff(config.retry_base_s, config.retry_max_s),
            gaps=resume_state or (),
        )
        desk = Desk(poster(config), self._dead, config.pause_s)
        return AzurePart(
            config, lane, desk, None if self._gaps is None else partial(self._gaps.publish, "azure", for_part)
        )


@dataclass(slots=True)
class _Table:
    """What waits for one stream."""

    rows: list[Row] = field(default_factory=list)
    size: int = _BRACKETS
    due: float = 0.0


class AzurePart(StatefulSinkPartition[Delivery, tuple[Gap, ...]]):
    """One shard: buffers by stream, cuts requests, hands them to the lane."""

    def __init__(
        self, config: AzureConfig, lane: Lane, desk: Desk, hand_over: Callable[[tuple[Gap, ...]], None] | None
    ) -> None:
        self._config, self._lane, self._desk, self._hand_over = config, lane, desk, hand_over
        self._waiting: dict[str, _Table] = {}

    def write_batch(self, values: list[Delivery]) -> None:
        """Buffer, and send what is large or old enough; blocks while the buffers are full."""
        for part in (part for delivery in values for part in delivery.parts):
            if part.rows.num_rows:
                wait = self._config.urgent_s if part.kind in self._config.urgent_kinds else self._config.flush_s
                stream = stream_of(part.kind, self._config.profile, self._config.streams)
                for row in json_rows(part.rows.select(COLUMNS), self._config.profile):
                    self._take(stream, row, monotonic() + wait)
        now = monotonic()
        for stream in [name for name, table in self._waiting.items() if table.due <= now]:
            self._send(stream)

    def snapshot(self) -> tuple[Gap, ...]:
        """Send all, wait for it up to the barrier, and return what is not acknowledged."""
        for stream in list(self._waiting):
            self._send(stream)
        return self._lane.checkpoint(self._config.barrier_s, self._hand_over)

    def close(self) -> None:
        """Stop the pool. Sends nothing."""
        self._lane.close()

    def _take(self, stream: str, row: Row, due: float) -> None:
        size = len(row.data) + 1  # and a comma
        table = self._waiting.get(stream)
        if table and table.size + size > self._config.max_request_bytes:
            self._send(stream)
            table = None
        if not self._lane.fits(size + 200):
            for other in list(self._waiting):
                self._send(other)  # only requests make room
            table = None
        self._lane.hold(size + 199)
        if table is None:
            table = self._waiting[stream] = _Table(due=due)
        table.rows.append(row)
        table.size += size
        table.due = min(table.due, due)

    def _send(self, stream: str) -> None:
        self._lane.submit(Upload(self._desk, stream, self._waiting.pop(stream).rows))


def credential(config: AzureConfig) -> Any:
    """The identity. Raises Misconfigured for a secret that cannot be read."""
    import azure.identity as identity

    options: dict[str, Any] = {}
    if config.authority:
        options["authority"] = config.authority
    if config.ca_file:
        options["connection_verify"] = str(config.ca_file)
    if config.identity == "managed":
        return identity.ManagedIdentityCredential(client_id=config.client_id)
    if config.identity == "workload":
        return identity.WorkloadIdentityCredential(tenant_id=config.tenant_id, client_id=config.client_id, **options)
    if config.identity == "secret":
        found = secret(config.client_secret or "", "sinks.azure.client_secret")
        options["disable_instance_discovery"] = config.authority is not None
        return identity.ClientSecretCredential(config.tenant_id or "", config.client_id or "", found, **options)
    return identity.DefaultAzureCredential(**options)


def poster(config: AzureConfig) -> Post:
    """Sends one request by the client of azure-monitor-ingestion, and tells the answer instead of raising it."""
    from azure.core.exceptions import AzureError, HttpResponseError
    from azure.monitor.ingestion import LogsIngestionClient

    client = LogsIngestionClient(
        config.endpoint,
        credential(config),
        credential_scopes=[config.scope],
        retry_total=0,
        connection_timeout=min(config.timeout_s, 10.0),
        read_timeout=config.timeout_s,
        connection_verify=str(config.ca_file) if config.ca_file else True,
    )

    def post(stream: str, data: bytes) -> Reply:
        try:
            client.upload(config.rule_id, stream, io.BytesIO(data))
        except HttpResponseError as error:
            response: Any = error.response
            if response is None:
                return Reply(0, _said(error))
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Reply(int(response.status_code), _said(error), retry_after(headers.get("retry-after")))
        except AzureError as error:  # no connection, no token
            return Reply(0, _said(error))
        return Reply(204, "")

    return post


def _said(error: Exception) -> str:
    """What the service says of an error, without the request."""
    model = getattr(error, "model", None)
    inner = getattr(model, "error", None)
    if inner is not None:
        return f"{inner.code}: {inner.message}"
    text = str(getattr(error, "message", error))
    try:
        told = json.loads(text)["error"]
        return f"{told['code']}: {told['message']}"
    except (ValueError, KeyError, TypeError):
        return text.partition("\n")[0]
