"""Grafana Loki: one stream per label set, protobuf pushes, at least once, nothing lost without a trace.

A stream with much waiting is sent alone, because Loki answers a request of several streams for the last
one only; small ones share a request where nothing is expected to be refused: young entries, known
streams, no recent sending at full rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, time_ns

import numpy as np
import pyarrow as pa
from bytewax.outputs import StatefulSinkPartition
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sinks.base import (
    MAX_DEAD_BYTES,
    Account,
    DeadLetter,
    DeadLetterWriter,
    Delivery,
    Gap,
    GapWriter,
    Part,
    Partition,
    Site,
)
from sinks.errors import Misconfigured, RetryLater
from sinks.http import Endpoint
from sinks.lane import Backoff, Lane
from sinks.loki_answers import Burial, Request, Store
from sinks.loki_limits import Labels, Limits, out_of_time
from sinks.loki_push import METADATA, ROW, Block, Rows, encode, join, places, times
from sinks.sharded import ShardedSink

_PUSH = "/loki/api/v1/push"
COLUMNS = (
    "topic", "partition", "offset", "line", "part", "owned", "ts", "appended_at", "stream", "body", "raw", "flags",
    "fields", *METADATA,
)  # fmt: skip
_QUIET_S = 10.0  # after a request of its own a stream shares none for so long: Loki's rate limit may be near
_FORGET_S = 3_600.0  # Loki closes idle streams sooner


class LokiConfig(BaseModel):
    """Grafana Loki, or what speaks its push protocol."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    url: str = Field(
        "http://127.0.0.1:3100",
        description=f"Address of the server or gateway; {_PUSH} is added where no path is given.",
    )
    tenant: str | None = Field(None, description="Value of X-Scope-OrgID; none where Loki runs without tenants.")
    username: str | None = Field(None, description="User of basic authentication; needs password_file.")
    password_file: Path | None = Field(None, description="File that holds the password of basic authentication.")
    token_file: Path | None = Field(None, description="File that holds a bearer token; read again for every request.")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Further headers; a value env:NAME or file:PATH is looked up, so that no secret stands here.",
    )
    ca_file: Path | None = Field(None, description="PEM bundle that the server's certificate is checked against.")
    timeout_s: float = Field(10.0, gt=0, description="Longest wait for an answer.")
    pool: int = Field(4, ge=1, le=64, description="Requests under way at once, over all shards of a process.")
    send_bytes: int = Field(256 << 10, ge=1 << 10, description="A stream is sent as soon as so much of it waits.")
    max_request_bytes: int = Field(
        3_670_016, ge=1 << 16, description="Largest request, decoded; Loki takes 4 MiB (grpc_server_max_recv_msg_size)."
    )
    min_stream_bytes: int = Field(
        65_536, ge=0, description="A stream with less waiting shares a request with others, one with more never does."
    )
    max_streams_per_request: int = Field(250, ge=1, description="Streams that share a request.")
    urgent_s: float = Field(1.0, ge=0, description="Longest wait of a line of an urgent kind before it is sent.")
    flush_s: float = Field(2.0, ge=0, description="Longest wait of other lines; an epoch's end sends all.")
    urgent_kinds: tuple[str, ...] = Field(
        ("kmsg", "dmesg", "fabric_manager", "dcgm"), description="Kinds whose lines are urgent."
    )
    barrier_s: float = Field(
        0.5,
        ge=0,
        description="Longest wait for acknowledgements at an epoch's end; what is missing then is listed as a gap.",
    )
    outage_s: float = Field(
        5.0, gt=0, description="So long without a delivery is an outage: full buffers then go to the gap list."
    )
    retry_base_s: float = Field(0.25, gt=0, description="Delay before the first retry; doubled for each further one.")
    retry_max_s: float = Field(30.0, gt=0, description="Longest delay between retries.")
    pause_s: float = Field(
        10.0, gt=0, description="Delay before a retry where Loki refuses the tier itself, until a person acts."
    )
    max_buffer_bytes: int = Field(
        64 << 20, ge=1 << 20, description="Memory for lines that wait or are under way, over all shards of a process."
    )
    record_id: bool = Field(
        True, description="Add structured metadata id=partition:offset:line:part, the place of each record in Kafka."
    )
    limits: Limits = Field(default_factory=Limits, description="Limits of the tenant.")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        scheme, _, rest = url.partition("://")
        host = rest.partition("/")[0]
        if scheme not in ("http", "https") or not host:
            raise ValueError("must look like http://loki:3100 or https://…")
        if "@" in host:
            raise ValueError("must not contain a password; use username and password_file")
        return url if url.endswith("/push") else url.rstrip("/") + _PUSH

    @model_validator(mode="after")
    def _consistent(self) -> "LokiConfig":
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file go together: set both or none")
        if self.token_file and self.username:
            raise ValueError("token_file and username exclude each other: keep one")
        if self.send_bytes > self.max_request_bytes:
            raise ValueError("send_bytes must not be larger than max_request_bytes")
        return self

    def endpoint(self, connections: int) -> Endpoint:
        """Connections to the push address. Raises Misconfigured for a secret or CA file that cannot be read."""
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": "tailrace", **self.headers}
        return Endpoint(
            self.url,
            headers=headers if self.tenant is None else {**headers, "X-Scope-OrgID": self.tenant},
            basic=(self.username, f"file:{self.password_file}") if self.username else None,
            token=f"file:{self.token_file}" if self.token_file else None,
            ca_file=self.ca_file,
            connections=connections,
            timeout_s=self.timeout_s,
        )


