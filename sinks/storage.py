"""An object store: a local directory, or a bucket that speaks S3.

Keys are made of our own names only (generation, shard, number, digest), never of log content, and are
checked to be plain path segments. A reader never sees half an object: it is either whole or not there.
"""

import logging
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sinks.errors import Misconfigured, RetryLater, SinkError

log = logging.getLogger("tailrace.storage")
T = TypeVar("T")

CHECK_KEY = "tailrace-check"  # object that `check` writes to learn whether writing works
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.=-]*"
_KEY = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 20.0


class StorageConfig(BaseModel):
    """Where objects are kept. Credentials of S3 come from boto3's own chain (environment, profile, role)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("archive", min_length=1, description="A local directory, or s3://bucket/prefix.")
    endpoint_url: str | None = Field(None, description="Address of an S3 server other than AWS.")
    region: str | None = Field(None, description="Region of the bucket; unset: from the environment or profile.")
    path_style: bool = Field(False, description="Put the bucket in the path, not in the host name (most own servers).")
    sse: Literal["AES256", "aws:kms"] | None = Field(None, description="Encryption that the server is asked for.")
    sse_kms_key_id: str | None = Field(None, description="Key for aws:kms; unset: the account's default key.")
    retry_for_s: float = Field(600, ge=0, description="How long one object is tried before the process gives up.")
    timeout_s: float = Field(10, gt=0, description="Longest wait for a connection; for an answer six times that.")
    upload_threads: int = Field(4, ge=1, le=32, description="Parts of one object sent at the same time.")


class ObjectStore(Protocol):
    """Whole objects by key; thread-safe.

    All methods raise `Misconfigured` when a person must act and `RetryLater` when the store did not
    recover within `retry_for_s`. A put of an existing key replaces it at once and for all readers.
    """

    def put_file(self, path: Path, key: str) -> None:
        """Store a finished local file; durable on return. The file must not be written afterwards."""
        ...

    def put_bytes(self, data: bytes, key: str) -> None: ...

    def put_new(self, data: bytes, key: str) -> bool:
        """Store an object unless there is one of that key; says whether it did."""
        ...

    def get(self, key: str) -> bytes:
        """Content of an object. Raises KeyError when there is none."""
        ...

    def local(self, key: str, spool: Path) -> Path:
        """A local file with the content of an object: its own, or a copy at `spool`. Raises KeyError without one."""
        ...

    def url(self, key: str) -> str:
        """Where others find an object: a path, or s3://bucket/key."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object if there is one."""
        ...

    def exists(self, key: str) -> bool: ...

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys under the directory `prefix`, sorted."""
        ...

    def discard_partial(self, prefix: str) -> None:
        """Remove what a killed process left half-written under the directory `prefix`."""
        ...

    def check(self) -> None:
        """Write a small object without retries. Raises Misconfigured, whatever the reason."""
        ...


def open_storage(config: StorageConfig) -> ObjectStore:
    """The store of a configuration; touches neither disk nor network. Raises Misconfigured for a bad address."""
    scheme, separator, rest = config.url.partition("://")
    if not separator:
        return LocalStore(Path(config.url), config.retry_for_s)
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if scheme != "s3" or not bucket or (prefix and not _KEY.fullmatch(prefix)):
        raise Misconfigured(f"storage.url {config.url!r} is neither a directory nor s3://bucket/prefix")
    from sinks.storage_s3 import S3Store  # boto3 takes long to import

    return S3Store(config, bucket, prefix)


def checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"not an object key: {key!r}")
    return key


def retrying(what: str, retry_for_s: float, action: Callable[[], T]) -> T:
    """Run `action` until it does not raise RetryLater; pauses double and have full jitter."""
    deadline, pause = time.monotonic() + retry_for_s, _FIRST_PAUSE_S
    while True:
        try:
            return action()
        except RetryLater as error:
            wait = random.uniform(0, pause)  # noqa: S311 - spreads load, keeps no secret
            if time.monotonic() + wait > deadline:
                raise RetryLater(f"{what}: gave up after {retry_for_s:g} s: {error}") from error
            log.warning("%s: %s; trying again in %.1f s", what, error, wait)
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)


class LocalStore:
    """Objects as files below `root`. Written under a hidden name, synced, renamed, directory synced."""

    def __init__(self, root: Path, retry_for_s: float = 0) -> None:
        self.root = root
        self._retry_for_s = retry_for_s

    def put_file(self, path: Path, key: str) -> None:
        def fill(partial: Path) -> None:
            try:
                os.link(path, partial)  # same file system: nothing to copy
            except OSError:
                shutil.copyfile(path, partial)

        self._put(key, fill)

    def put_bytes(self, data: bytes, key: str) -> None:
        self._put(key, lambda partial: partial.write_bytes(data))

    def put_new(self, data: bytes, key: str) -> bool:
        target = self.root / checked(key)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            _make_directory(target.parent)
            partial.write_bytes(data)
            _sync(partial)
            try:
                os.link(partial, target)
            except FileExistsError:
                return False
            _sync(target.parent)
        except OSError as error:
            raise self._explained(error) from error
        finally:
            partial.unlink(missing_ok=True)
        return True

    def local(self, key: str, spool: Path) -> Path:  # noqa: ARG002 - a directory needs no copy
        if not self.exists(key):
            raise KeyError(key)
        return self.root / key

    def url(self, key: str) -> str:
        return str((self.root / checked(key)).absolute())

    def delete(self, key: str) -> None:
        try:
            (self.root / checked(key)).unlink(missing_ok=True)
        except OSError as error:
            raise self._explained(error) from error

    def get(self, key: str) -> bytes:
        try:
            return (self.root / checked(key)).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise self._explained(error) from error

    def exists(self, key: str) -> bool:
        return (self.root / checked(key)).is_file()

    def keys(self, prefix: str) -> Iterator[str]:
        found = (path.relative_to(self.root) for path in (self.root / checked(prefix)).rglob("*") if path.is_file())
        yield from sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))

    def discard_partial(self, prefix: str) -> None:
        for partial in (self.root / checked(prefix)).glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def check(self) -> None:
        try:
            mine = f"{CHECK_KEY}-{os.getpid()}"  # processes that share an archive may check it at one time
            self._write(mine, lambda partial: partial.write_bytes(b""))
            (self.root / mine).unlink(missing_ok=True)
        except SinkError as error:
            raise Misconfigured(str(error)) from error

    def _put(self, key: str, fill: Callable[[Path], object]) -> None:
        checked(key)
        retrying(f"storing {key} in {self.root}", self._retry_for_s, lambda: self._write(key, fill))

    def _write(self, key: str, fill: Callable[[Path], object]) -> None:
        target = self.root / key
        partial = target.with_name(f".{target.name}.partial")
        try:
            _make_directory(target.parent)
            partial.unlink(missing_ok=True)
            fill(partial)
            _sync(partial)
            partial.replace(target)
            _sync(target.parent)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> SinkError:
        place = f"{error.filename or self.root}: {error.strerror}"
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError | IsADirectoryError):
            return Misconfigured(f"the archive directory cannot be used: {place}; correct its owner or storage.url")
        return RetryLater(f"the archive directory is failing: {place}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Make a directory and its parents so that they outlast a power cut."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)
