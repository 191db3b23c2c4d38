"""Kinds of a configuration: `[kinds.NAME]` says what lines look like, in regular expressions with named groups."""

import re
import warnings
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.steps.kinds import JOBS, Kinds, OwnKind
from flows.steps.labels import LABELS
from flows.steps.noise import NOISE_IDS
from parsers.clock import zone
from parsers.configured import INTEGERS, Event, Form, parser
from parsers.configured_times import time_format
from parsers.registry import Kind
from parsers.schema import TYPED

Level = Literal["emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"]

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_NOISE_RULES = 100  # ids are an int8 column
_TAKEN = frozenset({*JOBS, "alert", "noise_summary"})
# What a record has anyway, or has no text column for.
_NO_GROUPS = frozenset(
    {"kind", "cluster", "ts", "ts_source", "lines", "flags", "event", "noise", "message", "raw", "body", "head"}
    | {"level_raw", "monotonic_us", "seq", "nodes"}
)
_OF_HEAD = ("time", "level", "node")
_LABELS = frozenset(LABELS) - {"cluster", "pod", "node", "owner_job", "job"}


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name: lower-case letters, digits and '_' make one, a letter first")
    return name


def _own_name(name: str) -> str:
    if name in _TAKEN:
        raise ValueError(f"{name} is a kind of tailrace; choose another name")
    return _name(name)


