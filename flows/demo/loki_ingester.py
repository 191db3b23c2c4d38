"""What Loki does with a push it could read: checks, rates, and per-stream admission, with Loki's answers.

The part to know: streams are admitted in request order, and the answer is that of the last one. A refused stream
before it is lost behind a 204.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from flows.demo.loki_limits import (
    Bucket,
    Limits,
    check_entries,
    effective_labels,
    go_time,
    grouped,
    label_error,
    label_text,
    rfc3339,
    truncate,
)
from flows.demo.loki_push import Ints, Labels, Mask, PushStream, lengths

LEVEL_BYTES: Final = 27  # one pair `detected_level`: `unknown`, as protobuf


class Answer(NamedTuple):
    """Status and body (without the newline that ends it)."""

    status: int
    text: str = ""


class Store(Protocol):
    """Takes what a tenant may store."""

    def add(self, tenant: str, labels: Labels, entries: PushStream) -> None: ...


class _Stream:
    __slots__ = ("bucket", "newest")

    def __init__(self, limits: Limits, now: int) -> None:
        self.bucket = Bucket(limits.per_stream_rate_bytes, limits.per_stream_burst_bytes, now)
        self.newest = -(2**62)


class Tenant:
    """One tenant's state: its rate, its streams and how far each has come. Not thread-safe."""

    def __init__(self, name: str, limits: Limits, store: Store, now: int) -> None:
        self.name, self.limits, self.store = name, limits, store
        self.lost_silently: list[str] = []  # refused streams that a later one hid behind its answer
        self._bucket = Bucket(limits.ingestion_rate_bytes, limits.ingestion_burst_bytes, now)
        self._streams: dict[Labels, _Stream] = {}

    def push(self, streams: Sequence[PushStream], now: int) -> Answer:
        """Stores what Loki would, and answers as it would. `now` in ns since 1970."""
        limits = self.limits
        if not streams:
            return Answer(422, "error at least one valid stream is required for ingestion")
        if now < limits.block_ingestion_until:
            status = limits.block_ingestion_status_code
            until = rfc3339(limits.block_ingestion_until)
            return Answer(
                status, f"ingestion blocked for user '{self.name}' until '{until}' with status code '{status}'"
            )
        valid, errors = self._validate(streams, now)
        lines = sum(len(entries.ts) for _, entries in valid)
        if lines and not self._bucket.take(size := sum(int(_sizes(e).sum()) for _, e in valid), now):
            return Answer(429, _OVER_RATE.format(self.name, int(limits.ingestion_rate_bytes), lines, size))
        wire = sum(_wire_bytes(labels, entries, limits) for labels, entries in valid)
        if wire > limits.grpc_server_max_recv_msg_size:
            return Answer(500, _TOO_LARGE.format(wire, limits.grpc_server_max_recv_msg_size))
        last = None
        for labels, entries in valid:
            if last is not None:
                self.lost_silently.append(last.text)
            last = self._admit(labels, entries, now)
        if last is not None:
            return last
        return Answer(400, grouped(errors)) if errors else Answer(204)

    def _validate(self, streams: Sequence[PushStream], now: int) -> tuple[list[tuple[Labels, PushStream]], list[str]]:
        valid: list[tuple[Labels, PushStream]] = []
        errors: list[str] = []
        for stream in streams:
            if not len(stream.ts):
                continue
            if error := label_error(tuple(pair for pair in stream.labels if pair[1]), self.limits, self.name):
                errors.append(error)
                continue
            labels = effective_labels(stream.labels, self.limits)
            stream.lines = truncate(stream.lines, self.limits)
            good, refused = check_entries(stream, label_text(labels), self.limits, now)
            errors += refused
            if good.any():
                valid.append((labels, stream if good.all() else stream.where(good)))
        return valid, errors

    def _admit(self, labels: Labels, entries: PushStream, now: int) -> Answer | None:
        """Stores the entries that the ingester takes; None when it took all."""
        limits, text = self.limits, label_text(labels)
        stream = self._streams.get(labels)
        if stream is None:
            if len(self._streams) >= limits.max_global_streams_per_user:
                return Answer(429, _TOO_MANY_STREAMS.format(text, self.name))
            stream = self._streams[labels] = _Stream(limits, now)
        reached = np.maximum.accumulate(np.concatenate([[stream.newest], entries.ts]))
        late = entries.ts < reached[:-1] - limits.out_of_order_window
        sizes = _sizes(entries)
        limited = self._over_rate(stream.bucket, sizes, ~late, now)
        refused = late | limited
        if not refused.all():
            stream.newest = max(stream.newest, int(entries.ts[~refused].max()))
            self.store.add(self.name, labels, entries.where(~refused) if refused.any() else entries)
        if not refused.any():
            return None
        bad = np.flatnonzero(refused)
        shown = [int(row) for row in bad[: limits.max_returned_stream_errors]]
        rate = f"{_human(limits.per_stream_rate_bytes)}/sec"
        said = [
            _IGNORED.format(
                go_time(int(entries.ts[row])),
                _STREAM_RATE.format(rate, text, _human(int(sizes[row])))
                if limited[row]
                else _TOO_FAR.format(
                    rfc3339(int(entries.ts[row])), rfc3339(int(reached[row]) - limits.out_of_order_window)
                ),
            )
            for row in shown
        ]
        said.append(f"user '{self.name}', total ignored: {len(bad)} out of {len(refused)} for stream: {text}")
        return Answer(429 if limited[bad[-1]] else 400, "\n".join(said))

    def _over_rate(self, bucket: Bucket, sizes: Ints, wanted: Mask, now: int) -> Mask:
        """Which of the wanted entries the stream's rate refuses: all or none when streams are sharded, else a tail."""
        limited = np.zeros(len(sizes), np.bool_)
        if not bucket.take(float(sizes[wanted].sum()), now):
            if self.limits.shard_streams:
                return wanted.copy()
            for row in np.flatnonzero(wanted):
                limited[row] = not bucket.take(float(sizes[row]), now)
        return limited


