"""The recovery store of one process: made at its first start, tied to its layout, used by one process at a time.

Archive objects are numbered by this store. So a store of another layout, a second process on the same
store, or no store at all beside an archive that has objects already would overwrite lines: all are refused.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bytewax.recovery import RecoveryConfig, init_db_dir

from flows.config import Config, TierConfig
from sinks.errors import Misconfigured

_LAYOUT = "layout.json"
_LOCK = "lock"

_held: list[int] = []  # locks are held until the process ends


def open_store(config: Config) -> RecoveryConfig | None:
    """The store of this process, None without one. Raises Misconfigured when it cannot be used or is in use."""
    directory = config.recovery.dir
    if directory is None:
        return None
    check(config)
    try:
        lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Misconfigured(
            f"recovery.dir: {directory} is in use by another process; give each process a directory of its own"
        ) from error
    _held.append(lock)
    if is_fresh(config):
        _make(directory, _layout(config.tier))
    return RecoveryConfig(str(directory))


def _make(directory: Path, layout: dict[str, int]) -> None:
    """Make a store aside and move it, its one database last: a start that is killed leaves no half of it."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as making:
        (Path(making) / _LAYOUT).write_text(json.dumps(layout), encoding="utf-8")
        init_db_dir(Path(making), 1)
        for made in sorted(Path(making).iterdir()):  # layout.json comes before part-0.sqlite3
            made.rename(directory / made.name)


def check(config: Config) -> None:
    """Raise Misconfigured unless the directory can be written, and the store in it fits the layout."""
    directory = config.recovery.dir
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(0, "it cannot be written")
        known = (directory / _LAYOUT).read_text(encoding="utf-8") if (directory / _LAYOUT).exists() else None
    except OSError as error:
        raise Misconfigured(
            f"recovery.dir: cannot use {directory}: {error.strerror}; name a writable directory on a local disk"
        ) from error
    if known is None:
        return
    was, now = json.loads(known), _layout(config.tier)
    if changed := [f"{name} was {was.get(name)}, is {now[name]}" for name in now if was.get(name) != now[name]]:
        raise Misconfigured(
            f"recovery.dir: {directory} belongs to another layout ({'; '.join(changed)}); set it back, or drain all "
            "processes, raise tier.generation and name an empty directory"
        )


def is_fresh(config: Config) -> bool:
    """Whether no run has left a position yet: the archive must have no object of this generation then."""
    directory = config.recovery.dir
    return directory is None or not any(directory.glob("part-*.sqlite3"))


def refuse_objects(config: Config, keys: Iterable[str], place: Path | str) -> None:
    """Raise Misconfigured if a fresh start would write over one of `keys`, the shard's objects in the archive."""
    if (found := next(iter(keys), None)) is None:
        return
    what = "recovery.dir is not set" if config.recovery.dir is None else f"recovery.dir {config.recovery.dir} is empty"
    raise Misconfigured(
        f"{what}, but {place} has objects of generation {config.tier.generation} already ({found}), which would be "
        "written over; name the recovery directory of before, or raise tier.generation"
    )


def _layout(tier: TierConfig) -> dict[str, int]:
    return {"generation": tier.generation, "shards": tier.shards, "processes": tier.processes, "process": tier.process}
