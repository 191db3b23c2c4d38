"""What a message says of all its lines: its headers, key and topic, read once for each distinct set.

Headers of the wire contract, version 1 (all text): `v` makes the value a block of lines; `kind`, `node`,
`cluster`, `tenant`, `path`, `unit`, `namespace`, `pod`, `container`, `app`, `team`, `nccl_debug`, `boot_id`,
`boot_time`, `tz`, `job_id`; and `read_at`, `mtime`, which differ from message to message and are therefore
no part of a set. Other headers are not looked at here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flows.steps.kinds import BUILT_IN, UNKNOWN, Kinds
from parsers.clock import Stamp, Times, from_number, parse_rfc3339, zone
from parsers.record import Stream
from parsers.schema import ENVELOPE

Labels = tuple[tuple[str, bytes], ...]

MAX_HEADER = 1024  # characters kept of one header: these texts become labels and columns

# Headers that belong to a set; ENVELOPE's `job` and `owner_job` are not headers of these names.
STABLE = frozenset(ENVELOPE.names) - {"job", "owner_job"} | {"v", "kind", "boot_time", "tz", "job_id"}

_TEXT_KEY = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
# kubelet: /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log and the links
# /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log
_POD_PATHS = (
    re.compile(r"/pods/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_[^/]*/(?P<container>[^/]+)/"),
    re.compile(r"/containers/(?P<pod>[^/_]+)_(?P<namespace>[^/_]+)_(?P<container>[^/]+)-[0-9a-f]{64}\.log"),
)


class Group(NamedTuple):
    """Lines that go through one parser together: the identity of a Raw."""

    kind: str
    tz: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """`envelope`: values of schema.ENVELOPE in its order, empty where not known. `version`: header `v`."""

    group: Group
    envelope: tuple[str, ...]
    stream: Stream
    version: bytes | None


def read_origin(
    headers: Labels,
    key: bytes | None,
    default_kind: str | None,
    tz_of: Callable[[str, str], str | None],
    kinds: Kinds = BUILT_IN,
) -> Origin:
    """The origin of messages with these headers and this key. Never raises.

    kind: header, else the topic's, else what the path tells, else `unknown`. node: header, else the key
    where it looks like a name. Zone: header, else what `tz_of` says of kind and node.
    """
    said = {name: _clean(value) for name, value in headers if isinstance(value, bytes)}
    if (path := said.get("path")) is not None:
        for pattern in _POD_PATHS:
            if found := pattern.search(path):
                said = found.groupdict() | said
    kind = said.get("kind") or default_kind or kinds.of_path(path or "") or UNKNOWN
    if kind not in kinds.jobs:
        kind = UNKNOWN
    if not said.get("node") and key is not None and _TEXT_KEY.fullmatch(key):
        said["node"] = key.decode()
    if kind in kinds.own:
        said = dict(kinds.own[kind].labels) | {name: value for name, value in said.items() if value}
    said["job"] = kinds.jobs[kind]
    said["owner_job"] = said.get("job_id", "")
    tz = _zone(said.get("tz")) or tz_of(kind, said.get("node", ""))
    said["tz"] = tz or ""
    boot = read_time(said.get("boot_time", ""))
    stream = Stream(
        kind,
        said.get("node") or None,
        said.get("cluster") or None,
        path or _pod_path(said),
        Times(tz, boot.ns if boot else None),
    )
    envelope = tuple(said.get(name, "") for name in ENVELOPE.names)
    version = next((value or b"" for name, value in headers if name == "v"), None)
    return Origin(Group(kind, tz), envelope, stream, version)


def read_time(value: str) -> Stamp | None:
    """A time in a header: RFC 3339 or an epoch number; None when it is neither or out of int64's range."""
    stamp = parse_rfc3339(value) or from_number(value) if value else None
    return stamp if stamp and -(2**63) <= stamp.ns < 2**63 else None


def _clean(value: bytes) -> str:
    return value.decode(errors="replace").strip()[:MAX_HEADER]


def _zone(name: str | None) -> str | None:
    try:
        return zone(name).key if name else None
    except ValueError:
        return None


def _pod_path(said: Mapping[str, str]) -> str | None:
    """A container known by name only gets the path its file would have: streams are told apart by path."""
    if not said.get("pod"):
        return None
    return f"/var/log/pods/{said.get('namespace', '')}_{said['pod']}_/{said.get('container', '')}/0.log"
