"""Checks before anything is started: data, directories, packages, the entry point, Python.

Readers of checkpoints are imported only if there is something to read, as importing numpy takes a
while.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing import CheckpointError, local_folder
from hpckit.agent.device_assignment import choose_devices, visible_gpus
from hpckit.config.canary_record import canary_problems
from hpckit.config.entry_points import is_built_in
from hpckit.config.rules.ramps import ramp_notes
from hpckit.config.rules.violations import planned_nodes
from hpckit.config.spec import MixtureSpec, PackSpec, RunSpec
from hpckit.config.spec_error import SpecError
from hpckit.config.spec_parser import with_values
from hpckit.rundir.code_snapshot.snapshot import Project, hidden_packages, shadowed_packages
from hpckit.rundir.directory import RunDir
from hpckit.slurm.container_mounts import mount_problems
from hpckit.submit.preflight.dataset_checks import check_dataset
from hpckit.submit.preflight.entry_point import entry_problems
from hpckit.submit.preflight.evaluation_entry import evaluation_entry_problems
from hpckit.submit.preflight.remote_python import check_python
from hpckit.submit.preflight.torch_version import torch_problems
from hpckit.submit.preflight.writable_folder import unwritable
from hpckit.system.private_folders import folder_problem
from hpckit.system.store_timeouts import interactive_store_options
from hpckit.text.undecodable_text import is_undecodable

if TYPE_CHECKING:
    from data import Dataset
    from data.index.manifest_summary import DatasetSummary


@dataclass(frozen=True)
class Preflight:
    """The results of the checks."""

    dataset: Dataset | DatasetSummary | None
    """The dataset; None if it is still to be packed."""
    problems: list[str]
    notes: list[str] = field(default_factory=list)
    """Lines about what may fail and cannot be known here."""


def with_absolute_paths(spec: RunSpec, base: Path) -> RunSpec:
    """Returns `spec` with its relative paths resolved against `base`, as a job may run elsewhere.

    Raises:
        SpecError: `base` cannot be written into a spec.
    """
    if is_undecodable(str(base)):
        raise SpecError(
            [
                f"{str(base)!a}: the path of this folder is not UTF-8, as which the values of a "
                "run are kept; rename it, or launch from another folder"
            ]
        )
    pack = spec.data.pack
    if pack and pack.source != "stdlib":
        pack = with_values(pack, source=_absolute(pack.source, base))
    url, canary = spec.checkpoint.url, spec.debug.canary
    golden = canary.file and _absolute(canary.file, base)
    start = spec.init_from and with_values(
        spec.init_from, path=_absolute(spec.init_from.path, base)
    )
    command = spec.command and with_values(
        spec.command, cwd=_absolute(spec.command.cwd or ".", base)
    )
    return with_values(
        _with_absolute_image(spec, base),
        command=command,
        root=_absolute(spec.root, base),
        init_from=start,
        data=with_values(
            spec.data,
            shards=spec.data.shards and _absolute(spec.data.shards, base),
            mixture=spec.data.mixture and _with_absolute_sources(spec.data.mixture, base),
            validation=spec.data.validation and _absolute(spec.data.validation, base),
            cache=spec.data.cache and _absolute(spec.data.cache, base),
            pack=pack,
        ),
        checkpoint=with_values(
            spec.checkpoint, url=url and _absolute(url, base), local=_spool_folder(spec)
        ),
        debug=with_values(spec.debug, canary=with_values(canary, file=golden)),
    )


def _with_absolute_sources(mixture: MixtureSpec, base: Path) -> MixtureSpec:
    sources = {
        name: with_values(source, shards=_absolute(source.shards, base))
        for name, source in mixture.sources.items()
    }
    return with_values(mixture, sources=sources)


def _with_absolute_image(spec: RunSpec, base: Path) -> RunSpec:
    slurm = spec.cluster.slurm
    if slurm is None or slurm.container is None:
        return spec
    image = slurm.container.image
    if slurm.container.kind == "apptainer" or image.startswith((".", "/", "~")):
        image = _absolute(image, base)
    slurm = with_values(slurm, container=with_values(slurm.container, image=image))
    return with_values(spec, cluster=with_values(spec.cluster, slurm=slurm))


def _spool_folder(spec: RunSpec) -> str | None:
    """Returns the spool folder: by default on the site's scratch disk, if it has one."""
    slurm = spec.cluster.slurm
    if spec.checkpoint.local is not None or slurm is None or slurm.scratch is None:
        return spec.checkpoint.local
    return str(Path(slurm.scratch) / f"hpckit-{os.getuid()}")


