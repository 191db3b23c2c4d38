"""The demo shows numbers that add up, and says so when they do not."""

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from flows.demo.cascade import BAD_NODE, BAD_PCI, JOB
from flows.demo.findings import Findings, Xid, problems
from flows.demo.scene import LEAST_LINES, write
from flows.demo.screen import query

DEMO = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main(['demo', *sys.argv[1:]]))"]
# The demo with a receiver that refuses the first push, or forgets what it stored of it.
DAMAGED = """
import sys
from flows.demo import command
from flows.demo.loki_receiver import Fault

class Damaged(command.Receiver):
    def start(self):
        self.fail_next(1, {fault})
        return super().start()

command.Receiver = Damaged
sys.exit(command.demo(sys.argv[1:]))
"""


def run(command: list[str], directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*command, *options], cwd=directory, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory and the screen of one run of 20,000 lines."""
    directory = tmp_path_factory.mktemp("stranger")
    done = run(DEMO, directory, "--lines", "20000")
    assert (done.returncode, done.stderr) == (0, "")
    return directory, done.stdout


def number(text: str) -> int:
    return int(text.replace(",", ""))


def numbers(pattern: str, screen: str) -> list[int]:
    """The groups of a pattern that occurs once."""
    (found,) = re.findall(pattern, screen)
    return [number(group) for group in ([found] if isinstance(found, str) else found)]


def equations(screen: str) -> dict[str, list[int]]:
    """The ledger: lines read, kept, dropped, dead, held or gapped, by part of the tier."""
    found = re.findall(r"^  (\w+) +([\d,]+)  =  ([\d,+ ]+?) +✓$", screen, re.MULTILINE)
    return {part: [number(total), *map(number, terms.split("+"))] for part, total, terms in found}


def test_every_equation_of_the_ledger_holds(shown: tuple[Path, str]) -> None:
    ledger = equations(shown[1])
    assert ledger.keys() == {"pipeline", "Parquet", "Loki"}
    for total, *terms in ledger.values():
        assert total == sum(terms)
    assert ledger["pipeline"] == ledger["Loki"]


def test_the_numbers_are_those_of_the_files(shown: tuple[Path, str]) -> None:
    directory, screen = shown
    written = sum(file.read_bytes().count(b"\n") for file in (directory / "tailrace-demo" / "logs").rglob("*.*"))
    (read,) = numbers(r"([\d,]+) lines \(\d+ MB\) read", screen)
    archived, found = numbers(r"Parquet +([\d,]+) +([\d,]+) lines in its files", screen)
    assert read == archived == found == written > 19_000


def test_the_rules_together_dropped_what_the_ledger_says(shown: tuple[Path, str]) -> None:
    by_rule = re.findall(r"N\d\d  \S.*?  +([\d,]+)(?=  |\n)", shown[1])
    assert sum(map(number, by_rule)) == equations(shown[1])["pipeline"][2] > 0


def test_loki_holds_one_entry_for_each_record_that_no_rule_dropped(shown: tuple[Path, str]) -> None:
    directory, screen = shown
    lines, entries = numbers(r"Loki +([\d,]+) +([\d,]+) entries, .*: nothing wrong", screen)
    archive = directory / "tailrace-demo" / "archive" / "landing"
    kept = duckdb.sql(f"SELECT sum(owned), count(*) FROM '{archive}/*/*/*.parquet' WHERE noise IS NULL").fetchall()
    assert kept == [(lines, entries)]


def test_the_printed_query_finds_the_lost_gpu(shown: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    directory, screen = shown
    (printed,) = re.findall(r"^SELECT .*?;$", screen, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(directory)
    rows = duckdb.sql(f"SELECT node, pci, xid, severity, action FROM ({printed.removesuffix(';')})").fetchall()
    assert rows == [
        (BAD_NODE, BAD_PCI, 79, "critical", "reboot_node"),
        (BAD_NODE, BAD_PCI, 154, "critical", "reboot_node"),
    ]


def test_the_screen_names_the_first_bad_node_and_tells_the_story_in_order(shown: tuple[Path, str]) -> None:
    screen = shown[1]
    assert f"First bad node: {BAD_NODE}" in screen
    story = screen.split("First bad node")[1]
    said = (
        "AER: Multiple",
        "AER: Uncorrected",
        "79, pid",
        "154, GPU",
        "Connection closed",
        "Watchdog",
        "_job_complete",
    )
    places = [story.index(text) for text in said]
    assert places == sorted(places)


def test_the_alerts_name_gpu_job_times_and_the_place_of_their_first_line(shown: tuple[Path, str]) -> None:
    directory, screen = shown
    told = screen.split("What Alertmanager was told")[1].split("Where every line went")[0]
    found = re.findall(
        r"GpuXidCritical +(\S+) +(\S+) +(\d+) +(\d+) +(\d+) +([\d:]+) +([\d:]+) +(\d+) +(\S+)@0:(\d+)", told
    )
    assert [row[:8] for row in found] == [
        (BAD_NODE, BAD_PCI, "79", "1", "2", "03:20:00", "03:25:00", str(JOB)),
        (BAD_NODE, BAD_PCI, "154", "1", "1", "03:20:00", "03:25:00", str(JOB)),
    ]
    for *_, xid, path, line in [(row[2], *row[8:]) for row in found]:
        lines = (directory / "tailrace-demo" / "logs" / path).read_text(encoding="utf-8").splitlines()
        assert f": {xid}, " in lines[int(line)]


def test_a_second_demo_replaces_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        done = run(DEMO, tmp_path, "--lines", str(LEAST_LINES), "--dir", "mine")
        assert (done.returncode, done.stderr) == (0, "")


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "thesis.txt").touch()
    done = run(DEMO, tmp_path, "--dir", ".")
    assert done.returncode == 2
    assert "not the demo's; name another directory with --dir" in done.stderr
    assert (tmp_path / "logs" / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("Fault(status=500, text='disk full')", "the Loki receiver says: 500 disk full"),
        ("Fault(drop=True, stored=True)", "entries the Loki receiver counted"),
    ],
)
def test_a_store_that_fails_gives_exit_status_1(fault: str, sentence: str, tmp_path: Path) -> None:
    script = DAMAGED.format(fault=fault)
    done = run([sys.executable, "-c", script], tmp_path, "--lines", str(LEAST_LINES))
    assert done.returncode == 1
    assert sentence in done.stdout.split("This does not add up")[1]
    assert "checks failed" in done.stderr


def test_ctrl_c_ends_the_run(tmp_path: Path) -> None:
    log = tmp_path / "tailrace-demo" / "tailrace.log"
    with subprocess.Popen([*DEMO, "--lines", "5000000"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(3000):
            if process.poll() is not None or (log.exists() and "started" in log.read_text(encoding="utf-8")):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "tailrace demo: interrupted\n")


def test_the_scene_is_the_same_every_time(tmp_path: Path) -> None:
    told: list[int] = []
    first, second = (write(tmp_path / name, 30_000, told.append) for name in ("a", "b"))
    assert sum(told) == first.lines + second.lines
    for one, other in zip(first.files, second.files, strict=True):
        content = one.path.read_bytes()
        assert content == other.path.read_bytes()
        assert one.path.stat().st_mtime == other.path.stat().st_mtime
        assert content.count(b"\n") == one.lines


def test_a_quote_in_the_directory_does_not_break_the_query(shown: tuple[Path, str], tmp_path: Path) -> None:
    archive = tmp_path / "o'neill"
    archive.symlink_to(shown[0] / "tailrace-demo" / "archive")
    assert len(duckdb.sql(query(archive).removesuffix(";")).fetchall()) == 2


SINK = {"offered": 100, "delivered": 100, "dead": 0, "gapped": 0, "difference": 0}
SOUND = Findings(
    written=100,
    log_bytes=10_000,
    seconds=1.0,
    ledger={
        "read": 100,
        "kept": 20,
        "dropped": {"N19": 80},
        "dead": 0,
        "held": 0,
        "unbalanced": 0,
        "sinks": {"parquet": SINK, "loki": SINK | {"delivered": 20, "dropped": 80}},
    },
    archive_lines=100,
    archive_kept=18,
    archive_bytes=1_000,
    receiver_entries=18,
    receiver_streams=2,
    receiver_answers={204: 3},
    receiver_problems=(),
    xids=(Xid(datetime(2025, 11, 25, tzinfo=UTC), BAD_NODE, BAD_PCI, 79, "gone", "critical", "reboot_node"),),
    story=(),
    alarms=(),
    paged=0,
)


def with_ledger(**changes: Any) -> Findings:
    return replace(SOUND, ledger=SOUND.ledger | changes)


def with_sink(name: str, **changes: int) -> Findings:
    sinks = SOUND.ledger["sinks"]
    return with_ledger(sinks=sinks | {name: sinks[name] | changes})


def test_a_sound_run_has_no_problems() -> None:
    assert problems(SOUND) == []


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (replace(SOUND, written=101), "lines read: 100; lines written: 101"),
        (with_ledger(held=1), "lines read: 100; lines kept, dropped, dead and held: 101"),
        (with_ledger(unbalanced=3), "lines without a fate in the pipeline: 3; none allowed: 0"),
        (with_ledger(dead=1), "dead lines: 1; none expected: 0"),
        (with_sink("parquet", delivered=99), "lines delivered to the archive: 99; lines read: 100"),
        (with_sink("loki", delivered=19), "lines delivered to Loki: 19; lines kept: 20"),
        (with_sink("loki", difference=1), "lines without a fate in loki: 1; none allowed: 0"),
        (replace(SOUND, archive_lines=99), "lines in the archive's files: 99; lines delivered to it: 100"),
        (replace(SOUND, receiver_entries=17), "entries the Loki receiver counted: 17; records kept: 18"),
        (replace(SOUND, receiver_problems=("429 slow",)), "the Loki receiver says: 429 slow"),
        (replace(SOUND, paged=1), "alerts Alertmanager was told of: 1; alerts in the archive: 0"),
        (replace(SOUND, xids=()), f"Xid 79 should be in the archive once, on {BAD_NODE} {BAD_PCI}; found: none"),
        (replace(SOUND, xids=SOUND.xids * 2), "Xid 79 should be in the archive once"),
    ],
)
def test_a_number_that_does_not_add_up_is_named(found: Findings, sentence: str) -> None:
    assert any(problem.startswith(sentence) for problem in problems(found))
