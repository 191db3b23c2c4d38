"""Object stores of both kinds."""

from pathlib import Path
from typing import Any

import pytest

from sinks.storage import StorageConfig


@pytest.fixture
def local_storage(tmp_path: Path) -> StorageConfig:
    return StorageConfig(url=str(tmp_path / "archive"), retry_for_s=0)


@pytest.fixture
def s3_storage(s3: Any, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    """A fresh bucket; its keys are in the environment, where boto3 looks for them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    return StorageConfig(
        url=f"s3://{s3.bucket()}/logs/tier",
        endpoint_url=s3.endpoint,
        region=s3.region,
        path_style=True,
        retry_for_s=0,
        timeout_s=5,
    )


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest) -> StorageConfig:
    found: StorageConfig = request.getfixturevalue(f"{request.param}_storage")
    return found
