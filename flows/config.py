"""The configuration: one TOML file, one model, every key with a default and a sentence.

Any key can be set from the environment: `TAILRACE_SINKS__LOKI__URL` is `[sinks.loki] url`. Secrets are
never values of keys: keys name the file or the environment variable that holds them.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.config_tests import ConfigTest, Setting, TestedRule
from flows.detect.rules import DetectConfig, Rule, default_rules
from flows.kind_config import KindConfig, OwnName, known_kinds, own_names
from flows.pipeline import Pipeline
from flows.sources.files import FilesConfig
from flows.sources.kafka import KafkaConfig
from flows.steps.decode import DecodeConfig
from flows.steps.kinds import Kinds
from flows.steps.label_limits import LabelsConfig
from flows.steps.noise import NoiseConfig
from flows.steps.redact.config import RedactionConfig
from sinks.alertmanager import AlertmanagerConfig
from sinks.azure_logs import AzureConfig
from sinks.console import ConsoleConfig
from sinks.dead_letter import DeadLetterConfig
from sinks.errors import Misconfigured
from sinks.loki import LokiConfig
from sinks.parquet import ParquetConfig

ENV_PREFIX = "TAILRACE_"
ALERTS_TOPIC = "tailrace.alerts"

Keys = tuple[str, ...]

_SECRET_NAME = re.compile(r"password|passphrase|secret|token|credential|\.pem$|oauthbearer\.config|jaas", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/@]*@")


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
    azure: AzureConfig | None = Field(None, description="Azure Monitor Logs.")
    console: ConsoleConfig | None = Field(None, description="JSON lines on standard output.")
    alertmanager: AlertmanagerConfig | None = Field(None, description="Prometheus Alertmanager, for alerts.")


class AlertsConfig(Section):
    """Where rules are evaluated, and what the evaluator keeps."""

    mode: Literal["inline", "topic", "off"] | None = Field(
        None,
        description="inline: in the one process of the tier; topic: by `tailrace alerts`, which reads what the tier "
        "found in partials_topic; off: nowhere. Unset: inline for one process, topic for several.",
    )
    partials_topic: str = Field("tailrace.partials", min_length=1, description="Topic from the tier to the evaluator.")
    alerts_topic: str | None = Field(
        None, description="Topic for all alert events. Unset: tailrace.alerts in mode topic, none inline; empty: none."
    )
    default_rules: bool = Field(True, description="Whether the rules that come with tailrace hold.")
    group: str = Field("tailrace-alerts", min_length=1, description="Consumer group of `tailrace alerts`.")
    recovery: RecoveryConfig = Field(
        default_factory=lambda: RecoveryConfig(), description="State of `tailrace alerts`; not that of the tier."
    )
    http: HttpConfig = Field(default_factory=lambda: HttpConfig(), description="Metrics of `tailrace alerts`.")
    detect: DetectConfig = Field(default_factory=lambda: DetectConfig(), description="Time and memory of detection.")


class Config(Section):
    """The whole configuration."""

    tier: TierConfig = Field(default_factory=lambda: TierConfig(), description="Layout and identity.")
    source: SourceConfig = Field(description="Where lines come from.")
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig(), description="Forms of messages.")
    kinds: dict[OwnName, KindConfig] = Field({}, description="Kinds of your own, by name.")
    noise: NoiseConfig = Field(default_factory=lambda: NoiseConfig(), description="What is dropped.")
    redaction: RedactionConfig = Field(default_factory=lambda: RedactionConfig(), description="What is secret.")
    labels: LabelsConfig = Field(default_factory=lambda: LabelsConfig(), description="Room for labels and streams.")
    alerts: AlertsConfig = Field(default_factory=lambda: AlertsConfig(), description="Where rules are evaluated.")
    rules: tuple[TestedRule, ...] = Field(
        (), description="Alert rules beside the default ones; one of the same name takes the place of the default."
    )
    tests: tuple[ConfigTest, ...] = Field((), description="Lines, and what becomes of them; see `tailrace check`.")
    sinks: SinksConfig = Field(default_factory=lambda: SinksConfig(), description="Where records go.")
    dead_letter: DeadLetterConfig = Field(default_factory=lambda: DeadLetterConfig(), description="What fits nowhere.")
    recovery: RecoveryConfig = Field(default_factory=lambda: RecoveryConfig(), description="Positions and states.")
    http: HttpConfig = Field(default_factory=lambda: HttpConfig(), description="Metrics and health.")

    @model_validator(mode="after")
    def _whole_view(self) -> "Config":
        if self.labels.job < (jobs := len(set(self.all_kinds().jobs.values()))):
            raise ValueError(f"labels.job must be at least {jobs}: job is what remains of every stream")
        if self.alerts.mode == "inline" and self.tier.processes > 1:
            raise ValueError("alerts.mode inline would see the lines of one process only: use topic")
        if self.alerts.mode == "topic" and self.source.kafka is None:
            raise ValueError("alerts.mode topic needs [source.kafka]: use inline")
        names = [rule.name for rule in self.rules]
        if double := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two rules are named {double[0]}: rename one of them")
        return self

    def alerts_mode(self) -> Literal["inline", "topic", "off"]:
        """Where rules are evaluated."""
        return self.alerts.mode or ("inline" if self.tier.processes == 1 else "topic")

    def alerts_topic(self) -> str:
        """The topic for alert events, empty for none."""
        if self.alerts.alerts_topic is None:
            return ALERTS_TOPIC if self.alerts_mode() == "topic" else ""
        return self.alerts.alerts_topic

    def all_kinds(self) -> Kinds:
        """The kinds that are known."""
        return known_kinds(self.kinds)

    def for_tests(self) -> Setting:
        """What the tests inside run in."""
        kinds, redaction = self.all_kinds(), self.redaction.redaction()

        def pipeline() -> Pipeline:
            return Pipeline(
                self.decode, self.tier.cluster, self.noise, labels=self.labels, redaction=redaction, kinds=kinds
            )

        return Setting(pipeline, self.all_rules(), self.alerts.detect, self.tier.cluster)

    def all_rules(self) -> tuple[Rule, ...]:
        """The rules that hold."""
        own = {rule.name for rule in self.rules}
        kept = [rule for rule in default_rules() if rule.name not in own] if self.alerts.default_rules else []
        return (*kept, *self.rules)


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read and validate a configuration. Raises Misconfigured with one message that names file and key."""
    values, named = overridden(_read(path), environment)
    return validate(values, str(path), named)


