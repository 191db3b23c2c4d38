"""Time zones of local times in lines, by kind and node."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from flows.steps.kinds import require_kind
from parsers.clock import zone


class Zone(BaseModel):
    """The zone of local times in lines of some kinds, some nodes, or some kinds of some nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tz: str = Field(description="Zone (IANA name) of the local times.")
    kinds: tuple[str, ...] = Field((), description="Kinds it holds for; empty means all.")
    nodes: tuple[str, ...] = Field((), description="Nodes it holds for, with * and ? as in gpu-e*; empty means all.")

    @field_validator("tz")
    @classmethod
    def _known_zone(cls, tz: str) -> str:
        return zone(tz).key

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for kind in kinds:
            require_kind(kind, info)
        return kinds

    @model_validator(mode="after")
    def _of_something(self) -> "Zone":
        if not (self.kinds or self.nodes):
            raise ValueError("give it kinds or nodes; the zone of all lines is decode.tz")
        return self


def zone_of(zones: Sequence[Zone], kind: str, node: str) -> str | None:
    """The first zone that holds for lines of a kind and a node; None when none does."""
    return next(
        (
            each.tz
            for each in zones
            if (not each.kinds or kind in each.kinds)
            and (not each.nodes or any(fnmatchcase(node, pattern) for pattern in each.nodes))
        ),
        None,
    )
