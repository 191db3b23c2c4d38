"""Alerts reach every Alertmanager once as a page, and go on firing there exactly as long as they fire here."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.demo.alertmanager_receiver import AlertmanagerReceiver
from sinks.alert_senders import Alert
from sinks.alertmanager import PART, AlertmanagerConfig, AlertmanagerPart, AlertmanagerSink, State
from sinks.base import DeadLetter
from sinks.errors import Misconfigured
from tests.services.alertmanager import Alertmanager
from tests.services.process import free_port
from tests.services.table import needs_real

QUICK = {"resend_s": 0.2, "lifetime_s": 60.0, "repeat_resolved_s": 0.5, "retry_base_s": 0.02, "retry_max_s": 0.05}
START_MS = 1_767_225_600_000


class Letters:
    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters


class Sent:
    """A sink's part with what it told."""

    def __init__(self, urls: Sequence[str], state: State | None = None, **settings: Any) -> None:
        self.dead = Letters()
        self.outcomes: list[tuple[str, str, int]] = []
        config = AlertmanagerConfig(urls=tuple(urls), **{**QUICK, **settings})
        sink = AlertmanagerSink(config, self.dead, lambda *outcome: self.outcomes.append(outcome))
        self.part: AlertmanagerPart = sink.build_part("alertmanager", PART, state)


@contextlib.contextmanager
def sending(urls: Sequence[str], state: State | None = None, **settings: Any) -> Iterator[Sent]:
    sent = Sent(urls, state, **settings)
    try:
        yield sent
    finally:
        sent.part.close()


def alert(name: str = "a", starts_ms: int = START_MS, ends_ms: int | None = None, **more: Any) -> Alert:
    return Alert(name, starts_ms, ends_ms, (("alertname", "XidCritical"), ("run", name)), (("count", "1"),), **more)


def until(condition: Callable[[], bool], wait_s: float = 20.0) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def times(receiver: AlertmanagerReceiver, run: str = "a") -> list[tuple[float, str, str]]:
    return [
        (at, one["startsAt"], one["endsAt"])
        for at, body in list(receiver.posts)
        for one in body
        if one["labels"]["run"] == run
    ]


@pytest.fixture
def run() -> str:
    return uuid.uuid4().hex


def test_an_alert_fires_pages_once_and_resolves(alertmanager: Alertmanager, run: str) -> None:
    needs_real(alertmanager, "notifications")
    with sending([alertmanager.url]) as sent:
        sent.part.write_batch([alert(run)])
        alertmanager.until(lambda: len(alertmanager.alerts(run=run)) == 1)
        until(lambda: len([o for o in sent.outcomes if o[1] == "sent"]) > 3)  # told again and again
        sent.part.write_batch([alert(run, ends_ms=START_MS + 60_000)])
        alertmanager.until(lambda: not alertmanager.alerts(run=run))
        alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 2)
    assert [status for _, status, _ in alertmanager.pages.of(run=run)] == ["firing", "resolved"]
    assert alertmanager.pages.of(run=run)[1][2]["endsAt"] == "2026-01-01T00:01:00Z"


def test_a_restart_goes_on_with_the_same_alert_and_pages_nobody_again(alertmanager: Alertmanager, run: str) -> None:
    needs_real(alertmanager, "notifications")
    with sending([alertmanager.url]) as before:
        before.part.write_batch([alert(run)])
        alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 1)
        state = before.part.snapshot()
    [first] = alertmanager.alerts(run=run)
    with sending([alertmanager.url], state):
        alertmanager.until(lambda: alertmanager.alerts(run=run)[0]["endsAt"] > first["endsAt"])
    assert alertmanager.alerts(run=run)[0]["startsAt"] == first["startsAt"]
    assert len(alertmanager.pages.of(run=run)) == 1


