"""Secrets leave lines; everything else stays byte for byte."""

import json
import re
import string

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.steps.redact.blocks import Open, read_line
from flows.steps.redact.carriers import read
from flows.steps.redact.config import RedactionConfig, SecretRule, failures
from flows.steps.redact.line import line_redactor
from flows.steps.redact.rules import default_rules, in_words
from tests.secret_lines import INNOCENT, SECRETS

REDACTOR = line_redactor(default_rules())


def redacted(text: str, kind: str = "srun") -> str:
    return read_line(REDACTOR, kind, text.encode()).line.decode()


def stored(kind: str, text: str) -> str:
    """A text of several lines, as it is stored."""
    opened: Open | None = None
    lines = []
    for raw in text.encode().split(b"\n"):
        line, _, opened = read_line(REDACTOR, kind, raw, opened)
        lines.append(line)
    return b"\n".join(lines).decode()


def gated(line: bytes) -> bool:
    return bool(pc.match_substring_regex(pa.array([line], pa.large_binary()), REDACTOR.gate)[0].as_py())


@pytest.mark.parametrize(("line", "becomes"), SECRETS)
def test_the_name_stays_and_the_value_becomes_stars(line: str, becomes: str) -> None:
    assert redacted(line) == becomes
    assert gated(line.encode())
    assert read_line(REDACTOR, "srun", line.encode()).found


@pytest.mark.parametrize("line", INNOCENT)
def test_what_only_looks_like_a_secret_stays(line: str) -> None:
    for kind in ("training", "job_script", "slurmctld"):
        assert read_line(REDACTOR, kind, line.encode()) == (line.encode(), False, None)


def test_the_examples_of_the_default_rules_hold() -> None:
    assert failures(RedactionConfig()) == []


@pytest.mark.parametrize(
    ("kind", "text", "becomes"),
    [
        ("job_env", "A=1\nMY_PASSWORD=a b\nc=\nd e\nPATH=/bin", "A=1\nMY_PASSWORD=***\nc=\nd e\nPATH=/bin"),
        ("job_env", "MY_PASSWORD=a b\n c d\n\ne f\nPATH=/bin", "MY_PASSWORD=***\n***\n\n***\nPATH=/bin"),
        ("job_env", "AWS_REGION=eu\nAZURE_X=y\nSORT_KEY=z", "AWS_REGION=***\nAZURE_X=***\nSORT_KEY=***"),
        ("job_env", "A=1\0HF_TOKEN=a b\nc\0PATH=/bin", "A=1\0HF_TOKEN=***\n***\0PATH=/bin"),
        ("job_env", "export HF_TOKEN='a\nb'\nexport A='x y'", "export HF_TOKEN='***\n***'\nexport A='x y'"),
        ("job_env", 'declare -x DB_SECRET="a\\"b"\ndeclare -x A="x"', 'declare -x DB_SECRET="***"\ndeclare -x A="x"'),
        ("job_env", "X_TOKEN=Zm9v\nYk1TcA==\nYkTA=\nEMPTY=", "X_TOKEN=***\n***\n***\nEMPTY="),
        ("job_env", "X_TOKEN=\nA=b", "X_TOKEN=\nA=b"),
        ("job_env", "BASH_FUNC_x%%=() {  echo a\n}\nA=b", "BASH_FUNC_x%%=() {  echo a\n}\nA=b"),
        ("job_script", 'PASSWORD="ab\ncd ef"\necho gh', 'PASSWORD="***\n***"\necho gh'),
        ("job_script", "HF_TOKEN=abc python train.py", "HF_TOKEN=*** python train.py"),
        ("job_script", "grep 'token=\"' x\necho a", "grep 'token=\"***\necho a"),
        ("training", "HF_TOKEN=abc def", "HF_TOKEN=***"),
    ],
)
def test_values_end_where_their_sort_of_file_ends_them(kind: str, text: str, becomes: str) -> None:
    assert stored(kind, text) == becomes


LONG = "x" * 50
CUTS = (
    ("HF_TO", "KEN=", "Zq7abc def"),
    ("a HF_TOKEN=Zq7", "abc", "d e"),
    ('f(password=\\"Zq7', "ab c", 'd\\", x)'),
    ("Authorization: Bea", "rer Zq7", "abc0123456"),
    (f"{LONG} --password ", "Zq7abc", "d"),
)


