"""What tests of the checkpoint service share: a folder in which all of a test's services are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service_nodes import end_all, note_memfds


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
