"""The order of the pure steps: chunk → decode → reassemble and parse → noise → labels → delivery.

One `Pipeline` per shard, with its state in the snapshot. Counts add up for every chunk:
read + held before = records' lines + noise by rule + swallowed empty lines + dead + held after.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.batch import Chunk, Raw
from flows.steps import summaries
from flows.steps.budgets import Budgets
from flows.steps.columns import ROWS, Indices, in_order, plain_rows, rich_rows
from flows.steps.decode import DecodeConfig, decode
from flows.steps.label_limits import LabelsConfig
from flows.steps.labelling import label
from flows.steps.labels import LabelSets, distinct
from flows.steps.noise import NoiseConfig
from flows.steps.reassemble import Finished, Mask, Reassembler, whole
from flows.steps.summaries import Summaries
from parsers.header import Header
from parsers.record import Parser
from parsers.registry import parser
from sinks.base import Delivery, Part, Partition

_NO_ROWS = ROWS.empty_table()


@dataclass(slots=True)
class Counts:
    """Physical lines of one chunk or of a whole run, by (topic, partition); rules by name.

    `synthetic` counts records that stand for no line, by kind; they are in none of the others.
    """

    read: Counter[Partition] = field(default_factory=Counter)
    kept: Counter[Partition] = field(default_factory=Counter)
    dropped: dict[str, Counter[Partition]] = field(default_factory=dict)
    dead: Counter[Partition] = field(default_factory=Counter)
    messages_empty: Counter[Partition] = field(default_factory=Counter)
    synthetic: Counter[str] = field(default_factory=Counter)

    def drop(self, rule: str, lines: Counter[Partition]) -> None:
        if lines:
            self.dropped.setdefault(rule, Counter()).update(lines)

    def add(self, other: "Counts") -> None:
        for name in ("read", "kept", "dead", "messages_empty", "synthetic"):
            getattr(self, name).update(getattr(other, name))
        for rule, lines in other.dropped.items():
            self.drop(rule, lines)


@dataclass(slots=True)
class Pipeline:
    """State and steps of one of `shards` shards."""

    decode: DecodeConfig
    cluster: str = ""
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig())
    streams: Reassembler = field(default_factory=Reassembler)
    labels: LabelsConfig = field(default_factory=lambda: LabelsConfig())
    shards: int = 1
    budgets: Budgets = field(init=False)
    summaries: Summaries = field(init=False)
    counts: Counts = field(default_factory=Counts)
    unbalanced: int = 0
    clocks: dict[Partition, tuple[int, int]] = field(default_factory=dict)  # newest message, now_ms when it came
    now_ms: int = 0
    resumed: dict[Partition, int] = field(default_factory=dict)  # clocks of the snapshot, until the next chunk

    def __post_init__(self) -> None:
        self.budgets = Budgets(self.labels, self.cluster, self.shards)
        self.summaries = Summaries(self.noise.summary_s, self.cluster)

    def state(self) -> dict[str, Any]:
        """What must survive a restart; configuration is not part of it."""
        return {
            "streams": self.streams.streams,
            "clocks": self.now(),
            "counts": self.counts,
            "unbalanced": self.unbalanced,
            "budgets": self.budgets.state(),
            "summaries": (self.summaries.groups, self.summaries.closed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where the snapshot was taken."""
        self.streams.restore(state["streams"])
        self.resumed = state["clocks"]
        self.counts, self.unbalanced = state["counts"], state["unbalanced"]
        self.budgets.restore(state["budgets"])
        self.summaries.groups, self.summaries.closed = state["summaries"]

    def end_epoch(self) -> Counter[tuple[str, str]]:
        """To be called before the state is taken for the snapshot that ends an epoch.

        Returns the records of the epoch that had a label demoted for want of room, by (label, owner).
        """
        return self.budgets.end_epoch()

    def process(self, chunk: Chunk) -> tuple[Delivery, Counts]:
        """Take a chunk (or a tick) through all steps; returns what the sinks get and this chunk's counts."""
        counts = Counts()
        held_before = self.streams.held()
        decoded = decode(chunk, self.decode)
        delivery = Delivery(dead=decoded.dead)
        for letter in decoded.dead:
            counts.read[letter.topic, letter.partition] += letter.lines
            counts.dead[letter.topic, letter.partition] += letter.lines
        counts.messages_empty.update(decoded.empty)
        waiting: dict[str, list[Finished]] = {}
        clocks = self._tell_time(chunk)
        for done in self.streams.tick(clocks):
            waiting.setdefault(done.kind, []).append(done)
        for raw in label(chunk, decoded.raws, self.budgets):
            counts.read.update(by_partition(raw.rows))
            delivery.parts.append(self._parse(raw, waiting.pop(raw.kind, [])))
        if chunk.ended:
            for done in self.streams.flush():
                waiting.setdefault(done.kind, []).append(done)
        for kind, finished in waiting.items():
            delivery.parts.append(self._part(kind, [], [], finished, LabelSets(kind)))
        self._settle(delivery, counts, held_before)
        if summed := self.summaries.close(clocks, chunk.ended):
            delivery.parts.append(self._part(summaries.KIND, [], [], summed, LabelSets(summaries.KIND)))
            counts.synthetic[summaries.KIND] += len(summed)
        return delivery, counts

    def _tell_time(self, chunk: Chunk) -> dict[Partition, int]:
        """The time of each partition (ms): its newest message's, moved on by the source's clock since it came.

        So a partition that lags does not lose its pieces to one that does not, and a repeat sees the same times.
        """
        for number in np.unique(chunk.topic).tolist():
            mine = chunk.topic == number
            for partition in np.unique(chunk.partition[mine]).tolist():
                newest = chunk.appended_ms[mine & (chunk.partition == partition)].max()
                self.clocks[chunk.topics[number], partition] = (int(newest), chunk.now_ms)
        # Time stands still between a snapshot and the first chunk after it: what is held may go on there.
        for place, newest_ms in self.resumed.items():
            self.clocks.setdefault(place, (newest_ms, chunk.now_ms))
        self.resumed = {}
        for key in self.streams.streams:
            self.clocks.setdefault(key[:2], (self.streams.streams[key].last_ms, chunk.now_ms))
        for place, newest_ms in self.summaries.open():
            self.clocks.setdefault(place, (newest_ms, chunk.now_ms))
        self.now_ms = chunk.now_ms
        return self.now()

    def now(self) -> dict[Partition, int]:
        """The clock (ms) of every partition that has had a message, as of the latest chunk."""
        moved = {place: newest + max(self.now_ms - seen, 0) for place, (newest, seen) in self.clocks.items()}
        return {**self.resumed, **moved}

    def _parse(self, raw: Raw, waiting: list[Finished]) -> Part:
        kind = parser(raw.kind)
        raw = _by_stream(raw)
        lines = raw.rows["raw"].combine_chunks()
        noise = kind.noise(lines) if kind.noise else pa.nulls(len(lines), pa.dictionary(pa.int8(), pa.string()))
        is_noise = self.noise.mask(noise, raw.rows)
        kept = np.flatnonzero(~is_noise)
        kept_lines = lines.take(pa.array(kept)) if len(kept) < len(lines) else lines
        header = kind.header(kept_lines, raw.tz)
        gated = np.zeros(len(lines), dtype=np.bool_)
        gated[kept] = _gated(kind, kept_lines)
        rich = gated.copy()
        if header.rich is not None:
            rich[kept] |= np.asarray(header.rich.to_numpy(zero_copy_only=False), dtype=np.bool_)
        finished, taken = self.streams.feed(raw, gated, rich)
        labels = LabelSets(raw.kind, raw.labelled)
        plain = np.flatnonzero(~taken[kept])
        rows = plain_rows(raw, kept[plain], _pick(header, plain), labels)
        quiet = np.flatnonzero(is_noise & ~taken)
        rules = noise.take(pa.array(quiet))
        self.summaries.add_lines(raw, quiet, rules)
        quiet_rows = plain_rows(raw, quiet, Header(), None, rules)
        return self._part(raw.kind, [(rows, kept[plain])], [(quiet_rows, quiet)], waiting + finished, labels)

    def _part(
        self,
        kind: str,
        kept: list[tuple[pa.Table, Indices]],
        quiet: list[tuple[pa.Table, Indices]],
        finished: list[Finished],
        labels: LabelSets,
    ) -> Part:
        loud: list[Finished] = []
        still: list[Finished] = []
        for done in finished:
            if done.plain:
                _reduce(done)
            dropped = self.noise.drops(done.record.fields.get("noise"), done.envelope)
            (still if dropped else loud).append(done)
            if dropped:
                self.summaries.add_record(done)
        rows = _merge(kept, loud, labels)
        noise = _merge(quiet, still, labels)
        for labelled, records in labels.over.items():
            self.budgets.count(labelled, records)
        return Part(kind, rows, noise, labels.streams, labels.demoted)

    def _settle(self, delivery: Delivery, counts: Counts, held_before: dict[Partition, int]) -> None:
        """Count what became of every line, and check that it adds up."""
        for part in delivery.parts:
            counts.kept.update(by_partition(part.rows, "owned"))
            for rule, lines in by_rule(part.noise).items():
                counts.drop(rule, lines)
        counts.drop("empty", +self.streams.swallowed)
        self.streams.swallowed.clear()
        balance = Counter(counts.read)
        balance.update(held_before)
        for outcome in (counts.kept, counts.dead, *counts.dropped.values(), self.streams.held()):
            balance.subtract(outcome)
        self.unbalanced += sum(abs(lines) for lines in balance.values())
        self.counts.add(counts)


