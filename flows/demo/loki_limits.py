"""Loki's limits, and its distributor's checks of one stream of a push.

Defaults and texts were read off Loki 3.7 and the 3.8 line: their `GET /config`, and the answers of servers that
ran with them. MB is 2**20 bytes, as in Loki. Times are nanoseconds since 1970, UTC.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from flows.demo.loki_push import Labels, Mask, PushStream, lengths

MB: Final = 1 << 20
SECOND: Final = 1_000_000_000
HOUR: Final = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may send. Names are Loki's where Loki has one."""

    ingestion_rate_bytes: float = 4 * MB  # per second: lines and structured metadata
    ingestion_burst_bytes: float = 6 * MB
    per_stream_rate_bytes: float = 3 * MB
    per_stream_burst_bytes: float = 15 * MB
    shard_streams: bool = True  # an over-rate stream then loses all of a push instead of its tail
    max_global_streams_per_user: int = 5000  # streams here never grow inactive
    max_line_size: int = 256 * 1024
    max_line_size_truncate: bool = False
    max_line_size_truncate_identifier: str = ""
    max_label_names_per_series: int = 15  # service_name is not counted
    max_label_name_length: int = 1024
    max_label_value_length: int = 2048
    reject_old_samples_max_age: int = 7 * 24 * HOUR
    creation_grace_period: int = 600 * SECOND
    out_of_order_window: int = HOUR  # half of max_chunk_age, behind the newest entry of the stream
    allow_structured_metadata: bool = True
    max_structured_metadata_size: int = 64 * 1024
    max_structured_metadata_entries_count: int = 128
    enforced_labels: tuple[str, ...] = ()
    discover_service_name: bool = True
    discover_log_levels: bool = True  # here: only the bytes that `detected_level` adds to each entry
    max_returned_stream_errors: int = 10
    max_recv_msg_size: int = 100 * MB  # request body
    grpc_server_max_recv_msg_size: int = 4 * MB  # all decoded entries of a request
    block_ingestion_until: int = 0
    block_ingestion_status_code: int = 260


SERVICE_LABELS: Final = (  # limits_config.discover_service_name
    *("service", "app", "application", "app_name", "name", "app_kubernetes_io_name", "container"),
    *("container_name", "k8s_container_name", "component", "workload", "job", "k8s_job_name"),
)


def rfc3339(ns: int) -> str:
    """Whole seconds, as Go's time.RFC3339 prints them."""
    return _moment(ns).strftime("%Y-%m-%dT%H:%M:%SZ")


def go_time(ns: int) -> str:
    """As Go prints a time.Time: the fraction without trailing zeros."""
    fraction = f".{ns % SECOND:09d}".rstrip("0").rstrip(".")
    return f"{_moment(ns):%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // SECOND, UTC)


def label_text(labels: Labels) -> str:
    """`{a="b", c="d"}` in the order given."""
    quoted = (f"{name}={_quote(value)}" for name, value in labels)
    return "{" + ", ".join(quoted) + "}"


def _quote(value: str) -> str:
    return '"' + re.sub(r'[\\"]', r"\\\g<0>", value).replace("\n", "\\n").replace("\t", "\\t") + '"'


def effective_labels(labels: Labels, limits: Limits) -> Labels:
    """The labels that name the stream: sorted, without empty values, with the discovered service_name."""
    kept = {name: value for name, value in labels if value}
    if limits.discover_service_name and "service_name" not in kept:
        found = (kept[name] for name in SERVICE_LABELS if name in kept)
        kept["service_name"] = next(found, "unknown_service")
    return tuple(sorted(kept.items()))


def label_error(labels: Labels, limits: Limits, tenant: str) -> str | None:
    """Why the whole stream is dropped, or None. `labels` as sent, without empty values."""
    text = label_text(labels)
    names = [name for name, _ in labels]
    missing = [name for name in limits.enforced_labels if name not in names]
    if missing:
        return f"missing required labels '{','.join(missing)}' for user {tenant} for stream {text}"
    count = len(names) - ("service_name" in names)
    if count > limits.max_label_names_per_series:
        return f"entry for stream '{text}' has {count} label names; limit {limits.max_label_names_per_series}"
    previous = ""
    for name, value in sorted(labels):
        if len(name.encode()) > limits.max_label_name_length:
            return f"stream '{text}' has label name too long: '{name}'"
        if len(value.encode()) > limits.max_label_value_length:
            return f"stream '{text}' has label value too long: '{value}'"
        if name == previous:
            return f"stream '{text}' has duplicate label name: '{name}'"
        previous = name
    return None


