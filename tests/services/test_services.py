"""The services are what they claim to be, whichever way they were started."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import urllib3
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer

from flows.demo.loki_receiver import Receiver
from tests.services import process
from tests.services.alertmanager import Alertmanager, check_metrics
from tests.services.kafka import MAX_MESSAGE_BYTES, Kafka
from tests.services.loki import LokiStore
from tests.services.s3 import S3
from tests.services.table import needs_real
from tests.sinks.loki_pushes import JSON, PROTOBUF, Entry, as_json, as_protobuf

ROOT = Path(__file__).parents[2]


def read_all(kafka: Kafka, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        | {"session.timeout.ms": 6000}
    )
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            messages = consumer.consume(count - len(values), timeout=30)
            assert messages, f"{len(values)} of {count} messages came"
            values += [message.value() for message in messages]
    finally:
        consumer.close()
    return values


def test_kafka_gives_back_a_message_near_its_size_limit(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": MAX_MESSAGE_BYTES})
    sent = [b"x" * 2_000_000, b"small"]
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    assert set(read_all(kafka, topic, 2)) == set(sent)


def test_topics_never_share_a_name(kafka: Kafka) -> None:
    assert len({kafka.topic(), kafka.topic(), kafka.topic()}) == 3


def test_kafka_stamps_messages_where_the_topic_says_so(kafka: Kafka) -> None:
    needs_real(kafka, "log append time")
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    stamps: list[tuple[int, int]] = []
    producer.produce(topic, b"x", timestamp=1000, on_delivery=lambda _, message: stamps.append(message.timestamp()))
    assert producer.flush(30) == 0
    [(kind, stamp)] = stamps
    assert kind == 2  # TIMESTAMP_LOG_APPEND_TIME
    assert stamp > 1_600_000_000_000


def test_kafka_makes_no_topic_of_its_own_accord(kafka: Kafka) -> None:
    needs_real(kafka, "a missing topic")
    assert kafka.admin().list_topics("never-made", timeout=30).topics["never-made"].error is not None


def test_s3_gives_back_what_was_put(s3: S3) -> None:
    bucket, body = s3.bucket(), os.urandom(9_000_000)
    s3.client().put_object(Bucket=bucket, Key="landing/a b+c", Body=body)
    assert s3.client().get_object(Bucket=bucket, Key="landing/a b+c")["Body"].read() == body
    listed = s3.client().list_objects_v2(Bucket=bucket, Prefix="landing/")["Contents"]
    assert [(item["Key"], item["Size"]) for item in listed] == [("landing/a b+c", len(body))]


def test_s3_refuses_a_missing_bucket(s3: S3) -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.client().put_object(Bucket="never-made", Key="x", Body=b"")


@pytest.mark.parametrize("keys", [{"aws_secret_access_key": "wrong"}, {"aws_access_key_id": "nobody"}])
def test_s3_refuses_wrong_keys(s3: S3, keys: dict[str, str]) -> None:
    needs_real(s3, "a denied credential")
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|InvalidAccessKeyId"):
        s3.client(**keys).list_buckets()


def push_and_read_back(store: LokiStore) -> None:
    """Pushes one line by either form and expects both, whole."""
    run, now = f"run-{time.time_ns()}", time.time_ns()
    first = Entry(now, '{"json": "stays text"}', [("job_id", "4711")])
    second = Entry(now + 1, "NVRM: Xid (PCI:0000:3b:00): 79", [("job_id", "4712")])
    bodies = [(JSON, as_json(({"run": run}, [first]))), (PROTOBUF, as_protobuf((f'{{run="{run}"}}', [second])))]
    for headers, body in bodies:
        url = f"{store.url}/loki/api/v1/push"
        assert urllib3.request("POST", url, body=body, headers=headers, timeout=30).status == 204
    found = store.lines(2, run=run)
    assert [(line.ts, line.line) for line in found] == [(e.ts, e.line) for e in (first, second)]
    assert [line.fields["job_id"] for line in found] == ["4711", "4712"]


def test_victorialogs_gives_back_what_was_pushed(victorialogs: LokiStore) -> None:
    push_and_read_back(victorialogs)


def test_grafana_loki_gives_back_what_was_pushed(loki: LokiStore) -> None:
    push_and_read_back(loki)


def test_the_strict_receiver_is_fresh_for_each_test(loki_receiver: Receiver) -> None:
    body = as_protobuf(('{app="a"}', [Entry(time.time_ns(), "x")]))
    url = f"{loki_receiver.url}/loki/api/v1/push"
    assert urllib3.request("POST", url, body=body, headers=PROTOBUF, timeout=30).status == 204
    assert loki_receiver.lines == 1


def test_alertmanager_takes_an_alert_and_pages_when_it_fires_and_when_it_resolves(alertmanager: Alertmanager) -> None:
    needs_real(alertmanager, "notifications")
    run = f"run-{time.time_ns()}"

    def post(**times: str) -> int:
        body = json.dumps([{"labels": {"alertname": "T", "run": run}, "annotations": {}, **times}])
        headers = {"Content-Type": "application/json"}
        return urllib3.request("POST", f"{alertmanager.url}/api/v2/alerts", body=body, headers=headers).status

    assert post(startsAt="2026-01-01T00:00:00Z", endsAt="2100-01-01T00:00:00Z") == 200
    alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 1)
    assert [alert["startsAt"] for alert in alertmanager.alerts(run=run)] == ["2026-01-01T00:00:00.000Z"]
    assert post(startsAt="2026-01-01T00:00:00Z", endsAt="2026-01-01T00:05:00Z") == 200
    alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 2)
    assert [status for _, status, _ in alertmanager.pages.of(run=run)] == ["firing", "resolved"]


def test_promtool_tells_good_metrics_from_bad(promtool: Path) -> None:
    good = b"# HELP a_total Things.\n# TYPE a_total counter\na_total 1\n"
    assert check_metrics(promtool, good) == ""
    assert "no help text" in check_metrics(promtool, b"a_total 1\n")


# --- how servers are run


def test_a_server_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room left'); raise SystemExit(3)"]
    with (
        pytest.raises(process.StartFailed, match=r"sample ended with status 3; its log .*\.log ends:\nno room left"),
        process.running("sample", command, lambda: False, cwd=tmp_path),
    ):
        pass


def test_a_server_that_never_answers_is_stopped_and_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        pytest.raises(process.StartFailed, match=r"sample did not answer within 0 s"),
        process.running("sample", command, lambda: False, cwd=tmp_path, timeout_s=0.2),
    ):
        pass


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "up"
    command = [sys.executable, "-c", STUBBORN.replace("print('up', flush=True)", f"open({str(log)!r}, 'w')")]
    with process.running("sample", command, log.exists, cwd=tmp_path, stop_s=0.2) as server:
        assert server.poll() is None
    assert server.returncode == -signal.SIGKILL


def test_a_server_dies_with_the_test_process_that_was_killed(tmp_path: Path) -> None:
    owner = f"""
