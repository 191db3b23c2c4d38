"""The configuration file: what it refuses, and in which words; what the environment overrides; what is never shown."""

import json
import tomllib
from pathlib import Path

import pytest

from flows import reference
from flows.config import Config, load, shown, validate
from flows.run import check
from sinks.errors import Misconfigured

EXAMPLE = Path(reference.PAGE).parent / "tailrace.toml"
KAFKA = '[source.kafka]\nbootstrap = "k:9092"\n'
SECRET = "hunter2-do-not-print"


def read(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "t.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environment)


def refusal(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        read(tmp_path, text, **environment)
    return str(refused.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sourc.kafka]\n", "unknown key sourc; did you mean source?"),
        ("[source.kafk]\n", "unknown key source.kafk; did you mean kafka?"),
        (KAFKA + 'bootstap = "x"', "unknown key source.kafka.bootstap; did you mean bootstrap?"),
        (KAFKA + "[sinks.loki.limits]\nmax_agee_s = 3", "unknown key sinks.loki.limits.max_agee_s; did you mean max_a"),
        (KAFKA + "[sinks.parquet.storage]\nurll = 's3://b'", "unknown key sinks.parquet.storage.urll; did you mean "),
        (KAFKA + "[http]\nzzzzzz = 1", "unknown key http.zzzzzz; known keys are host, port"),
        (KAFKA + "[tier]\nshards = 'many'", "tier.shards: input should be a valid integer"),
        (KAFKA + "[tier]\nshards = 0", "tier.shards: input should be greater than or equal to 1"),
        (KAFKA + "tier = 3", "unknown key source.kafka.tier"),
        ("source = 3", "source: must be a table of keys"),
        ("", "source: this key is required; add it"),
        (KAFKA + "topics = [1]", "source.kafka.topics.0: input should be a valid string"),
        (KAFKA + "topics = []", "source.kafka.topics: value should have at least 1 item"),
        (KAFKA + 'topics = {"logs.a" = "kmgs"}', "source.kafka.topics: unknown kind kmgs; did you mean kmsg?"),
        (KAFKA + 'start = "now"', "source.kafka.start: input should be 'earliest' or 'latest'"),
        (KAFKA + "[recovery]\nepoch_s = 0", "recovery.epoch_s: input should be greater than 0"),
        (KAFKA + "[http]\nport = 70000", "http.port: input should be less than or equal to 65535"),
        ("[source.files]\npaths = ['x']\n" + KAFKA, "source: name exactly one source: [source.kafka] or [sour"),
        ("[source]\n", "source: name exactly one source"),
        (KAFKA + "[tier]\nprocess = 2\nprocesses = 2\nshards = 2", "process 2 does not exist: processes are num"),
        (KAFKA + "[tier]\nprocesses = 3\nshards = 2", "tier: 3 processes cannot share 2 shards: raise shards"),
        (KAFKA + "[decode]\ntz = 'Mars/Olympus'", "unknown time zone 'Mars/Olympus'; use an IANA name such as Europe/"),
        (KAFKA + "[decode]\nkinds = {a = 'kmgs'}", "decode.kinds: unknown kind kmgs; did you mean kmsg?"),
        (KAFKA + "[decode]\nforms = {a = 'xml'}", "decode.forms.a: input should be 'auto', 'block', 'raw' or 'json'"),
        (KAFKA + "[noise]\nkeep = ['N99']", "noise.keep: unknown noise rule N99; rules are N01,"),
        (KAFKA + "[noise]\nexempt = {nccl_debg = 'TRACE'}", "noise.exempt: unknown header nccl_debg; did you mean ncc"),
        ("[source.files]\nnode_regex = '('", "source.files.node_regex: '(' is no regular expression: missing )"),
        ("[source.files]\ntz = 'Mars'", "source.files.tz: unknown time zone 'Mars'; use an IANA name"),
        ("[source.files]\nnode_regex = 'x'", "source.files.node_regex: 'x' has no group"),
        (KAFKA + "[sinks.loki]\nurl = 'loki'", "sinks.loki.url: must look like http://loki:3100 or https://"),
        (KAFKA + "[sinks.loki]\nusername = 'a'", "sinks.loki: username and password_file go together"),
        ("[source.kafka", "is not valid TOML: "),
        ("a = 1\na = 2", "is not valid TOML: "),
        ("a = '\udcff'", "is not valid TOML: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_words_that_say_what_to_change(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Misconfigured) as refused:
        load(path, {})
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(Misconfigured, match=r"cannot read .*; name a readable TOML file"):
            load(path, {})


def test_all_mistakes_are_named_at_once_but_not_hundreds(tmp_path: Path) -> None:
    said = refusal(tmp_path, KAFKA + "[http]\n" + "".join(f"wrong{number} = 1\n" for number in range(40)))
    assert said.count("unknown key http.wrong") == 10
    assert said.endswith("and 30 more")


@pytest.mark.parametrize(
    ("name", "text", "place", "value"),
    [
        ("TAILRACE_TIER__SHARDS", "4", ("tier", "shards"), 4),
        ("TAILRACE_RECOVERY__EPOCH_S", "0.5", ("recovery", "epoch_s"), 0.5),
        ("TAILRACE_NOISE__DROP", "false", ("noise", "drop"), False),
        ("TAILRACE_SOURCE__KAFKA__BOOTSTRAP", "a:1,b:2", ("source", "kafka", "bootstrap"), "a:1,b:2"),
        ("TAILRACE_SOURCE__KAFKA__TOPICS", '["a", "b"]', ("source", "kafka", "topics"), ["a", "b"]),
        ("TAILRACE_SINKS__LOKI__TENANT", "0042", ("sinks", "loki", "tenant"), "0042"),
        ("TAILRACE_TIER__CLUSTER", "42", ("tier", "cluster"), "42"),
        ("TAILRACE_TIER__CLUSTER", "a\nb = 1", ("tier", "cluster"), "a\nb = 1"),
        ("TAILRACE_HTTP__HOST", "::1", ("http", "host"), "::1"),
    ],
)  # fmt: skip
def test_the_environment_overrides_the_file(
    tmp_path: Path, name: str, text: str, place: tuple[str, ...], value: object
) -> None:
    found: object = read(tmp_path, KAFKA + "[tier]\ncluster = 'file'\n[sinks.loki]\n", **{name: text}).model_dump()
    for key in place:
        assert isinstance(found, dict)
        found = found[key]
    assert found == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("TAILRACE_TIER__SHARDS", "many", "TAILRACE_TIER__SHARDS: tier.shards: input should be a valid integer"),
        ("TAILRACE_SINK__LOKI__URL", "x", "TAILRACE_SINK__LOKI__URL: unknown key sink; did you mean sinks?"),
        ("TAILRACE_TIER__SHARD", "2", "TAILRACE_TIER__SHARD: unknown key tier.shard; did you mean shards?"),
        ("TAILRACE_TIER__SHARDS__X", "2", "TAILRACE_TIER__SHARDS__X: tier.shards is not a table"),
        ("TAILRACE_TIER__SHARDS", "1\nprocess = 5", "TAILRACE_TIER__SHARDS: tier.shards: input should be a valid int"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    assert refusal(tmp_path, KAFKA + "[tier]\nshards = 2", **{name: text}).startswith(said)


def test_variables_of_other_things_are_left_alone(tmp_path: Path) -> None:
    read(tmp_path, KAFKA, TAILRACE_CONFIG="x", TAILRACE_REQUIRE_REAL="1", TAILRACE="y", OTHER__THING="z")


@pytest.mark.parametrize(
    ("processes", "process", "shards"), [(1, 0, ["0000", "0001", "0002"]), (2, 0, ["0000", "0002"]), (3, 2, ["0002"])]
)
def test_processes_share_the_shards(tmp_path: Path, processes: int, process: int, shards: list[str]) -> None:
    config = read(tmp_path, KAFKA + f"[tier]\nshards = 3\nprocesses = {processes}\nprocess = {process}")
    assert config.tier.own_shards() == shards


@pytest.mark.parametrize(
    "text",
    [
        KAFKA + f'settings = {{"sasl.password" = "{SECRET}"}}',
        KAFKA + f'settings = {{"ssl.key.password" = "{SECRET}", "group.id" = "x"}}',
        KAFKA + f'[sinks.loki]\nurl = "http://user:{SECRET}@loki"',
        KAFKA + f'[sinks.loki]\npassword = "{SECRET}"',
        KAFKA + f'[sinks.loki]\nheaders = "{SECRET}"',
        KAFKA + f'[sinks.loki]\ntoken_file = ["{SECRET}"]',
        KAFKA + f"password = '{SECRET}",
        KAFKA + f"start = '{SECRET}'",
    ],
)  # fmt: skip
def test_errors_never_repeat_what_may_be_a_secret(tmp_path: Path, text: str) -> None:
    assert SECRET not in refusal(tmp_path, text)


def test_check_shows_all_defaults_and_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        f"""
        [source.kafka]
        settings = {{"sasl.password" = "env:PASSWORD", "security.protocol" = "SASL_SSL"}}
        [sinks.loki]
        headers = {{Authorization = "Basic {SECRET}", X-Key = "file:/run/key"}}
        [sinks.parquet.storage]
        url = "s3://logs"
        endpoint_url = "http://user:{SECRET}@s3:9000"
        [dead_letter]
        settings = {{"sasl.password" = "{SECRET}", "ssl.key.pem" = "{SECRET}", "sasl.username" = "tier"}}
        """
    )
    assert check(["--config", str(path), "--offline", "--show"]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    values = json.loads(out)
    assert values["sinks"]["loki"]["headers"] == {"Authorization": "***", "X-Key": "file:/run/key"}
    assert values["sinks"]["parquet"]["storage"]["endpoint_url"] == "http://***@s3:9000"
    assert values["source"]["kafka"]["settings"]["security.protocol"] == "SASL_SSL"
    assert values["dead_letter"]["settings"]["sasl.username"] == "tier"
    assert values["recovery"]["epoch_s"] == 5.0


def test_what_is_shown_is_the_configuration_again() -> None:
    config = validate({"source": {"kafka": {}}, "sinks": {"loki": {}, "parquet": {}}}, "test")
    assert validate(shown(config), "shown") == config


def test_the_example_is_accepted_and_names_what_a_first_reader_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--config", str(EXAMPLE), "--offline"]) == 0, capsys.readouterr().err
    values = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert set(values) == set(Config.model_fields)
    assert values["source"]["kafka"]["topics"]


def test_the_reference_page_is_fresh_and_has_every_key() -> None:
    page = reference.page()
    assert page == reference.PAGE.read_text(encoding="utf-8"), "run `make reference`"
    for key in ("`bootstrap`", "`max_age_s`", "`endpoint_url`", "`epoch_s`", "`exempt`", "## `[sinks.loki.limits]`"):
        assert key in page


def test_every_key_has_a_sentence() -> None:
    for line in reference.page().splitlines():
        if line.startswith("| `"):
            assert line.removesuffix(" |").endswith("."), line
