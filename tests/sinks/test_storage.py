"""The object stores keep whole objects, refuse odd keys, and say what a person must change."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sinks.errors import Misconfigured, RetryLater
from sinks.storage import StorageConfig, open_storage
from tests.services.process import free_port
from tests.services.table import needs_real


def test_an_object_is_read_back_listed_and_found(storage: StorageConfig) -> None:
    store = open_storage(storage)
    store.put_bytes(b"one", "landing/g000001/0000/000000000001.parquet")
    store.put_bytes(b"two", "landing/g000001/0001/000000000001.parquet")
    store.put_bytes(b"no", "landing.parquet")
    assert store.get("landing/g000001/0000/000000000001.parquet") == b"one"
    assert list(store.keys("landing")) == [
        "landing/g000001/0000/000000000001.parquet",
        "landing/g000001/0001/000000000001.parquet",
    ]
    assert store.exists("landing.parquet")
    assert not store.exists("landing")
    assert not store.exists("landing/g000001/0000/000000000001.par")
    with pytest.raises(KeyError):
        store.get("landing/g000001/0000/000000000002.parquet")


def test_a_file_larger_than_one_part_arrives_whole_and_replaces_the_object(
    storage: StorageConfig, tmp_path: Path
) -> None:
    store = open_storage(storage)
    body = os.urandom(1 << 20) * 37
    (tmp_path / "spool").write_bytes(body)
    store.put_bytes(b"old", "a/object")
    store.put_file(tmp_path / "spool", "a/object")
    assert store.get("a/object") == body
    assert list(store.keys("a")) == ["a/object"]
    assert (tmp_path / "spool").read_bytes() == body


def test_a_reader_of_a_local_object_keeps_the_whole_old_one_while_it_is_replaced(local_storage: StorageConfig) -> None:
    store = open_storage(local_storage)
    store.put_bytes(b"old and whole", "a/object")
    with (Path(local_storage.url) / "a/object").open("rb") as reader:
        store.put_bytes(b"new", "a/object")
        assert reader.read() == b"old and whole"
    assert [path.name for path in Path(local_storage.url, "a").iterdir()] == ["object"]


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/.", ".hidden", "a b", "a\n", "ü", "a/", "a\\b"])
def test_a_key_that_is_not_made_of_our_names_is_refused(local_storage: StorageConfig, key: str) -> None:
    with pytest.raises(ValueError, match="not an object key"):
        open_storage(local_storage).put_bytes(b"", key)


def test_a_half_written_file_is_not_seen_and_is_discarded_with_its_shard(local_storage: StorageConfig) -> None:
    store = open_storage(local_storage)
    store.put_bytes(b"whole", "landing/g000001/0000/000000000001.parquet")
    store.put_bytes(b"whole", "landing/g000001/0001/000000000001.parquet")
    mine, other = (
        Path(local_storage.url) / f"landing/g000001/{shard}/.000000000002.parquet.partial" for shard in ("0000", "0001")
    )
    mine.write_bytes(b"half")
    other.write_bytes(b"half")
    assert len(list(store.keys("landing"))) == 2
    store.discard_partial("landing/g000001/0000")
    assert not mine.exists()
    assert other.exists()
    assert len(list(store.keys("landing"))) == 2


def test_unfinished_uploads_of_a_killed_process_are_aborted_with_their_shard(
    s3_storage: StorageConfig, s3: Any
) -> None:
    bucket = s3_storage.url.split("/")[2]
    client = s3.client()
    for shard in ("0000", "0001"):
        client.create_multipart_upload(Bucket=bucket, Key=f"logs/tier/landing/g000001/{shard}/000000000007.parquet")
    open_storage(s3_storage).discard_partial("landing/g000001/0000")
    left = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [upload["Key"] for upload in left] == ["logs/tier/landing/g000001/0001/000000000007.parquet"]


def test_check_passes_on_a_store_that_works(storage: StorageConfig) -> None:
    open_storage(storage).check()


def test_check_names_a_missing_bucket(s3_storage: StorageConfig) -> None:
    store = open_storage(s3_storage.model_copy(update={"url": "s3://not-there-9f3/logs"}))
    with pytest.raises(Misconfigured, match=r"s3://not-there-9f3 .*create the bucket or correct storage\.url"):
        store.check()


def test_check_names_a_denied_credential_and_keeps_it_secret(
    s3_storage: StorageConfig, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_real(s3, "a denied key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-51")
    with pytest.raises(Misconfigured, match=r"correct the secret key|allow these credentials") as caught:
        open_storage(s3_storage).check()
    assert "wrong-secret-51" not in str(caught.value)


def test_check_names_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    endpoint = f"http://127.0.0.1:{free_port()}"
    config = StorageConfig(url="s3://logs", endpoint_url=endpoint, region="eu-1", timeout_s=2)
    with pytest.raises(Misconfigured, match=rf"{endpoint} cannot be reached .*check storage\.endpoint_url"):
        open_storage(config).check()


def test_check_names_an_endpoint_that_is_no_address() -> None:
    with pytest.raises(Misconfigured, match=r"storage\.endpoint_url: .*http://host:port"):
        open_storage(StorageConfig(url="s3://logs", endpoint_url="minio:9000", region="eu-1")).check()


def test_check_names_missing_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    config = StorageConfig(url="s3://logs", endpoint_url="http://127.0.0.1:1", region="eu-1")
    with pytest.raises(Misconfigured, match="set the usual AWS variables or a profile"):
        open_storage(config).check()


def test_check_names_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for url, named in ((tmp_path / "file", "file"), (tmp_path / "file" / "archive", "file"), (Path("/proc/x"), "x")):
        with pytest.raises(Misconfigured, match=rf"{url.parent if named == 'x' else tmp_path}/{named}: "):
            open_storage(StorageConfig(url=str(url))).check()


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "gs://bucket/x", "s3://bucket/../x", "http://host/x"])
def test_an_address_of_no_known_store_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="neither a directory nor"):
        open_storage(StorageConfig(url=url))


class Answers:
    """A server that gives these statuses in turn (the last one for ever) and remembers what it was asked."""

    def __init__(self, *statuses: int) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                self.send_response(statuses[min(len(outer.asked), len(statuses)) - 1])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def storage(self, **values: Any) -> StorageConfig:
        endpoint = f"http://127.0.0.1:{self.server.server_port}"
        return StorageConfig(url="s3://logs/tier", endpoint_url=endpoint, region="eu-1", path_style=True, **values)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    started: list[Answers] = []

    def start(*statuses: int) -> Answers:
        started.append(Answers(*statuses))
        return started[-1]

    yield start
    for server in started:
        server.server.shutdown()
        server.server.server_close()


def test_a_store_that_recovers_gets_the_object(answers: Any, tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"x")
    for put in (
        lambda store: store.put_bytes(b"x", "k"),
        lambda store: store.put_file(tmp_path / "spool", "k"),
    ):
        server = answers(503, 500, 200)
        put(open_storage(server.storage(retry_for_s=60)))
        assert [path for path, _ in server.asked] == ["/logs/tier/k"] * 3


def test_a_store_that_stays_down_is_given_up_and_named(answers: Any) -> None:
    server = answers(503)
    with pytest.raises(RetryLater, match=r"storing k in s3://logs: gave up .* answered 503"):
        open_storage(server.storage(retry_for_s=0.3)).put_bytes(b"x", "k")


def test_a_refusal_is_not_repeated(answers: Any) -> None:
    server = answers(403)
    with pytest.raises(Misconfigured, match="allow these credentials"):
        open_storage(server.storage(retry_for_s=60)).put_bytes(b"x", "k")
    assert len(server.asked) == 1


def test_encryption_is_asked_of_the_server(answers: Any, tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"x")
    server = answers(200)
    store = open_storage(server.storage(sse="aws:kms", sse_kms_key_id="key-1"))
    store.put_bytes(b"x", "k")
    store.put_file(tmp_path / "spool", "k")
    for _, headers in server.asked:
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert len(server.asked) == 2
