"""The strict receiver over HTTP: answers, faults on demand, and what it remembers."""

import http.client
import threading
import time
from collections.abc import Iterator

import pytest
import urllib3

from flows.demo.loki_apart import strict
from flows.demo.loki_limits import Limits
from flows.demo.loki_receiver import Fault, Receiver
from flows.demo.loki_store import Count, KeepAll, Numbers, by_regex
from tests.sinks.loki_pushes import GOOD, NOW, PROTOBUF, Entry, as_protobuf, push, receiver


def test_a_counting_receiver_finds_missing_repeated_and_foreign_numbers() -> None:
    numbers = Numbers(10, by_regex("seq=([0-9]+)"))
    to = receiver(store=Count(numbers))
    sent = ["seq=0", "a seq=1 b", "seq=1", "seq=4", "no number", "seq=99"]
    assert push(to, ('{app="a"}', [Entry(NOW, line) for line in sent])) == (204, "")
    assert (to.lines, list(to.streams().values())) == (6, [6])
    assert (numbers.repeated, numbers.foreign, numbers.missing(6).tolist()) == (1, 2, [2, 3, 5])
    with pytest.raises(TypeError, match="only counts"):
        to.entries()


def test_a_full_receiver_says_so() -> None:
    to = receiver(store=KeepAll(capacity=1))
    assert push(to, GOOD)[0] == 204
    assert push(to, ('{app="a"}', [Entry(NOW, "x")])) == (500, "this receiver keeps 1 entries and no more")


# --- over HTTP

BODY = as_protobuf(GOOD)


@pytest.fixture
def served() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def post(to: Receiver, **options: object) -> urllib3.BaseHTTPResponse:
    pool = urllib3.PoolManager(retries=False, timeout=10)
    return pool.request("POST", f"{to.url}/loki/api/v1/push", **({"body": BODY, "headers": PROTOBUF} | options))  # type: ignore[arg-type]


def test_success_is_a_bare_204_and_errors_are_text_on_a_living_connection(served: Receiver) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/loki/api/v1/push", BODY, PROTOBUF)
    answer = connection.getresponse()
    assert (answer.status, answer.getheaders(), answer.read()) == (204, [], b"")
    before = connection.sock
    connection.request("POST", "/loki/api/v1/push", b"junk", PROTOBUF)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"snappy: corrupt input\n")
    assert answer.getheader("Content-Type") == "text/plain; charset=utf-8"
    assert answer.getheader("Retry-After") is None
    assert connection.sock is before
    connection.request("GET", "/loki/api/v1/push")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (405, b"")
    connection.request("GET", "/ready")
    assert connection.getresponse().status == 200
    assert dict(served.answers) == {204: 1, 400: 1}
    connection.close()


def test_chunked_bodies_and_the_old_path_are_taken(served: Receiver) -> None:
    assert post(served, body=iter([BODY[:10], BODY[10:]]), chunked=True).status == 204
    assert urllib3.request("POST", f"{served.url}/api/prom/push", body=BODY, headers=PROTOBUF).status == 204
    assert served.lines == 1


def test_a_body_over_the_limit_closes_the_connection() -> None:
    with receiver(Limits(max_recv_msg_size=10)) as small:
        for body in (BODY, iter([BODY])):
            answer = post(small, body=body)
            assert (answer.status, answer.headers["Connection"]) == (413, "close")
            assert answer.data.startswith(b"request body too large: message size too large than max (")
        assert small.lines == 0


def test_the_next_answers_can_be_made_to_fail(served: Receiver) -> None:
    served.fail_next(2, Fault(503, "down"))
    served.fail_next(1, Fault(500, "lost answer", stored=True))
    answers = [post(served) for _ in range(2)]
    assert [(answer.status, answer.data) for answer in answers] == [(503, b"down\n")] * 2
    assert served.lines == 0
    assert post(served).status == 500
    assert served.lines == 1
    assert post(served).status == 204


@pytest.mark.parametrize("stored", [False, True])
def test_connections_can_be_cut_before_or_after_the_entries_are_stored(served: Receiver, stored: bool) -> None:
    served.fail_next(1, Fault(drop=True, stored=stored))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        post(served)
    assert served.lines == stored
    assert served.answers[0] == 1
    assert post(served).status == 204


def test_pushes_hang_until_released(served: Receiver) -> None:
    served.hang()
    answers: list[int] = []
    client = threading.Thread(target=lambda: answers.append(post(served).status))
    client.start()
    client.join(0.3)
    assert (answers, served.lines) == ([], 0)
    served.release()
    client.join(10)
    assert (answers, served.lines) == ([204], 1)


def test_a_stopped_receiver_is_gone_for_open_connections_too_and_comes_back_with_its_state(served: Receiver) -> None:
    pool = urllib3.HTTPConnectionPool("127.0.0.1", served.port, maxsize=1, retries=False, timeout=5)
    assert pool.request("POST", "/loki/api/v1/push", body=BODY, headers=PROTOBUF).status == 204
    served.stop()
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("POST", "/loki/api/v1/push", body=BODY, headers=PROTOBUF)
    served.start()
    assert post(served).status == 204
    assert served.lines == 1


def test_a_receiver_in_a_process_of_its_own_reports_what_came() -> None:
    now = time.time_ns()
    with strict("seq=([0-9]+)", capacity=10) as apart:
        body = as_protobuf(('{app="a"}', [Entry(now, "seq=0"), Entry(now, "seq=2"), Entry(now, "seq=2")]))
        url = f"{apart.url}/loki/api/v1/push"
        assert urllib3.request("POST", url, body=body, headers=PROTOBUF, timeout=30).status == 204
        report = apart.report(total=4)
    assert (report.lines, report.streams, report.answers) == (3, 1, {204: 1})
    assert (report.missing, report.repeated, report.foreign) == (2, 1, 0)
    assert report.cpu_s > 0
