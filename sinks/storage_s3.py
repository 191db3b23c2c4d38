"""A bucket that speaks S3, as an object store."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from sinks.errors import Misconfigured, RetryLater, SinkError
from sinks.storage import CHECK_KEY, StorageConfig, checked, retrying

log = logging.getLogger("tailrace.storage")
T = TypeVar("T")

# What the server said -> what a person does about it. Every other answer below 500 is theirs to read.
_ADVICE = {
    "NoSuchBucket": "create the bucket or correct storage.url",
    "404": "create the bucket or correct storage.url",
    "AccessDenied": "allow these credentials to read and write below the prefix",
    "403": "allow these credentials to read and write below the prefix",
    "InvalidAccessKeyId": "correct the access key",
    "SignatureDoesNotMatch": "correct the secret key",
    "ExpiredToken": "renew the credentials",
    "PermanentRedirect": "set storage.region to the bucket's region",
    "AuthorizationHeaderMalformed": "set storage.region to the bucket's region",
}
_ANSWER_FACTOR = 6  # a server may take that much longer to put the parts of an object together
_PASSING = {"RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling", "OperationAborted", "NoSuchUpload"}


class S3Store:
    """Objects in a bucket, sent by boto3's managed transfer (in parts when large)."""

    def __init__(self, config: StorageConfig, bucket: str, prefix: str) -> None:
        self._config, self._bucket = config, bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = None
        self._extra = {
            name: value
            for name, value in (("ServerSideEncryption", config.sse), ("SSEKMSKeyId", config.sse_kms_key_id))
            if value
        }

    def put_file(self, path: Path, key: str) -> None:
        transfer = TransferConfig(multipart_chunksize=16 << 20, max_concurrency=self._config.upload_threads)
        self._call(
            f"storing {key}",
            lambda client, bucket: client.upload_file(
                str(path), bucket, self._name(key), ExtraArgs=self._extra, Config=transfer
            ),
        )

    def put_bytes(self, data: bytes, key: str) -> None:
        self._call(
            f"storing {key}",
            lambda client, bucket: client.put_object(Bucket=bucket, Key=self._name(key), Body=data, **self._extra),
        )

    def put_new(self, data: bytes, key: str) -> bool:
        def put(client: Any, bucket: str) -> bool:
            if self.exists(key):  # for servers that do not know the condition
                return False
            try:
                client.put_object(Bucket=bucket, Key=self._name(key), Body=data, IfNoneMatch="*", **self._extra)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict"):
                    return False
                raise
            return True

        return self._call(f"storing {key}", put)

    def local(self, key: str, spool: Path) -> Path:
        def read(client: Any, bucket: str) -> Path:
            try:
                with spool.open("wb") as file:
                    client.download_fileobj(bucket, self._name(key), file)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey"):
                    raise KeyError(key) from None
                raise
            return spool

        return self._call(f"reading {key}", read)

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._name(key)}"

    def delete(self, key: str) -> None:
        self._call(f"removing {key}", lambda client, bucket: client.delete_object(Bucket=bucket, Key=self._name(key)))

    def get(self, key: str) -> bytes:
        def read(client: Any, bucket: str) -> bytes:
            try:
                return bytes(client.get_object(Bucket=bucket, Key=self._name(key))["Body"].read())
            except client.exceptions.NoSuchKey:
                raise KeyError(key) from None

        return self._call(f"reading {key}", read)

    def exists(self, key: str) -> bool:
        def first(client: Any, bucket: str) -> bool:
            found = client.list_objects_v2(Bucket=bucket, Prefix=self._name(key), MaxKeys=1).get("Contents", ())
            return any(item["Key"] == self._name(key) for item in found)

        return self._call(f"looking for {key}", first)

    def keys(self, prefix: str) -> Iterator[str]:
        def collect(client: Any, bucket: str) -> list[str]:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=self._name(prefix) + "/")
            return [item["Key"][len(self._prefix) :] for page in pages for item in page.get("Contents", ())]

        yield from self._call(f"listing {prefix}", collect)

    def discard_partial(self, prefix: str) -> None:
        def abort(client: Any, bucket: str) -> None:
            pages = client.get_paginator("list_multipart_uploads").paginate(
                Bucket=bucket, Prefix=self._name(prefix) + "/"
            )
            for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

        try:
            self._call(f"looking for unfinished uploads below {prefix}", abort)
        except Misconfigured as error:
            # They cost storage and nothing else; a bucket rule can end them just as well.
            log.warning("unfinished uploads stay: %s", error)

    def check(self) -> None:
        try:
            self._call(
                "checking the bucket",
                lambda client, bucket: client.put_object(
                    Bucket=bucket, Key=self._name(CHECK_KEY), Body=b"", **self._extra
                ),
                patient=False,
            )
        except SinkError as error:
            raise Misconfigured(str(error)) from error

    def _name(self, key: str) -> str:
        return self._prefix + checked(key)

    def _call(self, what: str, action: Callable[[Any, str], T], patient: bool = True) -> T:
        def once() -> T:
            try:
                if not patient:
                    return action(self._connect(self._config.timeout_s), self._bucket)
                if self._client is None:
                    self._client = self._connect(self._config.timeout_s * _ANSWER_FACTOR)
                return action(self._client, self._bucket)
            except S3UploadFailedError as error:  # boto3 wraps the server's answer
                cause = error.__context__
                raise (self._answered(cause) if isinstance(cause, ClientError) else RetryLater(str(error))) from error
            except ClientError as error:
                raise self._answered(error) from error
            except BotoCoreError as error:
                raise self._unanswered(error) from error

        if not patient:
            return once()
        return retrying(f"{what} in s3://{self._bucket}", self._config.retry_for_s, once)

    def _connect(self, answer_s: float) -> Any:
        config = self._config
        # Checksum trailers, on by default since botocore 1.36, break many S3 servers (boto/boto3#4392).
        checksums = "when_supported" if config.endpoint_url is None else "when_required"
        settings = Config(
            connect_timeout=config.timeout_s,
            read_timeout=answer_s,
            retries={"total_max_attempts": 1},  # `retrying` does it, and says so in the log
            max_pool_connections=config.upload_threads + 4,
            s3={"addressing_style": "path" if config.path_style else "auto"},
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
        )
        try:
            return boto3.session.Session().client(
                "s3", region_name=config.region, endpoint_url=config.endpoint_url, config=settings
            )
        except ValueError as error:
            raise Misconfigured(f"storage.endpoint_url: {error}; write it as http://host:port") from error

    def _answered(self, error: ClientError) -> SinkError:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        place = f"s3://{self._bucket}" + (f" at {self._config.endpoint_url}" if self._config.endpoint_url else "")
        if status >= 500 or status == 429 or code in _PASSING:
            return RetryLater(f"{place} answered {status} {code}")
        advice = _ADVICE.get(code, "see the server's answer")
        return Misconfigured(f"{place} refused: {error}; {advice}")

    def _unanswered(self, error: BotoCoreError) -> SinkError:
        if isinstance(error, HTTPClientError | ConnectionError):
            where = self._config.endpoint_url or "the S3 service"
            return RetryLater(f"{where} cannot be reached ({error}); check storage.endpoint_url and the network")
        return Misconfigured(f"s3://{self._bucket} cannot be used: {error}; set the usual AWS variables or a profile")
