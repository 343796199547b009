"""Checks before anything is started: data, directories, packages, the entry point.

Readers of data and checkpoints are imported only if there is something to read, as importing numpy
takes a while.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing import CheckpointError, local_folder
from data import DataError, FetchError, IndexingError
from hpckit.agent.device_assignment import choose, visible_gpus
from hpckit.config.canary_record import canary_problems
from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.token_files import token_files
from hpckit.config.rules.violations import planned_nodes
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.rundir.code_snapshot.snapshot import Project, shadowed_packages
from hpckit.rundir.directory import RunDir
from hpckit.slurm.container_mounts import mount_problems
from hpckit.submit.preflight.entry_point import entry_problems
from hpckit.submit.preflight.torch_version import torch_problems
from hpckit.submit.program.program_check import command_problems
from hpckit.submit.shard_packing import packing_problem
from hpckit.system.private_folders import folder_problem
from hpckit.system.store_timeouts import interactive_sources, interactive_store_options

if TYPE_CHECKING:
    from data import Dataset

_MAX_SHARDS = 4
"""The largest number of shards with problems that a message lists."""


@dataclass(frozen=True)
class Preflight:
    """The results of the checks."""

    dataset: Dataset | None
    """The dataset; None if it is still to be packed."""
    problems: list[str]


def with_absolute_paths(spec: RunSpec, base: Path) -> RunSpec:
    """Returns `spec` with its relative paths resolved against `base`, as a job may run
    elsewhere."""
    pack = spec.data.pack
    if pack and pack.source != "stdlib":
        pack = replace(pack, source=_absolute(pack.source, base))
    url, canary = spec.checkpoint.url, spec.debug.canary
    golden = canary.file and _absolute(canary.file, base)
    start = spec.init_from and replace(spec.init_from, path=_absolute(spec.init_from.path, base))
    command = spec.command and replace(spec.command, cwd=_absolute(spec.command.cwd or ".", base))
    return replace(
        _with_absolute_image(spec, base),
        command=command,
        root=_absolute(spec.root, base),
        init_from=start,
        data=replace(
            spec.data,
            shards=_absolute(spec.data.shards, base),
            validation=spec.data.validation and _absolute(spec.data.validation, base),
            cache=spec.data.cache and _absolute(spec.data.cache, base),
            pack=pack,
        ),
        checkpoint=replace(
            spec.checkpoint, url=url and _absolute(url, base), local=_spool_folder(spec)
        ),
        debug=replace(spec.debug, canary=replace(canary, file=golden)),
    )


def _with_absolute_image(spec: RunSpec, base: Path) -> RunSpec:
    slurm = spec.cluster.slurm
    if slurm is None or slurm.container is None:
        return spec
    image = slurm.container.image
    if slurm.container.kind == "apptainer" or image.startswith((".", "/", "~")):
        image = _absolute(image, base)
    slurm = replace(slurm, container=replace(slurm.container, image=image))
    return replace(spec, cluster=replace(spec.cluster, slurm=slurm))


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
    problems = [*shadowed_packages(project), *torch_problems(spec)]
    problems += _program_problems(spec, project)
    if problem := folder_problem(run.path, is_job=spec.cluster.kind == "slurm"):
        problems.append(f"root: {problem}")
    problems += _unwritable("root", run.path)
    problems += place_problems(spec, run, submits=pack is not None)
    if spec.command is not None:  # it reads no data that hpckit knows of
        return Preflight(None, problems)
    problems += _start_problems(spec, run)
    problems += canary_problems(spec)
    if spec.debug.canary.mode == "record":
        problems += _unwritable("debug.canary.file", Path(spec.debug.canary.file or "").parent)
    try:
        dataset = _dataset(spec, pack)
    except (DataError, OSError) as error:
        return Preflight(None, [*problems, *_unreadable("data.shards", error)])
    if dataset is not None:
        problems += _dataset_problems(spec, "data.shards", spec.data.shards, dataset)
    return Preflight(dataset, [*problems, *_validation_problems(spec)])


def _program_problems(spec: RunSpec, project: Project) -> list[str]:
    """Returns the reasons why a worker cannot call the training function or run the program."""
    if spec.command is None:
        return entry_problems(spec.entry or "", project.root)
    return command_problems(spec.command, Path(spec.command.cwd or "."))


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


def _validation_problems(spec: RunSpec) -> list[str]:
    key, shards = "data.validation", spec.data.validation
    if shards is None:
        return []
    try:
        dataset = _open_dataset(spec, shards)
        return _dataset_problems(spec, key, shards, dataset)
    except (DataError, OSError) as error:
        return _unreadable(key, error)


def _unreadable(key: str, error: DataError | OSError) -> list[str]:
    wrong = error.errors if isinstance(error, IndexingError) else [error]
    messages = [one.headline if isinstance(one, FetchError) else str(one) for one in wrong]
    lines = [f"{key}: {text}" for text in messages[:_MAX_SHARDS]]
    if (more := len(wrong) - _MAX_SHARDS) > 0:
        lines.append(f"{key}: and {more} more shards; `hpckit data index` lists all")
    return lines


def _dataset_problems(spec: RunSpec, key: str, shards: str, dataset: Dataset) -> list[str]:
    """Returns the problems of a dataset: it has no samples or, for tokens, the
    model's vocabulary is too small."""
    if len(dataset) == 0:
        return [f"{key}: {shards} holds no samples"]
    from data.index.dataset_verification import resized

    if problem := resized(dataset.manifest):
        return [
            f"{key}: {problem}; the index is of other shards or an older one: `hpckit data index "
            f"{shards}` rebuilds it"
        ]
    if spec.data.check == "content":
        try:
            dataset.index(0)
        except (DataError, OSError) as error:
            return _unreadable(key, error)
    from data.index.token_files.token_manifest import TokenManifest

    if isinstance(dataset.manifest, TokenManifest):
        return _token_file_problems(spec, key, shards, dataset.manifest.highest_token)
    if spec.entry != LANGUAGE_MODEL or spec.data.text == "bytes":
        return []
    if dataset.manifest.n_tokens is None:
        return [
            f"{key}: {shards} has no token counts; `hpckit data pack --tokenizer` makes "
            "shards with them, `hpckit data index --tokens npy` counts those that are there"
        ]
    from data import vocabulary_of

    try:
        vocabulary = vocabulary_of(dataset)
    except DataError as error:
        return [f"{key}: {error}"]
    there = decoder_of(spec).vocab
    if vocabulary is None or vocabulary.size <= there:
        return []
    return [f"model.vocab: {there} is less than the {vocabulary.size} different tokens of {shards}"]


