"""What tests share: a folder in which all of a test's services are; shards, and who serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.service.client import service_client
from tests.integration.cli.data_commands import write_shards
from tests.integration.rank_worlds import CLAIM_S
from tests.integration.service.service_nodes import end_all, note_memfds
from tests.services.range_server import RangeServer, range_server


@pytest.fixture(scope="session", autouse=True)
def _patient_saves() -> Iterator[None]:
    """A service is nice to all other processes of a busy machine: a save waits until it answers,
    unless a test says for how long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service_client, "CLAIM_S", CLAIM_S)
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Services whose sockets are below it are ended after the test."""
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / "rt"))
    note_memfds()
    yield tmp_path
    end_all(tmp_path / "rt")


@pytest.fixture
def store(folder: Path) -> Path:
    return folder / "store"


@pytest.fixture
def runtime(folder: Path) -> Path:
    return folder / "rt"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards on this machine, which a test leaves as they are: see `write_shards`."""
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def server() -> Iterator[RangeServer]:
    """Serves nothing yet."""
    with range_server() as server:
        yield server
