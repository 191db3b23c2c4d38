"""`tailrace demo`: a training job dies, and the whole tier finds out why, with nothing else running.

It writes the logs of four nodes, reads them with the real dataflow into a Parquet archive, and into receivers in this
process that stand for Loki and Alertmanager, checks every number against what it wrote itself, and shows what came out.
"""

import argparse
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from flows import log as own_log
from flows.cluster import Runtime
from flows.config import Config, validate
from flows.demo import screen
from flows.demo.alertmanager_receiver import AlertmanagerReceiver
from flows.demo.cascade import CONTROLLER
from flows.demo.findings import find, problems
from flows.demo.loki_limits import HOUR, MB, SECOND, Limits
from flows.demo.loki_receiver import Receiver
from flows.demo.loki_store import Count
from flows.demo.scene import LEAST_LINES, Scene, write
from flows.run import execute
from flows.steps.kinds import kind_of_path
from sinks.errors import Misconfigured

EXIT_WRONG, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

LINES = 2_000_000
_MARK = ".tailrace-demo"  # says that the directory is ours
_OURS = ("logs", "archive", "recovery", "tailrace.log")
_WIDTH = 110  # columns where there is no terminal
_YEARS = 100 * 365 * 24 * HOUR

# What an operator raises to load old logs at full speed: Loki's rates per tenant (ingestion_rate_mb and
# ingestion_burst_size_mb) and per stream (per_stream_rate_limit and its burst), and the age it refuses
# (reject_old_samples_max_age). All other limits are Loki's defaults.
LIMITS = Limits(
    ingestion_rate_bytes=256 * MB,
    ingestion_burst_bytes=256 * MB,
    per_stream_rate_bytes=64 * MB,
    per_stream_burst_bytes=256 * MB,
    reject_old_samples_max_age=_YEARS,
)

_EXAMPLES = f"""examples:
  tailrace demo                              # {LINES:,} lines, written to ./tailrace-demo
  tailrace demo --lines 200000 --dir /tmp/demo
  tailrace demo --plain > screen.txt         # no colours, no progress bars
"""


def demo(argv: Sequence[str]) -> int:
    """Run the command. Exit status 0; 1: a number does not add up; 2: it cannot be run; 130: interrupted."""
    options = _options(argv)
    plain = options.plain or not sys.stdout.isatty()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a screen that knows no ✓ shows ? instead of an error
    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(color_system=None if plain else "auto", highlight=False, width=width)
    try:
        return _play(options.dir, options.lines, console, plain)
    except (Misconfigured, OSError) as error:
        sys.stderr.write(f"tailrace demo: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("tailrace demo: interrupted\n")
        return EXIT_INTERRUPTED


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tailrace demo",
        description="Watch a 4-node training job lose a GPU inside a flood of NCCL output: raw logs become a Parquet "
        "archive and Loki streams, and every line is accounted for. Needs nothing else running and no network.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("tailrace-demo"),
        help="where logs and archive are written; an earlier demo's are removed (default tailrace-demo)",
    )
    parser.add_argument("--lines", type=int, default=LINES, help=f"lines of log, about (default {LINES:,})")
    parser.add_argument("--plain", action="store_true", help="no colours, no progress bars; as without a terminal")
    options = parser.parse_args(argv)
    if options.lines < LEAST_LINES:
        parser.error(f"--lines: the scene has at least {LEAST_LINES} lines")
    return options


def _play(directory: Path, lines: int, console: Console, plain: bool) -> int:
    _clear(directory)
    screen.opening(console)
    with _progress(console, plain) as progress:
        task = progress.add_task("writing logs", total=lines)
        scene = write(directory / "logs", lines, lambda more: progress.advance(task, more))
        progress.update(task, completed=scene.lines, total=scene.lines)
    _know(scene)
    # From here on Ctrl-C drains: see flows.shutdown. Threads inherit the mask, so none may start before.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with (directory / "tailrace.log").open("w", encoding="utf-8") as log_file:
        own_log.setup(stream=log_file)
        with Receiver(limits=LIMITS, store=Count()) as receiver, AlertmanagerReceiver() as pager:
            runtime = Runtime(_config(directory, receiver.url, pager.url))
            with _progress(console, plain) as progress:
                seconds = _run(runtime, progress, scene.lines)
    if runtime.drain.is_set():
        raise KeyboardInterrupt
    findings = find(runtime, receiver, pager, scene, directory / "archive", seconds)
    wrong = problems(findings)
    screen.final(console, findings, wrong, directory)
    if wrong:
        sys.stderr.write(f"tailrace demo: {len(wrong)} checks failed; the last lines of the screen name them\n")
    return EXIT_WRONG if wrong else 0


def _run(runtime: Runtime, progress: Progress, lines: int) -> float:
    """Run the dataflow, showing how far it is; returns the seconds it took."""
    task = progress.add_task("reading", total=lines)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            progress.update(task, completed=runtime.metrics.totals().counts.read.total())

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    started = time.monotonic()
    try:
        execute(runtime.config, runtime)
    finally:
        ended.set()
        watcher.join()
    progress.update(task, completed=runtime.metrics.totals().counts.read.total())
    return time.monotonic() - started


def _config(directory: Path, loki: str, alertmanager: str) -> Config:
    archive, logs = {"url": str(directory / "archive")}, directory / "logs"
    paths = [str(logs / CONTROLLER), str(logs)]  # the controller's first: it says which job a node has
    return validate(
        {
            "tier": {"cluster": "demo"},
            "source": {"files": {"paths": paths, "node_regex": "([^/]+)/[^/]+$", "tz": "UTC"}},
            "sinks": {
                "parquet": {"storage": archive, "noise": True},
                "loki": {"url": loki, "barrier_s": 20, "limits": {"max_age_s": _YEARS // SECOND}},
                "alertmanager": {"urls": [alertmanager], "barrier_s": 20},
            },
            "dead_letter": {"storage": archive},
            "recovery": {"dir": directory / "recovery", "epoch_s": 2},
        },
        "the demo's configuration",
    )


def _clear(directory: Path) -> None:
    """Make an empty directory of it, unless it holds something that is not ours."""
    mark = directory / _MARK
    if directory.exists() and not mark.exists() and any(directory.iterdir()):
        raise Misconfigured(f"{directory} holds files that are not the demo's; name another directory with --dir")
    directory.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for name in _OURS:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _know(scene: Scene) -> None:
    """Raise Misconfigured when a directory's name makes tailrace take a file for something else."""
    for file in scene.files:
        if (kind := kind_of_path(str(file.path))) != file.kind:
            raise Misconfigured(f"{file.path} would be read as {kind}; name another directory with --dir")


def _progress(console: Console, plain: bool) -> Progress:
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=40),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} lines"),
        TimeElapsedColumn(),
        console=console,
        disable=plain,
    )
