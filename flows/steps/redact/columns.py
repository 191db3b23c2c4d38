"""Redaction of a batch: a gate finds the few lines that may hold a secret; Python sees only those."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.batch import Raw
from flows.steps.columns import Indices
from flows.steps.reassemble import Mask, Rows, StreamKey
from flows.steps.redact.blocks import WHOLE, Open, read_lines
from flows.steps.redact.carriers import GATES, read
from flows.steps.redact.line import line_redactor
from flows.steps.redact.rules import Rules, default_rules
from sinks.base import DeadLetter

_BAR = "progress"
MAX_OPEN = 10_000  # streams

OpenSecrets = dict[StreamKey, Open]


class Redaction(NamedTuple):
    """The rules that hold, and the kinds that are left as they are."""

    rules: Rules = default_rules()
    skip_kinds: tuple[str, ...] = ()


class Clean(NamedTuple):
    """`raw` and its lines at `kept` without secrets; `places` of kept lines that had some; changes of what is open."""

    raw: Raw
    lines: pa.LargeBinaryArray
    places: Indices
    opened: Mapping[StreamKey, Open | None] = {}


def picks(kind: str, gate: str | None, lines: pa.LargeBinaryArray, redaction: Redaction) -> Mask:
    """Lines of a kind that its own gate (None: any) picks or that may hold a secret, for little more than one of them.

    Looking twice would cost 0.2 µs more for each line that is no noise.
    """
    if gate is None or kind in redaction.skip_kinds:
        return _matches(lines, gate)
    return _matches(lines, f"(?:{gate})|{_gate(kind, redaction)}")


def redact(
    raw: Raw,
    kept: Indices,
    lines: pa.LargeBinaryArray,
    picked: Mask,
    redaction: Redaction,
    opened: Mapping[StreamKey, Open],
) -> Clean:
    """Lines of one kind, those of a stream together; `lines` are those at `kept`; a secret is in those `picked` only.

    Changes nothing it is given.
    """
    nothing = Clean(raw, lines, np.zeros(0, dtype=np.intp))
    if raw.kind in redaction.skip_kinds or not len(lines):
        return nothing
    redactor = line_redactor(redaction.rules)
    suspects = np.flatnonzero(picked)
    if raw.kind not in WHOLE:
        suspects = suspects[_matches(lines.take(pa.array(suspects)), _gate(raw.kind, redaction))]
    if not len(suspects) and not any(key[2].kind == raw.kind for key in opened):
        return nothing
    rows = Rows(raw)
    changed: dict[int, bytes] = {}
    found: list[int] = []
    left: dict[StreamKey, Open | None] = {}
    starts, stops = rows.runs()
    for first, last in zip(np.searchsorted(kept, starts).tolist(), np.searchsorted(kept, stops).tolist(), strict=True):
        queue = iter(suspects[np.searchsorted(suspects, first) : np.searchsorted(suspects, last)].tolist())
        if first == last:
            continue
        key = rows.key(int(kept[first]))
        state = before = opened.get(key)
        following = next(queue, None)
        place = first
        while place < last:
            if state is None:
                while following is not None and following < place:
                    following = next(queue, None)
                if following is None:
                    break
                place = following
            line = lines[place].as_py()
            clean, had, state = read(redactor, raw.kind, line, state)
            if had:
                found.append(place)
            if clean != line:
                changed[place] = clean
            place += 1
        if state != before:
            left[key] = state
    places = np.array(sorted(found), dtype=np.intp)
    marked = replace(raw, redacted=frozenset(kept[places].tolist()))
    if changed:
        at = np.array(sorted(changed), dtype=np.intp)
        texts = [changed[place] for place in at.tolist()]
        lines = _with(lines, at, texts)
        column = marked.rows.schema.get_field_index("raw")
        everything = _with(raw.rows["raw"].combine_chunks(), kept[at], texts)
        marked.rows = raw.rows.set_column(column, raw.rows.schema.field(column), everything)
    return Clean(marked, lines, places, left)


def with_secrets(lines: pa.LargeBinaryArray, noise: pa.DictionaryArray, redaction: Redaction) -> Mask:
    """Noise that may hold a secret: progress bars, whose text is free; the other rules know NCCL's own words."""
    found = np.zeros(len(lines), dtype=np.bool_)
    if _BAR not in noise.dictionary.to_pylist():
        return found
    code = noise.dictionary.index(_BAR).as_py()
    bars = np.flatnonzero(noise.indices.fill_null(-1).to_numpy() == code)
    if len(bars):
        gate = line_redactor(redaction.rules).gate
        found[bars] = _matches(lines.take(pa.array(bars)), gate)
    return found


def _gate(kind: str, redaction: Redaction) -> str:
    own = line_redactor(redaction.rules).gate
    return f"{own}|{GATES[kind]}" if kind in GATES else own


def _matches(lines: pa.LargeBinaryArray, gate: str | None) -> Mask:
    if gate is None:
        return np.ones(len(lines), dtype=np.bool_)
    return np.asarray(pc.match_substring_regex(lines, gate).to_numpy(zero_copy_only=False), dtype=np.bool_)


def remember(opened: OpenSecrets, changes: Mapping[StreamKey, Open | None]) -> None:
    """Take over what streams left open; past MAX_OPEN streams the oldest are forgotten."""
    for key, state in changes.items():
        opened.pop(key, None)
        if state is not None:
            opened[key] = state
    while len(opened) > MAX_OPEN:
        del opened[next(iter(opened))]


def redact_letters(letters: Sequence[DeadLetter], redaction: Redaction) -> list[DeadLetter]:
    """Dead letters without the secrets of their text."""
    redactor = line_redactor(redaction.rules)
    return [
        letter._replace(
            raw=read_lines(redactor, letter.raw), detail=redactor.line(letter.detail.encode()).line.decode()
        )
        for letter in letters
    ]


def _with(lines: pa.LargeBinaryArray, at: Indices, texts: list[bytes]) -> pa.LargeBinaryArray:
    mask = np.zeros(len(lines), dtype=np.bool_)
    mask[at] = True
    return pc.replace_with_mask(lines, pa.array(mask), pa.array(texts, pa.large_binary()))
