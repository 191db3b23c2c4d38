"""Fetches and builds the native test servers into the cache: `python -m tests.services.install`.

Kafka by Maven, VictoriaLogs and SeaweedFS by Go, Alertmanager and promtool from Debian. Quick when all is there.
What cannot be had (no Maven, no Go, no way to their registries) is told in one line each, and the tests use a
substitute; with TAILRACE_REQUIRE_REAL=1 the exit status is 1 then.
"""

# ruff: noqa: T201 (a command that tells people what it does)

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.services.process import CACHE

KAFKA_VERSION: Final = "4.3.1"  # as in kafka-pom.xml
VICTORIALOGS_VERSION: Final = "v1.52.1"
SEAWEEDFS_VERSION: Final = "v0.0.0-20261109003541-7506e5f91cd6"

KAFKA_JARS = CACHE / f"kafka-{KAFKA_VERSION}"
VICTORIALOGS = CACHE / f"victoria-logs-{VICTORIALOGS_VERSION}"
WEED = CACHE / f"weed-{SEAWEEDFS_VERSION}"
PROMTOOL = CACHE / "debian-prometheus" / "usr/bin/promtool"
ALERTMANAGER = Path("/usr/bin/prometheus-alertmanager")  # its templates are found in /usr/share only

STEP_SECONDS = 1500.0


class CannotInstall(Exception):
    """One server cannot be fetched or built here; the message says why."""


def _run(command: list[str], **where: str | Path | dict[str, str]) -> str:
    if shutil.which(command[0]) is None:
        raise CannotInstall(f"`{command[0]}` is not installed")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_SECONDS, check=False, **where)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"`{command[0]} {command[1]}` took more than {STEP_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise CannotInstall(f"`{command[0]} {command[1]}` failed: " + " / ".join(said))
    output: str = done.stdout
    return output


def kafka(target: Path) -> None:
    pom = Path(__file__).with_name("kafka-pom.xml")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    _run(["mvn", "-q", "-B", "-f", str(pom), *goal])


def victorialogs(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as bin_dir:
        module = f"github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs@{VICTORIALOGS_VERSION}"
        _run(["go", "install", module], env=os.environ | {"GOBIN": bin_dir})
        Path(bin_dir, "victoria-logs").rename(target)


def weed(target: Path) -> None:
    """From a copy of the module's source: its go.mod holds a `replace`, which `go install` refuses."""
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        module = f"github.com/seaweedfs/seaweedfs@{SEAWEEDFS_VERSION}"
        found = json.loads(_run(["go", "mod", "download", "-json", module], cwd=work))
        source = Path(work, "source")
        shutil.copytree(found["Dir"], source, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(source):
            Path(folder).chmod(0o755)  # the module cache is read-only, and a copied folder keeps its mode
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), "./weed"]
        _run(command, cwd=source)


def prometheus(target: Path) -> None:
    """promtool out of Debian's package prometheus, which is unpacked but not installed: its server must not start."""
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        _apt(["download", "-o", "APT::Sandbox::User=root", "prometheus"], Path(work))
        target.mkdir()
        for package in Path(work).glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(target)])


def alertmanager(_target: Path) -> None:
    """Debian's package, where this is a container that starts no services and we may install in it."""
    by_hand = "install Debian's prometheus-alertmanager (0.25 or newer) by hand"
    if os.geteuid() != 0:
        raise CannotInstall(f"{by_hand}: that needs root")
    if not Path("/usr/sbin/policy-rc.d").exists():
        raise CannotInstall(f"{by_hand}: it would start a service on this machine")
    _apt(["install", "-y", "-q", "--no-install-recommends", "prometheus-alertmanager"], CACHE)


def _apt(arguments: list[str], where: Path) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        _run(["apt-get", *arguments], cwd=where, env=environment)
    except CannotInstall:
        _run(["apt-get", "update"])  # a fresh image has no package lists
        _run(["apt-get", *arguments], cwd=where, env=environment)


STEPS: Final[dict[str, tuple[Path, Callable[[Path], None]]]] = {
    f"Apache Kafka {KAFKA_VERSION}": (KAFKA_JARS, kafka),
    f"VictoriaLogs {VICTORIALOGS_VERSION}": (VICTORIALOGS, victorialogs),
    f"SeaweedFS {SEAWEEDFS_VERSION}": (WEED, weed),
    "promtool": (PROMTOOL.parents[2], prometheus),
    "Alertmanager": (ALERTMANAGER, alertmanager),
}


def main() -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = 0
    os.nice(10)  # a build of minutes shares its machine with people
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two checkouts may install at once
        for name, (target, build) in STEPS.items():
            if target.exists():
                print(f"{name}: in {target}")
                continue
            print(f"{name}: installing …", flush=True)
            began = time.monotonic()
            part = target.with_name(target.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
            try:
                build(part)
                if part.exists():  # a package is where it belongs
                    part.rename(target)
            except CannotInstall as reason:
                missing += 1
                print(f"{name}: not installed, its tests use a substitute: {reason}", file=sys.stderr)
            else:
                print(f"{name}: installed in {time.monotonic() - began:.0f} s, in {target}")
    return 1 if missing and os.environ.get("TAILRACE_REQUIRE_REAL") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
