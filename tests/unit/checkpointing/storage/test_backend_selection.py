from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.errors import StoreError
from checkpointing.storage import open_storage
from checkpointing.storage.fsspec.fsspec_storage import FsspecStorage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.storage.s3.s3_storage import S3Storage

NOWHERE = {"endpoint": "http://127.0.0.1:1", "region": "us-east-1"}


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for url in ("~/a b", "./a b", f"{tmp_path}/a b/", f"file://{tmp_path}/a%20b"):
        storage = open_storage(url)
        assert isinstance(storage, PosixStorage)
        assert storage.url == f"{tmp_path}/a b"
    assert open_storage(f"file://localhost{tmp_path}").url == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_serves_which_url() -> None:
    s3, s3fs = (open_storage("s3://bucket/a/", options={**NOWHERE, "client": c}) for c in CLIENTS)
    assert isinstance(s3, S3Storage)
    assert isinstance(s3fs, FsspecStorage)
    assert s3.url == s3fs.url == "s3://bucket/a"
    assert isinstance(open_storage("memory://a"), MemoryStorage)


CLIENTS = ("obstore", "s3fs")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nfs4://host/path", "unknown scheme 'nfs4'"),
        ("https://host/path", "supports neither these nor a rename"),
        ("file://host/path", "file:///host/path"),
        ("", "the path of the store is empty"),
        ("s3://", "s3://bucket/folder"),
        ("s3://bucket/a b", "object key 'a b'"),
        ("s3://key:secret@bucket/a", "without credentials"),
    ],
)
def test_urls_that_cannot_be(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["/tmp/x", "memory://x"])
def test_options_for_nothing_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="endpoint"):
        open_storage(url, options={"endpoint": "x"})


@pytest.mark.parametrize("package", ["obstore", "s3fs"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StoreError, match=f"pip install {package}"):
        open_storage("s3://bucket/a", options={"client": package})


def test_a_missing_driver_is_named() -> None:
    missing = "import sys; sys.modules['paramiko'] = None\n"
    program = (
        f"{missing}from checkpointing.storage import open_storage\n"
        "try: open_storage('sftp://me:secret@host/a')\n"
        "except RuntimeError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert b"paramiko" in said
    assert b"sftp://me@host/a" in said
    assert b"secret" not in said


@pytest.mark.parametrize(
    ("url", "wanted"), [("/tmp/x", ""), ("memory://x", ""), ("s3://bucket/x", "obstore")]
)
def test_only_what_is_needed_is_imported(url: str, wanted: str) -> None:
    program = (
        "import sys\n"
        "from checkpointing.storage import open_storage\n"
        f"open_storage({url!r})\n"
        "heavy = {'aiobotocore', 'botocore', 'fsspec', 'obstore', 's3fs'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert run.stdout.strip() == wanted


def test_an_s3_store_obeys_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "ftp://wrong")
    with pytest.raises(StoreError, match="ftp://wrong"):
        open_storage("s3://bucket/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://right")
    assert open_storage("s3://bucket/a").url == "s3://bucket/a"
    assert os.environ["AWS_ENDPOINT_URL"] == "ftp://wrong"