def _token_file_problems(spec: RunSpec, key: str, shards: str, highest: int | None) -> list[str]:
    """Returns the problems of token files: they are no samples of the training function, or have
    tokens that the model does not know, as far as they were read."""
    if spec.entry == IMAGES or (spec.entry == LANGUAGE_MODEL and spec.data.text == "bytes"):
        return [f"{key}: {shards} holds tokens, which are trained on with data=tokens"]
    if spec.entry != LANGUAGE_MODEL or highest is None or highest < decoder_of(spec).vocab:
        return []
    return [
        f"model.vocab: {decoder_of(spec).vocab} is not more than the token {highest} of {shards}; "
        "take a larger vocabulary, or the right data.dtype"
    ]


def _start_problems(spec: RunSpec, run: RunDir) -> list[str]:
    if spec.init_from is None and spec.lora is None:
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
    problems = [] if folder is None else _unwritable("checkpoint.url", folder)
    try:
        Store.open(url, options=interactive_store_options()).close()
    except FileNotFoundError:
        return problems  # the store will be created
    except CheckpointError as error:
        return problems or [f"checkpoint.url: {error}"]
    return problems


def _dataset(spec: RunSpec, pack: Callable[[PackSpec, Path], None] | None) -> Dataset | None:
    folder = Path(spec.data.shards)
    if spec.data.pack and not folder.exists():
        if problem := packing_problem(spec.data.pack, spec.data.shards):
            raise DataError(problem)
        if pack is None:
            return None
        pack(spec.data.pack, folder)
    return _open_dataset(spec, spec.data.shards)


def _open_dataset(spec: RunSpec, shards: str) -> Dataset:
    from data import open_dataset

    return open_dataset(
        shards,
        sources=interactive_sources(),
        check=spec.data.check,
        token_files=token_files(spec),
    )


def _unwritable(key: str, folder: Path) -> list[str]:
    """Returns a problem if the nearest existing folder at or above `folder` is not writable."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return [f"{key}: {existing} is no folder; {folder} cannot be made"]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [f"{key}: {existing} is not writable; {folder} cannot be made there"]
    return []


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
        choose(spec.cluster.device, needed, visible_gpus(os.environ))
    except ValueError as error:
        return [str(error)]
    return []


def _address_problems(address: str) -> list[str]:
    """Returns a problem if this machine cannot listen at `address`."""
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        return [f"cluster.address: {address!r} is no address of this machine ({error})"]
    return []


def _absolute(path: str, base: Path) -> str:
    return path if "://" in path else os.path.normpath(base / Path(path).expanduser())