_OVER_RATE = (
    "ingestion rate limit exceeded for user {} (limit: {} bytes/sec) while attempting to ingest '{}' lines totaling "
    "'{}' bytes, reduce log volume or contact your Loki administrator to see if the limit can be increased"
)
_TOO_LARGE = "rpc error: code = ResourceExhausted desc = grpc: received message larger than max ({} vs. {})"
_TOO_MANY_STREAMS = (
    "maximum active stream limit exceeded when trying to create stream {}, reduce the number of active streams "
    "(reduce labels or reduce label values), or contact your Loki administrator to see if the limit can be "
    "increased, user: '{}'"
)
_IGNORED = "entry with timestamp {} ignored, reason: '{}',"
_TOO_FAR = "entry too far behind, entry timestamp is: {}, oldest acceptable timestamp is: {}"
_STREAM_RATE = (
    "Per stream rate limit exceeded (limit: {}) while attempting to ingest for stream '{}' totaling {}, consider "
    "splitting a stream via additional labels or contact your Loki administrator to see if the limit can be increased"
)


def _human(size: float) -> str:
    for unit in ("B", "KB"):
        if size < 1024:
            return f"{size:.4g}{unit}"
        size /= 1024
    return f"{size:.4g}MB"


def _sizes(entries: PushStream) -> Ints:
    """Bytes of each entry that count towards rates: line and structured metadata."""
    return lengths(entries.lines) + entries.metadata.sizes(len(entries.ts))[0]


def _wire_bytes(labels: Labels, entries: PushStream, limits: Limits) -> int:
    """Size of the stream in the protobuf message from distributor to ingester, its only form with a limit."""
    metadata, count = entries.metadata, len(entries.ts)
    pairs = _field(_field(lengths(metadata.names)) + _field(lengths(metadata.values)))
    inside = np.bincount(metadata.entry, weights=pairs, minlength=count).astype(np.int64)
    seconds, nanos = np.divmod(entries.ts, 1_000_000_000)
    stamp = np.where(seconds > 0, 1 + _varint(seconds), 0) + np.where(nanos > 0, 1 + _varint(nanos), 0)
    inside += _field(stamp) + _field(lengths(entries.lines)) + LEVEL_BYTES * limits.discover_log_levels
    text = len(label_text(labels).encode())
    return int(_field(inside).sum()) + text + 2 + 11 + 4  # labels, hash, and the stream's own header


def _field(size: Ints) -> Ints:
    """Bytes of a length-delimited field with one byte of tag."""
    return 1 + _varint(size) + size


def _varint(value: Ints) -> Ints:
    bits: Ints = sum((value >= 1 << shift).astype(np.int64) for shift in (7, 14, 21, 28, 35)) + np.ones(1, np.int64)
    return bits