import os, sys
from pathlib import Path
from tests.services import process
from tests.services.alertmanager import Alertmanager, check_metrics
command = [sys.executable, "-c", {STUBBORN!r}]
with process.running("sample", command, lambda: True, cwd=Path({str(tmp_path)!r})) as server:
    print(server.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", owner], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether the process exists and is no zombie that its new parent has yet to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the closing table, and what may be skipped

INNER = """
import pytest
from tests.services.table import needs_docker, needs_real

def test_substitute(kafka):
    needs_real(kafka, "what it cannot")

def test_skipped():
    pytest.skip("no reason")  # of the inner run: the outer test shows that it fails there

def test_docker():
    needs_docker("thing", "thing 1", "no Docker engine answers")
"""


def inner_run(tmp_path: Path, **environment: str) -> str:
    """Runs INNER as a session of its own under this suite's conftest and returns what pytest printed."""
    (tmp_path / "test_inner.py").write_text(INNER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path / "test_inner.py")]
    settings = os.environ | {"TAILRACE_TEST_SUBSTITUTES": "1", "TAILRACE_REQUIRE_REAL": ""} | environment
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=120).stdout


def test_substitutes_are_named_and_what_they_cannot_show_is_skipped_with_its_reason(tmp_path: Path) -> None:
    printed = inner_run(tmp_path)
    assert "3 skipped" in printed
    assert "stands in for kafka and cannot show this: what it cannot" in printed
    assert "service · used" in printed
    assert "kafka   · tansu (substitute), 127.0.0.1:" in printed
    assert "thing   · none" in printed


def test_required_real_services_allow_no_substitute_and_no_skip_but_dockers(tmp_path: Path) -> None:
    printed = inner_run(tmp_path, TAILRACE_REQUIRE_REAL="1")
    assert "TAILRACE_REQUIRE_REAL=1, but there is no Apache Kafka" in printed
    assert "TAILRACE_REQUIRE_REAL=1 forbids this skip: Skipped: no reason" in printed
    assert "1 failed, 1 skipped, 1 error" in printed