def preflight(
    spec: RunSpec, run: RunDir, project: Project, pack: Callable[[PackSpec, Path], None] | None
) -> Preflight:
    """Checks everything that a run needs. `pack` packs missing shards; None: they are not
    packed."""
    problems = [*_name_problems(spec, project), *torch_problems(spec)]
    problems += _program_problems(spec, project)
    problems += _alert_problems(spec)
    if problem := folder_problem(run.path, is_job=spec.cluster.kind == "slurm"):
        problems.append(f"root: {problem}")
    problems += unwritable("root", run.path)
    problems += place_problems(spec, run, submits=pack is not None)
    python = check_python(spec, run.path)
    problems += python.problems
    if spec.command is not None:  # it reads no data that hpckit knows of
        return Preflight(None, problems, python.notes)
    problems += _start_problems(spec, run)
    problems += canary_problems(spec)
    if spec.debug.canary.mode == "record":
        problems += unwritable("debug.canary.file", Path(spec.debug.canary.file or "").parent)
    data = check_dataset(spec, pack)
    problems += data.problems
    notes = [*python.notes, *data.notes, *ramp_notes(spec)]
    return Preflight(data.dataset, problems, notes)


def _name_problems(spec: RunSpec, project: Project) -> list[str]:
    """Returns the reasons why modules of the project and of hpckit exclude each other."""
    if spec.command is None:
        return shadowed_packages(project)
    place = hidden_packages(project).get("hpckit")
    if place is None:
        return []
    return [
        f"{place}: has the name of hpckit itself, which the process of each rank imports; rename it"
    ]


def _program_problems(spec: RunSpec, project: Project) -> list[str]:
    """Returns the reasons why a worker cannot call the training function or run the program."""
    if spec.command is None:
        problems = entry_problems(spec.entry or "", project.root)
        return [*problems, *evaluation_entry_problems(spec, project.root)]
    from hpckit.submit.program.program_check import command_problems  # imports psutil

    slurm = spec.cluster.slurm
    is_elsewhere = slurm is not None and bool(slurm.container or slurm.python)
    cwd = Path(spec.command.cwd or ".")
    return command_problems(spec.command, cwd, is_installed=not is_elsewhere)


def _alert_problems(spec: RunSpec) -> list[str]:
    """Returns the reasons why alerts could not be sent."""
    if not spec.alerts.has_targets:
        return []
    from hpckit.alerts.alert_targets import target_problems  # imports http and email

    return target_problems(spec.alerts)


def place_problems(spec: RunSpec, run: RunDir, submits: bool = True) -> list[str]:
    """Returns the problems of the run's location and of its store.

    Args:
        submits: whether the run is to be submitted from this machine.
    """
    problems = _store_problems(spec.checkpoint.url)
    if spec.cluster.kind == "slurm" and submits:
        problems += slurm_problems()
    if spec.cluster.kind == "local":
        problems += _device_problems(spec)
        problems += _address_problems(spec.cluster.address or "")
    return [*problems, *_container_problems(spec, run)]


def _start_problems(spec: RunSpec, run: RunDir) -> list[str]:
    is_used = is_built_in(spec) and spec.lora is not None
    if spec.init_from is None and not is_used:
        return []
    from hpckit.submit.preflight.start_weights import start_problems

    return start_problems(spec, run)


def _store_problems(url: str | None) -> list[str]:
    """Returns the problems of a store outside of the run directory: it cannot be reached, or this
    version cannot use it."""
    if url is None:
        return []
    from checkpointing import Store

    folder = local_folder(url)
    problems = [] if folder is None else unwritable("checkpoint.url", folder)
    try:
        Store.open(url, options=interactive_store_options()).close()
    except FileNotFoundError:
        return problems  # the store will be created
    except CheckpointError as error:
        return problems or [f"checkpoint.url: {error}"]
    return problems


def _container_problems(spec: RunSpec, run: RunDir) -> list[str]:
    """Returns problems if the image does not exist, or a path that the run needs cannot be
    mounted."""
    slurm = spec.cluster.slurm
    if slurm is None or slurm.container is None:
        return []
    image, problems = Path(slurm.container.image), mount_problems(spec, run)
    if image.is_absolute() and not image.exists():
        problems.append(f"cluster.slurm.container.image: there is no {image}")
    return problems


def slurm_problems() -> list[str]:
    """Returns a problem if no job can be submitted from this machine."""
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if not missing:
        return []
    return [
        f"cluster: there is no {' and no '.join(missing)} on this machine; start on a login node "
        "of the cluster, or look with --dry-run"
    ]


def _device_problems(spec: RunSpec) -> list[str]:
    needed = max(planned_nodes(spec)) * spec.launch.nproc_per_node
    try:
        choose_devices(spec.cluster.device, needed, visible_gpus(os.environ))
    except ValueError as error:
        return [str(error)]
    return []


def _address_problems(address: str) -> list[str]:
    """Returns a problem if this machine cannot listen at `address`."""
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        return [f"cluster.address: {address!r} is not an address of this machine ({error})"]
    return []


def _absolute(path: str, base: Path) -> str:
    return path if "://" in path else os.path.normpath(base / Path(path).expanduser())