def _reduce(done: Finished) -> None:
    """Leave only what the header of the kind tells of a line."""
    fields = done.record.fields
    for name in fields.keys() - _header_names(done.kind):
        del fields[name]


@cache
def _header_names(kind: str) -> frozenset[str]:
    header = parser(kind).header(pa.array([], pa.large_binary()), None)
    return frozenset({"level", "message", *header.columns})


def _gated(kind: Parser, lines: pa.Array) -> Mask:
    if kind.gate is None:
        return np.ones(len(lines), dtype=np.bool_)
    return np.asarray(pc.match_substring_regex(lines, kind.gate).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _pick(header: Header, rows: Indices) -> Header:
    """The header of some of the lines."""
    indices = pa.array(rows)

    def pick(column: pa.Array | None) -> pa.Array | None:
        return None if column is None else column.take(indices)

    return Header(
        ts=pick(header.ts),
        ts_source=pick(header.ts_source),
        level=pick(header.level),
        body=pick(header.body),
        message=pick(header.message),
        columns={name: column.take(indices) for name, column in header.columns.items()},
    )


def _by_stream(raw: Raw) -> Raw:
    """The same rows with those of one stream together, in their order."""
    stream = raw.rows["stream"].combine_chunks().to_numpy()
    if np.all(np.diff(stream) >= 0):
        return raw
    rows = raw.rows.take(pa.array(np.argsort(stream, kind="stable")))
    return Raw(raw.kind, raw.tz, rows, raw.streams, raw.labelled)


def _merge(plain: list[tuple[pa.Table, Indices]], finished: list[Finished], labels: LabelSets) -> pa.Table:
    rows, at = plain[0] if plain else (_NO_ROWS, np.zeros(0, dtype=np.intp))
    rich = rich_rows(finished, labels) if finished else _NO_ROWS
    return in_order(rows, rich, at, np.array([done.row for done in finished], dtype=np.intp))


def by_partition(rows: pa.Table, weight: str | None = None) -> Counter[Partition]:
    """Rows (or the sum of a column) by (topic, partition)."""
    return _sums(rows, weight, None).get(None, Counter())


def by_rule(noise: pa.Table) -> dict[str, Counter[Partition]]:
    """Physical lines of dropped rows by rule and (topic, partition)."""
    return {str(rule): lines for rule, lines in _sums(noise, "owned", "noise").items()}


def _sums(rows: pa.Table, weight: str | None, by: str | None) -> dict[str | None, Counter[Partition]]:
    if not len(rows):
        return {}
    partition = whole(rows["partition"]).to_numpy()
    topics = whole(rows["topic"].unify_dictionaries())
    span, groups = int(partition.max()) + 1, [None]
    code = topics.indices.to_numpy().astype(np.int64)
    code *= span
    code += partition
    if by is not None:
        column = whole(rows[by].unify_dictionaries())
        groups = column.dictionary.to_pylist()
        code *= len(groups)
        code += column.indices.to_numpy()
    found, inverse = distinct(code)
    sums = np.bincount(inverse, None if weight is None else whole(rows[weight]).to_numpy())
    names = topics.dictionary.to_pylist()
    counted: dict[str | None, Counter[Partition]] = {}
    for number, lines in zip(found.tolist(), sums.tolist(), strict=True):
        place, group = divmod(number, len(groups))
        counted.setdefault(groups[group], Counter())[names[place // span], place % span] = int(lines)
    return counted
