"""`hpckit data bench`: real measurements, of which only the form can be checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.data_commands import document, hpckit, refused, write_shards

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


def test_bench_measures_every_way(shards: Path) -> None:
    told = document(
        *("bench", shards, "--seconds", 0.2, "--rounds", 1, "--batch", 16, "--step-ms", 5),
        *("--against", "webdataset"),
    )
    assert set(told["arms"]) == {"raw read", "hpckit", "webdataset"}
    for name, arm in told["arms"].items():
        assert len(arm["rounds"]) == 1
        assert arm["mb_per_s"] > 0
        if name != "raw read":
            assert 0 <= arm["wait_share"] <= 1
            assert name != "hpckit" or all(one["samples"] % 16 == 0 for one in arm["rounds"])
            assert all(one["bytes"] == 3000 * one["samples"] for one in arm["rounds"])
    assert told["arms"]["raw read"]["of_raw"] == 1
    said = told["diagnosis"]  # the latter on a machine so slow that there was no second one
    assert "waiting for data" in said or said.startswith("the first batch took")


def test_bench_for_people(shards: Path) -> None:
    told = hpckit(
        *("bench", shards, "--seconds", 0.1, "--rounds", 2, "--threads", 1, "--prefetch", 1)
    )
    assert told.exit_code == 0
    assert "samples/s" in told.stdout
    assert "hpckit" in told.stdout


def test_refusals_of_bench(tmp_path: Path, shards: Path) -> None:
    refused("bench", tmp_path / "none", says="no shards")
    refused("bench", shards, "--against", "other", says="unknown; choose webdataset")
    refused("bench", shards, "--cache", tmp_path, says="must be given together")
    refused("bench", shards, "--cache-bytes", "1GB", says="must be given together")


def test_the_help_loads_no_pipeline() -> None:
    program = (
        "import sys; from hpckit.cli.main import app\n"
        "names = [n for n in sys.modules if n.split('.')[0] in ('torch', 'obstore', 'webdataset')"
        " or n.startswith(('data.read', 'data.cache', 'data.order', 'data.source'))]\n"
        "print(names)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
