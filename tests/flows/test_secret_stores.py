"""No store, log or metric holds a secret, whatever carried it there: the tier as an operator runs it."""

import base64
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from flows.batch import Headers
from flows.cluster import Runtime, TierLogic
from flows.config import Config
from flows.pipeline import Pipeline
from flows.steps.decode import DecodeConfig
from tests.chunks import APPENDED_MS, block_headers, chunk, tick
from tests.flows.test_pipeline import as_dicts
from tests.flows.tier import Tier, assert_balanced, rows
from tests.secret_lines import AWS, AZURE, GITHUB, HF, JWT, PASSWORD, WANDB

KEY_LINES = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj", "Yk1TcGxpdEFtb25nTGluZXM="]
SECRETS = (GITHUB, HF, WANDB, JWT, AWS, AZURE, PASSWORD, *KEY_LINES)
KEY = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *KEY_LINES, "-----END OPENSSH PRIVATE KEY-----"])

# File name (which tells the kind) and what stands in it.
FILES = {
    "job_8001.env": f"HOME=/home\nWANDB_API_KEY={WANDB}\nDB_PASSWORD=first\n{PASSWORD}\nDEPLOY_KEY={KEY}\nPATH=/bin\n",
    "job_8002.env": f"HOME=/home/me\0HF_TOKEN={HF}\0AWS_SECRET_ACCESS_KEY={AWS}\0A=1\n",
    "job_8001.sh": f"#SBATCH -N 4\nexport HF_TOKEN='{HF}'\ncurl -u me:{PASSWORD} https://hub\ncat <<EOF\n{KEY}\nEOF\n",
    "slurmctld.log": f"[2025-03-04T05:06:07.089] debug:  submit: srun --export=API_TOKEN={PASSWORD} ./train\n",
    "prolog.log": "2025-03-04T05:06:07Z ERROR archive.sh:47 azcopy failed\n"
    f"+ export AZURE_KEY='{AZURE}'\n+ git clone https://{GITHUB}@github.com/a/b\n",
    "run.out": f"step 1 loss 2.1\nAuthorization: Bearer {JWT}\n[rank0]: ValueError: bad token={PASSWORD}\n"
    f'Traceback (most recent call last):\n  File "a.py", line 1\n    login(token="{HF}")\nValueError: {GITHUB}\n'
    f"token={HF}:  12%|#2        | 12/100 [00:01<00:09,  9.00it/s]\n",
    "containers/app-json.log": json.dumps({"log": f"MY_SECRET={PASSWORD}\n", "stream": "stdout"}),
    "journal.json": json.dumps({"MESSAGE": f"password={PASSWORD}", "_CMDLINE": f"x --token {HF}"}),
}  # fmt: skip


def forms(secret: str) -> list[bytes]:
    return [secret.encode(), base64.b64encode(secret.encode())]


def assert_clean(what: str, data: bytes) -> None:
    for secret in SECRETS:
        for form in forms(secret):
            assert form not in data, f"{secret} in {what}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier that has read all files into a local archive and the console."""
    home = tmp_path_factory.mktemp("secrets")
    source = home / "input"
    for name, text in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config = {
        "source": {"files": {"paths": [str(source)]}},
        "sinks": {"parquet": {"noise": True, "storage": {"url": str(home / "archive")}}, "console": {}},
        "dead_letter": {"storage": {"url": str(home / "archive")}},
    }
    with Tier(home / "tier", config) as tier:
        assert tier.start().wait() == 0, tier.tail()
        assert_balanced(tier.ledger)
    return home


def test_every_file_became_records(home: Path) -> None:
    kinds = {row["kind"] for row in rows(home / "archive", "landing")}
    assert {"job_env", "job_script", "slurmctld", "prolog", "training", "docker", "journal"} <= kinds


def test_no_column_of_the_archive_holds_a_secret(home: Path) -> None:
    for row in rows(home / "archive", "landing"):
        assert_clean(str(row["kind"]), pickle.dumps(row))


