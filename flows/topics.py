"""`tailrace topics`: compares the Kafka topics with what the tier needs of them, and makes them so.

LogAppendTime: a record's broker time must not depend on a node's clock. 2 MiB: a block of 500 long lines
fits. The number of partitions of an existing topic is never changed: that moves nodes to other shards.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as _admin

from flows.config import ALERTS_TOPIC, Config, load
from flows.sources.broker import START_S, BrokerConfig, connect, partitions
from sinks.errors import Misconfigured

kafka: Any = _admin  # its names are exported without saying so, which the type checker refuses

MAX_MESSAGE_BYTES = 2 << 20
_ANSWER_S = 30.0
_LOGS = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(MAX_MESSAGE_BYTES)}
# The tier's own topics beside those that the configuration names: settings beside the retention.
_OWN: dict[str, dict[str, str]] = {"tailrace.gaps": {"cleanup.policy": "compact"}}
_DEAD = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
_EXAMPLES = """examples:
  tailrace topics --config tailrace.toml            # exit status 1 when something differs
  tailrace topics --config tailrace.toml --apply --partitions 24 --retention-hours 72
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic as it should be. `settings` are compared and corrected, `initial` hold for a new topic only."""

    name: str
    partitions: int
    settings: dict[str, str]
    initial: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be. `settings`: values that would correct it; None: make the topic."""

    topic: Wanted
    text: str
    settings: dict[str, str] | None = None


def main(argv: Sequence[str]) -> int:
    """Compare the Kafka topics with what the tier needs. Exit status 0: they agree, 1: they differ."""
    options = argparse.ArgumentParser(
        prog="tailrace topics",
        description=main.__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--config", type=Path, default=Path("tailrace.toml"), help="TOML file (default tailrace.toml)")
    options.add_argument("--apply", action="store_true", help="make missing topics and correct settings")
    options.add_argument("--partitions", type=int, default=12, help="partitions of a new topic (default 12)")
    options.add_argument("--replication", type=int, default=-1, help="replicas of a new topic (default: the broker's)")
    options.add_argument("--retention-hours", type=int, default=72, help="retention of a new topic (default 72)")
    arguments = options.parse_args(argv)
    try:
        config = load(arguments.config)
        broker = config.source.kafka
        if broker is None:
            raise Misconfigured(f"{arguments.config} reads no Kafka topics; add [source.kafka]")
        wanted = wanted_topics(config, arguments.partitions, arguments.retention_hours)
        found = differences(broker, wanted)
        if arguments.apply and found:
            apply(broker, found, arguments.replication)
            found = differences(broker, wanted)
    except Misconfigured as error:
        sys.stderr.write(f"tailrace topics: {error}\n")
        return 2
    wrong = {difference.topic.name for difference in found}
    for topic in wanted:
        if topic.name not in wrong:
            sys.stdout.write(f"ok  {topic.name}\n")
    for difference in found:
        sys.stdout.write(f"!!  {difference.topic.name}: {difference.text}\n")
    return 1 if found else 0


def wanted_topics(config: Config, partitions: int, retention_hours: int) -> list[Wanted]:
    """The topics that a configuration reads, and the tier's own."""
    retention = {"retention.ms": str(retention_hours * 3_600_000)}
    read = list(config.source.kafka.topics) if config.source.kafka else []
    named = (config.alerts.partials_topic, config.alerts_topic() or ALERTS_TOPIC)
    own: dict[str, dict[str, str]] = {**{topic: {} for topic in named}, **_OWN}
    own[config.dead_letter.topic] = _DEAD
    return [Wanted(topic, partitions, _LOGS, retention) for topic in read] + [
        Wanted(topic, partitions, settings, {} if "cleanup.policy" in settings else retention)
        for topic, settings in own.items()
        if topic not in read
    ]


def differences(broker: BrokerConfig, wanted: Sequence[Wanted]) -> list[Difference]:
    """What is not as wanted. Raises Misconfigured when the cluster cannot be asked."""
    admin = connect(kafka.AdminClient, broker.client())
    known = partitions(broker, None)
    found = [
        Difference(topic, f"does not exist; would get {topic.partitions} partitions")
        for topic in wanted
        if topic.name not in known
    ]
    there = {topic.name: topic for topic in wanted if topic.name in known}
    resources = [kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, name) for name in there]
    answers = admin.describe_configs(resources, request_timeout=START_S) if resources else {}
    for resource, answer in answers.items():
        try:
            entries = answer.result(_ANSWER_S)
        except KafkaException as error:
            raise Misconfigured(_denied(f"reading settings of {resource.name}", error)) from error
        topic = there[resource.name]
        for name, value in topic.settings.items():
            is_now = entries[name].value
            if not _suits(name, is_now, value):
                found.append(Difference(topic, f"{name} is {is_now}, should be {value}", {name: value}))
    return found


def apply(broker: BrokerConfig, found: Sequence[Difference], replication: int) -> None:
    """Make what is missing and correct what differs. Raises Misconfigured when the cluster refuses."""
    admin = connect(kafka.AdminClient, broker.client())
    new = [
        kafka.NewTopic(
            difference.topic.name,
            num_partitions=difference.topic.partitions,
            replication_factor=replication,
            config=difference.topic.settings | difference.topic.initial,
        )
        for difference in found
        if difference.settings is None
    ]
    changes: dict[str, dict[str, str]] = {}
    for difference in found:
        if difference.settings is not None:
            changes.setdefault(difference.topic.name, {}).update(difference.settings)
    set_value = kafka.AlterConfigOpType.SET
    altered = [
        kafka.ConfigResource(
            kafka.ConfigResource.Type.TOPIC,
            name,
            incremental_configs=[
                kafka.ConfigEntry(key, value, incremental_operation=set_value) for key, value in settings.items()
            ],
        )
        for name, settings in changes.items()
    ]
    answers = {f"making {name}": answer for name, answer in (admin.create_topics(new) if new else {}).items()}
    if altered:
        for resource, answer in admin.incremental_alter_configs(altered).items():
            answers[f"changing {resource.name}"] = answer
    for what, answer in answers.items():
        try:
            answer.result(_ANSWER_S)
        except KafkaException as error:
            raise Misconfigured(_denied(what, error)) from error


def _suits(name: str, is_now: str | None, value: str) -> bool:
    if name == "max.message.bytes":
        return is_now is not None and int(is_now) >= int(value)
    return is_now == value


def _denied(what: str, error: KafkaException) -> str:
    return f"{what}: {error.args[0].str()}; allow this user to do it, or let an administrator run `tailrace topics`"