def load_rules(path: Path) -> tuple[TestedRule, ...]:
    """The `[[rules]]` of a file that has nothing else, or of a configuration. Raises Misconfigured as `load`."""
    rules = _read(path).get("rules", [])
    return validate({"source": {"files": {"paths": ["-"]}}, "rules": rules}, str(path)).rules


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misconfigured(f"cannot read {path}: {error.strerror}; name a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}") from error


def validate(values: dict[str, Any], origin: str, named: Mapping[Keys, str] = MappingProxyType({})) -> Config:
    """The model of plain values; errors name `origin`, or what `named` says of the key (environment variables)."""
    try:
        return Config.model_validate(values, context=own_names(values.get("kinds")))
    except ValidationError as error:
        found = [entry for entry in error.errors() if not _beside(entry, error.errors())]
        lines = [f"{_origin(entry, named) or origin}: {_explain(entry)}" for entry in found[:10]]
        if len(found) > 10:
            lines.append(f"and {len(found) - 10} more")
        raise Misconfigured("\n".join(lines)) from error


def overridden(values: dict[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[Keys, str]]:
    """`values` with the keys set by TAILRACE_…__… variables, and the variable of each such key.

    Their text is read as TOML where it is TOML and the key takes more than text.
    """
    merged = _copy(values)
    named: dict[Keys, str] = {}
    for name, text in sorted(environment.items()):
        keys = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
        if not name.startswith(ENV_PREFIX) or len(keys) < 2:
            continue
        table = merged
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise Misconfigured(f"{name}: {'.'.join(keys[:-1])} is not a table")
        table[keys[-1]] = text if _takes_text(keys) else _value(text)
        named[keys] = name
    return merged, named


def shown(config: Config) -> dict[str, Any]:
    """The configuration as plain values for people, without what may be a secret that was not given by reference."""
    values: dict[str, Any] = _masked(config.model_dump(mode="json"))
    return values


def _masked(value: Any, key: str = "", table: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _masked(inner, name, key) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    if table in ("headers", "settings") and not value.startswith(("env:", "file:")):
        return "***" if table == "headers" or _SECRET_NAME.search(key) else value
    return _LOGIN.sub("//***@", value)


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}


def _origin(entry: Any, named: Mapping[Keys, str]) -> str | None:
    """The environment variable that set the key of an error, or a key in or around it."""
    loc = tuple(map(str, entry["loc"]))
    return next((name for keys, name in named.items() if keys[: len(loc)] == loc[: len(keys)]), None)


def _beside(entry: Any, entries: list[Any]) -> bool:
    """Whether another error says better what is wrong.

    A key is missing where a misspelt one stands; or the error is about a form of the key (`dict[str,str]`)
    that is not meant, since another form fits further.
    """
    *parent, last = entry["loc"] or (None,)
    around = [other for other in entries if list(other["loc"][: len(parent)]) == parent]
    if entry["type"] == "missing":
        return any(other["type"] == "extra_forbidden" and len(other["loc"]) == len(entry["loc"]) for other in around)
    return _is_form((last,)) and any(len(other["loc"]) > len(entry["loc"]) for other in around)


def _is_form(parts: tuple[Any, ...]) -> bool:
    return any("[" in str(part) for part in parts)


def _explain(entry: Any) -> str:
    """One validation error for a person; unknown keys name the nearest known one. Never prints values of keys."""
    place = ".".join(str(part) for part in entry["loc"] if not _is_form((part,)))
    if entry["type"] == "missing":
        return f"{place}: this key is required; add it"
    if entry["type"] != "extra_forbidden":
        message = str(entry["msg"]).removeprefix("Value error, ")
        if entry["type"] in ("model_type", "model_attributes_type"):
            message = "must be a table of keys"
        return f"{place or 'configuration'}: {message[0].lower()}{message[1:]}"
    known = _known_keys(entry["loc"][:-1])
    nearest = difflib.get_close_matches(str(entry["loc"][-1]), known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known keys are {', '.join(sorted(known))}"
    return f"unknown key {place}; {hint}"


def _takes_text(keys: Keys) -> bool:
    field = _section(keys[:-1]).model_fields.get(keys[-1])
    return field is not None and set(get_args(field.annotation) or (field.annotation,)) <= {str, Path, type(None)}


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    return list(_section(tuple(map(str, loc))).model_fields)


def _section(keys: Keys) -> type[BaseModel]:
    """The model of a section, or of the nearest around it."""
    model: type[BaseModel] = Config
    for key in keys:
        field = model.model_fields.get(key)
        if field is None:
            continue
        model = inner_model(field.annotation) or model
    return model


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model that the type of a key is, or is an option or a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := inner_model(inner))), None)
