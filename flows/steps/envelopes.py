"""JSON envelopes of forwarders that can neither set headers nor join lines: back to the line they carry.

Shapes, as their writers send them:
- rsyslog omkafka (`option.jsonf`): `{"ts":…,"host":…,"src":…,"file":…,"off":…,"pri":…,"line":…}`; invalid
  UTF-8 stands raw inside the JSON, `/` is written `\\/`.
- Fluent Bit out_kafka `format json`: `@timestamp` or `ts`, `log`, `file`, `host`; `kubernetes` with
  `pod_name`, `namespace_name`, `container_name`; in_kmsg `priority, sequence, sec, usec, msg`; in_systemd
  with journal names, whole or in lower case without leading `_`. Invalid bytes arrive as U+E0xx.
- Vector kafka sink, codec json: `message`, `source_type`, `host`, `file`, `timestamp`; `kubernetes` with
  `pod_name`, `pod_namespace`, `container_name`, `pod_node_name`.
- OpenTelemetry collector kafka exporter, `encoding: otlp_json`: `resourceLogs` (opentelemetry-proto,
  logs/v1; attribute names of its semantic conventions).

Numbers may be text, times are RFC 3339 or epoch numbers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from flows.steps.kinds import BUILT_IN, Kinds
from parsers.clock import Stamp, from_number, parse_rfc3339, text

Labels = tuple[tuple[str, bytes], ...]


class Piece(NamedTuple):
    """One line of an envelope; `labels` use the header names of the wire contract.

    `lines`: the text holds several physical lines with `\\n` between them. `time_ns`: the envelope's time.
    """

    text: bytes
    labels: Labels
    time_ns: int | None = None
    lines: bool = False


_LINE = ("line", "log", "message", "msg", "MESSAGE", "payload")
_TIME = ("ts", "@timestamp", "timestamp", "time", "date")
_NODE = ("host", "hostname", "_HOSTNAME", "node")
_PATH = ("file", "path", "filename")
_LABEL = {
    **dict.fromkeys(_NODE, "node"),
    **dict.fromkeys(_PATH, "path"),
    **dict.fromkeys(("unit", "_SYSTEMD_UNIT", "systemd_unit"), "unit"),
    **dict.fromkeys(("boot_id", "_BOOT_ID"), "boot_id"),
    # Set by a remap or a record modifier of the forwarder.
    **{name: name for name in ("cluster", "tenant", "app", "team", "job_id", "tz")},
}
_POD_LABEL = {
    **dict.fromkeys(("host", "pod_node_name", "node_name"), "node"),
    **dict.fromkeys(("namespace_name", "pod_namespace"), "namespace"),
    "pod_name": "pod",
    "container_name": "container",
}
_SYSLOG = ("pri", "facility", "syslogtag", "syslog-tag", "programname")
_PLACED = ("host", "hostname", "@timestamp", "off", "offset", "stream", "tag")
_DOCKER = frozenset({"log", "stream", "time", "attrs"})
_KMSG = frozenset({"priority", "sequence", "sec", "usec", "msg"})
_JOURNAL = ("__CURSOR", "__REALTIME_TIMESTAMP", "_TRANSPORT", "_BOOT_ID")
_CRI = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [PF](?: |$)")
_OTLP = {
    "host.name": "node",
    "k8s.node.name": "node",
    "log.file.path": "file",
    "log.iostream": "stream",
    "service.name": "app",
    "systemd.unit": "unit",
}
_OTLP_KUBERNETES = {
    "k8s.namespace.name": "namespace_name",
    "k8s.pod.name": "pod_name",
    "k8s.container.name": "container_name",
}


def unwrap(value: bytes, certain: bool, kinds: Kinds = BUILT_IN) -> list[Piece] | None:
    """The lines of an envelope, or None when `value` is none.

    With `certain` any JSON object that has a text in a line field is one. Without it only an object with
    the marks of a forwarder is: an application's own JSON line looks much like an envelope, and taking it
    for one would lose its other fields. Never raises.
    """
    whole = _load(value)
    if whole is None:
        return None
    if isinstance(whole.get("resourceLogs"), list):
        try:
            return list(_otlp(whole["resourceLogs"], kinds))
        except RecursionError:
            return None
    piece = _special(whole, value.rstrip(b"\r\n"))
    if piece is None and (certain or _by_forwarder(whole, kinds)):
        line = next((found for name in _LINE if isinstance(found := whole.get(name), str)), None)
        piece = None if line is None else _piece(whole, line, kinds)
    return None if piece is None else [piece]


def _load(value: bytes) -> dict[str, Any] | None:
    try:
        whole = orjson.loads(value)
    except ValueError:
        # Raw control characters and bytes that are no UTF-8: the standard library forgives both.
        try:
            whole = json.loads(value.decode(errors="surrogateescape"), strict=False)
        except (ValueError, RecursionError):
            return None
    return whole if isinstance(whole, dict) else None


def _by_forwarder(whole: Mapping[str, Any], kinds: Kinds) -> bool:
    if "_v" in whole or isinstance(whole.get("source_type"), str) or _kubernetes(whole):
        return True
    if "@timestamp" in whole and isinstance(whole.get("log"), str):
        return True
    if (path := _path(whole)) is not None and path.startswith("/"):
        return any(name in whole for name in _PLACED)
    return any(isinstance(whole.get(name), str) for name in _NODE) and (
        _kind(whole, kinds) is not None or any(name in whole for name in _SYSLOG)
    )


def _special(whole: Mapping[str, Any], value: bytes) -> Piece | None:
    """Objects that are a log line of a kind by themselves, or were made from one."""
    names = whole.keys()
    if names >= _KMSG:
        return _kmsg(whole)
    if names <= _DOCKER and {"log", "stream", "time"} <= names:
        return Piece(value, (("kind", b"docker"),), _ns(whole.get("time")))
    native = any(name in whole for name in _JOURNAL) and ("MESSAGE" in whole or isinstance(whole.get("message"), str))
    if native or ("transport" in whole and "boot_id" in whole and "message" in whole):
        return _journal(whole, value)
    return None


def _kmsg(whole: Mapping[str, Any]) -> Piece | None:
    """Fluent Bit in_kmsg glues the dictionary lines to `msg`; with the prefix the record is as in /dev/kmsg."""
    try:
        priority, sequence, sec, usec = (int(whole[name]) for name in ("priority", "sequence", "sec", "usec"))
    except (TypeError, ValueError, OverflowError):
        return None
    line = f"{priority},{sequence},{sec * 1_000_000 + usec},-;{whole['msg']}"
    return Piece(_bytes(line), _labels(whole, "kmsg"), _time(whole), lines=True)


def _journal(whole: Mapping[str, Any], value: bytes) -> Piece:
    """A kernel entry becomes its /dev/kmsg line (sequence 0: the journal has none); others stay whole."""

    def get(name: str) -> Any:
        return whole[name] if name in whole else whole.get(name.lstrip("_").lower())

    stamp = get("_SOURCE_REALTIME_TIMESTAMP") or get("__REALTIME_TIMESTAMP")
    time_ns = (_ns(stamp) if stamp is not None else None) or _time(whole)
    message = get("MESSAGE")
    if get("_TRANSPORT") == "kernel" and isinstance(message, str):
        try:
            micros = int(get("_SOURCE_MONOTONIC_TIMESTAMP"))
            pri = int(get("PRIORITY") or 6) + 8 * int(get("SYSLOG_FACILITY") or 0)
        except (TypeError, ValueError, OverflowError):
            return Piece(value, _labels(whole, "journal"), time_ns)
        line = message.replace("\n", "\\x0a")  # as the kernel prints a line feed inside a record
        return Piece(_bytes(f"{pri},0,{micros},-;{line}"), _labels(whole, "kmsg"), time_ns)
    return Piece(value, _labels(whole, "journal"), time_ns)


def _piece(whole: Mapping[str, Any], line: str, kinds: Kinds) -> Piece:
    kind = _kind(whole, kinds)
    path = _path(whole)
    in_pod = _kubernetes(whole) is not None or kind == "pod"
    if not in_pod and kind is None and path is not None:
        in_pod = kinds.of_path(path) == "pod"
    line = line.removesuffix("\n")
    if in_pod and not _CRI.match(line):
        line = _cri(whole, line)
    return Piece(_bytes(line), _labels(whole, kind or ("pod" if in_pod else None)), _time(whole))


def _kind(whole: Mapping[str, Any], kinds: Kinds) -> str | None:
    named = (whole.get(name) for name in ("kind", "src"))
    return next((kind for kind in named if isinstance(kind, str) and kind in kinds.jobs), None)


def _cri(whole: Mapping[str, Any], line: str) -> str:
    """A container's line with the prefix its forwarder took off, so that stream and time are kept.

    Tag P only where the forwarder passes pieces on (`logtag`); Fluent Bit's `_p` stays P on a joined line.
    """
    stamp = next((found for name in ("time", *_TIME) if (found := _stamp(whole.get(name)))), None)
    if stamp is None:
        return line
    stream = whole.get("stream") if whole.get("stream") in ("stdout", "stderr") else "stdout"
    return f"{text(stamp)} {stream} {'P' if whole.get('logtag') == 'P' else 'F'} {line}"


def _labels(whole: Mapping[str, Any], kind: str | None) -> Labels:
    """Labels of an envelope; where two of its fields mean the same, the first one counts."""
    found = {"kind": kind.encode()} if kind else {}
    for name, value in whole.items():
        if (label := _LABEL.get(name)) and label not in found:
            if isinstance(value, str) and value:
                found[label] = _bytes(value)
            elif isinstance(value, int) and name == "job_id":
                found[label] = b"%d" % value
    for name, value in (_kubernetes(whole) or {}).items():
        if (label := _POD_LABEL.get(name)) and label not in found and isinstance(value, str) and value:
            found[label] = _bytes(value)
    return tuple(found.items())


def _kubernetes(whole: Mapping[str, Any]) -> Mapping[str, Any] | None:
    pod = whole.get("kubernetes")
    return pod if isinstance(pod, dict) and isinstance(pod.get("pod_name"), str) else None


def _path(whole: Mapping[str, Any]) -> str | None:
    return next((path for name in _PATH if isinstance(path := whole.get(name), str)), None)


def _time(whole: Mapping[str, Any]) -> int | None:
    return next((stamp.ns for name in _TIME if (stamp := _stamp(whole.get(name)))), None)


def _ns(value: Any) -> int | None:
    stamp = _stamp(value)
    return stamp.ns if stamp else None


def _stamp(value: Any) -> Stamp | None:
    stamp = None
    if isinstance(value, str):
        stamp = parse_rfc3339(value) or from_number(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        stamp = from_number(value)
    return stamp if stamp and -(2**63) <= stamp.ns < 2**63 else None


def _bytes(value: str) -> bytes:
    """Text as UTF-8, with the bytes that were no UTF-8 as they came; lone surrogates become `?`."""
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return value.encode(errors="replace")


def _otlp(resources: list[Any], kinds: Kinds) -> Iterator[Piece]:
    for resource in _objects(resources):
        origin = _attributes(resource.get("resource"))
        for scope in _objects(resource.get("scopeLogs")):
            for record in _objects(scope.get("logRecords")):
                whole = origin | _attributes(record)
                stamp = record.get("timeUnixNano") or record.get("observedTimeUnixNano")
                whole = _named(whole) | ({"time": stamp} if stamp else {})
                body = _any(record.get("body"))
                line = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
                special = _special(whole | body, _bytes(line)) if isinstance(body, dict) else None
                yield special or _piece(whole, line, kinds)


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """OTLP attributes under the names that the other envelopes use."""
    named = {_OTLP.get(name, name): value for name, value in attributes.items() if name not in _OTLP_KUBERNETES}
    pod = {name: attributes[key] for key, name in _OTLP_KUBERNETES.items() if key in attributes}
    return named | ({"kubernetes": pod} if pod else {})


def _attributes(holder: Any) -> dict[str, Any]:
    if not isinstance(holder, dict):
        return {}
    return {str(entry.get("key")): _any(entry.get("value")) for entry in _objects(holder.get("attributes"))}


def _any(value: Any) -> Any:
    """OTLP's AnyValue as plain Python."""
    if not isinstance(value, dict):
        return ""
    if isinstance(inner := value.get("kvlistValue"), dict):
        return {str(entry.get("key")): _any(entry.get("value")) for entry in _objects(inner.get("values"))}
    if isinstance(inner := value.get("arrayValue"), dict):
        return [_any(entry) for entry in _objects(inner.get("values"))]
    return next(iter(value.values()), "")


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
