"""Targets: where a follower puts the weights of each step. A consumer sees one step whole or the
next one whole."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from checkpointing.errors import CheckpointError
from checkpointing.follower.follow_record import (
    WEIGHTS,
    FollowRecord,
    read_record,
    remove_temporaries,
    replace_file,
    write_record,
)
from checkpointing.follower.shared_weights import (
    CURRENT,
    FORMAT,
    MEMORY,
    VERSION,
    check_owner,
    folder_of,
    read_current,
)
from checkpointing.follower.weight_image import WeightImage
from checkpointing.follower.weight_layout import WeightLayout
from checkpointing.interop.atomic_files import sync_folder

if TYPE_CHECKING:
    from torch import Tensor

OnStep = Callable[[int, Mapping[str, "Tensor"], Sequence[str]], None]

SHARED = "shm:"
LATEST = "latest.safetensors"
_STATE, _RECORD, _LOCK = "state", "record", "lock"
_STEP = re.compile(r"step-\d+\.safetensors")
_BUFFER = re.compile(r"weights-(\d+)")


@dataclass(frozen=True)
class PublishedStep:
    """What a target says about a step."""

    run: str
    step: int
    id: str
    committed: float  # Unix time in seconds, by the storage's clock
    changed: Sequence[str]  # names of the tensors that differ from the step before


@dataclass(frozen=True)
class RestoredImage:
    """The image of a step that an earlier process has made."""

    image: WeightImage
    is_published: bool  # or the process ended just before


class FollowTarget(Protocol):
    """A place for the weights of the steps."""

    def record(self) -> FollowRecord | None:
        """Return what an earlier process has left there."""

    def restore(self, record: FollowRecord, layout: WeightLayout) -> RestoredImage | None:
        """Return the image of the recorded step; None if it cannot be used."""

    def private(self, name: str, layout: WeightLayout, record: FollowRecord | None) -> WeightImage:
        """Return an image that only the follower reads, with what the record says it contains.

        Raises:
            OSError: there is no room for it.
        """

    def begin(self, step: int, layout: WeightLayout) -> WeightImage:
        """Return the image to fill with a step; no consumer reads it.

        Raises:
            OSError: there is no room for it.
        """

    def file_name(self, step: int) -> str:
        """Return the name that the file of the image has after `publish`, or ""."""

    def path(self, file: str) -> Path | None:
        """Return the path of that file; None if there is no file."""

    def release(self, image: WeightImage) -> None:
        """Take note that the follower does not read this image any more."""

    def publish(self, image: WeightImage, step: PublishedStep) -> None:
        """Give the filled image to the consumers.

        Raises:
            OSError: that failed.
        """

    def write_record(self, record: FollowRecord) -> None:
        """Record what the images contain, before the new one is published.

        Raises:
            OSError: that failed.
        """

    def close(self) -> None:
        """Release the target, so that another follower may use it."""


class CallbackTarget:
    """Calls a function with the tensors of each step."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._front: WeightImage | None = None
        self._back: WeightImage | None = None

    def record(self) -> FollowRecord | None:
        return None

    def restore(self, record: FollowRecord, layout: WeightLayout) -> RestoredImage | None:
        return None

    def private(self, name: str, layout: WeightLayout, record: FollowRecord | None) -> WeightImage:
        return WeightImage.in_memory(layout, name)

    def begin(self, step: int, layout: WeightLayout) -> WeightImage:
        if self._back is None or self._back.layout != layout:
            if self._back is not None:
                self._back.close()
            self._back = WeightImage.in_memory(layout, "weights")
        return self._back

    def file_name(self, step: int) -> str:
        return ""

    def path(self, file: str) -> Path | None:
        return None

    def release(self, image: WeightImage) -> None:
        pass  # it is filled again

    def publish(self, image: WeightImage, step: PublishedStep) -> None:
        from checkpointing.follower.torch_views import tensors_of

        self._on_step(step.step, tensors_of(image.fd, image.layout), step.changed)
        self._front, self._back = image, self._front  # if it has failed, the step is made again

    def write_record(self, record: FollowRecord) -> None:
        pass

    def close(self) -> None:
        for image in (self._front, self._back):
            if image is not None:
                image.close()
        self._front = self._back = None


