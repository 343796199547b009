"""Resolves the path of a run directory, or of a run in a store, to a run and its store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checkpointing.store_url import RUN_IN_STORE, local_folder
from hpckit.config.spec import InitFromSpec, RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name


@dataclass(frozen=True)
class RunOrigin:
    """The location of another run's checkpoints."""

    url: str
    run: str
    spec: RunSpec | None
    """Spec of the run; None if only its store is known."""
    directory: RunDir | None = None
    """Its directory; None if only its store is known."""


def find_origin(path: str) -> RunOrigin:
    """Resolves a path.

    Raises:
        ValueError: `path` has neither form, or the directory's spec cannot be read.
    """
    folder = local_folder(path)
    numbers = RunDir(folder).submission_numbers() if folder is not None else []
    if folder is not None and numbers:
        return _directory_origin(RunDir(folder), numbers[-1])
    match = RUN_IN_STORE.fullmatch(path if folder is None else str(folder))
    if match is None:
        raise ValueError(f"{path} is not a run directory or a run in a store: STORE/runs/RUN")
    return RunOrigin(match[1], match[2], None)


def start_folders(start: InitFromSpec) -> list[Path]:
    """Returns the existing local folders that a run reads to start from its weights."""
    if start.kind == "huggingface":
        folder = Path(start.path)
        files = folder.iterdir() if folder.is_dir() else ()
        # in a cache of the hub, files are links
        return [folder, *dict.fromkeys(file.resolve().parent for file in files)]
    try:
        paths = [start.path, find_origin(start.path).url]
    except ValueError:
        return []
    found = [local_folder(path) for path in paths]
    return [folder for folder in found if folder is not None and folder.is_dir()]


def _directory_origin(directory: RunDir, submission: int) -> RunOrigin:
    try:
        spec = read_spec(directory.spec(submission))
    except (SpecError, OSError) as error:
        raise ValueError(f"{directory.path}: its spec cannot be read: {error}") from None
    name = run_name(spec)
    if spec.checkpoint.url and directory.name.startswith(f"{name}.old"):
        name = directory.name  # its run in the store was renamed, too
    return RunOrigin(checkpoint_root(spec, directory), name, spec, directory)
