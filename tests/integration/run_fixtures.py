"""Data and a reference run that the tests of whole runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from data import pack_folder, python_stdlib
from hpckit.run.directory import RunDir
from tests.integration.runs import command, complete


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 120 sources of the standard library, in shards of 50."""
    out = tmp_path_factory.mktemp("data") / "encodings"
    pack_folder(python_stdlib()[0] / "encodings", out, suffixes=(".py",), samples_per_shard=50)
    return out


@pytest.fixture(scope="session")
def reference(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run on two nodes that nothing ever interrupted."""
    root = tmp_path_factory.mktemp("reference")
    status, output = complete(root, command(root, shards))
    assert status == 0, output
    return RunDir(next(root.glob("t-*")))
