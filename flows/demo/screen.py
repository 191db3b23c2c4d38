"""What the demo shows: an opening, and a final screen made of what was found."""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from flows.demo.cascade import BAD_NODE, JOB, NODES
from flows.demo.findings import Alarm, Chapter, Findings, Xid
from flows.demo.flood import WORLD
from parsers.nccl_noise import RULES
from sinks.manifest import LANDING

_RULE_NAMES = {rule["id"]: rule["name"].removeprefix(f"{rule['id']} ") for rule in RULES["noise"]}
_RULE_NAMES |= {"N25": "calls and traces", "empty": "empty lines", "progress": "progress bars"}
_INDENT, _GAP, _LEAST = 2, 2, 20  # columns: before a table, between its columns, of a cut column
_RULE_WIDTH = 38  # columns of one rule in the list
_SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def query(archive: Path) -> str:
    """A DuckDB query for the GPU errors in an archive."""
    files = f"{archive.as_posix()}/{LANDING}/*/*/*.parquet".replace("'", "''")
    lines = "xid IS NOT NULL AND kind <> 'alert'"
    return f"SELECT ts, node, pci, xid, severity, action, message\nFROM '{files}'\nWHERE {lines}\nORDER BY ts;"


def opening(console: Console) -> None:
    """Before anything is done."""
    console.print(
        Text.assemble(
            (f"Slurm job {JOB} died", "bold"),
            f": {WORLD} GPUs on {len(NODES)} nodes. Which node went bad first, and why?",
        )
    )


def final(console: Console, found: Findings, wrong: Sequence[str], directory: Path) -> None:
    """After the run: what happened, whether every line is accounted for, and where to go from here."""
    room = console.width
    _section(console, "What happened")
    _show(console, _xids(room, found.xids))
    _heading(console, f"First bad node: {found.bad_node or 'not found'}")
    _show(console, _story(room, found.story, next((xid.ts for xid in found.xids), None)))
    _heading(console, "What Alertmanager was told")
    _show(console, _alarms(room, found.alarms, directory / "logs"))
    _section(console, "Where every line went")
    _show(console, _speed(found))
    _heading(console, "Dropped on the way to Loki, by rule (all of it is in the archive)")
    _show(console, _dropped(room, found.ledger["dropped"]))
    _heading(console, "Delivered")
    _show(console, _stores(room, found))
    _heading(console, "Ledger, in lines")
    _show(console, _ledger(room, found))
    _section(console, "Your turn")
    _next(console, directory)
    _verdict(console, wrong)


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Rule(Text(title, "bold"), align="left", style="dim"))


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _show(console: Console, content: RenderableType) -> None:
    console.print(Padding(content, (0, 0, 0, _INDENT), expand=False))


