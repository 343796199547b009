"""What workers find in their environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpckit.agent.workers.worker_environment import cache_variables, site_variables
from tests.unit.hpckit.specs_and_processes import make_spec


def test_variables_of_the_site() -> None:
    changes = {"cluster.slurm.env": {"A": "x y", "N": 2}, "cluster.slurm.interface": "ib0,ib1"}
    slurm = make_spec(changes, "slurm").cluster.slurm
    assert slurm is not None
    assert site_variables(slurm) == {
        **{"A": "x y", "N": "2"},
        **{"NCCL_SOCKET_IFNAME": "ib0,ib1", "GLOO_SOCKET_IFNAME": "ib0,ib1"},
    }


def test_caches_are_the_users_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = cache_variables(str(tmp_path))
    folder = tmp_path / f"hpckit-cache-{os.getuid()}"
    assert {Path(path).parent for path in found.values()} == {folder}
    folder.chmod(0o777)
    assert cache_variables(str(tmp_path)) == {}
    assert "mode 0700" in caplog.text
    assert cache_variables(str(tmp_path / "none")) == {}
