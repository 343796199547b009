"""Weights in shared memory: the layout, and what other processes of the node read it with.

`/dev/shm/hpckit-NAME/`, with mode 0700, contains

    current      a JSON object: "format" "hpckit-shared-weights", "version" 1,
                 "sequence" (raised by each step), "file", "run", "step", "id", "committed" (Unix
                 time in seconds, by the storage's clock)
    weights-<n>  files in the format of safetensors, with mode 0600, of which `current` names one
    state/       what only the follower reads

The follower fills a file that `current` does not name and then replaces `current`. A reader opens
the file that `current` names, takes a shared lock of it (flock), and reads `current` again; if it
has changed, it begins again. The follower writes to no file of which it cannot have the exclusive
lock: it then makes a new one, and removes the name of the other. So a reader's mapping never
changes, however long it is kept.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import check_mark
from checkpointing.interop.atomic_files import InputFile
from checkpointing.interop.safetensors import header as headers
from checkpointing.interop.safetensors.header import SafetensorsEntry

if TYPE_CHECKING:
    from torch import Tensor

MEMORY = Path("/dev/shm")
CURRENT = "current"
FORMAT, VERSION = "hpckit-shared-weights", 1
_LOOK_S = 0.05  # seconds between two looks of `wait`
_TRIES = 1000  # to open a file that the follower has just replaced
_NUMPY = {"bool": np.bool_, "complex64": np.complex64, "complex128": np.complex128}
_KINDS = {"float": "f", "int": "i", "uint": "u"}


@dataclass(frozen=True)
class CurrentWeights:
    """What the file `current` states."""

    sequence: int
    file: str
    run: str
    step: int
    id: str
    committed: float


def folder_of(name: str, memory: Path = MEMORY) -> Path:
    """Return the folder of shared weights.

    Raises:
        ValueError: `name` is not a valid name.
    """
    return memory / f"hpckit-{check_mark(name)}"


def check_owner(folder: Path) -> None:
    """Check that a folder belongs to this user alone.

    Raises:
        PermissionError: it does not, so another user may have put something there.
        FileNotFoundError: it does not exist.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder of this user with mode 0700: choose another name"
        )


def read_current(folder: Path) -> CurrentWeights:
    """Return what is current.

    Raises:
        FileNotFoundError: there are no weights yet.
        DamagedError, FormatError: the file cannot be used.
    """
    path = folder / CURRENT
    try:
        body = JsonReader(json.loads(path.read_bytes()), str(path))
    except ValueError as error:
        raise DamagedError(f"{path}: not JSON ({error})") from error
    if body.text("format") != FORMAT or body.count("version") != VERSION:
        raise FormatError(f"{path} is not of this version: update hpckit")
    file = body.text("file")
    if Path(file).name != file:
        raise DamagedError(f"{path}: names a file {file!r} of another folder")
    return CurrentWeights(
        body.count("sequence"),
        file,
        body.text("run"),
        body.count("step"),
        body.text("id"),
        body.number("committed"),
    )


class SharedWeights:
    """Reads the weights that a follower keeps in the shared memory of this node.

    weights = SharedWeights("gpt")
    held = weights.latest()
    model.load_state_dict(held.tensors())
    held = weights.wait(after=held)
    """

    def __init__(self, name: str, *, memory: str | os.PathLike[str] = MEMORY) -> None:
        """
        Args:
            name: the NAME of `hpckit ckpt follow --into shm:NAME`.
            memory: where shared memory is mounted.

        Raises:
            ValueError: `name` is not a valid name.
        """
        self._name, self._folder = name, folder_of(name, Path(memory))

    def latest(self) -> SharedStep:
        """Return the newest step. It stays as it is for as long as it, or a view of it, is kept.

        Raises:
            FileNotFoundError: there are no weights of this name yet.
            PermissionError: they are another user's.
            DamagedError, FormatError: they cannot be read.
        """
        try:
            check_owner(self._folder)
            current, tries = read_current(self._folder), 0
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"there are no weights {self._name!r} in {self._folder.parent}: start `hpckit ckpt "
                f"follow PLACE --into shm:{self._name}` on this node; wait() waits for a step"
            ) from error
        while True:
            try:
                found = SharedStep(self._folder / current.file, current)
            except (FileNotFoundError, BlockingIOError):
                if tries == _TRIES:
                    raise
                tries += 1
                time.sleep(_LOOK_S / 10)
            else:
                if read_current(self._folder) == current:
                    return found
            current = read_current(self._folder)  # the follower has published a newer one

    def wait(self, after: SharedStep | None = None, timeout_s: float | None = None) -> SharedStep:
        """Return a newer step than `after`, or any, as soon as there is one; raises as `latest`.

        Raises:
            TimeoutError: there was none for `timeout_s` seconds; None: no limit.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                is_new = after is None or read_current(self._folder) != after.current
                if is_new:
                    return self.latest()
            except FileNotFoundError:
                pass
            if time.monotonic() >= end_s:
                raise TimeoutError(f"no newer weights in {self._folder} for {timeout_s} s")
            time.sleep(_LOOK_S)


class SharedStep:
    """The weights of one step. Writing to them changes only this process's copy."""

    def __init__(self, path: Path, current: CurrentWeights) -> None:
        """Map the weights.

        Raises:
            FileNotFoundError: the file was replaced.
            BlockingIOError: the follower is writing to it.
            DamagedError, FormatError: it is not a safetensors file.
        """
        self.current = current
        with InputFile(path) as file:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._entries, self._start = headers.read(file)
                # The mapping has a duplicate of the descriptor, and with it keeps the lock until
                # its last view ends.
                self._map = mmap.mmap(
                    fd, file.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
                )
            finally:
                os.close(fd)

    @property
    def step(self) -> int:
        return self.current.step

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._entries)

    def dtype(self, name: str) -> str:
        """Return torch's name of a tensor's dtype."""
        return self._entry(name).dtype

    def numpy(self, name: str) -> NDArray[Any]:
        """Return a view of a tensor. numpy does not have bfloat16 and the dtypes of 8 bits: of
        these the view has unsigned integers with the same bits.

        Raises:
            KeyError: there is no such tensor.
        """
        entry = self._entry(name)
        return self._view(entry, numpy_dtype(entry.dtype))

    def torch(self, name: str) -> Tensor:
        """Return a view of a tensor, on the CPU; raises as `numpy`."""
        from checkpointing.follower.torch_views import as_tensor

        entry = self._entry(name)
        return as_tensor(self._view(entry, element(entry.dtype).bits), entry.dtype)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return views of all tensors, by name."""
        return {name: self.torch(name) for name in self._entries}

    def _entry(self, name: str) -> SafetensorsEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"step {self.step} has no tensor {name!r}") from None

    def _view(self, entry: SafetensorsEntry, kind: np.dtype[Any]) -> NDArray[Any]:
        count = math.prod(entry.shape)
        if not count:
            return np.empty(entry.shape, kind)
        flat = np.frombuffer(self._map, kind, count, self._start + entry.start)
        return flat.reshape(entry.shape)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's dtype of torch's name; unsigned integers of its size if there is none."""
    kind = element(dtype)
    word = dtype.rstrip("0123456789")
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    return np.dtype(f"{_KINDS[word]}{kind.itemsize}") if word in _KINDS else kind.bits
