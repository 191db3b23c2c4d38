"""`tailrace topics` against a real broker: says what differs, makes it so, and is content afterwards."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import admin as kafka_admin

from flows import topics as module
from flows.topics import main
from tests.services.kafka import Kafka
from tests.services.process import free_port
from tests.services.table import needs_real

Configure = Callable[..., Path]


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix for all topics, since tests share one broker."""
    prefix = f"t{uuid.uuid4().hex[:8]}."
    monkeypatch.setattr(module, "_OWN", {prefix + name: settings for name, settings in module._OWN.items()})
    return prefix


@pytest.fixture
def configure(tmp_path: Path, kafka: Kafka, own_names: str) -> Configure:
    def write(*names: str, bootstrap: str = "") -> Path:
        path = tmp_path / "tailrace.toml"
        listed = ", ".join(f'"{own_names}{name}"' for name in names)
        path.write_text(
            f'[source.kafka]\nbootstrap = "{bootstrap or kafka.bootstrap}"\ntopics = [{listed}]\n'
            f'[alerts]\npartials_topic = "{own_names}partials"\nalerts_topic = "{own_names}alerts"\n'
            f'[dead_letter]\ntopic = "{own_names}tailrace.deadletters"\n'
        )
        return path

    return write


def settings(kafka: Kafka, topic: str) -> dict[str, str]:
    resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, topic)  # type: ignore[attr-defined]
    admin = kafka.admin()
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(20).items()}


def test_missing_topics_are_named_then_made(
    kafka: Kafka, configure: Configure, own_names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(configure("logs.kernel", "logs.job"))
    assert main(["--config", config]) == 1
    said = capsys.readouterr().out
    assert f"!!  {own_names}logs.kernel: does not exist" in said
    for name in ("tailrace.gaps", "partials", "alerts"):
        assert f"!!  {own_names}{name}: does not exist" in said
    made = main(["--config", config, "--apply", "--partitions", "3", "--retention-hours", "2"])
    assert made == 0, capsys.readouterr()
    known = kafka.admin().list_topics(timeout=10).topics
    assert len(known[own_names + "logs.kernel"].partitions) == 3
    if kafka.real:
        log = settings(kafka, own_names + "logs.kernel")
        assert log["message.timestamp.type"] == "LogAppendTime"
        assert log["max.message.bytes"] == str(2 << 20)
        assert log["retention.ms"] == str(2 * 3_600_000)
        assert settings(kafka, own_names + "tailrace.gaps")["cleanup.policy"] == "compact"
    assert main(["--config", config]) == 0


def test_wrong_settings_are_named_then_corrected(
    kafka: Kafka, configure: Configure, own_names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_real(kafka, "settings of topics")
    config = str(configure("logs.slurm"))
    assert main(["--config", config, "--apply", "--partitions", "1"]) == 0
    name = own_names + "logs.slurm"
    admin = kafka.admin()
    change = kafka_admin.ConfigResource(  # type: ignore[attr-defined]
        kafka_admin.ConfigResource.Type.TOPIC,  # type: ignore[attr-defined]
        name,
        incremental_configs=[
            kafka_admin.ConfigEntry(  # type: ignore[attr-defined]
                key,
                value,
                incremental_operation=kafka_admin.AlterConfigOpType.SET,  # type: ignore[attr-defined]
            )
            for key, value in (("message.timestamp.type", "CreateTime"), ("max.message.bytes", "1000"))
        ],
    )
    admin.incremental_alter_configs([change])[change].result(20)
    capsys.readouterr()
    assert main(["--config", config]) == 1
    said = capsys.readouterr().out
    assert f"!!  {name}: message.timestamp.type is CreateTime, should be LogAppendTime" in said
    assert f"!!  {name}: max.message.bytes is 1000, should be 2097152" in said
    assert main(["--config", config, "--apply"]) == 0
    assert settings(kafka, name)["max.message.bytes"] == "2097152"


def test_a_broker_that_is_away_ends_it_with_status_2(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(configure("logs.job", bootstrap=f"127.0.0.1:{free_port()}"))]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tailrace topics: no Kafka broker answers at 127.0.0.1:")
    assert said.count("\n") == 1


def test_a_configuration_without_kafka_ends_it_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tailrace.toml"
    path.write_text('[source.files]\npaths = ["x.kmsg"]\n')
    assert main(["--config", str(path)]) == 2
    assert "[source.kafka]" in capsys.readouterr().err