def check_entries(stream: PushStream, text: str, limits: Limits, now: int) -> tuple[Mask, list[str]]:
    """Which entries pass, and one message for each that does not. Lines must have been truncated before."""
    good = np.ones(len(stream.ts), dtype=np.bool_)
    errors: list[str] = []
    oldest = now - limits.reject_old_samples_max_age
    metadata_bytes, metadata_pairs = stream.metadata.sizes(len(stream.ts))
    line_bytes = lengths(stream.lines)

    def refuse(bad: Mask, message: "Iterable[str]") -> None:
        errors.extend(message)
        good[bad] = False

    def rows(bad: Mask) -> Iterator[int]:
        bad &= good
        return (int(row) for row in np.flatnonzero(bad))

    bad = stream.ts < oldest
    refuse(bad, [too_old(text, int(stream.ts[row]), oldest) for row in rows(bad)])
    bad = stream.ts > now + limits.creation_grace_period
    refuse(bad, [f"entry for stream '{text}' has timestamp too new: {rfc3339(int(stream.ts[r]))}" for r in rows(bad)])
    bad = line_bytes > limits.max_line_size
    refuse(bad, [too_long(text, int(line_bytes[row]), limits.max_line_size) for row in rows(bad)])
    if not limits.allow_structured_metadata:
        bad = metadata_pairs > 0
        refuse(bad, [_DISALLOWED.format(text) for _ in rows(bad)])
    size, count = limits.max_structured_metadata_size, limits.max_structured_metadata_entries_count
    bad = metadata_bytes > size
    refuse(bad, [_SM_SIZE.format(text, int(metadata_bytes[row]), size) for row in rows(bad)])
    bad = metadata_pairs > count
    refuse(bad, [_SM_COUNT.format(text, int(metadata_pairs[row]), count) for row in rows(bad)])
    return good, errors


_ASK = "Please see `limits_config.{}` or contact your Loki administrator to have it increased."
_DISALLOWED = (
    "stream '{}' includes structured metadata, but this feature is disallowed. "
    "Please see `limits_config.allow_structured_metadata` or contact your Loki administrator to enable it."
)
_SM_SIZE = "stream '{}' has structured metadata too large: '{}' bytes, limit: '{}' bytes. " + _ASK.format(
    "max_structured_metadata_size"
)
_SM_COUNT = "stream '{}' has too many structured metadata labels: '{}', limit: '{}'. " + _ASK.format(
    "max_structured_metadata_entries_count"
)


def too_old(text: str, ts: int, oldest: int) -> str:
    return (
        f"entry for stream '{text}' has timestamp too old: {rfc3339(ts)}, "
        f"oldest acceptable timestamp is: {rfc3339(oldest)}"
    )


def too_long(text: str, length: int, limit: int) -> str:
    return (
        f"max entry size '{limit}' bytes exceeded for stream '{text}' while adding an entry with length "
        f"'{length}' bytes"
    )


def truncate(lines: pa.BinaryArray, limits: Limits) -> pa.BinaryArray:
    """Cuts long lines to exactly the limit, identifier included, by bytes (a character may be split)."""
    if not limits.max_line_size_truncate or not (lengths(lines) > limits.max_line_size).any():
        return lines
    mark = limits.max_line_size_truncate_identifier.encode()
    room = limits.max_line_size - len(mark)
    cut = (line if len(line) <= limits.max_line_size else line[:room] + mark for line in lines.to_pylist())
    return pa.array(cut, pa.binary())


def grouped(errors: list[str]) -> str:
    """One answer for all refused entries: alike ones are counted, nothing is cut."""
    if len(errors) == 1:
        return errors[0]
    return "; ".join(f"{count} errors like: {text}" for text, count in Counter(errors).items())


class Bucket:
    """A token bucket in bytes; starts full."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: int) -> None:
        self.rate, self.burst, self.tokens, self.at = rate, burst, burst, now

    def level(self, now: int) -> float:
        """Bytes that may be taken at `now`."""
        gained = max(0, now - self.at) * self.rate / SECOND
        self.tokens, self.at = min(self.burst, self.tokens + gained), max(now, self.at)
        return self.tokens

    def take(self, amount: float, now: int) -> bool:
        """Takes `amount` if it is there, else nothing."""
        if amount > self.level(now):
            return False
        self.tokens -= amount
        return True
