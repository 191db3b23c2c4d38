"""What the noise rules dropped, as one record for each window, node and job: "N02 × 48,112, N19 × 1,204 (gpu-a01, …)".

A window is cut by the time at which the broker took a message. It is summed up, and closed, once the clock
of its partition is a whole window past its end; dropped lines that come later still (held ones, or those
of a consumer that stood still for so long) count in the next window that is open.

Such a record is no line of a log: its kind is `noise_summary` and it owns no physical line. It stands
where the first line that it counts stands, with that line's number counted from -1 downwards, where no
real line is, and its `part` is the number of windows from that line's to the one it counts in. A line has
one node and one job and counts once, so no two records share an identity.

Memory: at most 20,000 groups of a window, node and job, about 0.6 kB each; further ones of a partition and
window count as one, without a name.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flows.batch import Raw
from flows.steps.labels import Labelled, distinct
from flows.steps.reassemble import Finished, whole
from parsers.clock import Stamp
from parsers.record import Record, Ref
from parsers.schema import ENVELOPE
from sinks.base import Partition

KIND = "noise_summary"
JOB = "noise-summary"
MAX_GROUPS = 20_000

_LINE_BITS = 24  # a place is offset << 24 | line
_NS_PER_MS = 1_000_000
_KEPT = ("cluster", "job_id", "namespace", "node", "pod")  # labels that name a group, beside the tenant

Named = tuple[str, ...]  # tenant, then values of _KEPT


@dataclass(slots=True)
class Group:
    """Lines dropped by rule; `first` is the place of the first, `first_window` the window it came in."""

    first: int
    first_window: int
    lines: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Summaries:
    """Counts and sums up; `window_s` 0 sums up nothing. `groups` and `closed` (up to which window) are the state."""

    window_s: int
    cluster: str = ""
    groups: dict[tuple[Partition, int, Named], Group] = field(default_factory=dict)
    closed: dict[Partition, int] = field(default_factory=dict)

    def add_lines(self, raw: Raw, dropped: "npt.NDArray[np.intp]", noise: pa.Array) -> None:
        """Count lines of a labelled Raw by columns; `noise` (schema.CODE) names the rule of each row in `dropped`."""
        if not self.window_s or not len(dropped):
            return
        labels, offset = (whole(raw.rows[name]).to_numpy()[dropped] for name in ("labels", "offset"))
        # Lines of one message stand together in order: but for their rules they are looked at by their first.
        starts = np.flatnonzero(np.append(True, (np.diff(offset) != 0) | (np.diff(labels) != 0)))
        lengths = np.diff(np.append(starts, len(offset)))
        appended, line = (whole(raw.rows[name]).to_numpy()[dropped[starts]] for name in ("appended_at", "line"))
        windows, at = np.unique(appended // (self.window_s * 1000), return_inverse=True)
        groups, group = distinct(labels[starts] * np.int64(len(windows)) + at)
        first = np.full(len(groups), np.iinfo(np.int64).max)
        np.minimum.at(first, group, offset[starts] << _LINE_BITS | line)
        rules = noise.dictionary.to_pylist()
        lines = np.bincount(
            np.repeat(group * len(rules), lengths) + noise.indices.to_numpy(), minlength=len(groups) * len(rules)
        ).reshape(len(groups), len(rules))
        for row, (labelled, number) in enumerate(
            zip(*(part.tolist() for part in np.divmod(groups, len(windows))), strict=True)
        ):
            counts = {rules[rule]: int(lines[row, rule]) for rule in np.flatnonzero(lines[row]).tolist()}
            self._add(raw.labelled[labelled], int(windows[number]), int(first[row]), counts)

    def add_record(self, done: Finished) -> None:
        """Count a dropped record that had been held."""
        if self.window_s and done.owned:
            ref = done.record.refs[0]
            first = ref.offset << _LINE_BITS | ref.line
            rule = str(done.record.fields["noise"])
            self._add(done.labelled, done.appended_ms // (self.window_s * 1000), first, {rule: done.owned})

    def open(self) -> list[tuple[Partition, int]]:
        """The partitions and starts (ms) of the windows that are being counted."""
        return [(place, window * self.window_s * 1000) for place, window, _ in self.groups]

    def close(self, clocks: Mapping[Partition, int], ended: bool = False) -> list[Finished]:
        """The records of all windows that are over by the clocks (ms) of their partitions, or of all."""
        over: dict[Partition, int] = {}
        if self.window_s:
            over = {place: now // (self.window_s * 1000) - 1 for place, now in clocks.items()}
        done = [key for key in self.groups if ended or key[1] < over.get(key[0], 0)]
        for place, _, _ in done:
            self.closed[place] = max(self.closed.get(place, 0), over.get(place, 0))
        return [self._record(key, self.groups.pop(key)) for key in sorted(done)]

    def _add(self, labelled: Labelled, window: int, first: int, lines: Mapping[str, int]) -> None:
        pairs = dict(labelled.shown + labelled.demoted)
        counted = max(window, self.closed.get(labelled.place, window))
        key = (labelled.place, counted, (labelled.tenant, *(pairs.get(name, "") for name in _KEPT)))
        group = self.groups.get(key)
        if group is None and len(self.groups) >= MAX_GROUPS:
            key = (labelled.place, counted, ("",) * (1 + len(_KEPT)))
            group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(first, window)
        elif first < group.first:
            group.first, group.first_window = first, window
        group.lines.update(lines)

    def _record(self, key: tuple[Partition, int, Named], group: Group) -> Finished:
        (topic, partition), window, (tenant, *values) = key
        named = {name: value for name, value in zip(_KEPT, values, strict=True) if value}
        counts = sorted(group.lines.items(), key=lambda item: (-item[1], item[0]))
        pod = "/".join(named[name] for name in ("namespace", "pod") if name in named)
        who = [named.get("node", ""), f"job {named['job_id']}" if "job_id" in named else "", pod, f"{self.window_s} s"]
        text = f"{', '.join(f'{rule} × {lines:,}' for rule, lines in counts)} ({', '.join(filter(None, who))})"
        start_ms, offset = window * self.window_s * 1000, group.first >> _LINE_BITS
        line = -1 - (group.first & ((1 << _LINE_BITS) - 1))
        shown = {"cluster": self.cluster} if self.cluster and self.cluster == named.get("cluster") else {}
        envelope: dict[str, str | None] = dict.fromkeys(ENVELOPE.names, "")
        envelope |= {"owner_job" if name == "job_id" else name: value for name, value in named.items()}
        envelope |= {"tenant": tenant, "job": JOB}
        return Finished(
            Record(
                {
                    "level": "info",
                    "message": text,
                    "window_s": self.window_s,
                    "dropped": group.lines.total(),
                },
                (Ref(offset, line),),
                Stamp(start_ms * _NS_PER_MS),
                "received",
                part=min(window - group.first_window, 32_767),
            ),
            KIND,
            topic,
            partition,
            envelope,
            Labelled(
                tuple(sorted({**shown, "job": JOB}.items())),
                tuple(pair for pair in sorted(named.items()) if pair[0] not in shown),
            ),
            start_ms,
            text.encode(),
            owned=0,
            row=-1,
            plain=False,
        )
