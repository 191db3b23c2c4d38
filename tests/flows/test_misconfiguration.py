"""A wrong configuration ends `tailrace check` and `tailrace run` with one message, which says what to change."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.demo.loki_receiver import Receiver
from tests.flows.tier import Tier, tailrace, toml
from tests.services.kafka import Kafka
from tests.services.process import free_port
from tests.services.s3 import S3
from tests.services.table import needs_real
from tests.sinks.test_http import secured

__all__ = ["secured"]  # a fixture

SECRET = "hunter2-do-not-print"
TLS = {"security.protocol": "SSL"}


class Home:
    """A directory with a configuration that works, to be spoilt by each test."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._capsys, self._monkeypatch = path, capsys, monkeypatch
        (path / "file.log").write_text("a line\n")
        (path / "not-pem").write_text("no certificate")

    def config(self, spoilt: Mapping[str, Any]) -> dict[str, Any]:
        """The working configuration, with the sections of `spoilt` in place of its own; `{}` is this directory."""
        storage = {"url": "{}/archive"}
        works = {
            "source": {"files": {"paths": ["{}/file.log"], "kind": "training"}},
            "sinks": {"parquet": {"storage": storage}},
            "dead_letter": {"storage": storage},
            "recovery": {"dir": "{}/recovery", "epoch_s": 0.5},
        }
        placed: dict[str, Any] = self._placed({**works, **spoilt})
        return placed

    def _placed(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._placed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._placed(inner) for inner in value]
        return value.replace("{}", str(self.path)) if isinstance(value, str) else value

    def refusal(self, spoilt: Mapping[str, Any], **environment: str) -> str:
        """The one message that both commands end with, status 2."""
        path = self.path / "tailrace.toml"
        path.write_text(toml(self.config(spoilt)))
        for name, value in environment.items():
            self._monkeypatch.setenv(name, value)
        assert main(["check", "--config", str(path)]) == 2
        checked = only_message("check", self._capsys.readouterr().err)
        done = tailrace("run", "--config", str(path))
        assert done.returncode == 2, done.stderr
        assert only_message("run", done.stderr) == checked
        return checked.replace(str(self.path), "")


