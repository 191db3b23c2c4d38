"""One S3 store: of the environment, or SeaweedFS in Docker or native, or moto's server as the substitute.

SeaweedFS rather than moto: it checks signatures, refuses wrong keys and missing buckets as a real store does, and
keeps objects on disk in a process of its own. It builds with Go in five minutes on two cores.
"""

import contextlib
import json
import os
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.services.docker import container
from tests.services.install import SEAWEEDFS_VERSION, WEED
from tests.services.process import StartFailed, accepts, free_port, free_ports, running, scratch
from tests.services.table import Unavailable, choose

WANTED = f"SeaweedFS {SEAWEEDFS_VERSION.rpartition('-')[0]}"
ADDRESS = "TAILRACE_TEST_S3"  # http(s)://host:port, with …_ACCESS_KEY and …_SECRET_KEY
IMAGE = "chrislusf/seaweedfs:latest"


@dataclass(frozen=True, slots=True)
class S3:
    """A store at `endpoint` (path-style addresses) whose keys may do everything."""

    endpoint: str
    access_key: str
    used: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    real: bool = True
    name: str = "s3"

    def client(self, **other_keys: str) -> Any:
        """A boto3 client with this store's keys, or with `aws_access_key_id` and `aws_secret_access_key` given."""
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key} | other_keys
        settings = Config(s3={"addressing_style": "path"}, connect_timeout=5, retries={"max_attempts": 2})
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=self.region, config=settings, **keys)

    def bucket(self, stem: str = "t") -> str:
        """Creates an empty bucket with a name of its own and returns the name."""
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name


@contextlib.contextmanager
def from_environment() -> Iterator[S3]:
    if not (address := os.environ.get(ADDRESS)):
        raise Unavailable(f"{ADDRESS} is not set")
    keys = [os.environ.get(f"{ADDRESS}_{part}", "") for part in ("ACCESS_KEY", "SECRET_KEY")]
    if not all(keys):
        raise StartFailed(f"{ADDRESS} is set, but {ADDRESS}_ACCESS_KEY or {ADDRESS}_SECRET_KEY is not")
    yield S3(address, keys[0], f"{ADDRESS}={address}", keys[1])


def _identities(path: Path) -> tuple[str, str]:
    """Writes SeaweedFS's key file with one identity; with such a file it refuses everybody else."""
    access, secret = "tailrace-test", secrets.token_hex(16)
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": actions,
    }
    path.write_text(json.dumps({"identities": [identity]}))
    return access, secret


def _lists(access: str, secret: str) -> Callable[[int], bool]:
    """Whether the store at a port lists buckets and can write one; SeaweedFS answers before its disk is ready."""
    probe = f"probe-{uuid.uuid4().hex[:12]}"

    def ready(port: int) -> bool:
        if not accepts(port):
            return False
        client = S3(f"http://127.0.0.1:{port}", access, "", secret).client()
        try:
            if not any(bucket["Name"] == probe for bucket in client.list_buckets()["Buckets"]):
                client.create_bucket(Bucket=probe)
            client.put_object(Bucket=probe, Key="probe", Body=b"probe")
            client.delete_object(Bucket=probe, Key="probe")
            client.delete_bucket(Bucket=probe)
        except (ClientError, BotoCoreError):
            return False
        return True

    return ready


@contextlib.contextmanager
def in_docker() -> Iterator[S3]:
    """The image chrislusf/seaweedfs. Not exercised on machines without Docker."""
    with scratch("weed-docker") as home:
        access, secret = _identities(home / "s3.json")
        options = ["server", "-s3", "-s3.config=/etc/seaweedfs/s3.json", "-s3.port=8333", *_QUIET]
        with container(
            IMAGE, 8333, _lists(access, secret), command=lambda _: options, files={"/etc/seaweedfs": home}
        ) as port:
            endpoint = f"http://127.0.0.1:{port}"
            yield S3(endpoint, access, f"container {IMAGE}, {endpoint}", secret)


# No reports to the makers, no further protocols, and a missing bucket is an error.
_QUIET = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]


@contextlib.contextmanager
def native() -> Iterator[S3]:
    """Master, volume server, filer and gateway in one process on free ports, data in the cache until it stops."""
    if not WEED.is_file():
        raise Unavailable(f"no SeaweedFS in {WEED}")
    with scratch("weed") as home:
        access, secret = _identities(home / "s3.json")
        roles = ("master", "volume", "filer", "s3")
        names = [f"{role}.port{kind}" for role in roles for kind in ("", ".grpc")]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        command: list[str | Path] = [
            WEED,
            "-logtostderr",
            "server",
            f"-dir={home}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
        ]
        command += [f"-s3.config={home / 's3.json'}", "-volume.max=0", "-master.volumeSizeLimitMB=64", *_QUIET]
        command += [f"-filer.localSocket={home / 'filer.sock'}", f"-s3.localSocket={home / 's3.sock'}"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        gateway = ports["s3.port"]
        ready = _lists(access, secret)
        try:
            # Ready about 10 s after its start, when it gives out volumes; does not end on SIGTERM within 10 s.
            with running("weed", command, lambda: ready(gateway), cwd=home, stop_s=1.0):
                endpoint = f"http://127.0.0.1:{gateway}"
                yield S3(endpoint, access, f"native {WANTED}, {endpoint}", secret)
        finally:
            for role in roles:
                Path(f"/tmp/seaweedfs-{role}-grpc-{ports[f'{role}.port.grpc']}.sock").unlink(missing_ok=True)


@contextlib.contextmanager
def moto() -> Iterator[S3]:
    """moto's server: in memory, and it takes any key."""
    with scratch("moto") as home:
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        ready = _lists("any", "any")
        with running("moto", command, lambda: ready(port), cwd=home):
            endpoint = f"http://127.0.0.1:{port}"
            yield S3(endpoint, "any", f"moto (substitute), {endpoint}", "any", real=False)


def s3() -> contextlib.AbstractContextManager[S3]:
    return choose(WANTED, [from_environment, in_docker, native], moto)
