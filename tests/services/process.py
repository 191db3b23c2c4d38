"""Starts a native server for a test session, waits until it answers, and ends it."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
LOGS_KEPT = 20  # per service
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class StartFailed(RuntimeError):
    """A server ended, or did not answer in time; the message names its log and quotes the end of it."""


def free_ports(count: int) -> list[int]:
    """Different TCP ports of 127.0.0.1 that nobody listens on."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    return free_ports(1)[0]


def accepts(port: int) -> bool:
    """Whether something listens on `port` of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _die_with(parent: int) -> Callable[[], None]:
    """What the child runs before exec: the kernel kills it when the test process is gone, even after SIGKILL."""

    def arm() -> None:
        if _libc is not None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return arm


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def scratch(service: str) -> Iterator[Path]:
    """A directory in the cache for one server's data; those of sessions that were killed are removed first."""
    runs = CACHE / "run"
    runs.mkdir(parents=True, exist_ok=True)
    for left in runs.iterdir():
        owner = left.name.rsplit("-", 2)[1]
        if not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    mine = runs / f"{service}-{os.getpid()}-{time.monotonic_ns()}"
    mine.mkdir()
    try:
        yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def _log_file(service: str) -> Path:
    logs = CACHE / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in sorted(logs.glob(f"{service}-*.log"), key=lambda p: p.stat().st_mtime)[: -LOGS_KEPT + 1]:
        old.unlink(missing_ok=True)
    return logs / f"{service}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10_000}.log"


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """SIGTERM, then SIGKILL after `seconds`; returns when the process is gone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(
    service: str,
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    cwd: Path,
    timeout_s: float = 60.0,
    stop_s: float = 10.0,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Runs `command` until the block ends; enters the block when `ready()` says so.

    Output goes to a log in the cache. A session of its own keeps the Ctrl-C of a terminal away from the server,
    so that fixtures can still use it while they clean up. Raises StartFailed.
    """
    log = _log_file(service)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )
    try:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if process.poll() is not None:
                trouble = f"ended with status {process.returncode}"
            elif time.monotonic() > deadline:
                trouble = f"did not answer within {timeout_s:.0f} s"
            else:
                time.sleep(0.05)
                continue
            raise StartFailed(f"{service} {trouble}; its log {log} ends:\n{_tail(log)}")
        yield process
    finally:
        stop(process, stop_s)
