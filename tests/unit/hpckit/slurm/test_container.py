"""The exact commands by which an agent gets into a container, and what it sees there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpckit.config.spec import RunSpec
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import srun
from hpckit.slurm.container import inside
from hpckit.slurm.container_mounts import mount_problems, python_folders, shared_folders
from hpckit.submit.preflight.checks import with_absolute_paths
from hpckit.supervisor.agents.agent_launch import run_container
from hpckit.system.dataset_folder import data_folder
from tests.unit.hpckit.specs_and_processes import make_spec

RUN = RunDir(Path("/runs/gpt-0a1b2c3d"))
HOST = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=n1", "--overlap", "--mem=0", "--export=ALL"]
HOST += ["--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--quiet"]
HOST += ["--job-name=hpckit-agent"]
AGENT = ["env", "HPCKIT_NODE=0", "HPCKIT_RUN=/runs/it's", "python", "-m", "agent"]


def site(kind: str, changes: dict[str, Any] | None = None) -> RunSpec:
    return make_spec({"data.shards": "/data/a/{000..9}.tar", **(changes or {})}, f"site_{kind}")


def command(spec: RunSpec) -> list[str]:
    variables = {"HPCKIT_RUN": "/runs/it's", "HPCKIT_NODE": "0"}
    return srun("n1", variables, ["python", "-m", "agent"], run_container(spec, RUN))


def test_without_a_container_the_command_is_as_it_was() -> None:
    assert command(make_spec({}, "slurm")) == [*HOST, *AGENT]


def test_pyxis_is_an_affair_of_srun() -> None:
    spec = site("pyxis", {"cluster.slurm.container.options": ["--container-writable"]})
    assert command(spec) == [
        *HOST,
        "--container-image=nvcr.io#nvidia/pytorch:26.05-py3",
        "--container-mounts=/runs/gpt-0a1b2c3d:/runs/gpt-0a1b2c3d,/data/a:/data/a,"
        "/etc/slurm-topology:/etc/topology:ro",
        "--container-workdir=/runs/gpt-0a1b2c3d",
        "--container-writable",
        *AGENT,
    ]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", []), ("auto", ["--nv"])])
def test_apptainer_is_started_by_srun(device: str, gpus: list[str]) -> None:
    spec = with_absolute_paths(site("apptainer", {"cluster.device": device}), Path("/"))
    assert command(spec) == [
        *(*HOST, "apptainer", "exec", *gpus),
        *("--bind", "/runs/gpt-0a1b2c3d:/runs/gpt-0a1b2c3d"),
        *("--bind", "/data/a:/data/a", "--bind", "/local:/local"),
        *("--pwd", "/runs/gpt-0a1b2c3d", "--cleanenv", "/project/p200/train.sif"),
        *AGENT,
    ]


def test_what_is_told_inside() -> None:
    env = {"PYTHONPATH": "/code", "PYTHONSAFEPATH": "1", "HOME": "/root"}
    sockets = {"HPCKIT_RUNTIME_DIR": f"/tmp/hpckit-{os.getuid()}"}
    assert inside(env) == {"PYTHONPATH": "/code", "PYTHONSAFEPATH": "1", **sockets}
    assert inside({"HPCKIT_RUNTIME_DIR": "/rt"}) == {"HPCKIT_RUNTIME_DIR": "/rt"}


def test_an_environment_is_mounted_with_what_it_was_made_from(tmp_path: Path) -> None:
    """And the same of an installation alone is one folder."""
    base, env = tmp_path / "python-3.11", tmp_path / "env"
    for folder in (base, env):
        (folder / "bin").mkdir(parents=True)
    (base / "bin" / "python3.11").touch()
    (env / "bin" / "python").symlink_to(base / "bin" / "python3.11")
    (env / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.11.7\n")
    assert set(python_folders(str(env / "bin" / "python"))) == {base, env}
    assert set(python_folders(str(base / "bin" / "python3.11"))) == {base}
    (tmp_path / "link").symlink_to(env)
    linked = tmp_path / "link" / "bin" / "python"
    assert set(python_folders(str(linked))) == {base, env, tmp_path / "link"}
    spec = site("apptainer", {"cluster.slurm.container.python": None})
    container = run_container(spec, RUN)
    assert container is not None
    assert f"{sys.prefix}:{sys.prefix}" in container.mounts
    assert container.interpreter("/the/one") == "/the/one"


@pytest.mark.parametrize(
    ("shards", "folder"),
    [
        ("/data/a", "/data/a"),
        ("/data/a.tar", "/data"),
        ("/data/train.bin", "/data"),
        ("/data/*/x-{0..9}.tar", "/data"),
        ("/data/b[0-9]/x", "/data"),
        ("s3://bucket/x-{0..9}.tar", None),
    ],
)
def test_the_folder_of_the_data(shards: str, folder: str | None) -> None:
    assert data_folder(shards) == (folder and Path(folder))


def test_what_lies_in_another_mount_has_none_of_its_own() -> None:
    changes = {"data.shards": "/runs/gpt-0a1b2c3d/data", "checkpoint.url": "file:///store"}
    container = run_container(site("apptainer", changes), RUN)
    assert container is not None
    assert [mount.partition(":")[0] for mount in container.mounts] == [
        *("/runs/gpt-0a1b2c3d", "/store", "/local")
    ]
    assert shared_folders(site("apptainer", changes), RUN) == [RUN.path, Path("/store")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.shards": "/*.tar"}, "data.shards: / cannot be mounted over the image's own"),
        ({"checkpoint.url": "/store,1"}, "checkpoint.url: /store,1 cannot be mounted: its name"),
        ({"checkpoint.local": "/var/me"}, "checkpoint.local: /var cannot be mounted over"),
        ({"cluster.slurm.scratch": "/a:b"}, "cluster.slurm.scratch: /a:b cannot be mounted: its"),
        (
            {"cluster.slurm.container.python": None, "cluster.slurm.python": "/usr/bin/nopython"},
            "cluster.slurm.container.python: /usr cannot be mounted over the image's own folder; "
            "set it to an interpreter of the image",
        ),
    ],
)
def test_what_cannot_be_seen_inside_is_refused(changes: dict[str, Any], said: str) -> None:
    assert mount_problems(site("apptainer"), RUN) == []
    found = mount_problems(site("apptainer", changes), RUN)
    assert found
    assert found[0].startswith(said)


def test_paths_of_a_site_are_taken_from_where_one_is() -> None:
    image = "cluster.slurm.container.image"
    for kind, given, expected in (
        ("apptainer", "a.sif", "/base/a.sif"),
        ("apptainer", "docker://a/b", "docker://a/b"),
        ("pyxis", "./a.sqsh", "/base/a.sqsh"),
        ("pyxis", "ubuntu", "ubuntu"),
    ):
        slurm = with_absolute_paths(site(kind, {image: given}), Path("/base")).cluster.slurm
        assert slurm is not None
        assert slurm.container is not None
        assert slurm.container.image == expected


def test_the_spool_is_on_the_scratch_disk_unless_it_is_elsewhere() -> None:
    local = [
        with_absolute_paths(site("gres", {"checkpoint.local": given}), Path("/")).checkpoint.local
        for given in (None, "/nvme/me")
    ]
    assert local[0] is not None
    assert Path(local[0]).parent == Path("/scratch/local")
    assert local[1] == "/nvme/me"
