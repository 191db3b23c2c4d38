"""The stateless half of parsing: what is noise, what is secret, what headers say, what needs the stream parser.

It is nearly all Arrow, which lets go of the interpreter's lock, so it can run beside other steps.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.batch import Raw
from flows.steps.columns import Indices
from flows.steps.kinds import BUILT_IN, Kinds
from flows.steps.noise import NoiseConfig
from flows.steps.reassemble import Mask, StreamKey
from flows.steps.redact.blocks import Open
from flows.steps.redact.columns import Redaction, picks, redact, with_secrets
from parsers.header import Header

_NO_NOISE = pa.dictionary(pa.int8(), pa.string())


class Read(NamedTuple):
    """Lines of one kind, those of a stream together.

    `noise` (dictionary column) and `is_noise`, `gated`, `rich` (masks) are aligned with the rows: dropped by
    a rule; picked by the gate of the kind or that of secrets; for the stream parser, for whatever reason. `kept` are
    the places of the lines that are no noise, with which `header` is aligned. Secrets are gone; lines that had one are
    for the stream parser, which flags them. `opened`: changes of the secrets that go on in later lines, by stream.
    """

    raw: Raw
    noise: pa.DictionaryArray
    is_noise: Mask
    kept: Indices
    header: Header
    gated: Mask
    rich: Mask
    opened: Mapping[StreamKey, Open | None]


def read(
    raw: Raw,
    noise_config: NoiseConfig,
    redaction: Redaction,
    opened: Mapping[StreamKey, Open],
    kinds: Kinds = BUILT_IN,
) -> Read:
    """Read all lines of `raw` by columns; `opened` are secrets that go on. Changes nothing it is given."""
    kind = kinds.parser(raw.kind)
    raw = _by_stream(raw)
    lines = raw.rows["raw"].combine_chunks()
    noise = kind.noise(lines) if kind.noise else pa.nulls(len(lines), _NO_NOISE)
    is_noise = noise_config.mask(noise, raw.rows)
    is_noise &= ~with_secrets(lines, noise, redaction)
    kept = np.flatnonzero(~is_noise)
    kept_lines = lines.take(pa.array(kept)) if len(kept) < len(lines) else lines
    picked = picks(raw.kind, kind.gate, kept_lines, redaction)
    clean = redact(raw, kept, kept_lines, picked, redaction, opened)
    raw, kept_lines = clean.raw, clean.lines
    header = kind.header(kept_lines, raw.tz, _near(raw, kept)) if kind.near else kind.header(kept_lines, raw.tz)
    gated = np.zeros(len(lines), dtype=np.bool_)
    gated[kept] = picked
    rich = gated.copy()
    if header.rich is not None:
        rich[kept] |= np.asarray(header.rich.to_numpy(zero_copy_only=False), dtype=np.bool_)
    rich[kept[clean.places]] = True
    return Read(raw, noise, is_noise, kept, header, gated, rich, clean.opened)


def _near(raw: Raw, kept: Indices) -> pa.Array:
    """When each line was written, roughly (ns): the last change of its file, else when it was received."""
    changed = pa.array([stream.times.mtime_ns for stream in raw.streams], pa.int64())
    kept_rows = raw.rows.select(["stream", "received_at"]).take(pa.array(kept)).combine_chunks()
    stream, received = (column.combine_chunks() for column in kept_rows.columns)
    return pc.coalesce(changed.take(stream), received) if changed.null_count < len(changed) else received


def _by_stream(raw: Raw) -> Raw:
    """The same rows with those of one stream together, in their order."""
    stream = raw.rows["stream"].combine_chunks().to_numpy()
    if np.all(np.diff(stream) >= 0):
        return raw
    rows = raw.rows.take(pa.array(np.argsort(stream, kind="stable")))
    return Raw(raw.kind, raw.tz, rows, raw.streams, raw.labelled)
