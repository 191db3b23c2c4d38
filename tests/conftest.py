"""The servers as session fixtures, started when the first test asks; and the table that says which they were."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from flows.demo.loki_receiver import Receiver
from tests.services import alertmanager as alertmanager_service
from tests.services import kafka as kafka_service
from tests.services import loki as loki_service
from tests.services import s3 as s3_service
from tests.services import table
from tests.services.alertmanager import Alertmanager
from tests.services.kafka import Kafka
from tests.services.loki import LokiStore
from tests.services.s3 import S3

# No deadlines: the machine may be busy. CI repeats the same examples, so that a failure is that of the change.
settings.register_profile("tailrace", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tailrace")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A Kafka broker without TLS: `kafka.bootstrap`, `kafka.topic(partitions, **config)`."""
    with kafka_service.kafka() as service:
        yield service


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 store: `s3.endpoint`, `s3.access_key`, `s3.secret_key`, `s3.bucket()`, `s3.client()`."""
    with s3_service.s3() as service:
        yield service


@pytest.fixture(scope="session")
def victorialogs() -> Iterator[LokiStore]:
    """A store that takes Loki pushes and can be asked: `victorialogs.url`, `victorialogs.lines(job="x")`.

    It is shared by the whole run: give streams a label of their own.
    """
    with loki_service.victorialogs() as service:
        yield service


@pytest.fixture(scope="session")
def loki() -> Iterator[LokiStore]:
    """Grafana Loki, where an address or Docker is; shared by the whole run."""
    with loki_service.loki() as service:
        yield service


@pytest.fixture
def loki_receiver() -> Iterator[Receiver]:
    """A fresh strict receiver with Loki's default limits; it keeps what it takes."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def alertmanager() -> Iterator[Alertmanager]:
    """An Alertmanager: `alertmanager.url`, `alertmanager.alerts(label="x")`, `alertmanager.pages.of(label="x")`."""
    with alertmanager_service.alertmanager() as service:
        yield service


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program promtool."""
    return alertmanager_service.promtool()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return table.forbid_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return table.forbid_skip(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table.write(terminalreporter)