def _table(room: int, headers: Sequence[str], rows: Sequence[Sequence[str | Text]], loose: int | None = None) -> Table:
    """A table without lines. Headers that start with > are over numbers; column `loose` is cut to fit `room`."""
    titles = [header.removeprefix(">") for header in headers]
    widths = [max(map(_width, (title, *cells))) for title, *cells in zip(titles, *rows, strict=True)]
    if loose is not None:
        others = sum(widths) - widths[loose] + _GAP * (len(widths) - 1) + _INDENT
        widths[loose] = min(widths[loose], max(_LEAST, room - others))
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim", show_header=any(titles), pad_edge=False)
    for header, title, width in zip(headers, titles, widths, strict=True):
        table.add_column(title, justify="right" if header != title else "left", no_wrap=True, width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _width(cell: str | Text) -> int:
    return cell_len(cell) if isinstance(cell, str) else cell.cell_len


def _xids(room: int, xids: Sequence[Xid]) -> Table:
    rows = [
        (
            xid.node,
            xid.pci,
            Text(str(xid.xid), "bold"),
            xid.meaning,
            Text(xid.severity, _SEVERITIES.get(xid.severity, "")),
            Text(xid.action.replace("_", " "), "bold"),
        )
        for xid in xids
    ]
    return _table(room, ("node", "GPU", ">XID", "meaning", "severity", "action"), rows, loose=3)


def _story(room: int, story: Sequence[Chapter], lost: datetime | None) -> Table:
    rows = []
    for chapter in story:
        style = "bold red" if chapter.ts == lost else ""
        where = chapter.node + (f" +{chapter.nodes - 1}" if chapter.nodes > 1 else "")
        many = f"{chapter.records} × " if chapter.records > 1 else ""
        since = _since(chapter.ts - lost) if lost else ""
        cells = (f"{chapter.ts:%H:%M:%S}", since, where, many + chapter.text)
        rows.append([Text(cell, style) for cell in cells])
    return _table(room, ("UTC", ">from XID", "node", "what it says"), rows, loose=3)


def _alarms(room: int, alarms: Sequence[Alarm], logs: Path) -> Table:
    rows = [
        (
            Text(alarm.rule, "bold red" if alarm.rule.endswith("Critical") else ""),
            alarm.node,
            alarm.pci,
            Text(alarm.xid, "bold"),
            f"{alarm.faults:,}",
            f"{alarm.lines:,}",
            f"{alarm.since:%H:%M:%S}",
            f"{alarm.until:%H:%M:%S}" if alarm.until else "",
            alarm.job_id,
            alarm.first.removeprefix(f"{logs}/"),
        )
        for alarm in alarms
    ]
    headers = ("alert", "node", "GPU", ">XID", ">faults", ">lines", "since", "until", "job", "first line")
    return _table(room, headers, rows, loose=9)


def _since(passed: timedelta) -> str:
    seconds = passed.total_seconds()
    return f"{seconds:+,.1f} s" if seconds else "0 s"


def _speed(found: Findings) -> Text:
    return Text.assemble(
        (f"{found.ledger['read']:,}", "bold"),
        f" lines ({found.log_bytes / 1e6:,.0f} MB) read, parsed and stored in {found.seconds:.1f} s: ",
        (f"{found.ledger['read'] / found.seconds:,.0f} lines/s", "bold green"),
    )


def _dropped(room: int, dropped: dict[str, int]) -> Table:
    columns = max(1, (room - _INDENT) // _RULE_WIDTH)
    rules = sorted(dropped.items(), key=lambda rule: -rule[1])
    rows = -(-len(rules) // columns)
    cells = [(rule, _RULE_NAMES.get(rule, ""), f"{lines:,}") for rule, lines in rules]
    cells += [("", "", "")] * (rows * columns - len(rules))
    lines = [[text for cell in cells[row::rows] for text in cell] for row in range(rows)]
    return _table(room, ("", "", ">") * columns, lines)


def _stores(room: int, found: Findings) -> Table:
    sinks = found.ledger["sinks"]
    smaller = found.log_bytes / max(found.archive_bytes, 1)
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(found.receiver_answers.items()))
    verdict = Text("nothing wrong", "green")
    if found.receiver_problems:
        verdict = Text(f"{len(found.receiver_problems)} things wrong", "bold red")
    archive = (
        "Parquet",
        f"{sinks['parquet']['delivered']:,}",
        f"{found.archive_lines:,} lines in its files, {found.archive_bytes / 1e6:,.0f} MB, {smaller:.0f} × smaller",
    )
    loki = (
        "Loki",
        f"{sinks['loki']['delivered']:,}",
        Text.assemble(
            f"{found.receiver_entries:,} entries, {found.receiver_streams} streams, answers {answers}: ", verdict
        ),
    )
    return _table(room, ("store", ">lines", "what the store itself says"), (archive, loki), loose=2)


def _ledger(room: int, found: Findings) -> Table:
    counts, sinks = found.ledger, found.ledger["sinks"]
    dropped = sum(counts["dropped"].values())
    sides = [("pipeline", counts["read"], (counts["kept"], dropped, counts["dead"], counts["held"]))]
    for title, name in (("Parquet", "parquet"), ("Loki", "loki")):
        sink = sinks[name]
        sides.append(
            (title, sink["offered"], (sink["delivered"], sink.get("dropped", 0), sink["dead"], sink["gapped"]))
        )
    rows = []
    for title, total, fates in sides:
        holds = total == sum(fates)
        terms = [text for lines in fates for text in ("+", f"{lines:,}")]
        mark = Text("✓", "green") if holds else Text("✗", "bold red")
        rows.append((title, f"{total:,}", "=" if holds else "≠", *terms[1:], mark))
    return _table(room, ("", ">read", "", ">kept", "", ">dropped", "", ">dead", "", ">held or gap", ""), rows)


def _next(console: Console, directory: Path) -> None:
    python = Path(sys.executable)
    here = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    archive = directory / "archive"
    dmesg = directory / "logs" / BAD_NODE / "dmesg.log"
    console.print(Text.assemble("The archive is in ", (str(archive), "bold"), ". A query for the duckdb shell:"))
    console.print()
    console.print(query(archive), style="cyan", markup=False, soft_wrap=True)
    console.print()
    for purpose, command in (
        ("Without that shell, paste it into", f"{here} -c 'import duckdb; duckdb.sql(open(0).read()).show()'"),
        ("What one file becomes", f"tailrace parse --kind dmesg {dmesg}"),
        ("Your own cluster: see `Run it` in README.md, then", "tailrace check --config tailrace.toml"),
        ("What tailrace itself logged", str(directory / "tailrace.log")),
    ):
        console.print(Text(purpose))
        console.print(Text(f"  {command}", "cyan"), soft_wrap=True)


def _verdict(console: Console, wrong: Sequence[str]) -> None:
    console.print()
    if not wrong:
        console.print(Text("✓ Every line is accounted for.", "bold green"))
        return
    console.print(Text("✗ This does not add up:", "bold red"))
    for sentence in wrong:
        console.print(Text(f"  {sentence}"), soft_wrap=True)