def test_no_file_that_the_tier_wrote_holds_a_secret(home: Path) -> None:
    written = [path for path in home.rglob("*") if path.is_file() and "input" not in path.relative_to(home).parts]
    assert {"log", "output"} <= {path.name for path in written}
    for path in written:
        assert_clean(str(path), path.read_bytes())


def test_records_that_had_a_secret_say_so_and_keep_the_name(home: Path) -> None:
    found = {row["message"] for row in rows(home / "archive", "landing") if "redacted" in (row["flags"] or ())}
    assert {
        "WANDB_API_KEY=***",
        "HF_TOKEN=***",
        "export HF_TOKEN='***'",
        "MY_SECRET=***",
        "Authorization: Bearer ***",
    } <= found


def test_a_progress_bar_with_a_secret_is_noise_without_it(home: Path) -> None:
    bars = [row for row in rows(home / "archive", "landing") if row["noise"] == "progress"]
    assert [row["raw"][:9] for row in bars] == [b"token=***"]


def test_no_metric_holds_a_secret(tmp_path: Path) -> None:
    config = Config.model_validate({"source": {"files": {"paths": [str(tmp_path)]}}})
    runtime = Runtime(config)
    headers = block_headers("training", app="x")
    lines = [line.encode() for line in FILES["run.out"].splitlines()]
    TierLogic(runtime, None).on_batch([chunk([(headers, lines)], ended=True), chunk([((("v", b"2"),), lines)])])
    shown = generate_latest(runtime.metrics.registry)
    assert b"bad_version" in shown
    assert_clean("metrics", shown)


@pytest.mark.parametrize(
    ("reason", "config", "headers", "value"),
    [
        ("bad_envelope", DecodeConfig(form="json"), (), f"HF_TOKEN={HF}\n\xff{KEY}".encode("latin-1")),
        ("bad_version", DecodeConfig(), (("v", b"2"),), f"\xff\xfe token='{PASSWORD}'\xff\n{KEY}".encode("latin-1")),
        ("too_large", DecodeConfig(max_message_bytes=1024), (), f"curl -u me:{PASSWORD} x\n".encode() * 500),
    ],
)  # fmt: skip
def test_dead_letters_hold_no_secret(reason: str, config: DecodeConfig, headers: Headers, value: bytes) -> None:
    delivery, _ = Pipeline(config).process(chunk([(headers, [value])], ended=True))
    (letter,) = delivery.dead
    assert letter.reason == reason
    assert b"***" in letter.raw
    assert_clean(reason, pickle.dumps(letter))


TEXT = [f"DB_PASSWORD={PASSWORD}", "X_TOKEN=a", PASSWORD, *KEY.split("\n"), "PATH=/bin", "step 1", f"token='{HF}'"]


@settings(max_examples=40)
@given(
    st.sampled_from(["job_env", "job_script", "training", "slurmctld", "kmsg"]),
    st.lists(st.lists(st.sampled_from(TEXT), min_size=1, max_size=6), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_secrets_of_several_lines_do_not_depend_on_batches(
    kind: str, blocks: list[list[str]], cuts: list[bool]
) -> None:
    sent = [(block_headers(kind), [line.encode() for line in lines]) for lines in blocks]

    def run(pieces: list[int]) -> list[bytes]:
        pipeline = Pipeline(DecodeConfig())
        raws = []
        start = 0
        for end in pieces:
            again = Pipeline(DecodeConfig())
            again.restore(pickle.loads(pickle.dumps(pipeline.state())))
            pipeline = again
            for part in pipeline.process(chunk(sent[start:end], first_offset=start))[0].parts:
                raws += as_dicts(part.rows)
            start = end
        for part in pipeline.process(tick(APPENDED_MS, ended=True))[0].parts:
            raws += as_dicts(part.rows)
        assert pipeline.unbalanced == 0
        return b"\n".join(row["raw"] for row in sorted(raws, key=lambda r: (r["offset"], r["line"], r["part"])))

    whole = run([len(sent)])
    assert run([*(at for at, cut in enumerate(cuts[: len(sent) - 1], 1) if cut), len(sent)]) == whole
    assert HF.encode() not in whole