class _FolderTarget:
    """What the targets in a folder have in common: a lock, and the files that only the follower
    reads."""

    def __init__(self, folder: Path, state: str, *, is_memory: bool) -> None:
        self.folder, self._is_memory = folder, is_memory
        self._state = folder / state
        self._state.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(self._state / _LOCK, flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CheckpointError(
                f"another process follows a run into {folder}: end it, or choose another place"
            ) from None
        remove_temporaries(self._state / _RECORD)

    def record(self) -> FollowRecord | None:
        return read_record(self._state / _RECORD)

    def private(self, name: str, layout: WeightLayout, record: FollowRecord | None) -> WeightImage:
        path, ids = self._state / name, {} if record is None else record.images.get(name, {})
        found = WeightImage.reopen(path, layout, ids, is_memory=self._is_memory)
        return found or WeightImage.create(path, layout, is_memory=self._is_memory)

    def _reopen(self, name: str, record: FollowRecord, layout: WeightLayout) -> WeightImage | None:
        ids = record.images.get(WEIGHTS, {})
        return WeightImage.reopen(self.folder / name, layout, ids, is_memory=self._is_memory)

    def write_record(self, record: FollowRecord) -> None:
        write_record(self._state / _RECORD, record)

    def path(self, file: str) -> Path | None:
        return self.folder / file

    def close(self) -> None:
        os.close(self._lock)


class SafetensorsTarget(_FolderTarget):
    """Writes each step as the file `step-N.safetensors`, durably, and a link
    `latest.safetensors`."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """
        Args:
            folder: created if it does not exist.
            keep: how many of these files are kept, the newest ones.

        Raises:
            CheckpointError: another follower uses the folder.
            OSError: it cannot be created.
            ValueError: `keep` is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, ".follower", is_memory=False)
        self._keep = keep
        self._temporary: Path | None = None

    def restore(self, record: FollowRecord, layout: WeightLayout) -> RestoredImage | None:
        image = self._reopen(record.file, record, layout)
        if image is not None:
            with suppress(OSError):
                is_published = (self.folder / LATEST).readlink().name == record.file
                return RestoredImage(image, is_published)
            return RestoredImage(image, False)
        for path in self._temporaries():
            if path.name.startswith(f".{record.file}."):
                image = self._reopen(path.name, record, layout)
        return None if image is None else RestoredImage(image, False)

    def begin(self, step: int, layout: WeightLayout) -> WeightImage:
        for path in self._temporaries():  # of a process that was killed, or of a step that failed
            path.unlink(missing_ok=True)
        name = self.file_name(step)
        self._temporary = self.folder / f".{name}.{secrets.token_hex(4)}.tmp"
        return WeightImage.create(self._temporary, layout, is_memory=False)

    def release(self, image: WeightImage) -> None:
        image.close()

    def file_name(self, step: int) -> str:
        return f"step-{step}.safetensors"

    def publish(self, image: WeightImage, step: PublishedStep) -> None:
        assert self._temporary is not None
        path = self.folder / self.file_name(step.step)
        image.sync()
        self._temporary.rename(path)
        self._temporary = None
        link = self.folder / f".{LATEST}.{secrets.token_hex(4)}.tmp"
        link.symlink_to(path.name)
        link.rename(self.folder / LATEST)
        sync_folder(self.folder)
        self._remove_old(path)

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None
        super().close()

    def _temporaries(self) -> list[Path]:
        found = self.folder.glob(".*.tmp")
        return [
            path
            for path in found
            if _STEP.match(path.name[1:]) or path.name.startswith(f".{LATEST}.")
        ]

    def _remove_old(self, newest: Path) -> None:
        found = [path for path in self.folder.iterdir() if _STEP.fullmatch(path.name)]
        found.sort(key=lambda path: (path == newest, path.stat().st_mtime_ns), reverse=True)
        for path in found[self._keep :]:
            path.unlink(missing_ok=True)


