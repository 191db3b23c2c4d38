"""Kinds of a configuration: what is refused and how it is said, and how they reach the tier and `tailrace parse`."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config import Config, validate
from flows.parse import parse
from flows.run import check
from flows.sources.files import FilesConfig, FilesSource
from flows.steps.decode import DecodeConfig, decode
from flows.steps.kinds import BUILT_IN
from sinks.errors import Misconfigured
from tests.chunks import chunk

EXAMPLE = Path(__file__).parents[2] / "deploy" / "configs" / "tailrace.toml"
HEAD = r"(?P<time>\S+) (?P<level>[a-z]+) (?P<unit>[a-z]+): "
KIND = {"head": HEAD, "time": "iso", "tz": "Europe/Berlin", "paths": ["own-*.log"], "labels": {"team": "net"}}


def config(kind: dict[str, Any], **more: Any) -> Config:
    return validate({"source": {"files": {}}, "kinds": {"own": kind}, **more}, "t.toml")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"head": "(?P<time>x"}, "kinds.own.head: '(?P<time>x' is no RE2 pattern: missing ): (?P<time>x"),
        ({"head": "(?=x)"}, "kinds.own.head: '(?=x)' is no RE2 pattern"),
        ({"head": "[[:alpha:]]"}, "kinds.own.head: '[[:alpha:]]' is no pattern that Python reads as RE2 does"),
        ({"head": "(x)"}, "kinds.own.head: has a group without a name; write (?:…) or (?P<name>…)"),
        ({"head": "(?P<event>x)"}, "kinds.own.head: the group event cannot be set"),
        ({"head": "(?P<pci>x)"}, "kinds.own.head: pci can be a group of events only"),
        ({"head": "(?P<time>x)"}, "kinds.own: the group time of head and the key time need one another"),
        ({"head": "x", "time": "iso"}, "kinds.own: the group time of head and the key time need one another"),
        ({"head": "(?P<time>x)", "time": "%Y %q"}, "kinds.own.time: %q is not known; use iso, epoch"),
        ({"levels": {"BAD": "error"}}, "kinds.own: levels needs a group level in head"),
        ({"levels": {"BAD": "dreadful"}}, "kinds.own.levels.BAD: input should be 'emergency'"),
        ({"follows": True}, "kinds.own: follows needs a head"),
        ({"integers": ["port"]}, "kinds.own: integers: port is no group; groups are none"),
        ({"tz": "Mars/Olympus"}, "kinds.own.tz: unknown time zone 'Mars/Olympus'"),
        ({"labels": {"rank": "1"}}, "kinds.own.labels: rank cannot be set; labels are app, container, namespace"),
        ({"hed": "x"}, "unknown key kinds.own.hed; did you mean head?"),
        ({"events": [{"event": "e", "regex": "("}]}, "kinds.own.events.0.regex: '(' is no RE2 pattern"),
        ({"events": [{"event": "e", "regex": "(?P<level>x)"}]}, "kinds.own.events.0.regex: the group level cannot be"),
        ({"events": [{"event": "Bad Name", "regex": "x"}]}, "kinds.own.events.0.event: 'Bad Name' is no name"),
        ({"events": [{"event": "e", "regex": "x", "fields": {"xid": "1"}}]}, "fields: xid cannot be set"),
        ({"events": [{"event": "e"}]}, "kinds.own.events.0.regex: this key is required; add it"),
        ({"noise": [{"id": "N02", "regex": "x"}]}, "kinds.own.noise.0.id: the rule N02 is one of tailrace's"),
        (
            {"noise": [{"id": "a", "regex": "x"}, {"id": "a", "regex": "y"}]},
            "kinds.own: noise: two rules have the id a",
        ),
        ({"gate": "("}, "kinds.own.gate: '(' is no RE2 pattern"),
    ],
)
def test_a_wrong_kind_is_refused_by_its_key(kind: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        config(kind)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kmsg", "kinds.kmsg: kmsg is a kind of tailrace; choose another name"),
        ("alert", "kinds.alert: alert is a kind of tailrace"),
        ("My Kind", "kinds.My Kind: 'My Kind' is no name"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(name: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        validate({"source": {"files": {}}, "kinds": {name: {}}}, "t.toml")


@pytest.mark.parametrize(
    "more",
    [
        {"decode": {"kinds": {"logs.own": "own"}}},
        {"decode": {"zones": [{"kinds": ["own"], "tz": "UTC"}]}},
        {"source": {"kafka": {"topics": {"logs.own": "own"}}}},
        {"source": {"files": {"kind": "own"}}},
        {"redaction": {"skip_kinds": ["own"]}},
        {"noise": {"keep": ["quiet"]}},
    ],
)
def test_own_kinds_and_rules_may_be_named_wherever_those_of_tailrace_may(more: dict[str, Any]) -> None:
    own = {"noise": [{"id": "quiet", "regex": "x"}]}
    config(own, **more)
    with pytest.raises(Misconfigured, match=r"unknown kind own|unknown noise rule quiet"):
        validate({"source": {"files": {}}, **more}, "t.toml")


def test_labels_must_have_room_for_the_job_of_every_kind() -> None:
    room = len(set(BUILT_IN.jobs.values()))
    config({"job": "kmsg"}, labels={"job": room})
    with pytest.raises(Misconfigured, match=f"labels.job must be at least {room + 1}"):
        config({}, labels={"job": room})


def test_a_message_of_an_own_kind_gets_its_labels_and_zone_unless_it_says_other_ones() -> None:
    known = config(KIND)
    said = [
        (("v", b"1"), ("kind", b"own")),
        (("v", b"1"), ("path", b"/var/log/own-7.log"), ("team", b"mine"), ("tz", b"UTC")),
    ]
    raws = decode(chunk([(headers, [b"x"]) for headers in said]), known.decode, known.all_kinds()).raws
    shown = [(raw.kind, raw.tz, *(raw.rows[name][0].as_py() for name in ("team", "job"))) for raw in raws]
    assert shown == [("own", "Europe/Berlin", "net", "own"), ("own", "UTC", "mine", "own")]


def test_kinds_of_one_configuration_are_unknown_to_another() -> None:
    headers = (("v", b"1"), ("kind", b"own"))
    for known, kind in ((config(KIND), "own"), (config({}, kinds={}), "unknown"), (config(KIND), "own")):
        (raw,) = decode(chunk([(headers, [b"x"])]), known.decode, known.all_kinds()).raws
        assert raw.kind == kind
    (raw,) = decode(chunk([(headers, [b"x"])]), DecodeConfig()).raws
    assert raw.kind == "unknown"


def test_files_of_an_own_kind_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("own-1.log", "own-slurmd.log", "slurmd.log"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    source = FilesSource(FilesConfig(paths=[str(tmp_path)]), kinds=config(KIND).all_kinds())
    ((_, read),) = source.build_part("source", "0000", None).next_batch()
    assert [dict(headers)["kind"] for headers in read.headers] == [b"own", b"own", b"slurmd"]


def test_an_own_kind_may_be_named_in_a_json_envelope() -> None:
    known = config(KIND)
    value = json.dumps({"host": "n1", "kind": "own", "message": "x"}).encode()
    (raw,) = decode(chunk([((), [value])]), known.decode, known.all_kinds()).raws
    assert (raw.kind, raw.rows["raw"].to_pylist()) == ("own", [b"x"])


def test_parse_reads_an_own_kind_with_its_configuration(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "own.log"
    file.write_text(
        "2026-03-04 05:06:07,089 BAD [poller] mlx5_3:1 is down\npin cluster_pin=4711-0815\n", encoding="utf-8"
    )
    assert parse(["--config", str(EXAMPLE), "--kind", "fabric_watch", str(file)]) == 0
    record = json.loads(capfdbinary.readouterr().out)
    assert (record["event"], record["ts"], record["hca_port"]) == ("nic_link", "2026-03-04T04:06:07.089Z", 1)
    assert (record["cluster"], record["flags"]) == ("gpu-west", ["redacted"])
    assert record["message"].endswith("cluster_pin=***")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "fabric_watch"], "unknown kind 'fabric_watch'"),
        (["--config", str(EXAMPLE), "--kind", "fabric_wach"], "did you mean 'fabric_watch'?"),
        (["--kind", "unknown"], "unknown kind 'unknown'"),
    ],
)
def test_parse_names_the_kinds_that_there_are(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([*options, "-"])
    assert message in capsys.readouterr().err


def test_parse_says_what_is_wrong_with_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[kinds.own]\nhead = '('\n[source.files]\n", encoding="utf-8")
    assert parse(["--config", str(file), "--kind", "own", "-"]) == 2
    assert "kinds.own.head: '(' is no RE2 pattern" in capsys.readouterr().err


TESTED = """
[source.files]
[kinds.own]
head = '(?P<level>[A-Z]+) '
events = [{ event = "nic_link", regex = 'port (?P<port>\\d+) down' }]
noise = [{ id = "quiet", regex = '^polled' }]
integers = ["port"]
[[rules]]
name = "PortDown"
events = ["nic_link"]
group_by = ["node"]
[[tests]]
kind = "own"
"""


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("lines = ['INFO x']\nrecords = [{ message = 'x', level = 'info', labels = { job = 'own' } }]", ""),
        ("lines = ['INFO polled']\nrecords = [{ noise = 'quiet', dropped = true }]", ""),
        ("lines = ['INFO port 7 down']\nalerts = [{ rule = 'PortDown', at = 0, labels = { node = 'node-1' } }]", ""),
        ("lines = ['INFO x']\nalerts = []", ""),
        ("lines = ['INFO port 7 down']\nrecords = [{ port = 7, event = 'nic_link', dropped = false }]", ""),
        ("lines = ['INFO x', 'y']\nrecords = [{ }, { flags = ['unparsed'] }]", ""),
        ("lines = ['INFO x']\nrecords = [{ message = 'y' }]", "test 1: record 1: message is x, not y"),
        ("lines = ['INFO x']\nrecords = [{ labels = { job = 'z' } }]", "record 1: labels is {"),
        ("lines = ['INFO x']\nrecords = [{ dropped = true }]", "record 1: dropped is false, not true"),
        ("lines = ['INFO x', 'INFO y']\nrecords = [{ }]", "2 records instead of 1; their messages: 'x'; 'y'"),
        ("lines = []\nrecords = [{ }]", "0 records instead of 1; their messages: none"),
        ("lines = ['INFO port 7 down']\nalerts = []", "more alerts than expected; there are: at = 0"),
        ("lines = ['INFO x']\nalerts = [{ rule = 'PortDown' }]", "no alert like {'rule': 'PortDown'}"),
        ("lines = ['INFO port 7 down']\nalerts = [{ rule = 'Other' }]", "no alert like {'rule': 'Other'}"),
    ],
)
def test_check_runs_tests_of_lines(test: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text(TESTED + test, encoding="utf-8")
    status = check(["--offline", "--config", str(file)])
    told = capsys.readouterr().err
    assert status == (2 if said else 0), told
    assert (said or "ok  1 tests of lines") in told