class LokiSink(ShardedSink[tuple[Gap, ...]]):
    """Takes (shard, Delivery), sends `Part.rows`. State of a part: its gap list.

    Each shard has its share of `pool` and `max_buffer_bytes`, so that no shard waits for another.
    """

    def __init__(
        self,
        config: LokiConfig,
        shards: Sequence[str],
        account: Account,
        dead: DeadLetterWriter,
        gaps: GapWriter | None = None,
    ) -> None:
        super().__init__(shards)
        self._config, self._account, self._dead, self._gaps = config, account, dead, gaps

    @classmethod
    def at(cls, config: LokiConfig, site: Site) -> "LokiSink":
        """The sink of a site; see sinks.registry."""
        return cls(config, site.shards, site.account, site.dead, site.gaps)

    def check(self) -> None:
        """Raise Misconfigured unless Loki answers and lets us in. Sends an empty push, which stores nothing."""
        endpoint = self._config.endpoint(1)
        try:
            answer = endpoint.post(b"\0")  # snappy of nothing
        except RetryLater as error:
            raise Misconfigured(f"sinks.loki: {error}; check url, ca_file and the network") from error
        finally:
            endpoint.close()
        if answer.status not in (200, 204, 422, 429) and answer.status < 500:
            raise Misconfigured(
                f"sinks.loki: {self._config.url} answers {answer.status} to an empty push: {answer.text[:200]}; "
                "check url, tenant and credentials"
            )

    def build_part(self, step_id: str, for_part: str, resume_state: tuple[Gap, ...] | None) -> "LokiPart":  # noqa: ARG002 - Bytewax's signature
        config, shards = self._config, len(self._shards)
        threads = max(1, config.pool // shards)
        lane = Lane(
            f"loki-{for_part}",
            self._account,
            threads=threads,
            max_bytes=config.max_buffer_bytes // shards,
            outage_s=config.outage_s,
            backoff=Backoff(config.retry_base_s, config.retry_max_s),
            gaps=resume_state or (),
        )
        hand_over = None if self._gaps is None else partial(self._gaps.publish, "loki", for_part)
        return LokiPart(config, lane, config.endpoint(threads), self._dead, hand_over)


@dataclass(slots=True)
class _Stream:
    """What waits for one label set, and what is known of it."""

    runs: list[tuple[bytes, Rows]] = field(default_factory=list)
    size: int = 0
    due: float = 0.0  # when the oldest line must go
    oldest_ns: int = 0
    alone_at: float = float("-inf")  # last request of its own
    sent_at: float = float("-inf")


class LokiPart(StatefulSinkPartition[Delivery, tuple[Gap, ...]]):
    """One shard: buffers by stream, composes requests, hands them to the lane."""

    def __init__(
        self,
        config: LokiConfig,
        lane: Lane,
        endpoint: Endpoint,
        dead: DeadLetterWriter,
        hand_over: Callable[[tuple[Gap, ...]], None] | None,
    ) -> None:
        self._config, self._lane, self._endpoint, self._hand_over = config, lane, endpoint, hand_over
        self._places: list[Partition] = []
        self._place: dict[Partition, int] = {}
        self._store = Store(endpoint.post, dead, self._places, config.limits, config.pause_s)
        self._streams: dict[Labels, _Stream] = {}
        self._waiting: dict[Labels, _Stream] = {}

    def write_batch(self, values: list[Delivery]) -> None:
        """Encode, buffer, and send what is large or old enough; blocks while the buffers are full."""
        for delivery in values:
            for part in delivery.parts:
                if part.rows.num_rows:
                    self._take(part)
        now = monotonic()
        self._send([labels for labels, stream in self._waiting.items() if stream.due <= now])

    def snapshot(self) -> tuple[Gap, ...]:
        """Send all, wait for it up to the barrier, and return what is not acknowledged."""
        self._send(list(self._waiting))
        forget = monotonic() - _FORGET_S
        self._streams = {labels: stream for labels, stream in self._streams.items() if stream.sent_at > forget}
        return self._lane.checkpoint(self._config.barrier_s, self._hand_over)

    def close(self) -> None:
        """Stop the pool. Sends nothing."""
        self._lane.close()
        self._endpoint.close()

    def _take(self, part: Part) -> None:
        place = self._number(part.rows)
        rows, place = self._in_time(part.rows.select(COLUMNS), place)
        if not rows.num_rows:
            return
        encoded = encode(
            rows,
            place,
            part.streams,
            part.demoted,
            max_line=self._config.limits.max_line_bytes,
            record_id=self._config.record_id,
        )
        wait = self._config.urgent_s if part.kind in self._config.urgent_kinds else self._config.flush_s
        due = monotonic() + wait
        starts = np.flatnonzero(np.diff(encoded.stream, prepend=-1))
        ends = np.cumsum(encoded.rows["size"], dtype=np.int64)
        first_byte = 0
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows.num_rows], strict=True):
            last_byte = int(ends[stop - 1])
            run = bytes(encoded.data[first_byte:last_byte]), encoded.rows[start:stop].copy()
            self._buffer(part.streams[encoded.stream[start]], run, due)
            first_byte = last_byte

    def _number(self, rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        """Number of the (topic, partition) of each row, as in `_places`."""
        local, found = places(rows)
        for partition in found:
            if partition not in self._place:
                self._place[partition] = len(self._places)
                self._places.append(partition)
        return np.array([self._place[partition] for partition in found], np.int32)[local]

    def _in_time(
        self, rows: pa.Table, place: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    ) -> "tuple[pa.Table, np.ndarray[tuple[int], np.dtype[np.int32]]]":
        """Rows of an age that Loki takes; the others go to the dead letters."""
        old, new = out_of_time(times(rows), time_ns(), self._config.limits)
        if not (refused := old | new).any():
            return rows, place
        columns = rows.filter(pa.array(refused)).select(["offset", "line", "owned", "raw"]).to_pylist()
        letters = [
            DeadLetter(
                self._places[number][0],
                self._places[number][1],
                row["offset"],
                row["line"],
                row["owned"],
                "too_old" if is_old else "too_new",
                f"Loki takes entries up to {self._config.limits.max_age_s} s old and "
                f"{self._config.limits.max_ahead_s} s ahead",
                row["raw"][:MAX_DEAD_BYTES],
            )
            for row, number, is_old in zip(columns, place[refused], old[refused], strict=True)
        ]
        burial = Burial(self._store, letters)
        self._hold(burial.size)
        self._lane.submit(burial)
        return rows.filter(pa.array(~refused)), place[~refused]

    def _hold(self, size: int) -> None:
        if not self._lane.fits(size):
            self._send(list(self._waiting))  # only requests make room
        self._lane.hold(size)

    def _buffer(self, labels: Labels, run: tuple[bytes, Rows], due: float) -> None:
        size = len(run[0]) + run[1].nbytes
        self._hold(size)
        stream = self._streams.setdefault(labels, _Stream())
        oldest = int(run[1]["ts"][0])
        if stream.runs:
            stream.due, stream.oldest_ns = min(due, stream.due), min(oldest, stream.oldest_ns)
        else:
            stream.due, stream.oldest_ns = due, oldest
            self._waiting[labels] = stream
        stream.runs.append(run)
        stream.size += size
        if stream.size >= self._config.send_bytes:
            self._send([labels])

    def _send(self, chosen: Sequence[Labels]) -> None:
        """Hand all that waits for the chosen streams to the lane."""
        now, now_ns = monotonic(), time_ns()
        shared: list[Block] = []
        room = 0
        for labels in chosen:
            stream = self._waiting.pop(labels)
            block = join(labels, stream.runs)
            alone = block.size >= self._config.min_stream_bytes
            if alone or self._risky(stream, now, now_ns):
                for piece in self._pieces(block):
                    self._lane.submit(Request(self._store, [piece]))
            else:
                if shared and (block.size > room or len(shared) >= self._config.max_streams_per_request):
                    self._lane.submit(Request(self._store, shared))
                    shared = []
                if not shared:
                    room = self._config.max_request_bytes
                shared.append(block)
                room -= block.size
            stream.runs, stream.size, stream.sent_at = [], 0, now
            if alone:
                stream.alone_at = now
        if shared:
            self._lane.submit(Request(self._store, shared))

    def _risky(self, stream: _Stream, now: float, now_ns: int) -> bool:
        """Whether Loki might refuse some of it: entries perhaps too far behind, a rate limit, too many streams."""
        limits = self._config.limits
        behind = now_ns - stream.oldest_ns > (limits.behind_s - limits.max_ahead_s) * 1_000_000_000
        new = stream.sent_at == float("-inf")
        return behind or now - stream.alone_at < _QUIET_S or (new and len(self._streams) > limits.active_streams)

    def _pieces(self, block: Block) -> list[Block]:
        """The block in requests of at most `max_request_bytes`."""
        if block.size <= self._config.max_request_bytes:
            return [block]
        ends = np.cumsum(block.rows["size"], dtype=np.int64) + np.arange(1, len(block.rows) + 1) * ROW.itemsize
        pieces, start = [], 0
        while start < len(block.rows):
            base = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, base + self._config.max_request_bytes, side="right"))
            pieces.append(block.part(start, max(stop, start + 1)))
            start = max(stop, start + 1)
        return pieces
