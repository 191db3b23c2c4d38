"""Which noise is dropped: rules may be switched off, and headers may exempt a stream from all of them."""

import difflib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from parsers.nccl_noise import RULES
from parsers.schema import ENVELOPE

# All ids that a parser gives a record: section 7 of the field dictionary.
NOISE_IDS = (
    *(rule["id"] for rule in RULES["noise"]),
    *(
        "N25",
        "N26",
        "progress",
        "torch_shutdown",
        "torch_options",
        "nvrm_crash_dump",
        "mlx5_access_reg",
        "fm_nothing_to_do",
    ),
)


class NoiseConfig(BaseModel):
    """What leaves Loki and Azure. A dropped line stays in the archive and is counted by its rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop: bool = Field(True, description="Drop the lines that a noise rule names; false delivers everything.")
    keep: tuple[str, ...] = Field((), description="Noise rules that are not applied, such as N10.")
    exempt: dict[str, str] = Field(
        {"nccl_debug": "TRACE"},
        description="Header values that exempt a stream: whoever asked for TRACE output wants to read it.",
    )

    summary_s: int = Field(
        60,
        ge=0,
        le=3600,
        description="Length of the windows, in seconds, of which a record says what was dropped for each node and job; "
        "0 writes no such records.",
    )

    @field_validator("keep")
    @classmethod
    def _known_rules(cls, keep: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = (*NOISE_IDS, *(info.context or {}).get("noise", ()))
        for rule in keep:
            if rule not in known:
                raise ValueError(f"unknown noise rule {rule}; rules are {', '.join(known)}")
        return keep

    @field_validator("exempt")
    @classmethod
    def _known_headers(cls, exempt: dict[str, str]) -> dict[str, str]:
        for name in exempt:
            if name not in ENVELOPE.names:
                nearest = difflib.get_close_matches(name, ENVELOPE.names, n=1) or ENVELOPE.names
                raise ValueError(f"unknown header {name}; did you mean {', '.join(nearest)}?")
        return exempt

    def drops(self, rule: str | None, envelope: Mapping[str, str | None]) -> bool:
        """Whether one record that a rule names is dropped."""
        if not self.drop or not rule or rule in self.keep:
            return False
        return all(envelope.get(name) != value for name, value in self.exempt.items())

    def mask(self, noise: pa.DictionaryArray, rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """The same for whole columns: true where the line is dropped."""
        if not self.drop:
            return np.zeros(len(noise), dtype=np.bool_)
        dropped = noise.is_valid()
        if self.keep:
            listed = pc.is_in(noise.dictionary, pa.array(self.keep, pa.string()))
            dropped = pc.and_(dropped, pc.invert(listed.take(noise.indices).fill_null(False)))
        for name, value in self.exempt.items():
            column = rows[name].combine_chunks()
            if value in column.dictionary.to_pylist():
                dropped = pc.and_(dropped, pc.not_equal(column, value).fill_null(True))
        return np.asarray(dropped.to_numpy(zero_copy_only=False), dtype=np.bool_)
