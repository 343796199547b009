"""A run whose agents and workers are in real containers of pyxis and enroot.

`HPCKIT_TEST_PYXIS` names a plugstack.conf that loads the plugin, which has to be built for the
Slurm of the cluster; enroot is on the path. `HPCKIT_TEST_IMAGE` names a squashfs file; without it,
mksquashfs makes an empty image, which gets this machine's /usr.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.rundir.directory import RunDir
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm
from tests.cluster.test_apptainer import make_image
from tests.integration.run.runs import assert_same_run


@pytest.fixture
def with_pyxis(tmp_path: Path) -> Iterator[Slurm]:
    plugins = os.environ.get("HPCKIT_TEST_PYXIS")
    if plugins is None:
        pytest.skip("HPCKIT_TEST_PYXIS names no plugstack.conf")
    need("ports")
    chosen = options("ports", nodes=2)
    chosen = replace(chosen, settings=(*chosen.settings, f"PlugStackConfig={plugins}"))
    with guard.cluster(tmp_path / "c", chosen) as cluster:
        yield Slurm(cluster)


@pytest.fixture
def image(tmp_path: Path) -> tuple[str, str]:
    """The image, and what to mount into it."""
    if (given := os.environ.get("HPCKIT_TEST_IMAGE")) is not None:
        return given, ""
    made = tmp_path / "image.sqsh"
    quiet = ("-quiet", "-no-progress")
    subprocess.run(["mksquashfs", make_image(tmp_path / "image"), made, *quiet], check=True)
    return str(made), "'/usr:/usr'"


@pytest.mark.thorough  # pyxis and enroot have to be built and installed
def test_a_run_in_containers_of_pyxis_recovers_there_and_has_the_same_losses(
    with_pyxis: Slurm, tmp_path: Path, shards: Path, reference: RunDir, image: tuple[str, str]
) -> None:
    path, mounts = image
    given = f"kind: pyxis, image: {path}, mounts: [{mounts}], python: null, options: []"
    container = f"cluster.slurm.container={{{given}}}"
    it = launch(with_pyxis, tmp_path / "runs", shards, UNHURRIED, "hang=none", container)
    it.wait_for_step(21)
    with it.paused():
        pids = [event["pid"] for event in it.events("worker_started")]
        assert [Path(f"/proc/{pid}/root").samefile("/") for pid in pids] == [False, False]
    victims(str(it.run.path), ProcessFault.WORKER, 1)[0].kill()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert len(it.events("worker_lost")) >= 1
    assert it.verdicts() == ["done"], "the rank was replaced within the generation"