OwnName = Annotated[str, AfterValidator(_own_name)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EventConfig(_Model):
    """A record with such a text is an event."""

    event: str = Field(description="Name of the event: one of the field dictionary, or one of your own.")
    regex: str = Field(description="RE2 pattern found in the text; named groups become fields.")
    level: Level | None = Field(None, description="Level of the record; unset: that of its head.")
    fields: dict[str, str] = Field({}, description='Further fields, such as { severity = "critical" }.')

    @field_validator("event")
    @classmethod
    def _is_name(cls, event: str) -> str:
        return _name(event)

    @field_validator("regex")
    @classmethod
    def _compiles(cls, regex: str) -> str:
        _groups(regex, (*_NO_GROUPS, *_OF_HEAD))
        return regex

    @field_validator("fields")
    @classmethod
    def _are_text(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if not NAME.fullmatch(name) or name in (*_NO_GROUPS, *_OF_HEAD, *INTEGERS):
                raise ValueError(f"{name} cannot be set: choose a name of your own, or a text field")
        return fields


class NoiseRuleConfig(_Model):
    """A record with such a text is noise; an event never is."""

    id: str = Field(description="Name of the rule, for `noise.keep`, metrics and summaries.")
    regex: str = Field(description="RE2 pattern found in the text.")

    @field_validator("id")
    @classmethod
    def _own_name(cls, name: str) -> str:
        if name in NOISE_IDS:
            raise ValueError(f"the rule {name} is one of tailrace's; choose another name")
        return _name(name)

    @field_validator("regex")
    @classmethod
    def _compiles(cls, regex: str) -> str:
        _groups(regex, ())
        return regex


class KindConfig(_Model):
    """A kind of your own: where its lines come from, and what they look like."""

    job: str = Field("", description="Loki's label `job`; unset: the name of the kind.")
    labels: dict[str, str] = Field({}, description="app, team, unit, namespace, container of messages that name none.")
    paths: tuple[str, ...] = Field(
        (),
        description="Files of this kind, with * and ?, before those of tailrace; with a slash for the whole path, "
        "else for the name.",
    )
    tz: str | None = Field(None, description="Zone (IANA name) of local times; decode.zones goes before it.")
    head: str = Field(
        "",
        description="RE2 pattern of what stands before the text of a record. Groups time, level and node are the "
        "record's; others become fields. Empty: the whole line is text.",
    )
    time: str | None = Field(
        None, description="Format of the group time: iso, epoch, or a pattern such as %b %e %H:%M:%S.%f."
    )
    levels: dict[str, Level] = Field({}, description="Level by word of the group level, any case; others are known.")
    follows: bool = Field(False, description="A line without a head belongs to the record before it.")
    integers: tuple[str, ...] = Field((), description="Groups that are whole numbers.")
    gate: str | None = Field(
        None,
        description="RE2 pattern without which no event is looked for in a text; unset: made of those of the events.",
    )
    events: tuple[EventConfig, ...] = Field((), description="Events, the first that fits.")
    noise: tuple[NoiseRuleConfig, ...] = Field((), max_length=MAX_NOISE_RULES, description="Noise, likewise.")

    @field_validator("labels")
    @classmethod
    def _known_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for name in labels:
            if name not in _LABELS:
                raise ValueError(f"{name} cannot be set; labels are {', '.join(sorted(_LABELS))}")
        return labels

    @field_validator("tz")
    @classmethod
    def _known_zone(cls, tz: str | None) -> str | None:
        return None if tz is None else zone(tz).key

    @field_validator("head")
    @classmethod
    def _head_compiles(cls, head: str) -> str:
        if "pci" in _groups(head, _NO_GROUPS):
            raise ValueError("pci can be a group of events only: its forms are many")
        return head

    @field_validator("gate")
    @classmethod
    def _gate_compiles(cls, gate: str | None) -> str | None:
        if gate is not None:
            _groups(gate, ())
        return gate

    @field_validator("time")
    @classmethod
    def _known_format(cls, time: str | None) -> str | None:
        if time is not None:
            time_format(time)
        return time

    @model_validator(mode="after")
    def _whole(self) -> "KindConfig":
        head = _groups(self.head, ())
        if ("time" in head) != (self.time is not None):
            raise ValueError("the group time of head and the key time need one another")
        if self.levels and "level" not in head:
            raise ValueError("levels needs a group level in head")
        if self.follows and not self.head:
            raise ValueError("follows needs a head: without one every line starts a record")
        known = head.union(*(_groups(event.regex, ()) for event in self.events))
        for name in self.integers:
            if name not in known:
                raise ValueError(f"integers: {name} is no group; groups are {', '.join(sorted(known)) or 'none'}")
            if name in (*TYPED.names, *_OF_HEAD) and name not in INTEGERS:
                raise ValueError(f"integers: {name} is text in every kind")
        ids = [rule.id for rule in self.noise]
        if double := [name for name in ids if ids.count(name) > 1]:
            raise ValueError(f"noise: two rules have the id {double[0]}")
        return self

    def form(self) -> Form:
        """The grammar."""
        return Form(
            self.head,
            None if self.time is None else time_format(self.time),
            {word.lower(): level for word, level in self.levels.items()},
            self.follows,
            self.gate,
            tuple(Event(each.event, each.regex, each.level, tuple(each.fields.items())) for each in self.events),
            tuple((rule.id, rule.regex) for rule in self.noise),
            frozenset(self.integers),
        )


def own_names(kinds: Any) -> dict[str, set[str]]:
    """Names of own kinds and noise rules in plain values of `kinds`, valid or not: the context of validation."""
    tables = {name: kind for name, kind in kinds.items() if isinstance(kind, dict)} if isinstance(kinds, dict) else {}
    listed = (kind.get("noise") for kind in tables.values())
    rules = [rule for rules in listed if isinstance(rules, list) for rule in rules if isinstance(rule, dict)]
    return {"kinds": set(tables), "noise": {str(rule["id"]) for rule in rules if "id" in rule}}


def known_kinds(configured: dict[str, KindConfig]) -> Kinds:
    """All kinds that a configuration knows."""
    return Kinds(
        {
            name: OwnKind(
                Kind(parser(each.form()), each.job or name, each.follows),
                each.paths,
                tuple(sorted(each.labels.items())),
                each.tz,
            )
            for name, each in configured.items()
        }
    )


def _groups(regex: str, refused: Iterable[str]) -> frozenset[str]:
    """The named groups. Raises ValueError where RE2 or Python cannot read the pattern, or would read it differently."""
    try:
        pc.match_substring_regex(pa.array([b""]), regex)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"{regex!r} is no RE2 pattern: {reason}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(regex.encode())
    except (re.error, FutureWarning, DeprecationWarning) as error:
        raise ValueError(f"{regex!r} is no pattern that Python reads as RE2 does: {error}") from error
    if compiled.groups > len(compiled.groupindex):
        raise ValueError("has a group without a name; write (?:…) or (?P<name>…)")
    for name in compiled.groupindex:
        if name in refused or not NAME.fullmatch(name):
            raise ValueError(f"the group {name} cannot be set; choose another name")
    return frozenset(compiled.groupindex)
