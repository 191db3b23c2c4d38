"""Alert rules: what is counted, by what, and when that is an alert. Defaults are in `default_rules.toml`."""

import re
import tomllib
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"

# Placeholders that the evaluator fills in; all others are fields of the records.
OWN_PLACEHOLDERS = frozenset({"count", "lines", "rule", "window_s", "threshold", "hosts"})


class DetectConfig(BaseModel):
    """Time and memory of detection."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    skew_s: int = Field(600, ge=0, description="A time this much later than Kafka's counts as Kafka's.")
    horizon_s: int = Field(3_600, ge=60, description="How old a line may be, by Kafka's time, and still page.")
    repeat_s: int = Field(
        600, ge=60, description="How long a counted message is remembered; an older one is taken for a repeat."
    )
    max_groups: int = Field(50_000, ge=1, description="Groups per rule; beyond, the one longest without lines goes.")
    max_cells: int = Field(500_000, ge=1, description="Counted seconds per rule, over all groups; beyond as above.")
    max_messages: int = Field(200_000, ge=1, description="Remembered messages per partition; beyond, the oldest go.")


class Match(BaseModel):
    """Records that fit `events`, `kinds`, `regex` and `where`, each that is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    events: tuple[str, ...] = Field((), description="Events of the field dictionary, any of them.")
    kinds: tuple[str, ...] = Field((), description="Kinds of input; empty means all.")
    regex: str = Field("", description="RE2 pattern, found anywhere in the message or in the raw line.")
    where: dict[str, tuple[str, ...]] = Field({}, description="Field and the values it may have.")

    @field_validator("where", mode="before")
    @classmethod
    def _lists(cls, where: Any) -> Any:
        """One value may stand for a list of one; numbers are compared as text."""
        if not isinstance(where, dict):
            return where
        return {
            name: tuple(map(_text, values if isinstance(values, list | tuple) else (values,)))
            for name, values in where.items()
        }

    @field_validator("regex")
    @classmethod
    def _compiles(cls, regex: str) -> str:
        try:
            pc.match_substring_regex(pa.array([""]), regex)
        except pa.ArrowInvalid as error:
            raise ValueError(f"is no RE2 pattern: {error}") from error
        return regex

    @model_validator(mode="after")
    def _selective(self) -> "Match":
        if not (self.events or self.kinds):
            raise ValueError("this would look at every line: give it events or kinds")
        return self


class Rule(Match):
    """What matches, by itself or by one of `also`, is counted by `group_by`.

    The alert fires when more than `threshold` of them lie within `window_s`, for `for_s` seconds, and resolves
    when that ends.
    """

    name: str = Field(pattern=NAME, description="Name of the alert, the label `alertname`.")
    also: tuple[Match, ...] = Field((), description="Further matches that count the same.")
    group_by: tuple[str, ...] = Field(
        ("cluster", "node"),
        description="Fields whose values make an alert of its own; `namespace|job_id` takes the first that is known.",
    )
    fold_by: tuple[str, ...] | None = Field(
        None,
        description="Lines of one group that agree in these fields within fold_s are one fault in {count}; the "
        "threshold is about lines all the same. [] folds all.",
    )
    fold_s: int = Field(1, ge=0, le=60, description="Seconds between lines of one fault.")
    window_s: int = Field(300, ge=1, le=86_400, description="Width of the sliding window.")
    threshold: int = Field(
        0,
        ge=0,
        description="More than this many lines in the window are an alert, as they were written: `message repeated 3 "
        "times` is three, what only accompanies a fault is none, and where kernel lines come several ways (kmsg, "
        "syslog) those of the way that brings most count.",
    )
    for_s: int = Field(0, ge=0, le=86_400, description="How long that must last.")
    severity: str = Field("warning", min_length=1, description="The label `severity`.")
    labels: dict[str, str] = Field({}, description="Further labels; {placeholders} of group_by.")
    annotations: dict[str, str] = Field({}, description="Text for people; {placeholders} of any field, and {count}.")

    @model_validator(mode="after")
    def _whole(self) -> "Rule":
        if self.fold_s >= self.window_s:
            raise ValueError(f"rule {self.name}: fold_s must be less than window_s")
        for key, text in {**self.labels, **self.annotations}.items():
            if not re.match(NAME, key):
                raise ValueError(f"rule {self.name}: {key} is no name of a label")
            try:
                foreign = placeholders(text) - self.group_fields()
            except ValueError as error:
                raise ValueError(f"rule {self.name}, {key}: {error}") from error
            if key in self.labels and foreign:
                raise ValueError(
                    f"rule {self.name}: label {key} changes while the alert lasts: {{{min(foreign)}}} is not in "
                    "group_by; use it in an annotation"
                )
        return self

    @property
    def matches(self) -> tuple[Match, ...]:
        """All matches, any of which will do."""
        return self, *self.also

    def group_fields(self) -> set[str]:
        """All fields that `group_by` names."""
        return {name for choice in self.group_by for name in choices(choice)}

    def shown_fields(self) -> list[str]:
        """Fields that annotations show and the group does not have, sorted."""
        wanted = {name for text in self.annotations.values() for name in placeholders(text)}
        return sorted(wanted - self.group_fields() - OWN_PLACEHOLDERS)


def choices(choice: str) -> list[str]:
    """The fields of `namespace|job_id`, first choice first."""
    return [name.strip() for name in choice.split("|")]


def placeholders(text: str) -> set[str]:
    """Names between braces. Raises ValueError where braces do not match or hold more than a name."""
    names = set()
    for _, name, spec, conversion in Formatter().parse(text):
        if name is None:
            continue
        if spec or conversion or not re.match(NAME, name):
            raise ValueError(f"{{{name}}} is no placeholder: write {{field}}")
        names.add(name)
    return names


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def default_rules() -> tuple[Rule, ...]:
    """The rules that hold where the configuration names none."""
    text = resources.files("flows.detect").joinpath("default_rules.toml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(rule) for rule in tomllib.loads(text)["rules"])
