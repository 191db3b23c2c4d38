"""`tailrace parse` as a user meets it: output, order, pipes, mistakes."""

import json
import subprocess
import sys

import pytest

from flows import parse as command
from flows.cli import COMMANDS, main
from flows.parse import ordered, parse
from parsers.record import Line, Record, Ref, Stream
from parsers.registry import KINDS, parser

ALWAYS = ["kind", "ts", "ts_source", "node", "level", "event", "message", "noise", "lines", "flags"]
TAILRACE = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main())"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ten_keys_are_always_there_and_no_other_is_null(kind, tmp_path, capfdbinary):
    file = tmp_path / "log"
    file.write_bytes(b"\xffsome text\nmore text without line feed")
    assert parse(["--kind", kind, "--node", "n1", "--cluster", "c1", str(file)]) == 0
    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert sum(record["lines"] for record in records) == 2
    for record in records:
        assert list(record)[:10] == ALWAYS
        assert (record["kind"], record["node"], record["cluster"]) == (kind, "n1", "c1")
        assert None not in list(record.values())[10:]


def test_standard_input_is_read_with_a_dash():
    done = subprocess.run(
        [*TAILRACE, "parse", "--kind", "json", "--received-at", "2025-03-04T06:06:07.50+01:00", "-"],
        input=b'{"msg":"\xc3\xa9"}\n', capture_output=True, check=True,
    )  # fmt: skip
    record = json.loads(done.stdout)
    assert (record["message"], record["ts"], record["ts_source"]) == ("é", "2025-03-04T05:06:07.50Z", "received")


def test_records_come_in_the_order_of_their_first_line():
    lines = [
        b"2025-03-04T05:06:07.1Z stdout P first ",
        b"2025-03-04T05:06:07.2Z stderr F second",
        b"2025-03-04T05:06:07.3Z stderr P third ",
        b"2025-03-04T05:06:07.4Z stdout F end",
        b"2025-03-04T05:06:07.5Z stdout F fourth",
    ]
    numbered = [Line(raw, (Ref(0, number),)) for number, raw in enumerate(lines)]
    records = ordered(parser("pod").stream(Stream("pod")), numbered)
    assert [record.fields["message"] for record in records] == ["first end", "second", "third ", "fourth"]


class Hoarder:
    """A stream parser that holds its first line until it is flushed."""

    def __init__(self) -> None:
        self.held: list[Ref] = []

    def feed(self, line: Line) -> list[Record]:
        if line.refs[0].line == 0:
            self.held = list(line.refs)
            return []
        return [Record({"message": ""}, line.refs)]

    def flush(self) -> list[Record]:
        held, self.held = self.held, []
        return [Record({"message": ""}, tuple(held))] if held else []


def test_no_more_than_a_bounded_number_of_records_waits_for_an_earlier_one(monkeypatch):
    monkeypatch.setattr(command, "MAX_WAITING", 5)
    read = []

    def source():
        for number in range(20):
            read.append(number)
            yield Line(b"", (Ref(0, number),))

    records = ordered(Hoarder(), source())
    assert next(records).refs == (Ref(0, 0),)
    assert len(read) == 7
    assert [record.refs[0].line for record in records] == list(range(1, 20))


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b'{"msg":"x"}\n' * 50_000)
    with subprocess.Popen(
        [*TAILRACE, "parse", "--kind", "json", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "slurmctl"], "did you mean 'slurmctld'?"),
        (["--tz", "Mars/Olympus"], "unknown time zone 'Mars/Olympus'"),
        (["--received-at", "yesterday"], "'yesterday' is no RFC 3339 time"),
        (["--boot-time", "2025-03-04T05:06:07"], "is no RFC 3339 time with a zone"),
        (["--mtime", "2025-02-30T05:06:07Z"], "is no RFC 3339 time"),
    ],
)
def test_a_wrong_option_ends_with_status_2_and_a_message(options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(["--kind", "kmsg", *options, "-"])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_file_ends_with_status_2_and_a_message(tmp_path, capsys):
    assert parse(["--kind", "kmsg", str(tmp_path / "none.log")]) == 2
    error = capsys.readouterr().err
    assert "none.log" in error
    assert "No such file" in error


def test_help_names_every_command_and_examples(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert "examples:" in shown


def test_an_unknown_command_ends_with_status_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["pars"])
    assert stopped.value.code == 2
    assert "invalid choice: 'pars'" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["pyarrow", "numpy", "bytewax", "pydantic"])
def test_explaining_a_pod_loads_no_heavy_library(module):
    code = f"import sys, flows.cli as c; c.main(['parse', '--kind', 'pod', '-']); sys.exit('{module}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], input=b"x\n", capture_output=True, check=False).returncode == 0
