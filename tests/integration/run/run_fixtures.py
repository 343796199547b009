"""Data and a reference run that the tests of whole runs share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from data import pack_folder, python_stdlib
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import ON_ONE_NODE, command, complete


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 120 sources of the standard library, in shards of 50."""
    out = tmp_path_factory.mktemp("data") / "encodings"
    pack_folder(python_stdlib()[0] / "encodings", out, suffixes=(".py",), samples_per_shard=50)
    return out


@pytest.fixture(scope="session")
def reference(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run on two ranks that nothing ever interrupted; nobody changes anything in it."""

    def train(root: Path) -> None:
        status, output = complete(root, command(root, shards, *ON_ONE_NODE))
        assert status == 0, output

    return RunDir(next(_made_once(tmp_path_factory, "reference", train).glob("t-*")))


def _made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """A folder that the first of xdist's workers to come here fills, for all of them."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    told = place / f"{name}.path"
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
            make(folder)
            told.write_text(str(folder))
    return Path(told.read_text())
