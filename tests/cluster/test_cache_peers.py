"""Nodes of a real Slurm that share their caches, each on a disk and a network of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm
from tests.integration.run.runs import assert_same_run
from tests.startup.fork_request import ADDRESS


def test_nodes_get_shards_from_each_other(
    namespaces: Slurm,
    tmp_path: Path,
    shards: Path,
    reference: RunDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And train to the same bits, though each of them has done its imports by itself, with a seed
    of Python's hashes of its own."""
    monkeypatch.setenv(ADDRESS, "0")
    it = launch(
        namespaces,
        tmp_path,
        shards,
        "data.cache=/dev/shm/shards",  # each node has one of its own
        "data.cache_local=true",
        "data.cache_peers=true",
    )
    it.wait_until_over()
    assert it.verdicts() == ["done"]
    assert_same_run(it.run, reference)
    assert not it.events("degraded", subject="cache_peers")
    from_peers = sum(event["data_peer_bytes_per_s"] for event in it.events("step"))
    assert from_peers > 0 or _answered_too_late(it.run)


def _answered_too_late(run: RunDir) -> bool:
    """Whether a node was not asked for a minute, since this machine was too busy for its answer."""
    logs = [path.read_text(errors="replace") for path in run.logs.rglob("rank*.log")]
    return any("is not used for" in log and "timed out" in log for log in logs)
