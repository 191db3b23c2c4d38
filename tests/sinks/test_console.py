"""Records on standard output are JSON lines, as many as a person wants."""

import io
import json

from sinks.console import ConsoleConfig, ConsoleSink
from tests.sinks.archive_rows import TOPIC, Ledger, delivery, record

XID = record(
    1, ts_source="record", xid=79, message="fell off", flags=["partial"], fields=[("tid", "9")], spans=[], nodes=["a"]
)
NAMELESS = record(2, node=None, raw=b"caf\xe9", ts=None, ts_source=None)


def printed(rows: int | None, ledger: Ledger) -> list[dict[str, object]]:
    out = io.StringIO()
    sink = ConsoleSink(ConsoleConfig(rows=rows), ["0000"], ledger, out)
    part = sink.build_part("console", "0000", None)
    part.write_batch([delivery([XID, NAMELESS], [record(3, noise="N01")])])
    part.write_batch([delivery([record(4, partition=5, owned=3)])])
    part.snapshot()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_record_is_a_json_object_of_what_is_known() -> None:
    first, second, _ = printed(None, Ledger())
    assert first == {
        "topic": TOPIC,
        "partition": 0,
        "offset": 1,
        "line": 0,
        "appended_at": 1_741_000_000_001,
        "ts": "2025-03-03T12:00:01.000000000Z",
        "ts_source": "record",
        "kind": "training",
        "node": "gpu-1",
        "message": "fell off",
        "xid": 79,
        "nodes": ["a"],
        "flags": ["partial"],
        "tid": "9",
    }
    assert second["message"] == "caf\ufffd"
    assert not {"ts", "node", "xid", "raw"} & set(second)


def test_all_records_are_accounted_although_few_are_printed() -> None:
    ledger = Ledger()
    assert [record["offset"] for record in printed(1, ledger)] == [1]
    assert ledger.entries == [("delivered", {(TOPIC, 0): 2, (TOPIC, 5): 3}, "")]
