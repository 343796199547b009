"""Nodes of a real Slurm that share their caches, each on a disk and a network of its own."""

from __future__ import annotations

from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm
from tests.integration.run.runs import assert_same_run


def test_nodes_get_shards_from_each_other(
    namespaces: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
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
    steps = it.events("step")
    assert sum(event["data_peer_bytes_per_s"] for event in steps) > 0