def test_a_restart_does_not_page_again_for_what_ended_after_its_snapshot(alertmanager: Alertmanager, run: str) -> None:
    needs_real(alertmanager, "notifications")
    ended = alert(run, ends_ms=START_MS + 60_000)
    with sending([alertmanager.url], resend_s=25.0) as before:
        before.part.write_batch([alert(run)])
        alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 1)
        state = before.part.snapshot()
        before.part.write_batch([ended])
        alertmanager.until(lambda: len(alertmanager.pages.of(run=run)) == 2)
    with sending([alertmanager.url], state, resend_s=25.0) as again:
        again.part.write_batch([ended])  # as the evaluator finds it once more
        until(lambda: bool(again.outcomes))
    assert [status for _, status, _ in alertmanager.pages.of(run=run)] == ["firing", "resolved"]


def test_the_start_never_moves_and_the_end_always_lies_ahead_of_the_sending() -> None:
    with AlertmanagerReceiver() as receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([alert()])
        until(lambda: len(times(receiver)) >= 4)
        told = times(receiver)
    assert {starts for _, starts, _ in told} == {"2026-01-01T00:00:00.000+00:00"}
    for at, _, ends in told:
        assert 55 < datetime.fromisoformat(ends).timestamp() - at <= 60


def test_news_in_text_alone_wait_for_the_next_sending() -> None:
    with AlertmanagerReceiver() as receiver, sending([receiver.url], resend_s=30.0) as sent:
        sent.part.write_batch([alert()])
        until(lambda: bool(times(receiver)))
        for count in range(50):
            sent.part.write_batch([alert()._replace(annotations=(("count", str(count)),))])
        sent.part.write_batch([alert("b")])
        until(lambda: bool(times(receiver, "b")))
    assert len(times(receiver)) == 1


def test_a_resolved_alert_is_repeated_for_a_while_and_then_forgotten() -> None:
    with AlertmanagerReceiver() as receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([alert()])
        until(lambda: bool(receiver.alerts()))
        sent.part.write_batch([alert(ends_ms=START_MS + 5_000)])
        until(lambda: not sent.part.snapshot())
        resolved = [ends for _, _, ends in times(receiver) if ends == "2026-01-01T00:00:05.000+00:00"]
    assert len(resolved) >= 2
    assert not receiver.alerts()


def test_an_alert_in_the_future_of_our_clock_is_valid() -> None:
    ahead_ms = time.time_ns() // 1_000_000 + 600_000
    with AlertmanagerReceiver() as receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([alert(starts_ms=ahead_ms)])
        until(lambda: bool(receiver.alerts()))
    assert not sent.dead.letters


def test_all_replicas_are_told_though_one_is_away_and_one_hangs() -> None:
    released = threading.Event()
    silent = AlertmanagerReceiver(answers=lambda _: 500 if released.wait(20) else None)
    with AlertmanagerReceiver() as one, AlertmanagerReceiver() as two, silent:
        urls = [f"http://127.0.0.1:{free_port()}", silent.url, one.url, two.url]
        with sending(urls, timeout_s=30.0) as sent:
            sent.part.write_batch([alert()])
            until(lambda: len(times(one)) > 2 and len(times(two)) > 2)
            assert not released.is_set()
            until(lambda: "failed" in {outcome for url, outcome, _ in sent.outcomes if url.startswith(urls[0])})
            assert {outcome for url, outcome, _ in sent.outcomes if url.startswith((one.url, two.url))} == {"sent"}
            released.set()


def test_a_replica_that_comes_back_is_told() -> None:
    answers = [500, 503, 429, 408]
    receiver = AlertmanagerReceiver(answers=lambda _: answers.pop() if answers else None)
    with receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([alert()])
        until(lambda: bool(receiver.alerts()))
    assert [outcome for _, outcome, _ in sent.outcomes][:5] == ["failed"] * 4 + ["sent"]
    assert not sent.dead.letters


def test_one_bad_alert_becomes_a_dead_letter_and_stops_no_other() -> None:
    bad = alert("bad")._replace(labels=(("run", "bad"), ("bad name", "x")))
    with AlertmanagerReceiver() as receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([*(alert(f"g{i}") for i in range(20)), bad])
        until(lambda: len(receiver.alerts()) == 20 and bool(sent.dead.letters))
        sent.part.write_batch([alert("later")])
        until(lambda: len(receiver.alerts()) == 21)
        until(lambda: len(times(receiver, "later")) > 2)
    [letter] = sent.dead.letters
    assert letter.reason == "rejected_alertmanager"
    assert "invalid name" in letter.detail
    assert b"bad name" in letter.raw


