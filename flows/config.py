"""The configuration: one TOML file, one model, every key with a default and a sentence.

Any key can be set from the environment: `TAILRACE_SINKS__LOKI__URL` is `[sinks.loki] url`. Secrets are
never values of keys: keys name the file or the environment variable that holds them.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.sources.files import FilesConfig
from flows.sources.kafka import KafkaConfig
from flows.steps.decode import DecodeConfig
from flows.steps.noise import NoiseConfig
from sinks.console import ConsoleConfig
from sinks.dead_letter import DeadLetterConfig
from sinks.errors import Misconfigured
from sinks.loki import LokiConfig
from sinks.parquet import ParquetConfig

ENV_PREFIX = "TAILRACE_"


class Section(BaseModel):
    """Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TierConfig(Section):
    """The shards this process owns, and what every record of it carries."""

    cluster: str = Field("", description="Name of the GPU cluster, the label `cluster` of what names none itself.")
    generation: int = Field(1, ge=1, description="Number of the layout (shards and processes); part of archive names.")
    shards: int = Field(
        1, ge=1, le=9999, description="Shards in all; shard i owns the Kafka partitions p with p % shards = i."
    )
    processes: int = Field(
        1, ge=1, description="Processes of the tier; process i owns the shards s with s % processes = i."
    )
    process: int = Field(0, ge=0, description="Number of this process, from 0.")
    max_age_ms: int = Field(2_000, ge=10, description="How long a piece of a record waits for the rest of it.")

    @model_validator(mode="after")
    def _own_some(self) -> "TierConfig":
        if self.process >= self.processes:
            raise ValueError(f"process {self.process} does not exist: processes are numbered 0 to {self.processes - 1}")
        if self.processes > self.shards:
            raise ValueError(f"{self.processes} processes cannot share {self.shards} shards: raise shards")
        return self

    def own_shards(self) -> list[str]:
        """Names of the shards of this process."""
        return [f"{shard:04d}" for shard in range(self.process, self.shards, self.processes)]


class RecoveryConfig(Section):
    """The store of positions and states. It is the truth: lose it, and the group offsets take over."""

    dir: Path | None = Field(None, description="Directory on a local disk, one per process; none means no recovery.")
    epoch_s: float = Field(5.0, gt=0, description="Seconds between snapshots: what is repeated after a crash at most.")


class HttpConfig(Section):
    """Where /metrics, /healthz and /readyz are served."""

    host: str = Field("127.0.0.1", description="Address to listen on; loopback unless set.")
    port: int = Field(0, ge=0, le=65535, description="Port; 0 serves nothing.")


class SourceConfig(Section):
    """Where lines come from: exactly one of them."""

    kafka: KafkaConfig | None = Field(None, description="Kafka topics, without end.")
    files: FilesConfig | None = Field(None, description="Files and directories, read once to their end.")

    @model_validator(mode="after")
    def _one(self) -> "SourceConfig":
        if (self.kafka is None) == (self.files is None):
            raise ValueError("name exactly one source: [source.kafka] or [source.files]")
        return self


class SinksConfig(Section):
    """Where records go: any number of them."""

    parquet: ParquetConfig | None = Field(None, description="The archive of all lines.")
    loki: LokiConfig | None = Field(None, description="Grafana Loki.")
    console: ConsoleConfig | None = Field(None, description="JSON lines on standard output.")


class Config(Section):
    """The whole configuration."""

    tier: TierConfig = Field(default_factory=lambda: TierConfig(), description="Layout and identity.")
    source: SourceConfig = Field(description="Where lines come from.")
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig(), description="Forms of messages.")
    noise: NoiseConfig = Field(default_factory=lambda: NoiseConfig(), description="What is dropped.")
    sinks: SinksConfig = Field(default_factory=lambda: SinksConfig(), description="Where records go.")
    dead_letter: DeadLetterConfig = Field(default_factory=lambda: DeadLetterConfig(), description="What fits nowhere.")
    recovery: RecoveryConfig = Field(default_factory=lambda: RecoveryConfig(), description="Positions and states.")
    http: HttpConfig = Field(default_factory=lambda: HttpConfig(), description="Metrics and health.")


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read and validate a configuration. Raises Misconfigured with one message that names file and key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misconfigured(f"cannot read {path}: {error.strerror}; name a readable TOML file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}") from error
    return validate(overridden(values, environment), str(path))


def validate(values: dict[str, Any], origin: str) -> Config:
    """The model of plain values; `origin` names them in errors."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        lines = [f"{origin}: {_explain(entry)}" for entry in found[:10]]
        if len(found) > 10:
            lines.append(f"and {len(found) - 10} more")
        raise Misconfigured("\n".join(lines)) from error


def overridden(values: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """`values` with the keys set by TAILRACE_… variables; their text is read as TOML where it is TOML."""
    merged = _copy(values)
    for name, text in sorted(environment.items()):
        keys = name.removeprefix(ENV_PREFIX).lower().split("__")
        if not name.startswith(ENV_PREFIX) or len(keys) < 2 or keys[0] not in Config.model_fields:
            continue
        table = merged
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise Misconfigured(f"{name}: {'.'.join(keys[:-1])} is not a table")
        try:
            table[keys[-1]] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[keys[-1]] = text
    return merged


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}


def _explain(entry: Any) -> str:
    """One validation error for a person; unknown keys name the nearest known one. Never prints values of keys."""
    place = ".".join(str(part) for part in entry["loc"])
    if entry["type"] != "extra_forbidden":
        message = str(entry["msg"]).removeprefix("Value error, ")
        return f"{place or 'configuration'}: {message[0].lower()}{message[1:]}"
    known = _fields_at(entry["loc"][:-1])
    nearest = difflib.get_close_matches(str(entry["loc"][-1]), known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known keys are {', '.join(sorted(known))}"
    return f"unknown key {place}; {hint}"


def _fields_at(loc: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)