class SharedTarget(_FolderTarget):
    """Keeps the weights in the shared memory of this node, for `SharedWeights`."""

    def __init__(self, name: str, memory: Path) -> None:
        """
        Raises:
            CheckpointError: another follower uses the name.
            PermissionError: it is another user's.
            ValueError: it is not a valid name.
        """
        folder = folder_of(name, memory)
        folder.mkdir(mode=0o700, exist_ok=True)
        check_owner(folder)
        super().__init__(folder, _STATE, is_memory=True)
        remove_temporaries(folder / CURRENT)
        try:
            self._sequence = read_current(folder).sequence
        except (CheckpointError, FileNotFoundError):
            self._sequence = 0
        self._numbers = [int(m[1]) for p in folder.iterdir() if (m := _BUFFER.fullmatch(p.name))]
        self._front: tuple[Path, WeightImage] | None = None
        self._back: tuple[Path, WeightImage] | None = None

    def restore(self, record: FollowRecord, layout: WeightLayout) -> RestoredImage | None:
        image = self._reopen(record.file, record, layout)
        if image is None:
            return None
        is_published = False
        with suppress(CheckpointError, FileNotFoundError):
            is_published = read_current(self.folder).file == record.file
        if is_published:
            self._front = (self.folder / record.file, image)
        return RestoredImage(image, is_published)

    def begin(self, step: int, layout: WeightLayout) -> WeightImage:
        if self._back is not None:
            path, image = self._back
            if image.layout == layout and _is_free(image.fd):
                return image
            image.close()  # readers have it, and keep its memory
            path.unlink(missing_ok=True)
            self._back = None
        self._remove_others()
        number = max(self._numbers, default=-1) + 1
        self._numbers.append(number)
        path = self.folder / f"weights-{number}"
        image = WeightImage.create(path, layout, is_memory=True)
        fcntl.flock(image.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._back = (path, image)
        return image

    def release(self, image: WeightImage) -> None:
        if all(pair is None or pair[1] is not image for pair in (self._front, self._back)):
            image.close()

    def file_name(self, step: int) -> str:
        assert self._back is not None
        return self._back[0].name

    def publish(self, image: WeightImage, step: PublishedStep) -> None:
        assert self._back is not None
        path, _ = self._back
        self._sequence += 1
        body = {
            "format": FORMAT,
            "version": VERSION,
            "sequence": self._sequence,
            "file": path.name,
            "run": step.run,
            "step": step.step,
            "id": step.id,
            "committed": step.committed,
        }
        fcntl.flock(image.fd, fcntl.LOCK_UN)
        replace_file(self.folder / CURRENT, json.dumps(body).encode())
        self._front, self._back = self._back, self._front

    def close(self) -> None:
        for pair in (self._front, self._back):
            if pair is not None:
                pair[1].close()
        self._front = self._back = None
        super().close()

    def _remove_others(self) -> None:
        """Remove the files of an earlier process, except the current one."""
        keep = {pair[0].name for pair in (self._front, self._back) if pair is not None}
        with suppress(CheckpointError, FileNotFoundError):
            keep.add(read_current(self.folder).file)
        for path in self.folder.iterdir():
            if _BUFFER.fullmatch(path.name) and path.name not in keep:
                path.unlink(missing_ok=True)


def open_target(into: str | os.PathLike[str] | OnStep, keep: int = 2) -> FollowTarget:
    """Return the target that `into` names: "shm:NAME", a folder, or a function.

    Raises:
        CheckpointError: another follower uses it.
        OSError, ValueError: it cannot be used.
    """
    if callable(into) and not isinstance(into, str | os.PathLike):
        return CallbackTarget(into)
    text = os.fspath(into)
    if text.startswith(SHARED):
        return SharedTarget(text.removeprefix(SHARED), MEMORY)
    if not text:
        raise ValueError("the place for the weights is empty: give shm:NAME or a folder")
    return SafetensorsTarget(Path(text), keep)


def _is_free(fd: int) -> bool:
    """Take the exclusive lock of an image, unless a reader has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