@pytest.mark.parametrize("pieces", CUTS)
@pytest.mark.parametrize("kind", ["pod", "docker"])
def test_a_secret_that_a_carrier_cut_is_one(kind: str, pieces: tuple[str, ...]) -> None:
    def line(text: str, last: bool) -> bytes:
        if kind == "pod":
            return f"2025-03-04T05:06:07.1Z stdout {'F' if last else 'P'} {text}".encode()
        return f'{{"log":"{text}{"@n" if last else ""}","stream":"stdout"}}'.replace("@", "\\").encode()

    opened: Open | None = None
    got = b""
    for number, text in enumerate(pieces):
        clean, _, opened = read(REDACTOR, kind, line(text, number == len(pieces) - 1), opened)
        got += clean + b"\n"
    assert opened is None
    joined = re.sub(rb"^.* [PF] |^\{\"log\":\"|\",\"stream.*$|\n", b"", got, flags=re.MULTILINE).decode()
    for secret in ("Zq7abc", "abcd", "abc0123456"):
        assert secret not in joined


def test_a_piece_without_a_secret_stays() -> None:
    opened: Open | None = None
    for raw in (b"2025-03-04T05:06:07.1Z stdout P tok", b"2025-03-04T05:06:07.1Z stdout F ens/s 5 and more"):
        clean, found, opened = read(REDACTOR, "pod", raw, opened)
        assert (clean, found) == (raw, False)


def test_the_journal_s_bytes_are_read_as_text() -> None:
    numbers = ",".join(map(str, b"\x1b[1mMY_SECRET=Zq7abc\nnext"))
    raw = f'{{"MESSAGE":[{numbers}],"n":[1,2,3],"big":[1,999]}}'.encode()
    clean, found, _ = read(REDACTOR, "journal", raw)
    text = bytes(json.loads(clean)["MESSAGE"])
    assert (text, found) == (b"\x1b[1mMY_SECRET=***\nnext", True)
    assert clean.endswith(b',"n":[1,2,3],"big":[1,999]}')


BODY = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj", "Zm9vYmFy" * 8, "kdJg=="]
KEY = ["-----BEGIN RSA PRIVATE KEY-----", *BODY, "-----END RSA PRIVATE KEY-----"]


@pytest.mark.parametrize(
    ("kind", "carrier"),
    [
        ("training", "{}"),
        ("job_script", "    {}"),
        ("srun", "3: {}"),
        ("training", "[1,3]<stdout>:{}"),
        ("pod", "2025-03-04T05:06:07.123456789Z stdout F {}"),
        ("docker", '{{"log":"{}\\n","stream":"stdout","time":"2025-03-04T05:06:07.123456789Z"}}'),
        ("syslog", "Mar  4 05:06:07 gpu-a01 app[12]: {}"),
        ("job_env", "{}"),
    ],
)
def test_a_private_key_of_several_lines_leaves_its_frame_and_its_carrier(kind: str, carrier: str) -> None:
    lines = [carrier.format(text) for text in ["epoch 1 of 3", *KEY, "the next line stays"]]
    expected = [
        carrier.format(re.sub("^.*$", "***", text) if text in BODY else text) for text in ["epoch 1 of 3", *KEY]
    ]
    assert stored(kind, "\n".join(lines)).split("\n") == [*expected, carrier.format("the next line stays")]


def test_a_key_that_never_ends_harms_few_lines() -> None:
    text = "\n".join([KEY[0], *["step 41: loss 2.13 of abcdefghijklmnopqrstuvwxyz"] * 500])
    assert stored("training", text).split("\n")[-1] == "step 41: loss 2.13 of abcdefghijklmnopqrstuvwxyz"
    many = "\n".join([KEY[0], *["loss went down"] * 50, KEY[1]])
    assert stored("training", many) == many


NAMES = ("DB_PASSWORD", "api_key", "clientSecret", "HF_TOKEN", "x-api-key", "hfToken", "SSH_PASSPHRASE")
WORD = st.text(string.ascii_letters + string.digits + "_+/=.~^#%@!?:*-", min_size=6, max_size=60).map(
    lambda s: "Zq7" + s
)
FRAMES = (
    "{name}={value}",
    "export {name}={value}",
    "+ export {name}='{value}'",
    "--{name} {value}",
    "--{name}={value}",
    "cmd --{name} '{value}' --x",
    '{{"{name}": "{value}"}}',
    '"a": 1, "{name}":"{value}", "b": 2',
    "['--{name}', '{value}']",
    "f({name}='{value}', b=1)",
    "{name}: {value}",
    '{{"log":"{name}={value}\\n","stream":"stdout"}}',
    "https://user:{url}@host/x",
    "Authorization: Bearer {value}",
    "sshpass -p {value} ssh x",
)
SURROUNDINGS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\"'\\$-`{<"), max_size=30)


