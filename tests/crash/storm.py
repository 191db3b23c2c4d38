"""The storm: SIGKILLs at random moments and at the worst one, and a SIGTERM in the middle."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.crash.loki_seen import KeepArrivals
from tests.crash.tier import Tier

LANDING = "landing/g000001"
_POLL_S = 0.005
_AIM_S = 30.0  # longest wait for an object to aim at


class Kill(NamedTuple):
    """A SIGKILL. `key`: the object whose appearance triggered it, None for a random moment; `modified`: its time."""

    process: int
    key: str | None
    modified: Any


class Drained(NamedTuple):
    """A SIGTERM that was followed. `objects`: those of the process when it ended, with their times.

    What Loki got after `first` entries, and until there were `last` of them, came from the life after it.
    """

    process: int
    status: int
    objects: dict[str, Any]
    first: int
    last: int


@dataclass(slots=True)
class Landing:
    """The archive's landing objects in the bucket. `shards`: names of all shards."""

    client: Any
    bucket: str
    shards: Sequence[str]
    _newest: dict[str, str] = field(default_factory=dict)

    def objects(self, shards: Sequence[str] | None = None) -> dict[str, Any]:
        """Key and time of every object of these shards (default: all)."""
        found = {}
        pages = self.client.get_paginator("list_objects_v2")
        for shard in shards or self.shards:
            for page in pages.paginate(Bucket=self.bucket, Prefix=f"{LANDING}/{shard}/"):
                found |= {item["Key"]: item["LastModified"] for item in page.get("Contents", ())}
        return found

    def look(self, shard: str) -> list[tuple[str, Any]]:
        """Objects of a shard that were not there at the last look."""
        prefix = f"{LANDING}/{shard}/"
        after = self._newest.get(shard, prefix)
        answer = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, StartAfter=after)
        fresh = [(item["Key"], item["LastModified"]) for item in answer.get("Contents", ())]
        if fresh:
            self._newest[shard] = fresh[-1][0]
        return fresh

    def next_object(self, shards: Sequence[str], patience_s: float) -> tuple[str, str, Any] | None:
        """Shard, key and time of the next object that appears in one of these shards; None when none does."""
        for shard in shards:
            while self.look(shard):
                pass
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            for shard in shards:
                if fresh := self.look(shard):
                    return shard, *fresh[-1]
            time.sleep(_POLL_S)
        return None


def storm(
    tier: Tier, landing: Landing, arrivals: KeepArrivals, kills: int, seconds: float, chance: random.Random
) -> tuple[list[Kill], Drained]:
    """About `seconds` of kills, every second one aimed between the storing of an object and the commit of its epoch.

    Half as often the evaluator is killed as well; those kills are not among the ones returned.
    """
    done: list[Kill] = []
    drained: Drained | None = None
    slot = seconds / (kills + 2)
    while len(done) < kills:
        if drained is None and len(done) == kills // 2:
            drained = _drain(tier, landing, arrivals, chance.randrange(len(tier.processes)))
        time.sleep(chance.uniform(0.2, 1.0) * slot)
        # In turn, so that every process is met at least a third of the time whatever chance says.
        process = len(done) % len(tier.processes) if chance.random() < 0.7 else chance.randrange(len(tier.processes))
        aimed = landing.next_object(_shards(tier, landing, process), _AIM_S) if len(done) % 2 else None
        if tier.kill(process):
            done.append(Kill(process, *(aimed[1:] if aimed else (None, None))))
            if len(done) % 2:
                time.sleep(chance.uniform(0.0, 0.3) * slot)
                tier.kill(tier.evaluator)
    assert drained is not None
    return done, drained


def _drain(tier: Tier, landing: Landing, arrivals: KeepArrivals, process: int) -> Drained:
    """SIGTERM while the process stores objects, then a new life until it has stored one itself."""
    mine = _shards(tier, landing, process)
    assert landing.next_object(mine, 60.0), f"process {process} stores nothing"
    status = tier.drain(process, 60.0)
    objects, first = landing.objects(mine), arrivals.lines
    tier.revive(process)
    assert landing.next_object(mine, 60.0), f"process {process} stores nothing after it was drained"
    return Drained(process, status, objects, first, arrivals.lines)


def _shards(tier: Tier, landing: Landing, process: int) -> list[str]:
    return [shard for shard in landing.shards if int(shard) % len(tier.processes) == process]
