"""`[redaction]`: what a configuration adds to the rules of secrets, with examples that `tailrace check` tries."""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from flows.steps.kinds import require_kind
from flows.steps.redact.blocks import WHOLE
from flows.steps.redact.carriers import read
from flows.steps.redact.columns import Redaction
from flows.steps.redact.line import LineRedactor, line_redactor
from flows.steps.redact.rules import Example, Shape, default_rules


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretTest(_Model):
    """A line, and what becomes of it."""

    line: str = Field(description="The line as it was written; invent its secret.")
    becomes: str | None = Field(None, description="The line as it is stored; unset: it must stay as it is.")
    kind: str = Field("training", description="Kind of the line.")


class SecretRule(_Model):
    """A secret told by its form."""

    name: str = Field(min_length=1, description="Name of the rule, for the report of a failure.")
    regex: str = Field(
        min_length=1,
        description="Python regex on the bytes of a line. Its first group becomes ***, without one the whole match.",
    )
    gate: str | None = Field(
        None,
        description="RE2 regex, case is ignored, that finds every line which the rule may find; unset: `regex` itself, "
        "which then cannot look around.",
    )
    tests: tuple[SecretTest, ...] = Field((), description="Lines, and what becomes of them.")

    @model_validator(mode="after")
    def _compiles(self) -> "SecretRule":
        try:
            found = re.compile(self.regex.encode(), re.DOTALL)
        except re.error as error:
            raise ValueError(f"regex of {self.name}: {error}") from error
        if found.match(b""):
            raise ValueError(f"regex of {self.name} matches nothing at all in every line: let it match something")
        try:
            pc.match_substring_regex(pa.array([b""], pa.large_binary()), self.gate or self.regex)
        except pa.ArrowInvalid as error:
            raise ValueError(f"rule {self.name} needs a gate that RE2 can read (no look-around): {error}") from error
        return self

    def shape(self) -> Shape:
        tests = tuple(Example(test.line, test.becomes) for test in self.tests)
        return Shape(self.name, self.regex, self.gate or self.regex, tests)


class RedactionConfig(_Model):
    """Which texts are secrets: they become *** before any store, alert or summary sees them, dead letters included."""

    names: tuple[str, ...] = Field(
        (),
        description="Further names whose values are secret, such as CLUSTER_PIN; any case, and as the end of a name.",
    )
    innocent_names: tuple[str, ...] = Field((), description="Names whose values are none, such as cache_token.")
    skip_kinds: tuple[str, ...] = Field((), description="Kinds that are left as they are.")
    rules: tuple[SecretRule, ...] = Field(
        (), description="Secrets told by their form, beside those that come with tailrace."
    )
    tests: tuple[SecretTest, ...] = Field((), description="Lines, and what becomes of them by all rules.")

    @field_validator("skip_kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for kind in kinds:
            require_kind(kind, info)
        return kinds

    @field_validator("names", "innocent_names")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_.-]*[A-Za-z0-9]", name):
                raise ValueError(f"{name!r} is no name: letters, digits, '_', '-' and '.' make one")
        return names

    def redaction(self) -> Redaction:
        """The rules that hold."""
        shapes = tuple(rule.shape() for rule in self.rules)
        return Redaction(default_rules().extended(self.names, self.innocent_names, shapes), self.skip_kinds)


def failures(config: RedactionConfig) -> list[str]:
    """Tries all examples, also of the rules that come with tailrace; one text for a person per failure."""
    redactor = line_redactor(config.redaction().rules)
    return [said for name, test in _tests(config) if (said := _failure(redactor, name, test))]


def count_tests(config: RedactionConfig) -> int:
    """How many examples a configuration has of its own."""
    return len(config.tests) + sum(len(rule.tests) for rule in config.rules)


def _tests(config: RedactionConfig) -> Iterator[tuple[str, SecretTest]]:
    for shape in default_rules().shapes:
        for example in shape.tests:
            yield f"default rule {shape.name}", SecretTest(line=example.line, becomes=example.becomes)
    for rule in config.rules:
        for test in rule.tests:
            yield f"rule {rule.name}", test
    for test in config.tests:
        yield "tests", test


def _failure(redactor: LineRedactor, name: str, test: SecretTest) -> str:
    """Never names the line: somebody may have tried a real secret."""
    wanted = test.line if test.becomes is None else test.becomes
    raw = test.line.encode()
    gated = redactor.may_hold(raw) or test.kind in WHOLE
    got = read(redactor, test.kind, raw).line.decode() if gated else test.line
    if got == wanted:
        return ""
    if got == test.line:
        gate = "" if gated else " (no gate finds it)"
        return f"redaction, {name}: a line that must become {wanted!r} stays as it is{gate}"
    return f"redaction, {name}: a line that must become {wanted!r} becomes {got!r}"