def only_message(command: str, said: str) -> str:
    """The message of a command that found one mistake: all else is checks passed and events."""
    (line,) = [line for line in said.splitlines() if not line.startswith(("ok  ", "{"))]
    assert line.startswith(f"tailrace {command}: ")
    return line.removeprefix(f"tailrace {command}: ")


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"tiers": {}}, "/tailrace.toml: unknown key tiers; did you mean tier?"),
        ({"tier": {"shards": "x"}}, "/tailrace.toml: tier.shards: input should be a valid integer"),
        ({"source": {"files": {"node_regex": "("}}}, "source.files.node_regex: '(' is no regular expression: miss"),
        ({"decode": {"tz": "Mars/Olympus"}}, "decode.tz: unknown time zone 'Mars/Olympus'; use an IANA name such as"),
        ({"noise": {"keep": ["N99"]}}, "noise.keep: unknown noise rule N99; rules are N01"),
        ({"source": {"files": {"paths": ["{}/no.log"]}}}, "there is no file /no.log; correct paths"),
        ({"source": {"files": {"paths": ["{}/file.log"]}}}, "/file.log does not tell the kind of log; set kind to o"),
        ({"recovery": {"dir": "{}/file.log/recovery"}}, "recovery.dir: cannot use /file.log/recovery: Not a directo"),
        ({"recovery": {"dir": "{}/file.log"}}, "recovery.dir: cannot use /file.log: File exists; name a writable dir"),
        ({"sinks": {"parquet": {"storage": {"url": "{}/file.log/a"}}}}, "the archive directory cannot be used: /file"),
        ({"sinks": {"parquet": {"spool": "{}/file.log/a"}}}, "the spool directory /file.log/a"),
        ({"sinks": {"parquet": {"storage": {"url": "gs://bucket"}}}}, "storage.url 'gs://bucket' is neither a direct"),
        ({"dead_letter": {"storage": {"url": "{}/file.log/dead"}}}, "the archive directory cannot be used: /file"),
        ({"sinks": {"loki": {"token_file": "{}/none"}}}, "token: cannot read /none: "),
        ({"sinks": {"loki": {"username": "u", "password_file": "{}"}}}, "password: cannot read"),
        ({"sinks": {"loki": {"headers": {"X-Key": "env:TAILRACE_NO_SUCH"}}}}, "the environment variable TAILRACE_NO_S"),
        ({"sinks": {"loki": {"ca_file": "{}/none", "url": "https://127.0.0.1:1"}}}, "ca_file: /none cannot be read"),
        ({"sinks": {"loki": {"ca_file": "{}/not-pem", "url": "https://127.0.0.1:1"}}}, "ca_file: /not-pem "),
        ({"source": {"kafka": {"settings": {**TLS, "ssl.ca.location": "{}/none"}}}}, "ssl.ca.location"),
        ({"source": {"kafka": {"settings": {"no.such.setting": "1"}}}}, "no.such.setting"),
        ({"source": {"kafka": {"settings": {"sasl.password": "file:{}/none"}}}}, "settings.sasl.password: cannot read"),
        ({"source": {"kafka": {"settings": {"sasl.password": SECRET}}}}, "sasl.password must name where the secret is"),
        ({"dead_letter": {"to": "kafka", "settings": {"no.such": "1"}}}, "Kafka settings for dead letters: No such"),
        ({"http": {"host": "192.0.2.1", "port": 9400}}, "http: cannot listen on 192.0.2.1:9400: Cannot assign req"),
        ({"http": {"host": "no such host", "port": 9400}}, "http: cannot listen on no such host:9400: "),
    ],
)  # fmt: skip
def test_nothing_has_to_run_to_find(home: Home, spoilt: dict[str, Any], said: str) -> None:
    refusal = home.refusal(spoilt)
    assert said in refusal
    assert SECRET not in refusal


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for command in ("check", "run"):
        done = tailrace(command, "--config", str(tmp_path / "none.toml"))
        assert done.returncode == 2
        assert done.stderr == (
            f"tailrace {command}: cannot read {tmp_path}/none.toml: No such file or directory; "
            "name a readable TOML file\n"
        )


def test_a_wrong_variable_is_named(home: Home) -> None:
    said = home.refusal({}, TAILRACE_TIER__SHARDS="many")
    assert said.startswith("TAILRACE_TIER__SHARDS: tier.shards: input should be a valid integer")


