"""What the archive holds: the manifest, a small object that says which files readers take.

`manifest/000000000042.json` is a version; the highest one holds. A compaction writes its files first and then the next
version, which is its commit: a version is only ever made, never changed, so of two compactions that start from one
version only one can commit. Landing objects that `done` covers are in `files`; those above are read as they are.
"""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from sinks.errors import SinkError
from sinks.storage import ObjectStore

LANDING = "landing"
COMPACTED = "compacted"
MANIFEST = "manifest"
_KEPT_VERSIONS = 10


class File(BaseModel):
    """A compacted file: rows of one kind and one hour (UTC, Kafka's time), sorted by node and time."""

    model_config = ConfigDict(frozen=True)

    key: str
    kind: str
    hour: int  # hours since the epoch
    rows: int
    lines: int  # physical lines, column `owned`
    size: int  # bytes


class Gone(BaseModel):
    """An object that no version names since `at_s` (seconds since the epoch); readers of before may still use it."""

    model_config = ConfigDict(frozen=True)

    key: str
    at_s: int


class Manifest(BaseModel):
    """One version. `done`: number of the last compacted object by `g000001/0000` (generation, shard)."""

    model_config = ConfigDict(frozen=True)

    version: int = 0
    done: dict[str, int] = {}
    files: tuple[File, ...] = ()
    gone: tuple[Gone, ...] = ()


def newest(store: ObjectStore) -> Manifest:
    """The version that holds; the empty one where nothing has been compacted yet."""
    keys = list(store.keys(MANIFEST))
    return Manifest.model_validate_json(store.get(keys[-1])) if keys else Manifest()


def commit(store: ObjectStore, manifest: Manifest) -> None:
    """Make a version, and remove versions of long ago. Raises SinkError when another compaction has made it."""
    data = manifest.model_dump_json().encode()
    if not store.put_new(data, f"{MANIFEST}/{manifest.version:012d}.json"):
        raise SinkError(
            f"another compaction has made version {manifest.version} of the archive's manifest; nothing is lost, "
            "the files of this one are removed by the next; run one `tailrace compact` for each archive"
        )
    for key in list(store.keys(MANIFEST))[:-_KEPT_VERSIONS]:
        store.delete(key)


def landed(store: ObjectStore) -> Iterator[tuple[str, int, str]]:
    """Landing objects as (`g000001/0000`, number, key), in order."""
    for key in store.keys(LANDING):
        shard, _, name = key.removeprefix(f"{LANDING}/").rpartition("/")
        number = name.removesuffix(".parquet")
        if shard and number.isascii() and number.isdecimal():
            yield shard, int(number), key


def readable(store: ObjectStore) -> tuple[list[File], list[str]]:
    """What a reader takes: the compacted files, and the keys of landing objects that none of them covers yet."""
    manifest = newest(store)
    return list(manifest.files), [key for shard, number, key in landed(store) if number > manifest.done.get(shard, -1)]
