"""Reaching a Kafka cluster: its address, librdkafka settings, and errors that say what to change."""

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sinks.errors import Misconfigured
from sinks.http import secret

START_S = 5.0  # how long a start waits for an answer

# Settings whose values must stand in the environment or in a file (librdkafka CONFIGURATION.md).
_SECRET = frozenset(
    {"sasl.password", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "ssl.key.password"}
    | {"ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.assertion.private.key.passphrase"}
)
# Settings that the tier's guarantees rest on.
_OWN = frozenset(
    {"bootstrap.servers", "metadata.broker.list", "group.id", "auto.offset.reset", "log_level"}
    | {"enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof"}
)


class BrokerConfig(BaseModel):
    """How to reach the Kafka cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field("127.0.0.1:9092", min_length=1, description="Brokers to ask first, as host:port, ….")
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Further librdkafka settings, such as security.protocol, sasl.mechanism and ssl.ca.location; a "
        "value env:NAME or file:PATH is looked up, and secrets must be given so.",
    )

    @field_validator("settings")
    @classmethod
    def _safe(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if name in _OWN:
                raise ValueError(f"{name} is set by tailrace; remove it")
            if name in _SECRET and not value.startswith(("env:", "file:")):
                raise ValueError(f"{name} must name where the secret is: env:NAME or file:PATH")
        return settings

    def client(self) -> dict[str, Any]:
        """Settings of a librdkafka client. Raises Misconfigured for a secret that cannot be read."""
        looked_up = {name: secret(value, f"settings.{name}") for name, value in self.settings.items()}
        # librdkafka's own log repeats itself; the callers log what changes (level 2 is LOG_CRIT).
        return {"bootstrap.servers": self.bootstrap, "log_level": 2, **looked_up}


def connect(make: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """Make a client. Raises Misconfigured for settings that librdkafka refuses; its text names the setting only."""
    try:
        return make(settings)
    except KafkaException as error:
        said = str(error.args[0].str())
        for name in _SECRET & settings.keys():
            said = said.replace(str(settings[name]), "***")
        raise Misconfigured(f"Kafka client: {said}; correct the setting") from error


def partitions(config: BrokerConfig, topics: Iterable[str] | None) -> dict[str, int]:
    """Number of partitions of each topic, of all with None. Waits at most START_S.

    Raises Misconfigured when no broker answers, the login is refused, or a topic is missing or denied.
    """
    errors: list[KafkaError] = []
    # error_cb needs a logger beside it, or librdkafka prints to stderr what it could not deliver.
    settings = {**config.client(), "error_cb": errors.append, "logger": logging.getLogger("tailrace.librdkafka")}
    admin = connect(AdminClient, settings)
    try:
        metadata = admin.list_topics(timeout=START_S)
    except KafkaException as error:
        admin.poll(0)
        raise Misconfigured(unreachable(config.bootstrap, [*errors, error.args[0]])) from error
    found = {}
    for topic in metadata.topics if topics is None else topics:
        known = metadata.topics.get(topic)
        if known is not None and known.error is not None:
            raise Misconfigured(
                f"Kafka topic {topic}: {known.error.str()}; allow this user to describe and read it, or change topics"
            )
        if known is None:
            raise Misconfigured(_missing(topic, config.bootstrap, metadata.topics))
        found[topic] = len(known.partitions)
    return found


def unreachable(bootstrap: str, errors: list[KafkaError]) -> str:
    """One message out of all that a client said when it did not reach a broker."""
    codes = {error.code() for error in errors}
    said = next((error.str() for error in errors if error.code() == KafkaError._AUTHENTICATION), None)
    if said is not None:
        return f"Kafka at {bootstrap} refuses the login: {said}; check sasl.* in settings and its secret"
    if KafkaError._SSL in codes:
        said = next(error.str() for error in errors if error.code() == KafkaError._SSL)
        return f"Kafka at {bootstrap}: TLS fails: {said}; check security.protocol and ssl.* in settings"
    said = next((error.str() for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN), errors[-1].str())
    return (
        f"no Kafka broker answers at {bootstrap} within {START_S:g} s: {said}; start it, or change bootstrap "
        "(or security.protocol, where the broker expects TLS)"
    )


def _missing(topic: str, bootstrap: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(topic, known, n=1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    return f"Kafka topic {topic} does not exist at {bootstrap}{hint}; create it with `tailrace topics --apply`"
