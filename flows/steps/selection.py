"""Which records of a delivery a replay hands on, and the label that tells them from live ones."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.steps.tally import by_partition, by_rule
from sinks.base import Delivery, Part
from sinks.loki_limits import REPLAY


@dataclass(frozen=True, slots=True)
class Selection:
    """Empty sets select everything. `jobs` are Slurm's ids, of the record or of the job whose output it is."""

    kinds: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def of(self, delivery: Delivery) -> Delivery:
        """The records that are selected, with the label `replay`, and their counts; dead letters stay."""
        parts = [self._part(part) for part in delivery.parts if not self.kinds or part.kind in self.kinds]
        chosen = Delivery(parts, delivery.dead)
        for part in parts:
            for place, lines in by_partition(part.rows, "owned").items():
                chosen.kept[place] = chosen.kept.get(place, 0) + lines
            if len(part.noise):
                codes = part.noise["noise"].unify_dictionaries().combine_chunks()
                for rule, by_place in by_rule(codes, part.noise, "owned").items():
                    found = chosen.dropped.setdefault(rule, {})
                    for place, lines in by_place.items():
                        found[place] = found.get(place, 0) + lines
        return chosen

    def _part(self, part: Part) -> Part:
        streams = [tuple(sorted((*labels, REPLAY))) for labels in part.streams]
        return Part(part.kind, self._rows(part.rows), self._rows(part.noise), streams, part.demoted)

    def _rows(self, rows: pa.Table) -> pa.Table:
        mask = None
        if self.nodes:
            mask = _is_in(rows["node"].cast(pa.string()), self.nodes)
        if self.jobs:
            mine = pc.or_(
                pc.fill_null(_is_in(rows["job_id"].cast(pa.string()), self.jobs), False),
                _is_in(rows["owner_job"].cast(pa.string()), self.jobs),
            )
            mask = mine if mask is None else pc.and_(mask, mine)
        return rows if mask is None else rows.filter(pc.fill_null(mask, False))


def _is_in(column: pa.ChunkedArray, values: frozenset[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(values), pa.string()))
