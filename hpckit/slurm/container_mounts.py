"""The folders of the host that a container mounts under the same path, derived from the spec."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkpointing import local_folder
from hpckit.config.shard_places import shard_places
from hpckit.config.spec import ContainerSpec, RunSpec
from hpckit.rundir.directory import RunDir, checkpoint_root
from hpckit.rundir.run_origin import start_folders
from hpckit.system.dataset_folder import data_folder

# Mounts over these folders would hide the image's programs and libraries.
_IMAGE_FOLDERS = {
    *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin"),
    *("/sys", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/var"),
}
_PYTHON = "cluster.slurm.container.python"


def all_mounts(spec: RunSpec, run: RunDir) -> tuple[str, ...]:
    """Returns the mounts of the run's container as source:target, the derived ones first."""
    container = _container(spec)
    derived = _outermost(path for _, path in _needed(spec, run))
    return (*(f"{path}:{path}" for path in derived), *map(_with_target, container.mounts))


def mount_problems(spec: RunSpec, run: RunDir) -> list[str]:
    """Returns why something that the run needs cannot be mounted; empty if all can."""
    found = [(key, _problem(path)) for key, path in _needed(spec, run)]
    hint = {_PYTHON: "; set it to an interpreter of the image"}
    return [f"{key}: {problem}{hint.get(key, '')}" for key, problem in found if problem]


def shared_folders(spec: RunSpec, run: RunDir) -> list[Path]:
    """Returns the folders that must exist before they are mounted, and may not yet."""
    store = local_folder(checkpoint_root(spec, run))
    return [run.path, *([store] if store else [])]


def python_folders(interpreter: str) -> list[Path]:
    """Returns the folders of a Python interpreter: its environment, and the installation that it
    was made from. If a link leads to the environment, its own place is there, too, as the container
    may have the link already, in a folder that it mounts by itself."""
    at = Path(interpreter)
    environment = at.parent.parent
    found = [environment, environment.resolve(), at.resolve().parent.parent]
    try:
        lines = (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found  # an installation, and no environment
    pairs = (line.partition("=") for line in lines)
    homes = [value.strip() for key, _, value in pairs if key.strip() == "home"]
    return [*found, *(Path(home).parent for home in homes)]


def _needed(spec: RunSpec, run: RunDir) -> Iterator[tuple[str, Path]]:
    """Yields what has to be mounted, with the key that requires it."""
    container, slurm = _container(spec), spec.cluster.slurm
    assert slurm is not None
    yield "root", run.path
    if container.python is None:
        for folder in python_folders(slurm.python or sys.executable):
            yield _PYTHON, folder
    for key, shards in shard_places(spec.data).items():
        if data := data_folder(shards):
            yield key, data
    if store := local_folder(checkpoint_root(spec, run)):
        yield "checkpoint.url", store
    for folder in start_folders(spec.init_from) if spec.init_from else ():
        yield "init_from.path", folder
    if spec.checkpoint.local is not None:
        # the service makes the folder, but not its parent
        yield "checkpoint.local", Path(spec.checkpoint.local).parent
    if slurm.scratch is not None:
        yield "cluster.slurm.scratch", Path(slurm.scratch)


def _problem(path: Path) -> str | None:
    if str(path) in _IMAGE_FOLDERS:
        return f"{path} cannot be mounted over the image's own folder"
    if set(str(path)) & set(":,"):
        return f"{path} cannot be mounted: its name has a colon or a comma"
    return None


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Removes paths inside other ones, and keeps the order."""
    found = list(dict.fromkeys(paths))
    return [p for p in found if not any(o != p and p.is_relative_to(o) for o in found)]


def _with_target(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"


def _container(spec: RunSpec) -> ContainerSpec:
    assert spec.cluster.slurm is not None
    assert spec.cluster.slurm.container is not None  # the caller checked it
    return spec.cluster.slurm.container