def test_a_real_alertmanager_agrees_on_what_is_bad(alertmanager: Alertmanager, run: str) -> None:
    needs_real(alertmanager, "its own checks")
    bad = alert(run + "-bad")._replace(labels=(("run", run), ("bad name", "x")))
    with sending([alertmanager.url]) as sent:
        sent.part.write_batch([bad, alert(run)])
        alertmanager.until(lambda: len(alertmanager.alerts(run=run)) == 1 and len(sent.dead.letters) == 1)


def test_a_refused_login_kills_no_alert(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p")
    refuse = [401, 403]
    receiver = AlertmanagerReceiver(answers=lambda _: refuse.pop() if refuse else None)
    with receiver, sending([receiver.url], username="u", password_file=password) as sent:
        sent.part.write_batch([alert()])
        until(lambda: bool(receiver.alerts()))
    assert not sent.dead.letters


def test_an_incident_that_ended_while_all_replicas_were_away_still_pages() -> None:
    away = [True]
    receiver = AlertmanagerReceiver(answers=lambda _: 503 if away else None)
    with receiver, sending([receiver.url]) as sent:
        sent.part.write_batch([alert()])
        sent.part.write_batch([alert(ends_ms=START_MS + 5_000)])
        until(lambda: len(receiver.posts) > 3)
        away.clear()
        until(lambda: bool(receiver.alerts()))
        until(lambda: not receiver.alerts())


def test_a_snapshot_keeps_what_no_replica_has_taken() -> None:
    dead_url = f"http://127.0.0.1:{free_port()}"
    with sending([dead_url], barrier_s=0.1) as sent:
        sent.part.write_batch([alert(), alert("b", ends_ms=START_MS + 1)])
        state = sent.part.snapshot()
    assert sorted(told.alert.fingerprint for told in state) == ["a", "b"]
    with AlertmanagerReceiver() as receiver, sending([receiver.url], state):
        until(lambda: len(receiver.alerts()) == 2)


@pytest.mark.parametrize(
    ("news", "starts"),
    [
        (alert(starts_ms=START_MS - 60_000, ends_ms=START_MS - 1), START_MS),  # an older episode, found late
        (alert(starts_ms=START_MS - 60_000, replaces=(START_MS,)), START_MS - 60_000),  # older lines moved it
        (alert(starts_ms=START_MS + 60_000), START_MS + 60_000),
    ],
)
def test_the_latest_episode_of_an_alert_holds(news: Alert, starts: int) -> None:
    with sending([f"http://127.0.0.1:{free_port()}"], barrier_s=0.0) as sent:
        sent.part.write_batch([alert(), news])
        [told] = sent.part.snapshot()
    assert told.alert.starts_ms == starts


def test_the_check_passes_while_one_replica_answers_and_names_what_is_wrong() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    with AlertmanagerReceiver() as receiver:
        AlertmanagerSink(AlertmanagerConfig(urls=(gone, receiver.url)), Letters(), lambda *_: None).check()
        wrong = AlertmanagerConfig(urls=(f"{receiver.url}/nowhere",))
        with pytest.raises(Misconfigured, match=r"/nowhere/api/v2/alerts answers 404 .* check urls and credentials"):
            AlertmanagerSink(wrong, Letters(), lambda *_: None).check()
    with pytest.raises(Misconfigured, match=r"no answer from .* check urls, ca_file and the network"):
        AlertmanagerSink(AlertmanagerConfig(urls=(gone,)), Letters(), lambda *_: None).check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"urls": ["am:9093"]}, "must look like http://alertmanager:9093"),
        ({"urls": ["http://u:p@am:9093"]}, "must not contain a password"),
        ({"urls": ["http://am:9093", "http://am:9093"]}, "names a replica twice"),
        ({"username": "u"}, "username and password_file go together"),
        ({"resend_s": 60, "lifetime_s": 100}, "at least twice resend_s"),
    ],
)
def test_a_wrong_configuration_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        AlertmanagerConfig.model_validate(settings)
