"""Servers in containers, where a Docker engine answers.

Not exercised by this project's own runs, whose machines have no Docker: a fault here shows only where there is one.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.services.process import StartFailed, free_port
from tests.services.table import Unavailable


def engine_answers() -> bool:
    """Whether `docker` finds an engine in the environment and it answers."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=5)
    except DockerException:
        return False
    with contextlib.closing(client):
        try:
            return bool(client.ping())
        except (DockerException, OSError):
            return False


@contextlib.contextmanager
def container(
    image: str,
    port: int,
    ready: Callable[[int], bool],
    *,
    command: Callable[[int], Sequence[str]] = lambda _: (),
    environment: Callable[[int], Mapping[str, str]] = lambda _: {},
    files: Mapping[str, Path] | None = None,
    same_port: bool = False,
    host_network: bool = False,
    timeout_s: float = 120.0,
) -> Iterator[int]:
    """Runs `image` and yields the host port that leads to `port` in it, once `ready(host port)` is true.

    `command` and `environment` are given the host port; `files` are mounted read-only by their path in the
    container; with `same_port` the server listens on the host port inside as well, which advertised addresses
    need; with `host_network` it does so on the host itself, whose own servers it then reaches. Raises Unavailable
    where no engine answers, StartFailed where the container does not come up.
    """
    if not engine_answers():
        raise Unavailable("no Docker engine answers")
    from testcontainers.core.container import DockerContainer

    host_port = free_port()
    box = DockerContainer(image)
    if host_network:
        box = box.with_kwargs(network_mode="host")
    else:
        box = box.with_bind_ports(host_port if same_port else port, host_port)
    for name, value in environment(host_port).items():
        box = box.with_env(name, value)
    for inside, outside in (files or {}).items():
        box = box.with_volume_mapping(str(outside), inside, "ro")
    if arguments := list(command(host_port)):
        box = box.with_command(arguments)
    with box:
        deadline = time.monotonic() + timeout_s
        while not ready(host_port):
            if time.monotonic() > deadline:
                out, err = box.get_logs()
                said = (out + err).decode(errors="replace")[-2000:]
                raise StartFailed(f"the container of {image} did not answer within {timeout_s:.0f} s; it said:\n{said}")
            time.sleep(0.2)
        yield host_port