def test_a_port_in_use_is_named(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = home.refusal({"http": {"port": port}})
    assert said.startswith(f"http: cannot listen on 127.0.0.1:{port}: Address already in use; something listens there")


def test_a_broker_that_does_not_answer_is_named(home: Home) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    said = home.refusal({"source": {"kafka": {"bootstrap": bootstrap}}})
    assert said.startswith(f"no Kafka broker answers at {bootstrap} within 5 s: ")
    assert "change bootstrap" in said
    said = home.refusal({"dead_letter": {"to": "kafka", "bootstrap": bootstrap}})
    assert said.startswith("Kafka does not answer for dead letters: ")
    assert "check the addresses" in said


def test_a_missing_topic_is_named_with_the_nearest(home: Home, kafka: Kafka) -> None:
    needs_real(kafka, "a missing topic")
    topic = kafka.topic(stem="logs.kernel")
    said = home.refusal({"source": {"kafka": {"bootstrap": kafka.bootstrap, "topics": [topic[:-1]]}}})
    assert said.startswith(f"Kafka topic {topic[:-1]} does not exist at {kafka.bootstrap} (did you mean {topic}?)")
    dead = {"to": "kafka", "bootstrap": kafka.bootstrap, "topic": "no-such-topic"}
    said = home.refusal({"dead_letter": dead})
    assert said.startswith("Kafka topic no-such-topic for dead letters: ")
    assert said.endswith("create it with `tailrace topics`")


def test_a_bucket_that_is_missing_or_denied_is_named(home: Home, s3: S3) -> None:
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    missing = home.refusal(at(s3, "no-such-bucket"), **keys)
    assert missing.startswith(f"s3://no-such-bucket at {s3.endpoint} refused: ")
    assert "create the bucket or correct storage.url" in missing
    needs_real(s3, "a denied credential")
    bucket = s3.bucket()
    for wrong, advice in (
        ({"AWS_SECRET_ACCESS_KEY": SECRET}, "correct the secret key"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "correct the access key"),
    ):
        denied = home.refusal(at(s3, bucket), **{**keys, **wrong})
        assert denied.startswith(f"s3://{bucket} at {s3.endpoint} refused: ")
        assert advice in denied
        assert SECRET not in denied


def test_an_s3_server_that_does_not_answer_is_named(home: Home) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    said = home.refusal(
        {"sinks": {"parquet": {"storage": {"url": "s3://b", "endpoint_url": endpoint, "path_style": True}}}},
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="b",
    )
    assert said.startswith(f"{endpoint} cannot be reached (")
    assert said.endswith("check storage.endpoint_url and the network")


def at(s3: S3, bucket: str) -> dict[str, Any]:
    storage = {"url": f"s3://{bucket}/a", "endpoint_url": s3.endpoint, "path_style": True, "region": s3.region}
    return {"sinks": {"parquet": {"storage": storage}}}


def test_a_loki_that_refuses_us_is_named(home: Home) -> None:
    with Receiver(auth=True) as loki:
        said = home.refusal({"sinks": {"loki": {"url": loki.url}}})
    assert said.endswith("answers 401 to an empty push: no org id; check url, tenant and credentials")


def test_a_certificate_that_is_not_trusted_is_no_outage(home: Home, secured: str) -> None:
    said = home.refusal({"sinks": {"loki": {"url": f"https://{secured}"}}})
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert said.endswith("check url, ca_file and the network")


def test_a_loki_that_is_down_is_named_by_check_and_stops_nothing(home: Home) -> None:
    spoilt = {"sinks": {"loki": {"url": f"http://127.0.0.1:{free_port()}", "outage_s": 0.1, "barrier_s": 0.1}}}
    with Tier(home.path / "tier", home.config(spoilt)).start() as tier:
        assert tier.wait() == 0, tier.tail()
        assert tier.ledger["sinks"]["loki"]["gapped"] == 1
    done = tailrace("check", "--config", str(tier.config))
    assert done.returncode == 2
    assert "check url, ca_file and the network" in done.stderr


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ({"tier": {"shards": 2}}, "recovery.dir: /recovery belongs to another layout (shards was 1, is 2); set it"),
        ({"tier": {"generation": 2}}, "belongs to another layout (generation was 1, is 2)"),
        ({"recovery": {"dir": "{}/other"}}, "recovery.dir /other is empty, but /archive has objects of generation 1"),
        ({"recovery": {}}, "recovery.dir is not set, but /archive has objects of generation 1 already (landing/g0"),
    ],
)  # fmt: skip
def test_what_would_write_over_the_archive_is_refused(home: Home, then: dict[str, Any], said: str) -> None:
    with Tier(home.path / "tier", home.config({})).start() as tier:
        assert tier.wait() == 0, tier.tail()
        assert tier.ledger["read"] == 1
    before = {path: path.read_bytes() for path in (home.path / "archive" / "landing").rglob("*.parquet")}
    assert said in home.refusal(then)
    assert {path: path.read_bytes() for path in (home.path / "archive" / "landing").rglob("*.parquet")} == before


def test_two_processes_never_share_a_recovery_store(home: Home, kafka: Kafka) -> None:
    source = {"kafka": {"bootstrap": kafka.bootstrap, "topics": [kafka.topic()]}}
    with Tier(home.path / "first", home.config({"source": source})).start() as first:
        first.until(lambda: bool(first.events("started")))
        with Tier(home.path / "second", home.config({"source": source})).start() as second:
            assert second.wait() == 2
            assert f"recovery.dir: {home.path}/recovery is in use by another process; give each" in second.tail()
        assert first.drain() == 0
