"""What checkpoints there are, and whether they are whole. Without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from blake3 import blake3

from checkpointing.errors import CheckpointError, DamagedError, FormatError
from checkpointing.layout import MANIFEST, local_root, step_of
from checkpointing.manifest import Chunk, Manifest, from_json


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint, or what an unfinished save left. "damaged" here means: seen without reading
    the tensors' bytes; `verify` reads them."""

    step: int
    id: str  # "<step>-<session>", unique in its run
    run: str
    path: Path
    created: float  # Unix time, seconds; of an unfinished or damaged one, of its directory
    bytes: int
    world_size: int
    tensors: int
    metrics: Mapping[str, float] = field(hash=False)
    state: Literal["committed", "incomplete", "damaged"]
    problem: str | None = None


def list_checkpoints(path: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """All checkpoints at `path`, ordered by run, step and time of creation.

    Args:
        path: a store's root, a `runs/<run>` folder in it, its `steps` folder, or an hpckit run
            directory (a folder with `checkpoints/` in it); also as file:// URL.

    Raises:
        CheckpointError: `path` is none of these.
    """
    found = [inspect(d) for steps in _steps_dirs(local_root(path)) for d in directories(steps)]
    known = [info for info in found if info is not None]
    return sorted(known, key=lambda i: (i.run, i.step, i.created, i.id))


def _steps_dirs(path: Path) -> list[Path]:
    if path.name == "steps" and path.is_dir():
        return [path]
    if (path / "steps").is_dir():
        return [path / "steps"]
    if (path / "checkpoints").is_dir():
        return _steps_dirs(path / "checkpoints")
    if (path / "runs").is_dir():
        return sorted(path.glob("runs/*/steps"))
    raise CheckpointError(
        f"no checkpoint store at {path}: expected a folder that has runs/, steps/ or checkpoints/"
    )


def directories(steps: Path) -> list[Path]:
    """The directories in `steps` that are named like checkpoints, newest step first."""
    found = [d for d in steps.iterdir() if step_of(d.name) is not None and d.is_dir()]
    return sorted(found, reverse=True)


def is_committed(directory: Path) -> bool:
    """Whether there is a manifest. By open(), because over NFS stat() may be half a minute old."""
    try:
        with (directory / MANIFEST).open("rb"):
            return True
    except FileNotFoundError:
        return False


def inspect(directory: Path) -> CheckpointInfo | None:
    """What `directory` holds, from its manifest and file sizes; None if it vanished meanwhile."""
    try:
        return _committed_info(directory, read_manifest(directory))
    except FileNotFoundError:
        return _broken_info(directory, "incomplete", f"no {MANIFEST}: the save did not finish")
    except (DamagedError, FormatError) as error:
        return _broken_info(directory, "damaged", str(error))


def _committed_info(directory: Path, manifest: Manifest) -> CheckpointInfo:
    header = manifest.header
    return CheckpointInfo(
        step=header.step,
        id=header.id,
        run=header.run,
        path=directory,
        created=header.created,
        bytes=manifest.bytes,
        world_size=header.world_size,
        tensors=len(manifest.tensors()),
        metrics=header.metrics,
        state="committed",
    )


def _broken_info(
    directory: Path, state: Literal["incomplete", "damaged"], problem: str
) -> CheckpointInfo | None:
    try:
        created = directory.stat().st_mtime
        size = sum(entry.stat().st_size for entry in os.scandir(directory))
    except FileNotFoundError:
        return None
    return CheckpointInfo(
        step=step_of(directory.name) or 0,
        id=directory.name,
        run=directory.parent.parent.name,
        path=directory,
        created=created,
        bytes=size,
        world_size=0,
        tensors=0,
        metrics={},
        state=state,
        problem=problem,
    )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a committed checkpoint whose files are there in their stated sizes.

    Raises:
        FileNotFoundError: no manifest, so no checkpoint.
        DamagedError: the manifest cannot be read, or files are missing or of another size.
        FormatError: unknown format version or feature.
    """
    path = directory / MANIFEST
    try:
        manifest = from_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    header = manifest.header
    if header.id != directory.name or header.step != step_of(directory.name):
        raise DamagedError(f"the manifest is of checkpoint {header.id}, not of {directory.name}")
    for name, size in manifest.files.items():
        _check_size(directory / name, size)
    return manifest


def _check_size(path: Path, size: int) -> None:
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read: {error}") from error
    if actual != size:
        raise DamagedError(f"{path.name} has {actual} bytes instead of {size}")


def read_chunk(directory: Path, chunk: Chunk) -> bytearray:
    """The raw bytes of one chunk, checked against its hash.

    Raises:
        DamagedError: they cannot be read, or are not what was written.
    """
    data = bytearray(chunk.length)
    where = f"{chunk.fqn!r} in {chunk.file} at byte {chunk.offset}"
    try:
        with (directory / chunk.file).open("rb") as file:
            file.seek(chunk.offset)
            got = file.readinto(data)
    except OSError as error:
        raise DamagedError(f"{where} cannot be read: {error}") from error
    if got != chunk.length:
        raise DamagedError(f"{where}: only {got} of {chunk.length} bytes are there")
    if blake3(data).hexdigest() != chunk.blake3:
        raise DamagedError(f"{where}: the bytes do not match their hash")
    return data


def verify(info: CheckpointInfo) -> list[str]:
    """Read every byte of a checkpoint again and check it; the problems found, none if whole."""
    try:
        manifest = read_manifest(info.path)
    except FileNotFoundError:
        return [f"no {MANIFEST}: the save did not finish"]
    except (DamagedError, FormatError) as error:
        return [str(error)]
    problems = []
    for chunk in manifest.chunks:
        try:
            read_chunk(info.path, chunk)
        except DamagedError as error:
            problems.append(str(error))
    return problems
