"""Which server each test service really was, what it should have been, and what that forbids.

TAILRACE_REQUIRE_REAL=1 turns every substitute, and every skip except for a missing Docker, into a failure.
TAILRACE_TEST_SUBSTITUTES=1 uses the substitutes even where the real servers could run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple, NoReturn, Protocol, TypeVar

import pytest

DOCKER_ONLY = "needs Docker: "  # a skip whose reason starts so is allowed under TAILRACE_REQUIRE_REAL


class Unavailable(Exception):
    """This way to get a server is not open on this machine; the message says why."""


class Row(NamedTuple):
    service: str
    used: str
    wanted: str


class Service(Protocol):
    """What every service object tells of itself."""

    @property
    def name(self) -> str: ...
    @property
    def used(self) -> str:
        """For people: which server, at which address."""
        ...

    @property
    def real(self) -> bool: ...


S = TypeVar("S", bound=Service)
Way = Callable[[], AbstractContextManager[S]]

rows: list[Row] = []


def real_required() -> bool:
    return os.environ.get("TAILRACE_REQUIRE_REAL") == "1"


def substitutes_wanted() -> bool:
    return os.environ.get("TAILRACE_TEST_SUBSTITUTES") == "1"


@contextmanager
def choose(wanted: str, ways: Sequence[Way[S]], substitute: Way[S]) -> Iterator[S]:
    """The first of `ways` that is open, else the substitute; leaves its row in the table.

    A way that is open but fails (StartFailed) is an error, not a reason to go on: a broken Kafka must be seen.
    """
    reasons: list[str] = []
    with ExitStack() as stack:
        chosen = None
        for way in () if substitutes_wanted() else ways:
            try:
                chosen = stack.enter_context(way())
                break
            except Unavailable as reason:
                reasons.append(str(reason))
        if chosen is None:
            if real_required():
                pytest.fail(
                    f"TAILRACE_REQUIRE_REAL=1, but there is no {wanted}: {'; '.join(reasons) or 'substitutes forced'}. "
                    "Run `make services`.",
                    pytrace=False,
                )
            chosen = stack.enter_context(substitute())
        rows.append(Row(chosen.name, chosen.used, wanted))
        yield chosen


def needs_real(service: Service, why: str) -> None:
    """Skips the test when `service` is a substitute, which cannot show `why`. The only place that does."""
    if not service.real:
        pytest.skip(f"{service.used} stands in for {service.name} and cannot show this: {why}")


def needs_docker(service: str, wanted: str, why: str) -> NoReturn:
    """Skips a test whose server exists only as a container."""
    rows.append(Row(service, "none", wanted))
    pytest.skip(f"{DOCKER_ONLY}{service}: {why}")


R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def forbid_skip(report: R) -> R:
    """Under TAILRACE_REQUIRE_REAL=1, makes a failure of a skip for any reason but Docker's."""
    if report.skipped and real_required():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if DOCKER_ONLY not in reason:
            report.outcome = "failed"
            report.longrepr = f"TAILRACE_REQUIRE_REAL=1 forbids this skip: {reason}"
    return report


def write(reporter: pytest.TerminalReporter) -> None:
    """Prints the rows of all services that were asked for."""
    if not rows:
        return
    lines = [Row("service", "used", "wanted"), *sorted(set(rows))]
    service, used = (max(len(line[i]) for line in lines) for i in (0, 1))
    reporter.section("services")
    for line in lines:
        reporter.write_line(f"{line.service:<{service}} · {line.used:<{used}} · {line.wanted}")
