"""The order of the pure steps: chunk → decode → labels → read (and redact), reassemble → noise → summaries → delivery.

One `Pipeline` per shard, with its state in the snapshot. Counts add up for every chunk:
read + held before = records' lines + noise by rule + swallowed empty lines + dead + held after.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from flows.batch import Chunk, Raw
from flows.steps import summaries
from flows.steps.budgets import Budgets
from flows.steps.columns import ROWS, Indices, in_order, plain_rows, rich_rows
from flows.steps.decode import DecodeConfig, decode
from flows.steps.kinds import BUILT_IN, Kinds
from flows.steps.label_limits import LabelsConfig
from flows.steps.labelling import label
from flows.steps.labels import LabelSets
from flows.steps.noise import NoiseConfig
from flows.steps.read import Read, read
from flows.steps.reassemble import Finished, Reassembler
from flows.steps.redact.columns import OpenSecrets, Redaction, redact_letters, remember
from flows.steps.summaries import Summaries
from flows.steps.tally import by_partition, by_rule
from parsers.header import Header
from parsers.record import Parser
from sinks.base import Delivery, Part, Partition

Rows = tuple[pa.Table, Indices]  # rows of LOG, and their places in the batch

_NO_ROWS = ROWS.empty_table()
_NONE: Rows = (_NO_ROWS, np.zeros(0, dtype=np.intp))


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


def _at_once(work: Callable[[], Read]) -> Callable[[], Read]:
    return work


@dataclass(slots=True)
class Pipeline:
    """State and steps of one of `shards` shards.

    `stores_noise`: some sink takes the rows that a noise rule dropped. `background` starts work and returns
    what waits for its result; left alone, the work is done when its result is asked for.
    """

    decode: DecodeConfig
    cluster: str = ""
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig())
    streams: Reassembler = field(default_factory=Reassembler)
    labels: LabelsConfig = field(default_factory=lambda: LabelsConfig())
    shards: int = 1
    stores_noise: bool = True
    redaction: Redaction = field(default_factory=lambda: Redaction())
    background: "Callable[[Callable[[], Read]], Callable[[], Read]]" = _at_once
    kinds: Kinds = BUILT_IN
    budgets: Budgets = field(init=False)
    summaries: Summaries = field(init=False)
    counts: Counts = field(default_factory=Counts)
    unbalanced: int = 0
    open_secrets: OpenSecrets = field(default_factory=dict)
    clocks: dict[Partition, tuple[int, int]] = field(default_factory=dict)  # newest message, now_ms when it came
    now_ms: int = 0
    resumed: dict[Partition, int] = field(default_factory=dict)  # clocks of the snapshot, until the next chunk

    def __post_init__(self) -> None:
        self.budgets = Budgets(self.labels, self.cluster, self.shards, self.kinds)
        self.streams.kinds = self.kinds
        self.summaries = Summaries(self.noise.summary_s, self.cluster)

    def state(self) -> dict[str, Any]:
        """What must survive a restart; configuration is not part of it."""
        return {
            "streams": self.streams.streams,
            "clocks": self.now(),
            "counts": self.counts,
            "unbalanced": self.unbalanced,
            "budgets": self.budgets.state(),
            "open_secrets": self.open_secrets,
            "summaries": (self.summaries.groups, self.summaries.closed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where the snapshot was taken."""
        self.streams.restore(state["streams"])
        self.resumed = state["clocks"]
        self.counts, self.unbalanced = state["counts"], state["unbalanced"]
        self.open_secrets = state["open_secrets"]
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
        decoded = decode(chunk, self.decode, self.kinds)
        delivery = Delivery(dead=redact_letters(decoded.dead, self.redaction))
        for letter in decoded.dead:
            counts.read[letter.topic, letter.partition] += letter.lines
            counts.dead[letter.topic, letter.partition] += letter.lines
        counts.messages_empty.update(decoded.empty)
        raws = label(chunk, decoded.raws, self.budgets)
        for raw in raws:
            counts.read.update(by_partition(raw.rows))
        # The largest is read in the background, where the caller has one, while the others are parsed.
        sizes = [len(raw.rows) for raw in raws]
        largest = sizes.index(max(sizes)) if len(sizes) > 1 else -1
        # A stream is in one of them only, so what they change of `open_secrets` are different keys.
        known = (self.noise, self.redaction, dict(self.open_secrets), self.kinds)
        waited = self.background(partial(read, raws[largest], *known)) if largest >= 0 else None
        parts = {place: self._parse(read(raw, *known), counts) for place, raw in enumerate(raws) if place != largest}
        if waited is not None:
            parts[largest] = self._parse(waited(), counts)
        delivery.parts += [part for _, part in sorted(parts.items())]
        # Only now: what the chunk holds of a stream may be what the stream waits for.
        clocks = self._tell_time(chunk)
        waiting: dict[str, list[Finished]] = {}
        for done in self.streams.flush() if chunk.ended else self.streams.tick(clocks):
            waiting.setdefault(done.kind, []).append(done)
        for kind, finished in waiting.items():
            delivery.parts.append(self._part(kind, _NONE, _NONE, finished, LabelSets(kind)))
        if summed := self.summaries.close(clocks, chunk.ended):
            delivery.parts.append(self._part(summaries.KIND, _NONE, _NONE, summed, LabelSets(summaries.KIND)))
            counts.synthetic[summaries.KIND] += len(summed)
        self._settle(delivery, counts, held_before)
        return delivery, counts

    def _tell_time(self, chunk: Chunk) -> dict[Partition, int]:
        """The time of each partition (ms): its newest message's, moved on by the source's clock since it came.

        A partition whose next messages wait to be read is moved by them alone. So no piece of a record is lost
        to the time that reading took, and a repeat cuts the same records, whatever its batches are.
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
        for place in chunk.behind & self.clocks.keys():
            self.clocks[place] = (self.clocks[place][0], chunk.now_ms)
        self.now_ms = chunk.now_ms
        return self.now()

    def now(self) -> dict[Partition, int]:
        """The clock (ms) of every partition that has had a message, as of the latest chunk."""
        moved = {place: newest + max(self.now_ms - seen, 0) for place, (newest, seen) in self.clocks.items()}
        return {**self.resumed, **moved}

    def _parse(self, lines: Read, counts: Counts) -> Part:
        raw, kept, is_noise = lines.raw, lines.kept, lines.is_noise
        remember(self.open_secrets, lines.opened)
        finished, taken = self.streams.feed(raw, lines.gated, lines.rich)
        labels = LabelSets(raw.kind, raw.labelled)
        plain = np.flatnonzero(~taken[kept])
        rows = plain_rows(raw, kept[plain], _pick(lines.header, plain), labels)
        quiet = np.flatnonzero(is_noise & ~taken)
        return self._part(
            raw.kind,
            (rows, kept[plain]),
            self._quiet(raw, quiet, lines.noise.take(pa.array(quiet)), counts),
            finished,
            labels,
        )

    def _quiet(self, raw: Raw, rows: Indices, noise: pa.DictionaryArray, counts: Counts) -> Rows:
        """Rows of noise, where a sink stores them; else they are only counted. Both ways they are summed up."""
        self.summaries.add_lines(raw, rows, noise)
        if self.stores_noise:
            return plain_rows(raw, rows, Header(), None, noise), rows
        places = raw.rows.select(["topic", "partition"]).take(pa.array(rows))
        for rule, lines in by_rule(noise, places).items():
            counts.drop(rule, lines)
        return _NONE

    def _part(
        self,
        kind: str,
        kept: Rows,
        quiet: Rows,
        finished: list[Finished],
        labels: LabelSets,
    ) -> Part:
        loud: list[Finished] = []
        still: list[Finished] = []
        for done in finished:
            if done.plain:
                _reduce(done, self.kinds.parser(done.kind))
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
            if len(part.noise):
                codes = part.noise["noise"].unify_dictionaries().combine_chunks()
                for rule, lines in by_rule(codes, part.noise, "owned").items():
                    counts.drop(rule, lines)
        delivery.kept = counts.kept
        delivery.dropped = {rule: Counter(lines) for rule, lines in counts.dropped.items()}
        counts.drop("empty", +self.streams.swallowed)
        self.streams.swallowed.clear()
        balance = Counter(counts.read)
        balance.update(held_before)
        for outcome in (counts.kept, counts.dead, *counts.dropped.values(), self.streams.held()):
            balance.subtract(outcome)
        self.unbalanced += sum(abs(lines) for lines in balance.values())
        self.counts.add(counts)


def _reduce(done: Finished, parser: Parser) -> None:
    """Leave only what the header of the kind tells of a line; a header with `fields` tells all."""
    fields, told = done.record.fields, _header_names(parser)
    if "fields" in told:
        return
    for name in fields.keys() - told:
        del fields[name]


@lru_cache(maxsize=128)
def _header_names(parser: Parser) -> frozenset[str]:
    header = parser.header(pa.array([], pa.large_binary()), None)
    return frozenset({"level", "message", *header.columns})


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


def _merge(plain: Rows, finished: list[Finished], labels: LabelSets) -> pa.Table:
    rich = rich_rows(finished, labels) if finished else _NO_ROWS
    return in_order(plain[0], rich, plain[1], np.array([done.row for done in finished], dtype=np.intp))
