"""What becomes of the entries of a push, by Loki's answer: a server of rules stands in, so each answer is exact."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from sinks.base import DeadLetter
from sinks.errors import RetryLater
from sinks.http import Answer
from sinks.lane import Task
from sinks.loki_answers import Request, Store, Verdict, judge
from sinks.loki_limits import Labels, Limits
from sinks.loki_push import Block, encode, places
from tests.sinks.loki_rows import decoded, table

PARTITION = ("logs.job", 0)
T0 = 1_790_000_000
Streams = list[tuple[str, list[tuple[int, bytes]]]]


@dataclass
class Loki:
    """Answers by `rule(streams)`; None is 204. Keeps each entry once, unless the answer says that nothing is kept."""

    rule: Callable[[Streams], Answer | None]
    kept: dict[str, set[bytes]] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    requests: int = 0

    def post(self, body: bytes) -> Answer:
        self.requests += 1
        streams = [(labels, [(one.ts, one.line) for one in entries]) for labels, entries in decoded(body)]
        answer = self.rule(streams)
        if answer is None:
            for labels, entries in streams:
                self.kept.setdefault(labels, set()).update(line for _, line in entries)
        return answer or Answer(204, "")

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self.letters.extend(letters)

    def run(self, streams: dict[str, list[bytes]]) -> dict[str, int]:
        """Push one request of all streams, one second between entries, until nothing is left; lines by fate."""
        store = Store(self.post, self, [PARTITION], Limits(), 0.0)
        tasks: list[Task] = [Request(store, [block(name, lines) for name, lines in streams.items()])]
        fates: Counter[str] = Counter()
        retries = 0
        while tasks:
            task = tasks.pop(0)
            try:
                result = task.run()
            except RetryLater:
                retries += 1
                assert retries < 100
                tasks.append(task)
                continue
            tasks += result.more
            for fate, lines in result.fates.items():
                fates[fate] += lines[PARTITION]
        return dict(fates)


def block(name: str, lines: list[bytes]) -> Block:
    labels: Labels = (("app", name),)
    frame = table([{"ts": (T0 + i) * 10**9, "raw": line, "offset": i} for i, line in enumerate(lines)])
    encoded = encode(frame, places(frame)[0], [labels], max_line=10_000, record_id=False)
    return Block(labels, bytes(encoded.data), encoded.rows)


def has(streams: Streams, bad: bytes) -> bool:
    return any(line == bad for _, entries in streams for _, line in entries)


GOOD = [b"good %d" % i for i in range(10)]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, "label name is empty"),
        (500, 'normalization for label name "..." resulted in invalid name "_"'),
        (500, "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5 vs. 4)"),
        (400, "loghttp.PushRequest.Streams: []loghttp.LogProtoStream: …"),
        (400, "stream '{}' has structured metadata too large: '1501' bytes, limit: '1024' bytes."),
        (400, "a text that no Loki has said so far"),
        (413, "request body too large"),
        (422, "error at least one valid stream is required for ingestion"),
    ],
)
def test_the_one_bad_entry_is_found_and_all_others_are_delivered(status: int, text: str) -> None:
    loki = Loki(lambda streams: Answer(status, text) if has(streams, b"bad") else None)
    assert loki.run({"a": GOOD, "b": [*GOOD[:4], b"bad", *GOOD[4:]], "c": GOOD}) == {"delivered": 30, "dead": 1}
    assert loki.kept == {f'{{app="{name}"}}': set(GOOD) for name in "abc"}
    assert [(one.raw, one.offset, one.reason, one.lines) for one in loki.letters] == [(b"bad", 4, "rejected_loki", 1)]
    assert text[:20] in loki.letters[0].detail


@pytest.mark.parametrize(
    "text",
    [
        "couldn't parse labels: 1:5: parse error: unexpected character",
        "entry for stream '…' has 16 label names; limit 15",
        "stream '…' has label name too long: '…'",
        "stream '…' has label value too long: '…'",
        "stream '…' has duplicate label name: 'a'",
    ],
)
def test_a_stream_that_is_refused_takes_no_other_with_it(text: str) -> None:
    loki = Loki(lambda streams: Answer(400, text) if any("bad" in labels for labels, _ in streams) else None)
    assert loki.run({"a": GOOD, "bad": GOOD, "b": GOOD}) == {"delivered": 20, "dead": 10}
    assert loki.requests <= 6  # entries of the refused stream are not tried one by one


def test_entries_that_the_answer_names_by_length_cost_one_more_request() -> None:
    def rule(streams: Streams) -> Answer | None:
        bad = [line for _, entries in streams for _, line in entries if len(line) > 50]
        text = "max entry size '50' bytes exceeded for stream '{…}' while adding an entry with length '51' bytes"
        return Answer(400, text) if bad else None

    loki = Loki(rule)
    assert loki.run({"a": [b"x" * 51, *GOOD, b"y" * 1000]}) == {"delivered": 10, "dead": 2}
    assert loki.requests == 2


def text_of(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_entries_that_are_too_old_for_the_server_cost_one_more_request() -> None:
    def rule(streams: Streams) -> Answer | None:
        old = [ts for _, entries in streams for ts, _ in entries if ts < (T0 + 3) * 10**9]
        text = f"has timestamp too old: {text_of(T0)}, oldest acceptable timestamp is: {text_of(T0 + 3)}"
        return Answer(400, f"{len(old)} errors like: entry for stream '…' {text}") if old else None

    loki = Loki(rule)
    assert loki.run({"a": GOOD}) == {"delivered": 7, "dead": 3}
    assert loki.requests == 2


@pytest.mark.parametrize("total", [10, 99])  # 99: the stream was sharded, or reached several ingesters
def test_what_is_too_far_behind_goes_to_the_replay_stream(total: int) -> None:
    def rule(streams: Streams) -> Answer | None:
        if any("replay" in labels for labels, _ in streams):
            return None
        behind = [ts for _, entries in streams for ts, _ in entries if ts < (T0 + 4) * 10**9]
        why = f"entry too far behind, entry timestamp is: {text_of(T0)}, oldest acceptable timestamp is: "
        return (
            Answer(
                400,
                f"entry with timestamp … ignored, reason: '{why}{text_of(T0 + 3 if total == 99 else T0 + 4)}',\n"
                f"user 't1', total ignored: {len(behind)} out of {total} for stream: {{…}}",
            )
            if behind
            else None
        )

    loki = Loki(rule)
    assert loki.run({"a": GOOD}) == {"delivered": 10}
    assert loki.kept == {'{app="a"}': set(GOOD[4:]), '{app="a", replay="true"}': set(GOOD[:4])}


def test_what_the_replay_stream_refuses_as_well_is_a_dead_letter() -> None:
    loki = Loki(lambda _: Answer(400, "entry too far behind, total ignored: 2 out of 2"))
    assert loki.run({"a": GOOD[:2]}) == {"dead": 2}


def test_a_request_beyond_the_burst_is_made_smaller_until_it_passes() -> None:
    def rule(streams: Streams) -> Answer | None:
        lines = sum(len(entries) for _, entries in streams)
        return Answer(429, "ingestion rate limit exceeded for user t1") if lines > 200 else None

    loki = Loki(rule)
    assert loki.run({"a": [b"%d " % i + b"x" * 900 for i in range(1000)]}) == {"delivered": 1000}


@pytest.mark.parametrize(
    "text",
    [
        "entry with timestamp … ignored, reason: 'Per stream rate limit exceeded (limit: 3MB/sec)'",
        "maximum active stream limit exceeded when trying to create stream {…}",
    ],
)
def test_a_limit_of_one_stream_is_met_alone_since_several_could_hide_it(text: str) -> None:
    failures = [3]

    def rule(streams: Streams) -> Answer | None:
        if not any("limited" in labels for labels, _ in streams) or not failures[0]:
            return None
        if len(streams) == 1:
            failures[0] -= 1
        return Answer(429, text)

    loki = Loki(rule)
    assert loki.run({"a": GOOD, "limited": GOOD, "b": GOOD}) == {"delivered": 30}
    assert failures == [0]


@pytest.mark.parametrize(
    ("status", "text", "verdict"),
    [
        (204, "", Verdict.DELIVERED),
        (200, "", Verdict.PAUSED),
        (260, "ingestion blocked for user 'blocked' until '2030-…'", Verdict.PAUSED),
        (302, "", Verdict.PAUSED),
        (400, "mime: no media type", Verdict.PAUSED),
        (400, "snappy: corrupt input", Verdict.PAUSED),
        (400, "gzip: invalid header", Verdict.PAUSED),
        (400, 'Content-Encoding "zstd" not supported', Verdict.PAUSED),
        (400, "tenant ID 'a/b' contains unsupported character '/'", Verdict.PAUSED),
        (400, "multiple org IDs present", Verdict.PAUSED),
        (400, "missing required labels 'cluster' for user", Verdict.PAUSED),
        (400, "… disallowed. Please see `limits_config.allow_structured_metadata`", Verdict.PAUSED),
        (400, "request body too large: message size too large than max (1 vs 0)", Verdict.SPLIT),
        (401, "no org id", Verdict.PAUSED),
        (403, "", Verdict.PAUSED),
        (404, "404 page not found", Verdict.PAUSED),
        (405, "", Verdict.PAUSED),
        (408, "", Verdict.LATER),
        (429, "ingestion rate limit exceeded", Verdict.LATER),
        (500, "", Verdict.LATER),
        (503, "the ring has no live instances", Verdict.LATER),
    ],
)
def test_every_answer_has_its_meaning(status: int, text: str, verdict: Verdict) -> None:
    assert judge(Answer(status, text)) is verdict


@pytest.mark.parametrize(
    ("status", "text"), [(401, "no org id"), (260, "blocked"), (503, ""), (400, "snappy: corrupt")]
)
def test_what_is_not_the_entries_fault_is_sent_again_unchanged(status: int, text: str) -> None:
    bodies = []

    def rule(streams: Streams) -> Answer | None:
        bodies.append(streams)
        return Answer(status, text) if len(bodies) < 4 else None

    assert Loki(rule).run({"a": GOOD, "b": GOOD}) == {"delivered": 20}
    assert bodies == [bodies[0]] * 4
