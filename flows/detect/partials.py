"""The first half of detection: records in, partials out.

A batch in which no rule can match costs a look at the distinct events of each part. Rows that may match are
found and grouped by whole columns; Python sees one row per partial.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from flows.detect import knowledge
from flows.detect.episodes import CARRIERS
from flows.detect.events import MAX_EXCERPT, MAX_NODES, Evidence, Group, Partial, Run
from flows.detect.fold import BELONGS, TRUSTED
from flows.detect.hits import Coded, Hits, Mask, Numbers, codes_of, dense, encoded
from flows.detect.rules import DetectConfig, Match, Rule, choices
from sinks.base import Delivery

_EVIDENCE = ("node", "kind", "boot_id", "message", "raw")


class Detector:
    """Finds the records that rules count. Holds no state: what it returns depends on the delivery alone."""

    def __init__(self, rules: Sequence[Rule], config: DetectConfig, cluster: str = "") -> None:
        """With `rules` go those of Knowledge, which explain alerts. `cluster`: of records that name none."""
        self._rules = (*rules, *knowledge.RULES) if rules else ()
        self._config, self._cluster = config, cluster
        self._by_kind: dict[str, list[tuple[Rule, list[tuple[Match, frozenset[str]]]]]] = {}

    def partials(self, delivery: Delivery) -> list[Partial]:
        """Partials of the rows of a delivery (not of its noise), by place."""
        found: list[Partial] = []
        for part in delivery.parts:
            if len(part.rows):
                found += self._of_part(part.kind, part.rows)
        return sorted(found, key=lambda partial: (partial.source, partial.offset, partial.records))

    def _of_part(self, kind: str, rows: pa.Table) -> list[Partial]:
        present = {
            value for chunk in rows["event"].chunks for value in chunk.dictionary.to_pylist() if value is not None
        }
        rules = [
            (rule, open_matches)
            for rule, matches in self._for_kind(kind)
            if (open_matches := [(match, events) for match, events in matches if not match.events or events & present])
        ]
        if not rules:
            return []
        wanted = frozenset[str]().union(*(events for _, matches in rules for _, events in matches))
        at = _having_event(rows, wanted)
        eventless = {
            id(match): self._eventless(match, rows) for _, matches in rules for match, _ in matches if not match.events
        }
        at = np.unique(np.concatenate([at, *eventless.values()]))
        if not len(at):
            return []
        hits = Hits(rows, at, self._cluster)
        events, values = hits.plain("event")
        trusted = codes_of(values, *(value for value in values if kind in TRUSTED.get(value, (kind,))))[events]
        found: list[Partial] = []
        for rule, matches in rules:
            mask = np.zeros(len(at), dtype=np.bool_)
            for match, _ in matches:
                mask |= _fits(match, hits) if match.events else np.isin(at, eventless[id(match)])
            mask &= trusted
            if mask.any():
                mine = hits if mask.all() else Hits(rows, at[mask], self._cluster)
                found += self._grouped(rule, kind, mine)
        return found

    def _for_kind(self, kind: str) -> list[tuple[Rule, list[tuple[Match, frozenset[str]]]]]:
        """Rules for a kind, each with its matches and the events (as the parser names them) that may fit."""
        known = self._by_kind.get(kind)
        if known is None:
            known = []
            for rule in self._rules:
                matches = [match for match in rule.matches if not match.kinds or kind in match.kinds]
                if matches:
                    known.append((rule, [(match, _sources(match)) for match in matches]))
            self._by_kind[kind] = known
        return known

    def _eventless(self, match: Match, rows: pa.Table) -> Numbers:
        """Places of the rows that a match fits which names no event."""
        at = np.arange(len(rows), dtype=np.int64)
        for name, wanted in match.where.items():
            at = at[Hits(rows, at, self._cluster).having(name, wanted)]
        return at[Hits(rows, at, self._cluster).matching(match.regex)] if match.regex else at

    def _grouped(self, rule: Rule, kind: str, hits: Hits) -> list[Partial]:
        groups = [_choice(hits, choices(choice)) for choice in rule.group_by]
        keys = [hits.coded(name) for name in rule.fold_by or ()]
        ways, folded = hits.folded
        counts, how = dense([np.array([(way.weight << 1) + way.follower for way in folded], dtype=np.int64)[ways]])
        seconds, ts, suspect, late = self._times(hits)
        topics, topic_names = hits.coded("topic")
        partition, offset = hits.numbers("partition"), hits.numbers("offset")
        line, part = hits.numbers("line"), hits.numbers("part")
        number, some = dense(
            [topics, partition, offset, seconds, suspect, late, counts]
            + [codes for codes, _ in groups]
            + [codes for codes, _ in keys]
        )
        by_place = np.lexsort((line, part, number))
        by_time = np.lexsort((part, line, ts, number))
        starts = np.flatnonzero(np.diff(number[by_place], prepend=-1))
        ends = np.append(starts[1:], len(number))
        firsts = by_time[starts]
        lines = self._evidence(hits, firsts)
        appended = hits.numbers("appended_at")
        shown = [(name, hits.coded(name)) for name in rule.shown_fields()]
        hosts = hits.coded("host")
        found = []
        for start, end, row, first, evidence in zip(
            starts.tolist(), ends.tolist(), some.tolist(), firsts.tolist(), lines, strict=True
        ):
            timely = by_time[start:end]
            place = (topic_names[topics[row]], int(partition[row]), int(offset[row]))
            way = folded[ways[how[counts[row]]]]
            found.append(
                Partial(
                    rule.name,
                    _group(pairs[codes[row]] for codes, pairs in groups),
                    int(seconds[row]),
                    *place,
                    int(appended[first]),
                    _runs(line[by_place[start:end]], part[by_place[start:end]]),
                    Evidence(int(ts[first]), *place, int(line[first]), *evidence),
                    key="\x1f".join(values[codes[row]] for codes, values in keys),
                    carrier=kind if kind in CARRIERS else "",
                    weight=way.weight,
                    follower=way.follower,
                    clock_suspect=bool(suspect[row]),
                    late=bool(late[row]),
                    values=tuple((name, value) for name, coded in shown if (value := _earliest(coded, timely))),
                    nodes=_distinct(hosts, timely),
                )
            )
        return found

    def _times(self, hits: Hits) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Second in the windows' time, own time (ns), whether that lies in the future, and whether beyond the horizon.

        A record without a time has that of Kafka.
        """
        appended = hits.numbers("appended_at") // 1_000
        stamps = hits.column("ts").cast(pa.int64())
        known = stamps.is_valid().to_numpy(zero_copy_only=False)
        ts = np.where(known, stamps.fill_null(0).to_numpy(zero_copy_only=False), appended * 10**9).astype(np.int64)
        seconds = ts // 10**9
        suspect = seconds > appended + self._config.skew_s
        late = seconds < appended - self._config.horizon_s
        return np.where(suspect, appended, seconds), ts, suspect.astype(np.int64), late.astype(np.int64)

    @staticmethod
    def _evidence(hits: Hits, rows: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> list[tuple[str, str, str, str]]:
        """Node, kind, boot id and excerpt of some rows."""
        indices = pa.array(rows)
        node, kind, boot_id, message, raw = (hits.column(name).take(indices).to_pylist() for name in _EVIDENCE)
        return [
            (
                node[row] or "",
                kind[row] or "",
                boot_id[row] or "",
                (raw[row].decode(errors="replace") if message[row] is None else message[row])[:MAX_EXCERPT],
            )
            for row in range(len(rows))
        ]


def _sources(match: Match) -> frozenset[str]:
    """Events that a match takes, and those that folding makes such events of."""
    belonging = {event for event, becomes in BELONGS.items() if not set(becomes).isdisjoint(match.events)}
    return frozenset(match.events) | belonging


def _having_event(rows: pa.Table, wanted: frozenset[str]) -> Numbers:
    """Places of the rows whose event, as the parser names it, is wanted."""
    places, start = [np.zeros(0, dtype=np.int64)], 0
    for chunk in rows["event"].chunks:
        codes, values = encoded(chunk)
        places.append(np.flatnonzero(codes_of(values, *wanted)[codes]) + start)
        start += len(chunk)
    return np.concatenate(places)


def _fits(match: Match, hits: Hits) -> Mask:
    mask = hits.having("event", match.events)
    for name, wanted in match.where.items():
        mask &= hits.having(name, wanted)
    if match.regex and mask.any():
        mask &= hits.matching(match.regex)
    return mask


def _choice(hits: Hits, names: list[str]) -> tuple[Numbers, list[tuple[str, str]]]:
    """For each row the first of some fields that is known, as codes of (name, value)."""
    codes, values = hits.coded(names[0])
    pairs = [(names[0], value) for value in values]
    for name in names[1:]:
        others, more = hits.coded(name)
        missing = np.array([not value for _, value in pairs], dtype=np.bool_)[codes]
        codes = np.where(missing, others + len(pairs), codes)
        pairs += [(name, value) for value in more]
    # Values may stand twice among the pairs, and what is not known has no name.
    numbers: dict[tuple[str, str], int] = {}
    again = np.array([numbers.setdefault(pair if pair[1] else ("", ""), len(numbers)) for pair in pairs])
    return again[codes], list(numbers)


def _group(pairs: Iterable[tuple[str, str]]) -> Group:
    return tuple(sorted(pair for pair in pairs if pair[1]))


def _runs(line: Numbers, part: Numbers) -> tuple[Run, ...]:
    """Records by (part, line) as runs of lines in a row."""
    breaks = np.flatnonzero((np.diff(line) != 1) | (np.diff(part) != 0)) + 1
    starts = [0, *breaks.tolist()]
    ends = [*starts[1:], len(line)]
    return tuple((int(line[a]), int(part[a]), b - a) for a, b in zip(starts, ends, strict=True))


def _earliest(coded: Coded, rows: Numbers) -> str:
    """The first known value of a field in some rows, else ""."""
    codes, values = coded
    return next((values[code] for code in dict.fromkeys(codes[rows].tolist()) if values[code]), "")


def _distinct(coded: Coded, rows: Numbers) -> tuple[str, ...]:
    codes, values = coded
    return tuple(sorted({values[code] for code in np.unique(codes[rows]).tolist()} - {""})[:MAX_NODES])
