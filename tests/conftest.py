"""The servers as session fixtures, started when the first test asks; and the table that says which they were."""

from collections.abc import Generator, Iterator

import pytest

from tests.services import kafka as kafka_service
from tests.services import table
from tests.services.kafka import Kafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A Kafka broker without TLS: `kafka.bootstrap`, `kafka.topic(partitions, **config)`."""
    with kafka_service.kafka() as service:
        yield service


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
