"""Arrow schemas of the rows that move through the tier, and the identity of a record.

Identity is (topic, partition, offset, line, part): the place of the record's first physical line. All a
store is sent is a function of the record, so that a repeat can be recognised as one.
"""

import pyarrow as pa

SCHEMA_VERSION = "2"  # 2: column tz

NAME = pa.dictionary(pa.int32(), pa.string())  # one value per message or stream
CODE = pa.dictionary(pa.int8(), pa.string())  # one of a closed list

# What one message says of all its lines (headers of the wire contract), as dictionary columns that
# share their indices; an empty text stands for "not known", since nulls in a dictionary can neither be
# joined nor stored. `job` is Loki's label (the kind's name there); `owner_job` the job whose output this
# is, where the message says so (header `job_id`). `tz` is the zone that its local times were read in.
ENVELOPE = pa.schema(
    [
        pa.field(name, NAME)
        for name in (
            "node", "cluster", "tenant", "path", "unit", "namespace", "pod", "container", "app", "team",
            "nccl_debug", "boot_id", "tz", "job", "owner_job",
        )
    ]
)  # fmt: skip

PLACE = pa.schema(
    [
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("line", pa.int32()),  # index inside the message
    ]
)

RAW = pa.schema(
    [
        *PLACE,
        pa.field("appended_at", pa.int64()),  # ms since the epoch, broker's clock
        pa.field("received_at", pa.int64()),  # ns since the epoch: read_at of the forwarder, else appended_at
        pa.field("stream", pa.int32()),  # index of the message's stream in its Chunk
        *ENVELOPE,
        pa.field("raw", pa.large_binary()),
    ]
)

# Columns that queries and detectors use; everything else of the field dictionary is in `fields`.
TYPED = pa.schema(
    [
        pa.field("level", CODE),
        pa.field("event", NAME),
        pa.field("message", pa.large_string()),  # null on header-speed noise rows: see raw
        pa.field("job_id", pa.int64()),
        pa.field("step_id", pa.string()),
        pa.field("rank", pa.int32()),
        pa.field("host", pa.string()),
        pa.field("pid", pa.int64()),
        pa.field("pci", pa.string()),
        pa.field("xid", pa.int32()),
        pa.field("sxid", pa.int32()),
        pa.field("severity", pa.string()),
        pa.field("action", pa.string()),
        pa.field("fault_class", pa.string()),
        pa.field("exit_code", pa.int32()),
        pa.field("signal", pa.int32()),
        pa.field("cause", pa.string()),
        pa.field("monotonic_us", pa.int64()),
        pa.field("seq", pa.uint64()),
        pa.field("nodes", pa.list_(pa.string())),
    ]
)

SPAN = pa.struct([pa.field("offset", pa.int64()), pa.field("line", pa.int32())])

LOG = pa.schema(
    [
        *PLACE,
        pa.field("part", pa.int16()),  # records that share their first line are counted from 0
        pa.field("spans", pa.list_(SPAN)),  # every physical line; null when it is the one above
        pa.field("owned", pa.int32()),  # physical lines the ledger counts for this record
        pa.field("appended_at", pa.int64()),
        pa.field("ts", pa.timestamp("ns", tz="UTC")),
        pa.field("ts_source", CODE),
        pa.field("kind", NAME),
        *ENVELOPE,
        *TYPED,
        pa.field("noise", CODE),
        pa.field("flags", pa.list_(pa.string())),
        pa.field("fields", pa.map_(pa.string(), pa.string())),
        pa.field("raw", pa.large_binary()),
    ],
    metadata={"tailrace.schema": SCHEMA_VERSION},
)
