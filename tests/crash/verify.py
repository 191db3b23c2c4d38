"""What the stores must hold when all is over, compared with what was produced."""

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows import alert_records
from flows.steps import summaries
from flows.steps.kinds import JOBS
from tests.crash.loki_seen import Seen
from tests.crash.truth import Lines, Place, code

_COLUMNS = ["topic", "partition", "offset", "line", "part", "spans", "owned", "kind", "noise", "raw"]
_COLUMNS += ["ts", "node", "owner_job", "event", "pci", "xid", "pid"]  # of what is alerted on
Identity = tuple[str, bytes]  # topic, and partition:offset:line:part


class Kept(NamedTuple):
    """What Loki must have of a record: its line; and the partition it is from."""

    line: bytes
    partition: int


class LokiFigures(NamedTuple):
    entries: int
    repeats: int


def read_archive(client: Any, bucket: str, keys: Iterable[str]) -> pa.Table:
    """All rows of the objects."""
    tables = []
    for key in keys:
        body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        tables.append(pq.read_table(io.BytesIO(body), columns=_COLUMNS))
    return pa.concat_tables(tables).unify_dictionaries()


def by_place(archive: pa.Table) -> dict[Place, pa.Table]:
    """The rows of each partition."""
    topics = archive["topic"].cast(pa.string())
    found = {}
    for topic in pc.unique(topics).to_pylist():
        of_topic = archive.filter(pc.equal(topics, topic))
        for partition in pc.unique(of_topic["partition"]).to_pylist():
            found[topic, partition] = of_topic.filter(pc.equal(of_topic["partition"], partition)).combine_chunks()
    return found


def check_partition(place: Place, lines: Lines, rows: pa.Table) -> None:
    """Every line exactly once, with its bytes; and every summary once, which owns no line."""
    summed, rows = (rows.filter(pc.field("kind").isin([summaries.KIND]) == wanted) for wanted in (True, False))
    stands = list(zip(*(summed[name].to_pylist() for name in ("offset", "line", "part")), strict=True))
    assert len(set(stands)) == len(stands), f"{place}: summaries are archived twice"
    assert not any(summed["owned"].to_pylist()), f"{place}: a summary owns lines"
    owned = pc.sum(rows["owned"]).as_py() or 0
    assert owned == len(lines.at), f"{place}: {len(lines.at)} lines were produced, the archive accounts for {owned}"
    identity = code(_ints(rows, "offset"), _ints(rows, "line")) << 4 | _ints(rows, "part")
    assert len(np.unique(identity)) == len(identity), f"{place}: records are archived twice"
    at, raw = explode(rows)
    found = np.searchsorted(lines.at, at)
    assert found.max(initial=-1) < len(lines.at), f"{place}: the archive has lines nobody produced"
    assert np.array_equal(lines.at[found], at), f"{place}: the archive has lines nobody produced"
    missing = np.flatnonzero(np.bincount(found, minlength=len(lines.at)) == 0)
    assert not len(missing), f"{place}: {len(missing)} lines are missing, first {divmod(lines.at[missing[0]], 1 << 24)}"
    same = pc.equal(lines.raw.take(pa.array(found)), raw)
    assert pc.all(same).as_py() is True, f"{place}: lines were changed on their way"


def explode(rows: pa.Table) -> tuple[npt.NDArray[np.int64], pa.LargeBinaryArray]:
    """Place (`code`) and bytes of every physical line of the rows; a line that several records share comes often."""
    whole = rows.filter(pc.is_null(rows["spans"]))
    joined = rows.filter(pc.is_valid(rows["spans"])).combine_chunks()
    at = code(_ints(whole, "offset"), _ints(whole, "line"))
    raw = whole["raw"].combine_chunks()
    if not len(joined):
        return at, raw
    pieces = pc.split_pattern(joined["raw"], b"\n").combine_chunks()
    spans = joined["spans"].combine_chunks()
    assert pieces.value_lengths().equals(spans.value_lengths()), "a record's bytes are not those of its lines"
    span = spans.flatten()
    more = code(*(np.asarray(span.field(name)).astype(np.int64) for name in ("offset", "line")))
    return np.concatenate([at, more]), pa.concat_arrays([raw, pieces.flatten().cast(pa.large_binary())])


