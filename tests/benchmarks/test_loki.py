"""The Loki of the benchmarks fails a run in which a line is lost, changed, moved or not read; repeats it counts."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import urllib3

from benchmarks.content import Content, note
from benchmarks.generate import headers_of
from benchmarks.lines import FIRST, Block, blocks, totals
from benchmarks.loki import Checks, checker
from benchmarks.run import check_loki
from flows.demo.loki_apart import Report
from tests.sinks.loki_pushes import PROTOBUF, Entry, as_protobuf, snappy

HEAD = b"POST /loki/api/v1/push HTTP/1.1\r\nHost: loki\r\ncontent-type:application/x-protobuf\r\n\r\n"
NOTHING = snappy(b"")
START_S = 1_764_547_200
KEPT = totals(1)[1]
TOLD = {
    "training": ', job_id="81001", team="pretrain"',
    "slurmctld": ', unit="slurmctld.service"',
    "kmsg": ', priority="info"',
}

Streams = dict[str, list[bytes]]  # lines by label text


@pytest.fixture(scope="module")
def written() -> list[Block]:
    return list(blocks(1, START_S))


@pytest.fixture(scope="module")
def content(written: list[Block]) -> Content:
    noted = np.zeros(sum(totals(1)), np.uint32)
    for block in written:
        note(noted, block, headers_of(block, START_S))
    return noted[:KEPT]


@pytest.fixture
def streams(written: list[Block]) -> Streams:
    """What a tier sends of one cycle."""
    found: Streams = defaultdict(list)
    for block in written:
        labels = f'{{cluster="gpu-west", job="{block.kind}", node="{block.node}"{TOLD[block.kind]}}}'
        for number, line in zip(block.numbers, block.value.split(b"\n"), strict=True):
            if number < FIRST + KEPT:
                urgent = block.kind == "kmsg" and line.startswith(b"3,")
                text = line.partition(b";")[2] if block.kind == "kmsg" else line
                found[labels.replace('"info"', '"error"') if urgent else labels].append(text)
    return found


def pushed(streams: Streams) -> bytes:
    return as_protobuf(*((labels, [Entry(START_S * 10**9, line) for line in own]) for labels, own in streams.items()))


def report(content: Content, *bodies: bytes) -> Report:
    """After the empty push of a tier that starts, and others."""
    checks = Checks(content)
    for body in (NOTHING, *bodies):
        checks.answer(HEAD, body)
    return checks.report(KEPT)


def test_all_lines_as_they_were_sent_pass(content: Content, streams: Streams) -> None:
    first = {labels: streams.pop(labels) for labels in list(streams)[::2]}
    found = report(content, pushed(streams), pushed(first))
    check_loki(found, KEPT)
    assert (found.lines, found.repeated, found.answers) == (KEPT, 0, {204: 2, 422: 1})


def test_lines_that_come_twice_are_counted_apart(content: Content, streams: Streams) -> None:
    some = {labels: own[:3] * 2 for labels, own in list(streams.items())[:2]}
    found = report(content, pushed(streams), pushed(some))
    check_loki(found, KEPT)
    assert found.repeated == 12


def lose(streams: Streams) -> None:
    next(iter(streams.values())).pop()


def change_text(streams: Streams) -> None:
    own = next(iter(streams.values()))
    own[3] += b" "


def swap_numbers(streams: Streams) -> None:
    own = max(streams.values(), key=len)
    own[0], own[1] = own[0].replace(own[0][-10:], own[1][-10:]), own[1].replace(own[1][-10:], own[0][-10:])


def move(streams: Streams) -> None:
    first, second = list(streams)[:2]
    streams[second].append(streams[first].pop())


def add_noise(streams: Streams) -> None:
    next(iter(streams.values())).append(b"a line with the number 2000004900")


def add_unnumbered(streams: Streams) -> None:
    next(iter(streams.values())).append(b"a line without a number")


def relabel(streams: Streams) -> None:
    labels = next(iter(streams))
    streams[labels.replace('team="pretrain"', 'team="other"')] = streams.pop(labels)


FAULTS = (lose, change_text, swap_numbers, move, add_noise, add_unnumbered, relabel)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_fails_the_run(fault: Callable[[Streams], None], content: Content, streams: Streams) -> None:
    fault(streams)
    with pytest.raises(AssertionError, match="Loki: lines"):
        check_loki(report(content, pushed(streams)), KEPT)


@pytest.mark.parametrize("body", [b"", b"\xff\xff", snappy(b"\x0a\x05abc"), pushed({"{oops": [b"a"]}), NOTHING])
def test_an_answer_that_nobody_meant_fails_the_run(body: bytes, content: Content, streams: Streams) -> None:
    with pytest.raises(AssertionError, match="unmeant answers"):
        check_loki(report(content, pushed(streams), body), KEPT)


def test_it_serves_in_a_process_of_its_own(content: Content, streams: Streams) -> None:
    with checker(content) as apart, urllib3.PoolManager(maxsize=1, retries=False, timeout=30) as pool:
        url = f"{apart.url}/loki/api/v1/push"
        bodies = (NOTHING, pushed(streams), snappy(b"\x0a\x05abc"))
        found = [pool.request("POST", url, body=body, headers=PROTOBUF).status for body in bodies]
        found.append(pool.request("POST", f"{apart.url}/elsewhere", body=NOTHING, headers=PROTOBUF).status)
        told = apart.report(KEPT)
    assert found == [422, 204, 400, 404]
    assert (told.lines, told.missing, told.changed) == (KEPT, 0, 0)
    assert len(told.problems) == 2