@given(st.sampled_from(FRAMES), st.sampled_from(NAMES), WORD, SURROUNDINGS, SURROUNDINGS)
def test_a_secret_in_any_surroundings_never_survives(frame: str, name: str, value: str, left: str, right: str) -> None:
    url = re.sub(r"[/?#]", "x", value)
    body = frame.format(name=name, value=value, url=url)
    line = f"{left} {body} {right}"
    got = redacted(line)
    assert (url if "{url}" in frame else value) not in got
    assert gated(line.encode())


PIECES = ("token=", '"', "'", "\\", " ", "***", "password: ", "\0", *(line for line, _ in SECRETS), *INNOCENT, *KEY)
ANY = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=8).map("".join).map(str.encode)
BINARY = st.binary(max_size=80).map(b"password=".__add__)
KINDS = st.sampled_from(("training", "job_script", "job_env", "pod"))


@given((ANY | BINARY).map(lambda raw: raw.replace(b"\n", b"")), KINDS)
@example(b"\xff\xfe token=\xff\xfe\x00 x", "training")
def test_twice_is_once_and_no_line_grows_without_bound(raw: bytes, kind: str) -> None:
    once = read_line(REDACTOR, kind, raw)
    assert read_line(REDACTOR, kind, once.line).line == once.line
    assert len(once.line) <= 3 * len(raw) + 3
    assert b"\n" not in once.line
    if once.line != raw:
        assert once.found
        assert gated(raw) or kind == "job_env"


REPEATED = (
    "token=", "token=$", 'token="', "password: ", '\\"token\\":', "'token', '", "${TOKEN:-", "key=a,", "secret_", "A",
    "eyJhbGciOi", "sk-", "SG.", "https://a:", "Authorization: ", "login x password ",
    "mysql -p ", "docker login -p ", "curl -u ",
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----",
)  # fmt: skip


@pytest.mark.timeout(30)  # what is quadratic takes minutes here
@pytest.mark.parametrize("piece", REPEATED)
def test_half_a_megabyte_in_one_line_is_read_to_its_end(piece: str) -> None:
    raw = (piece * ((1 << 19) // len(piece))).encode() + b" HF_TOKEN=Zq7abc"
    assert b"Zq7abc" not in read_line(REDACTOR, "training", raw).line


@pytest.mark.parametrize(
    ("name", "words"),
    [("HFToken", "hf_token"), ("apiKey", "api_key"), ("AWS_ACCESS_KEY", "aws_access_key"), ("--x-key", "x_key")],
)
def test_names_are_compared_in_words(name: str, words: str) -> None:
    assert in_words(name) == words


OWN = RedactionConfig.model_validate(
    {
        "names": ["CLUSTER_PIN"],
        "innocent_names": ["lobby_token"],
        "rules": [
            {
                "name": "ticket",
                "regex": "PT-(?P<secret>[0-9A-F]{8})",
                "tests": [{"line": "PT-0123ABCD", "becomes": "PT-***"}],
            }
        ],
        "tests": [{"line": "lobby_token=abc"}, {"line": "clusterPin: '1234'", "becomes": "clusterPin: '***'"}],
    }
)


def test_own_names_and_rules_hold_and_are_tested() -> None:
    assert failures(OWN) == []
    own = line_redactor(OWN.redaction().rules)
    assert own.line(b"--cluster-pin 4711 PT-0123ABCD").line == b"--cluster-pin *** PT-***"


def test_a_test_that_fails_says_which_and_shows_no_secret() -> None:
    wrong = RedactionConfig.model_validate({"tests": [{"line": "pin c0rrect", "becomes": "pin ***"}]})
    (said,) = failures(wrong)
    assert "tests" in said
    assert "pin ***" in said
    assert "c0rrect" not in said


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"name": "r", "regex": "("}, "regex of r"),
        ({"name": "r", "regex": "(?<=a)b"}, "needs a gate"),
        ({"name": "r", "regex": "a*"}, "matches nothing at all"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(rule: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SecretRule.model_validate(rule)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="unknown kind jobenv"):
        RedactionConfig(skip_kinds=("jobenv",))
