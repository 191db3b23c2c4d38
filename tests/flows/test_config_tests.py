"""`tailrace check` runs the tests of rules: lines with times in, alerts expected."""

from pathlib import Path

import pytest

from flows.run import check

XID = "3,{n},{n}000,-;NVRM: Xid (PCI:0000:3b:00): {xid}, pid=7, name=python, text"


def case(lines: list[tuple[float, int]], alerts: str, more: str = "") -> str:
    shown = ", ".join(f'{{ at = {at}, text = "{XID.format(n=n, xid=xid)}" }}' for n, (at, xid) in enumerate(lines, 1))
    return f'[[rules.tests]]\nname = "t"\n{more}\nlines = [{shown}]\nalerts = {alerts}\n'


LOST = "[[rules]]\nname = 'GpuLost'\nevents = ['gpu_xid']\nwhere = { xid = 79 }\ngroup_by = ['node', 'pci']\n"
MANY = "[[rules]]\nname = 'Many'\nevents = ['gpu_xid']\ngroup_by = ['node']\nthreshold = 2\nwindow_s = 60\nfor_s = 30\n"
KAFKA = '[source.kafka]\nbootstrap = "k:9092"\n'


def checked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    path = tmp_path / "t.toml"
    path.write_text(KAFKA + text, encoding="utf-8")
    status = check(["--offline", "--config", str(path)])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        LOST + case([(0, 79)], "[{ at = 0, resolves = 300, count = 1, labels = { pci = '0000:3b:00' } }]"),
        LOST + case([(0, 79)], "[{ firing = true }]", "until = 100"),
        LOST + case([(0, 31)], "[]"),
        LOST + case([(0, 79), (400, 79)], "[{ at = 0 }, { at = 400 }]"),
        MANY + case([(0, 31), (1, 31)], "[]"),
        MANY + case([(0, 31), (1, 31), (2, 31)], "[{ at = 32, resolves = 60, count = 3 }]"),
        MANY + case([(0, 31), (1, 31), (2, 31)], "[{ at = 32 }]", "headers = { node = 'gpu-b02' }"),
    ],
)
def test_a_right_expectation_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    status, said = checked(tmp_path, text, capsys)
    assert (status, "ok  1 tests of rules" in said) == (0, True), said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOST + case([(0, 79)], "[]"), "rule GpuLost, test t: more alerts than expected; there are: at = 0, resolves"),
        (LOST + case([(0, 31)], "[{ at = 0 }]"), "rule GpuLost, test t: no alert like {'at': 0}; there are: none"),
        (
            LOST + case([(0, 79)], "[{ count = 2 }]"),
            "no alert like {'count': 2}; there are: at = 0, resolves = 300, cou",
        ),
        (LOST + case([(0, 79)], "[{ labels = { node = 'x' } }]"), "no alert like {'labels': {'node': 'x'}}"),
        (LOST + case([(0, 79)], "[{ resolves = 1 }]", "until = 10"), "firing = true, count = 1"),
        (LOST + "[[rules.tests]]\nlinez = []\n", "unknown key rules.0.tests.0.linez; did you mean lines?"),
        (LOST + LOST, "two rules are named GpuLost: rename one of them"),
        ("[alerts]\nmode = 'inline'\n[tier]\nshards = 2\nprocesses = 2\n", "alerts.mode inline would see the lines of"),
    ],
)
def test_a_wrong_one_says_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    status, told = checked(tmp_path, text, capsys)
    assert (status, said in told) == (2, True), told