def _ints(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return rows[name].to_numpy().astype(np.int64)


def kept_records(archive: dict[Place, pa.Table]) -> dict[Identity, Kept]:
    """What Loki must have, from the archive's rows that no rule dropped."""
    kept = {}
    for (topic, partition), rows in archive.items():
        loud = rows.filter(pc.is_null(rows["noise"]))
        places = zip(*(loud[name].to_pylist() for name in ("offset", "line", "part", "kind", "raw")), strict=True)
        for offset, line, part, kind, raw in places:
            identity = topic, f"{partition}:{offset}:{line}:{part}".encode()
            kept[identity] = Kept(without_carrier(kind, raw), partition)
    return kept


def without_carrier(kind: str, raw: bytes) -> bytes:
    """The text that a program wrote: kernel records without prefix and dictionary, CRI pieces joined."""
    if kind == "kmsg":
        head, _, text = raw.partition(b"\n")[0].partition(b";")
        return text or head
    if kind != "pod":
        return raw
    pieces = [line.split(b" ", 3) for line in raw.split(b"\n")]
    return b"".join(text + (b"\n" if tag == b"F" else b"") for _, _, tag, text in pieces).removesuffix(b"\n")


def check_loki(
    entries: Iterable[Seen], kept: dict[Identity, Kept], topics: dict[str, str], quiet: range, partitions: set[int]
) -> LokiFigures:
    """Every kept record at least once and, but for alerts, nothing else; repeats are equal in every byte.

    `topics` names the topic of each label `job`. Entries number `quiet` of these partitions repeat nothing.
    """
    first: dict[Identity, tuple[int, Seen]] = {}
    count = 0
    for number, entry in enumerate(entries):
        job = dict(entry.labels)["job"]
        if job == alert_records.JOB:
            continue
        count += 1
        identity = topics[job], entry.id
        before, known = first.setdefault(identity, (number, entry))
        if known is not entry:
            assert known == entry, f"repeated with other content:\n{known}\n{entry}"
            of_quiet = number in quiet and before < quiet.start
            assert not of_quiet or kept[identity].partition not in partitions, f"repeated after a drain: {entry}"
            continue
        assert identity in kept, f"not a record of the archive: {entry}"
        assert entry.line == kept[identity].line, f"{kept[identity]} became {entry}"
    missing = kept.keys() - first.keys()
    assert not missing, f"{len(missing)} of {len(kept)} kept records never came, such as {sorted(missing)[:3]}"
    return LokiFigures(count, count - len(first))


def topic_of_job(topics: dict[str, str]) -> dict[str, str]:
    """Topic by the label `job`, from the topic by kind. All noise, and so every summary, is in one topic."""
    return {JOBS[kind]: topic for kind, topic in topics.items()} | {summaries.JOB: topics["training"]}


def check_ledger(ended: list[dict[str, Any]], lines: int) -> Counter[str]:
    """The last ledgers of all processes, summed: every line is accounted for, over all their lives."""
    total: Counter[str] = Counter()
    for event in ended:
        ledger = event["ledger"]
        total.update({name: ledger[name] for name in ("read", "kept", "dead", "held", "unbalanced")})
        total["dropped"] += sum(ledger["dropped"].values())
        for sink, fates in ledger["sinks"].items():
            answered = sum(fates.get(fate, 0) for fate in ("delivered", "dropped", "dead", "gapped"))
            assert fates["offered"] == answered, f"{sink}: {fates}"
            assert fates["difference"] == 0, f"{sink}: {fates}"
            total.update({f"{sink} {fate}": count for fate, count in fates.items()})
    assert total["read"] == lines, f"{lines} lines were produced: {total}"
    assert total["kept"] + total["dropped"] + total["dead"] == total["read"], total
    assert total["held"] == total["unbalanced"] == 0, total
    assert total["parquet delivered"] == lines, total
    assert total["loki delivered"] == total["kept"], total
    assert total["loki gapped"] == total["loki dead"] == 0, total
    return total
