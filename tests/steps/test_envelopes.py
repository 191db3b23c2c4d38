"""Envelopes exactly as rsyslog, Fluent Bit, Vector and the OpenTelemetry collector write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.steps.envelopes import Piece, unwrap

RSYSLOG = (
    b'{"ts":"2026-11-30T20:50:38.156383+00:00", "host":"gpu-node-001", "src":"slurmd", '
    b'"file":"\\/var\\/log\\/slurm\\/slurmd.log", "off":0, "pri":133, '
    b'"line":"[2026-11-30T20:43:11.123] error: Node gpu-node-001 gres\\/gpu count reported lower"}\n'
)
FLUENT_BIT = (
    b'{"@timestamp":1796072710.445964,"file":"/var/log/slurm/slurmd.log","off":0,'
    b'"log":"[2026-11-30T20:43:11.123] error: gres","host":"gpu-node-001"}'
)
FLUENT_BIT_OPTIONS = (
    b'{"ts":"2026-11-30T21:05:10.445964059Z","file":"/var/log/slurm/slurmd.log","off":0,"log":"\\u00fc","host":"n1"}'
)
FLUENT_BIT_CRI = (
    b'{"ts":"2026-11-30T20:43:11.200000001Z","time":"2026-11-30T20:43:11.2Z","stream":"stderr","_p":"P",'
    b'"log":"partial part one and part two","file":"/var/log/pods/ml_t-0_u1/worker/0.log"}'
)
FLUENT_BIT_KUBERNETES = (
    b'{"@timestamp":1796072710.5,"time":"2026-11-30T20:43:11.2Z","stream":"stdout","log":"step 1\\n",'
    b'"kubernetes":{"pod_name":"trainer-0","namespace_name":"ml-team","container_name":"worker","docker_id":"aaa"}}'
)
FLUENT_BIT_KMSG = (
    b'{"ts":1796070875.106958,"priority":6,"sequence":197,"sec":2,"usec":106958,'
    b'"msg":"acpi PNP0A08:00: _OSC\\n SUBSYSTEM=acpi\\n DEVICE=+acpi:PNP0A08:00","host":"n1"}'
)
FLUENT_BIT_SYSTEMD = (
    b'{"@timestamp":1796072710.25,"boot_id":"b00","transport":"kernel","priority":"3",'
    b'"source_monotonic_timestamp":"5678901234","message":"NVRM: Xid (PCI:0000:3b:00): 79, GPU lost"}'
)
JOURNAL = (
    b'{"__CURSOR":"s=1","__REALTIME_TIMESTAMP":"1796072710250000","_HOSTNAME":"n1","_TRANSPORT":"stdout",'
    b'"_SYSTEMD_UNIT":"slurmd.service","_BOOT_ID":"b00","PRIORITY":"6","MESSAGE":"hello"}'
)
VECTOR = (
    b'{"file":"/var/log/slurm/slurmd.log","host":"n1","message":"[2026-11-30T20:43:11.123] x","offset":0,'
    b'"source_type":"file","timestamp":"2026-11-30T20:43:11.5Z"}'
)
VECTOR_KUBERNETES = (
    b'{"file":"/var/log/pods/ml_t-0_u1/worker/0.log","kubernetes":{"container_name":"worker","pod_name":"t-0",'
    b'"pod_namespace":"ml","pod_node_name":"n1"},"message":"step 1","source_type":"kubernetes_logs",'
    b'"stream":"stdout","timestamp":"2026-11-30T20:43:11.2Z"}'
)
DOCKER = b'{"log":"step 1\\n","stream":"stdout","time":"2026-11-30T20:43:11.2Z"}'

NOON = 1_796_071_391_000_000_000  # 2026-11-30T20:43:11Z


def only(value: bytes, certain: bool = False) -> Piece:
    pieces = unwrap(value, certain)
    assert pieces is not None
    (piece,) = pieces
    return piece


@pytest.mark.parametrize(
    ("value", "text", "labels", "time_ns"),
    [
        pytest.param(
            RSYSLOG,
            b"[2026-11-30T20:43:11.123] error: Node gpu-node-001 gres/gpu count reported lower",
            {"kind": "slurmd", "node": "gpu-node-001", "path": "/var/log/slurm/slurmd.log"},
            1_796_071_838_156_383_000,
            id="rsyslog",
        ),
        pytest.param(
            FLUENT_BIT,
            b"[2026-11-30T20:43:11.123] error: gres",
            {"node": "gpu-node-001", "path": "/var/log/slurm/slurmd.log"},
            1_796_072_710_445_964_000,
            id="fluent-bit",
        ),
        pytest.param(
            FLUENT_BIT_OPTIONS,
            "ü".encode(),
            {"node": "n1", "path": "/var/log/slurm/slurmd.log"},
            1_796_072_710_445_964_059,
            id="fluent-bit-options",
        ),
        pytest.param(
            FLUENT_BIT_CRI,
            b"2026-11-30T20:43:11.2Z stderr F partial part one and part two",
            {"kind": "pod", "path": "/var/log/pods/ml_t-0_u1/worker/0.log"},
            NOON + 200_000_001,
            id="fluent-bit-cri",
        ),
        pytest.param(
            FLUENT_BIT_KUBERNETES,
            b"2026-11-30T20:43:11.2Z stdout F step 1",
            {"kind": "pod", "namespace": "ml-team", "pod": "trainer-0", "container": "worker"},
            1_796_072_710_500_000_000,
            id="fluent-bit-kubernetes",
        ),
        pytest.param(
            FLUENT_BIT_SYSTEMD,
            b"3,0,5678901234,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU lost",
            {"kind": "kmsg", "boot_id": "b00"},
            1_796_072_710_250_000_000,
            id="fluent-bit-systemd-kernel",
        ),
        pytest.param(
            JOURNAL,
            JOURNAL,
            {"kind": "journal", "node": "n1", "unit": "slurmd.service", "boot_id": "b00"},
            1_796_072_710_250_000_000,
            id="journal",
        ),
        pytest.param(
            VECTOR,
            b"[2026-11-30T20:43:11.123] x",
            {"node": "n1", "path": "/var/log/slurm/slurmd.log"},
            NOON + 500_000_000,
            id="vector",
        ),
        pytest.param(
            VECTOR_KUBERNETES,
            b"2026-11-30T20:43:11.2Z stdout F step 1",
            {
                "kind": "pod",
                "path": "/var/log/pods/ml_t-0_u1/worker/0.log",
                "node": "n1",
                "namespace": "ml",
                "pod": "t-0",
                "container": "worker",
            },
            NOON + 200_000_000,
            id="vector-kubernetes",
        ),
        pytest.param(DOCKER, DOCKER, {"kind": "docker"}, NOON + 200_000_000, id="docker"),
    ],
)
def test_the_line_of_each_forwarder_comes_out(value: bytes, text: bytes, labels: dict[str, str], time_ns: int) -> None:
    piece = only(value)
    assert piece.text == text
    assert {name: said.decode() for name, said in piece.labels} == labels
    assert piece.time_ns == time_ns


def test_a_kmsg_object_becomes_the_record_with_its_dictionary_lines() -> None:
    piece = only(FLUENT_BIT_KMSG)
    assert piece.lines
    assert piece.text.split(b"\n") == [
        b"6,197,2106958,-;acpi PNP0A08:00: _OSC",
        b" SUBSYSTEM=acpi",
        b" DEVICE=+acpi:PNP0A08:00",
    ]


def otlp(*records: dict[str, Any], **resource: str) -> bytes:
    attributes = [{"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in resource.items()]
    return json.dumps(
        {"resourceLogs": [{"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": list(records)}]}]}
    ).encode()


def test_an_otlp_message_holds_many_lines() -> None:
    first = {
        "timeUnixNano": "1796071391000000001",
        "body": {"stringValue": "[2026-11-30T20:43:11.123] x"},
        "attributes": [{"key": "log.file.path", "value": {"stringValue": "/var/log/slurm/slurmd.log"}}],
    }
    second = {"observedTimeUnixNano": "1796071391000000002", "body": {"stringValue": "y"}}
    pieces = unwrap(otlp(first, second, host__name="n1"), certain=False)
    assert pieces == [
        Piece(
            b"[2026-11-30T20:43:11.123] x",
            (("node", b"n1"), ("path", b"/var/log/slurm/slurmd.log")),
            1_796_071_391_000_000_001,
        ),
        Piece(b"y", (("node", b"n1"),), 1_796_071_391_000_000_002),
    ]


def test_an_otlp_container_line_gets_its_prefix_back() -> None:
    record = {
        "timeUnixNano": "1796071391200000000",
        "body": {"stringValue": "step 1"},
        "attributes": [{"key": "log.iostream", "value": {"stringValue": "stderr"}}],
    }
    pieces = unwrap(otlp(record, k8s__pod__name="t-0", k8s__namespace__name="ml", k8s__container__name="w"), False)
    assert pieces is not None
    assert pieces[0].text == b"2026-11-30T20:43:11.200000000Z stderr F step 1"
    assert dict(pieces[0].labels) == {"kind": b"pod", "namespace": b"ml", "pod": b"t-0", "container": b"w"}


def test_an_otlp_journal_entry_of_the_kernel_becomes_its_record() -> None:
    entry = {"_TRANSPORT": "kernel", "_BOOT_ID": "b0", "_SOURCE_MONOTONIC_TIMESTAMP": "12", "PRIORITY": "3"}
    values = [{"key": name, "value": {"stringValue": value}} for name, value in (entry | {"MESSAGE": "Xid"}).items()]
    pieces = unwrap(otlp({"body": {"kvlistValue": {"values": values}}}), certain=False)
    assert pieces is not None
    assert pieces[0].text == b"3,0,12,-;Xid"


def test_bytes_that_are_no_utf8_come_through_as_they_were() -> None:
    value = b'{"host":"n1","src":"slurmd","file":"/l","off":0,"line":"bad \xff\xfe \\u0001 \x01 end"}\n'
    assert only(value).text == b"bad \xff\xfe \x01 \x01 end"


def test_fluent_bits_stand_in_for_a_bad_byte_is_kept() -> None:
    assert only(b'{"@timestamp":1,"log":"bad \\ue0ff"}').text == "bad \ue0ff".encode()


@pytest.mark.parametrize(
    "value",
    [
        b'{"level":"info","msg":"loss 1.2","step":3,"rank":0}',
        b'{"timestamp":"2026-11-30T20:43:11Z","hostname":"n1","level":"error","message":"boom"}',
        b'{"file":"train.py","line":42,"message":"boom","host":"n1"}',
        b'{"src":["a"],"host":"n1","message":"x"}',
        b"{broken",
        b"[1,2]",
        b"{}",
    ],
)
def test_an_applications_own_json_is_no_envelope(value: bytes) -> None:
    assert unwrap(value, certain=False) is None


def test_where_the_topic_is_known_to_be_json_any_line_field_will_do() -> None:
    assert only(b'{"message":"x","level":"info"}', certain=True).text == b"x"
    assert unwrap(b'{"level":"info"}', certain=True) is None


@pytest.mark.parametrize(("stamp", "expected"), [('"1970-01-01T00:00:01Z"', 10**9), ("4102444800", 4102444800 * 10**9)])
def test_times_of_1970_and_2100_stay_as_they_are(stamp: str, expected: int) -> None:
    assert only(b'{"@timestamp":%s,"log":"x"}' % stamp.encode()).time_ns == expected


NAMES = """
    line log message MESSAGE msg file path host src kind ts @timestamp time stream kubernetes pod_name source_type _v
    priority sequence sec usec boot_id transport _TRANSPORT __REALTIME_TIMESTAMP _SOURCE_MONOTONIC_TIMESTAMP
    resourceLogs resource scopeLogs logRecords body attributes key value stringValue kvlistValue values job_id
"""
names = st.sampled_from(NAMES.split())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=4), inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(names, anything, max_size=8), st.booleans())
def test_any_object_is_unwrapped_or_refused(whole: dict[str, Any], certain: bool) -> None:
    for piece in unwrap(json.dumps(whole).encode(), certain) or []:
        assert isinstance(piece.text, bytes)
        assert piece.time_ns is None or -(2**63) <= piece.time_ns < 2**63
        assert all(isinstance(value, bytes) and value for _, value in piece.labels)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_unwrapped_or_refused(value: bytes, certain: bool) -> None:
    unwrap(b'{"log":"' + value, certain)
    unwrap(b'{"@timestamp":1,"log":"' + value + b'"}', certain)


@pytest.mark.parametrize("depth", [900, 20_000])
def test_deep_nesting_is_no_trouble(depth: int) -> None:
    deep = b'{"kvlistValue":{"values":[{"key":"a","value":' * depth + b"{}" + b"}]}}" * depth
    unwrap(b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":' + deep + b"}]}]}]}", certain=False)
    unwrap(b"[" * depth + b"]" * depth, certain=True)
