"""What the receiver remembers of the entries it took: all of them, or how many and which numbers."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.demo.loki_push import Ints, Labels, PushStream, Refused

Extract = Callable[[pa.BinaryArray], Ints]  # the number in each line, or -1
Identity = tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]  # ts, line, metadata: equal ones are shown once

KEPT_ENTRIES: Final = 2_000_000


class Entry(NamedTuple):
    """One stored line as a query shows it: `ts` in ns since 1970; bytes that are no UTF-8 became U+FFFD."""

    ts: int
    line: str
    labels: dict[str, str]
    metadata: dict[str, str]


class KeepAll:
    """Keeps every entry once; refuses a push (500) that would exceed `capacity` entries."""

    def __init__(self, capacity: int = KEPT_ENTRIES) -> None:
        self.capacity, self.lines = capacity, 0
        self._streams: dict[tuple[str, Labels], dict[Identity, None]] = {}

    def add(self, tenant: str, labels: Labels, entries: PushStream) -> None:
        """Raises Refused when full."""
        if self.lines + len(entries.ts) > self.capacity:
            raise Refused(500, f"this receiver keeps {self.capacity} entries and no more")
        pairs: dict[int, dict[bytes, bytes]] = {}
        metadata = entries.metadata
        for owner, name, value in zip(
            metadata.entry.tolist(), metadata.names.to_pylist(), metadata.values.to_pylist(), strict=True
        ):
            pairs.setdefault(owner, {})[name] = value
        kept = self._streams.setdefault((tenant, labels), {})
        before = len(kept)
        for row, (ts, line) in enumerate(zip(entries.ts.tolist(), entries.lines.to_pylist(), strict=True)):
            kept[ts, line, tuple(sorted(pairs.get(row, {}).items()))] = None
        self.lines += len(kept) - before

    def counts(self, tenant: str) -> dict[Labels, int]:
        return {labels: len(kept) for (owner, labels), kept in self._streams.items() if owner == tenant}

    def entries(self, tenant: str, wanted: dict[str, str]) -> list[Entry]:
        """Entries whose labels include `wanted`, by time; a metadata name that is also a label gets `_extracted`."""
        found = []
        for (owner, labels), kept in self._streams.items():
            named = dict(labels)
            if owner != tenant or not wanted.items() <= named.items():
                continue
            for ts, line, pairs in kept:
                metadata = {}
                for raw, value in pairs:
                    name = raw.decode()
                    metadata[name + "_extracted" if name in named else name] = value.decode("utf-8", "replace")
                found.append(Entry(ts, line.decode("utf-8", "replace"), named, metadata))
        return sorted(found, key=lambda entry: entry.ts)


class Numbers:
    """Which of the numbers 0 .. capacity-1 came. `extract` reads the number of each line of a push.

    `repeated` counts lines whose number had come before, `foreign` those without a number or beyond capacity.
    """

    def __init__(self, capacity: int, extract: Extract) -> None:
        self.repeated = self.foreign = 0
        self._extract = extract
        self._seen = np.zeros(capacity, np.bool_)

    def add(self, lines: pa.BinaryArray) -> Ints:
        """Marks the numbers of these lines and returns them, -1 for a line without one."""
        numbers = self._extract(lines)
        known = np.sort(numbers[(numbers >= 0) & (numbers < len(self._seen))])
        fresh = known[(np.diff(known, prepend=-1) > 0) & ~self._seen[known]]
        self._seen[fresh] = True
        self.foreign += len(numbers) - len(known)
        self.repeated += len(known) - len(fresh)
        return numbers

    def missing(self, total: int | None = None) -> Ints:
        """The numbers below `total` (all) that never came."""
        return np.flatnonzero(~self._seen[:total])


def by_regex(pattern: str) -> Extract:
    """Reads the number as the one group of an RE2 pattern."""
    named = re.sub(r"\((?!\?)", "(?P<number>", pattern, count=1)

    def extract(lines: pa.BinaryArray) -> Ints:
        found = pc.struct_field(pc.extract_regex(lines, named), "number")
        numbers: Ints = pc.fill_null(found.cast(pa.string()).cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        return numbers

    return extract


class Count:
    """Counts lines by stream, and checks their numbers when given; repeats are counted again. For benchmarks."""

    def __init__(self, numbers: Numbers | None = None) -> None:
        self.numbers, self.lines = numbers, 0
        self._counts: Counter[tuple[str, Labels]] = Counter()

    def add(self, tenant: str, labels: Labels, entries: PushStream) -> None:
        self._counts[tenant, labels] += len(entries.ts)
        self.lines += len(entries.ts)
        if self.numbers is not None:
            self.numbers.add(entries.lines)

    def counts(self, tenant: str) -> dict[Labels, int]:
        return {labels: count for (owner, labels), count in self._counts.items() if owner == tenant}
