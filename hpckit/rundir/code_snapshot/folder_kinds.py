"""Recognises folders that hold no code of the project, by what they contain and not by their names
alone: run directories, checkpoint stores, virtual environments, outputs of other tools."""

from __future__ import annotations

import re
import stat
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from os import scandir
from pathlib import Path

from checkpointing.format.object_keys import STORE

NEVER_CODE = {
    *(".git", ".hg", ".svn", "__pycache__", "node_modules", "site-packages", "dist-packages"),
    *(".ipynb_checkpoints", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
    *(".tox", ".nox", ".eggs"),
}
"""Names of folders of tools, which hold no code. They are left out without a note."""

_SUBMISSION = re.compile(r"\.?\d{3,}(\.[0-9a-f]+)?")
_SUBMISSION_FILES = {"spec.yaml", "overrides.yaml", "manifest.json", "code"}
_SNAPSHOT = {"hpckit", "checkpointing", "data"}
_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55"  # bford.info/cachedir
_TAG_BYTES = 4096
_CAN_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_OUTPUTS = {"wandb", "mlruns", "lightning_logs", "outputs", "multirun"}
"""Default names of output folders of W&B, MLflow, Lightning and Hydra. A folder of such a name that
has a Python module is a package."""


class FolderKind(StrEnum):
    """What a folder is that is left out, in the words of messages."""

    RUN = "run directory"
    SWEEP = "sweep of runs"
    SUBMISSION = "submission of a run"
    SNAPSHOT = "earlier code snapshot"
    STORE = "checkpoint store"
    CHECKPOINT = "checkpoint"
    ENVIRONMENT = "virtual environment"
    CACHE = "cache"
    OUTPUT = "output folder"
    REPOSITORY = "another git repository"


def kind_of_folder(folder: Path, names: AbstractSet[str], is_tracked: bool) -> FolderKind | None:
    """Returns what a folder is, or None if it may hold code of the project.

    Args:
        names: of its files and folders.
        is_tracked: whether git tracks a file in it, so that its name alone says nothing.
    """
    if "pyvenv.cfg" in names or "conda-meta" in names:
        return FolderKind.ENVIRONMENT
    if "submissions" in names and _has_submission(folder / "submissions"):
        return FolderKind.RUN
    if {"sweep.json", "runs", "code"} <= names:
        return FolderKind.SWEEP
    if names >= _SUBMISSION_FILES:
        return FolderKind.SUBMISSION
    if names >= _SNAPSHOT and _is_read_only(folder / "hpckit" / "__init__.py"):
        return FolderKind.SNAPSHOT
    if STORE in names and '"hpckit-store"' in _start_of(folder / STORE):
        return FolderKind.STORE
    if "CACHEDIR.TAG" in names and _start_of(folder / "CACHEDIR.TAG").startswith(_CACHE_TAG):
        return FolderKind.CACHE
    if any(name.startswith(("models--", "datasets--")) for name in names):
        return FolderKind.CACHE  # of Hugging Face
    if _is_checkpoint(names):
        return FolderKind.CHECKPOINT
    if _is_output(folder, names, is_tracked):
        return FolderKind.OUTPUT
    return None


def _has_submission(folder: Path) -> bool:
    """Returns whether a folder is that of a run's submissions. A folder `submissions` of a
    competition is not."""
    with suppress(OSError), scandir(folder) as entries:
        return any(_SUBMISSION.fullmatch(entry.name) and entry.is_dir() for entry in entries)
    return False


def _is_checkpoint(names: AbstractSet[str]) -> bool:
    """Returns whether a folder is a checkpoint of torch's DCP or of Hugging Face's Trainer."""
    if "trainer_state.json" in names:
        return True
    return ".metadata" in names and any(name.endswith(".distcp") for name in names)


def _is_output(folder: Path, names: AbstractSet[str], is_tracked: bool) -> bool:
    if ".hydra" in names and not is_tracked:
        return True
    return folder.name in _OUTPUTS and not is_tracked and not _has_module(folder, names)


def _has_module(folder: Path, names: AbstractSet[str]) -> bool:
    """Returns whether there is a module in the folder, or a package right below it."""
    if any(name.endswith(".py") for name in names):
        return True
    return any((folder / name / "__init__.py").is_file() for name in islice(sorted(names), 100))


def _is_read_only(file: Path) -> bool:
    try:
        return not file.stat().st_mode & _CAN_WRITE
    except OSError:
        return False


def _start_of(file: Path) -> str:
    with suppress(OSError), open(file, "rb") as opened:
        return opened.read(_TAG_BYTES).decode("utf-8", "replace")
    return ""
