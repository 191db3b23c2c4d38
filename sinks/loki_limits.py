"""What Loki would refuse, put right or found before it is sent. Limits are the defaults of Loki 3.7 (`GET /config`).

A request is refused whole for one bad label name (400) or structured-metadata name (500, which a naive
client retries for ever), so names are cleaned here; entries are refused one by one for length and age.
"""

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

Labels = tuple[tuple[str, str], ...]  # sorted (name, value) pairs

REPLAY = ("replay", "true")  # label of the stream that takes what is too far behind its own
MAX_PAIRS = 100  # of 128 per entry: the typed columns, demoted labels and the id need the others
MAX_PAIR_BYTES = 56 * 1024  # of 64 KiB per entry
MAX_VALUE_BYTES = 256  # of one typed column or demoted label


class Limits(BaseModel):
    """The tenant's limits (`limits_config` of Loki); give what the server has, where it is not the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_line_bytes: int = Field(
        262_144, ge=256, le=1 << 20, description="Longest line (max_line_size); longer ones are cut and flagged."
    )
    max_age_s: int = Field(
        604_800, ge=1, description="Oldest entry (reject_old_samples_max_age); older ones become dead letters."
    )
    max_ahead_s: int = Field(
        600, ge=0, description="How far ahead of the clock (creation_grace_period); later ones become dead letters."
    )
    max_label_names: int = Field(15, ge=2, description="Labels of a stream (max_label_names_per_series).")
    max_label_value_bytes: int = Field(2048, ge=16, description="Longest label value (max_label_value_length).")
    behind_s: int = Field(
        3_600, ge=60, description="How far an entry may be behind the newest of its stream (half of max_chunk_age)."
    )
    active_streams: int = Field(
        4_000,
        ge=1,
        description="Streams this process may keep active (share of max_global_streams_per_user); beyond it a new "
        "stream is sent in a request of its own, so that a refusal shows.",
    )

    def text(self, labels: Labels) -> bytes:
        """`label_text` within these limits."""
        return label_text(labels, self.max_label_names, self.max_label_value_bytes)


def cut(text: bytes, limit: int) -> bytes:
    """At most `limit` bytes, never ending inside a UTF-8 character."""
    if len(text) <= limit:
        return text
    for end in range(limit, max(limit - 4, -1), -1):
        if text[end] & 0xC0 != 0x80:
            return text[:end]
    return text[:limit]  # not UTF-8 at all


@lru_cache(maxsize=10_000)
def metadata_name(name: str) -> bytes:
    """A name of structured metadata that Loki accepts; empty when there is none (no ASCII letter or digit)."""
    clean = re.sub(r"[^a-zA-Z0-9_]", "_", name[:128])
    if not re.search(r"[a-zA-Z0-9]", clean):
        return b""
    return (f"key_{clean}" if clean[0].isdigit() else clean).encode()


_ESCAPES = {i: f"\\u{i:04x}" for i in (*range(0x20), 0x7F, 0xFEFF)} | {ord('"'): '\\"', ord("\\"): "\\\\"}


@lru_cache(maxsize=20_000)
def label_text(labels: Labels, max_names: int, max_value: int) -> bytes:
    """A label set in the syntax of a push request, `{app="x", node="y"}`, with names and values Loki accepts.

    Bad characters of a name become `_`; empty values are left out; of names that are then alike the
    first counts; what is over `max_names` is left out, from the end; longer values are cut.
    """
    clean: dict[str, str] = {}
    for name, value in labels:
        safe = re.sub(r"[^a-zA-Z0-9_]", "_", name)[:1024]
        safe = f"_{safe}" if safe[:1].isdigit() else safe
        text = cut(value.encode(errors="replace"), max_value).decode()
        if safe and text:
            clean.setdefault(safe, text.translate(_ESCAPES))
    return ("{" + ", ".join(f'{name}="{clean[name]}"' for name in sorted(clean)[:max_names]) + "}").encode()


def cut_lines(lines: pa.Array, limit: int) -> tuple[pa.Array, npt.NDArray[np.intp]]:
    """`lines` (large_binary) with none longer than `limit` bytes, and the rows that were cut."""
    too_long = np.flatnonzero(np.asarray(pc.binary_length(lines)) > limit)
    if not len(too_long):
        return lines, too_long
    mask = np.zeros(len(lines), dtype=bool)
    mask[too_long] = True
    pieces = [cut(line, limit) for line in lines.take(too_long).to_pylist()]
    return pc.replace_with_mask(lines, pa.array(mask), pa.array(pieces, pa.large_binary())), too_long


def out_of_time(
    ts: npt.NDArray[np.int64], now_ns: int, limits: Limits
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the entries that are too old and too new at `now_ns`; `ts` in ns since the epoch."""
    oldest = max(0, now_ns - limits.max_age_s * 1_000_000_000)
    return ts < oldest, ts > now_ns + limits.max_ahead_s * 1_000_000_000
