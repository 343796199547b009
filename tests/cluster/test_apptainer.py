"""A run whose agents and workers are in a real container of apptainer.

`HPCKIT_TEST_IMAGE` names the image, such as a folder with another distribution. Without it, the
image is an empty one with this machine's /usr.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.rundir.directory import RunDir
from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm
from tests.integration.run.runs import assert_same_run

_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "home", "run", "var/tmp")
_LINKS = ("bin", "sbin", "lib", "lib64")


def make_image(folder: Path) -> Path:
    """An image with empty folders and one user, for this machine's /usr to be mounted into."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in _LINKS:
        (folder / name).symlink_to(f"usr/{name}")
    user = f"root:x:{os.getuid()}:{os.getgid()}::/root:/bin/sh\n"
    (folder / "etc" / "passwd").write_text(user)
    (folder / "etc" / "group").touch()
    return folder


@pytest.fixture
def image(tmp_path: Path) -> tuple[str, str]:
    """The image, and the options of apptainer for it."""
    if (given := os.environ.get("HPCKIT_TEST_IMAGE")) is not None:
        return given, "--userns"
    return str(make_image(tmp_path / "image")), "--userns, --bind, '/usr:/usr'"


@pytest.mark.thorough  # apptainer has to be installed
def test_a_run_in_a_container_of_apptainer_recovers_there_and_has_the_same_losses(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir, image: tuple[str, str]
) -> None:
    path, options = image
    given = f"kind: apptainer, image: {path}, mounts: [], python: null, options: [{options}]"
    container = f"cluster.slurm.container={{{given}}}"
    it = launch(ports, tmp_path / "runs", shards, UNHURRIED, "hang=none", container)
    it.wait_for_step(21)
    with it.paused():
        workers = [psutil.Process(event["pid"]) for event in it.events("worker_started")]
        assert [one.environ()["APPTAINER_CONTAINER"] for one in workers] == [path] * 2
    victims(str(it.run.path), ProcessFault.WORKER, 1)[0].kill()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert len(it.events("worker_lost")) >= 1
    assert it.verdicts() == ["done"], "the rank was replaced within the generation"
