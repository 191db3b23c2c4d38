"""`tailrace parse --explain` as a person sees it. Goldens: `explained/NAME.txt`."""

import io
import sys
from pathlib import Path

import pytest

from flows.explain.gate import parts, pick
from flows.parse import parse
from parsers.record import NO_LINE
from parsers.registry import KINDS, parser
from tests import recorded

GOLDENS = Path(__file__).parent / "explained"
EXAMPLE = Path(__file__).parents[2] / "deploy" / "configs" / "tailrace.toml"
RECEIVED = ["--received-at", "2026-03-04T05:06:07Z", "--node", "gpu-a01"]
XID = "4,1,5000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
NOISE = "gpu-a01:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
WATCH = "2026-03-04 05:06:08,001 BAD   [poller] mlx5_3:1 is down\n  last seen: 05:06:02\n"
CASES = {
    "kernel": (["--kind", "kmsg"], XID + "6,2,6000,-;usb 1-2: reset\n SUBSYSTEM=usb\n"),
    "training": (
        ["--kind", "training", "--path", "/home/a/slurm-70011.out"],
        NOISE
        + "gpu-a01:100:200 [0] NCCL WARN Call to connect failed\n"
        + "gpu-a01:100:200 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
        + "gpu-a01:100:200 [0] NCCL INFO something new\n"
        + "plain PASSWORD=hunter2secret\n",
    ),
    "own_kind": (
        ["--kind", "fabric_watch", "--config", str(EXAMPLE)],
        "2026-03-04 05:06:07,089 INFO  [poller] polled 512 ports\n" + WATCH,
    ),
    "nothing_dropped": (["--kind", "training", "--config", "{directory}/keep.toml"], NOISE),
}
KEEP = '[source.files]\n[noise]\nkeep = ["N02"]\n[sinks.loki]\nurl = "http://loki:3100"\n'


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_explained(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, text = CASES[name]
    (tmp_path / "keep.toml").write_text(KEEP, encoding="utf-8")
    file = tmp_path / "log"
    file.write_text(text, encoding="utf-8")
    options = [option.format(directory=tmp_path) for option in options]
    assert parse([*options, *RECEIVED, "--explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown == (GOLDENS / f"{name}.txt").read_text(encoding="utf-8"), shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_whose_user_wants_it(
    no_color: str, coloured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log"
    file.write_text(XID, encoding="utf-8")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert parse(["--kind", "kmsg", "--explain", *RECEIVED, str(file)]) == 0
    assert ("\x1b[32mgpu_xid\x1b[0m" in sys.stdout.getvalue()) is coloured  # type: ignore[attr-defined]


def test_many_lines_and_none_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text("2026-03-04 05:06:07,089 INFO  text\n" * 450, encoding="utf-8")
    assert parse(["--kind", "jetpack", "--tz", "UTC", "--explain", *RECEIVED, str(file)]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("──")] == [f"── line {n}" for n in range(1, 451)]
    assert shown.count("labels    job=jetpack node=gpu-a01") == 450
    file.write_text("", encoding="utf-8")
    assert parse(["--kind", "jetpack", "--explain", *RECEIVED, str(file)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("a|b", ["a", "b"]),
        ("(?:a|(?:b|c)|[|])", ["a", "(?:b|c)", "[|]"]),
        ("(?:a|b)c|d", ["(?:a|b)c", "d"]),
        ("(?:a)|(?:b)", ["(?:a)", "(?:b)"]),
        (r"(?:a\)|b)", [r"a\)", "b"]),
        (r"(?i)a\||b", [r"(?i)a\|", "(?i)b"]),
        ("(?:a|b)(?:c)", ["(?:a|b)(?:c)"]),
    ],
)
def test_the_parts_of_a_gate(regex: str, expected: list[str]) -> None:
    assert parts(regex) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if parser(kind).gate not in (None, NO_LINE)])
def test_whatever_a_gate_picks_is_picked_by_one_of_its_parts(kind: str) -> None:
    gate = parser(kind).gate
    assert gate
    lines = {line for case in recorded.CASES if case["kind"] == kind for line in recorded.data(case).split(b"\n")}
    picked = [found for line in sorted(lines)[:60] if (found := pick(gate, line))]
    assert all(found.part in parts(gate) for found in picked)
