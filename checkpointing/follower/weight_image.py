"""An image: a file in the format of safetensors that is filled chunk by chunk, and that knows which
content it has in each place."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.follower.chunk_plan import Slot
from checkpointing.follower.weight_layout import WeightLayout
from checkpointing.format.chunks import chunk_id
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box
from checkpointing.interop.box_runs import runs
from checkpointing.storage import Buffer

Bits = NDArray[Any]  # raw elements: unsigned integers of the size of the dtype


class WeightImage:
    """Tensors in a file of fixed size. Threads may write different boxes at the same time.

    Attributes:
        ids: the id of the chunk whose content each slot has. It is a claim until the content was
            compared with it, as `read` does, since the file may be older than the process.
    """

    def __init__(self, fd: int, layout: WeightLayout, *, is_memory: bool) -> None:
        """Take over a descriptor of a file that has the layout's size. Use `create` or `reopen`.

        Args:
            is_memory: whether all pages are allocated in memory, so that a write to a mapping
                cannot fail.
        """
        self.fd, self.layout, self._is_memory = fd, layout, is_memory
        self.ids: dict[Slot, bytes] = {}
        access = mmap.ACCESS_WRITE if is_memory else mmap.ACCESS_READ
        self._map: mmap.mmap | None = mmap.mmap(fd, layout.size, access=access)

    @classmethod
    def create(cls, path: Path, layout: WeightLayout, *, is_memory: bool) -> Self:
        """Create a file in place of one that may be there; in memory, readable by this user alone.

        Raises:
            OSError: there is no room for it, or it cannot be created there.
        """
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600 if is_memory else 0o666)
        try:
            return cls._filled(fd, layout, is_memory, str(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def in_memory(cls, layout: WeightLayout, name: str) -> Self:
        """Create an image without a file name, which vanishes with its last user.

        Raises:
            OSError: there is not enough memory.
        """
        fd = os.memfd_create(f"hpckit-{name}", os.MFD_CLOEXEC)
        return cls._filled(fd, layout, True, f"memory for {name}")

    @classmethod
    def _filled(cls, fd: int, layout: WeightLayout, is_memory: bool, what: str) -> Self:
        try:
            if is_memory:
                os.fchmod(fd, 0o600)
                os.posix_fallocate(fd, 0, layout.size)
            else:
                os.ftruncate(fd, layout.size)
            _write_at(fd, 0, memoryview(layout.header))
            return cls(fd, layout, is_memory=is_memory)
        except OSError as error:
            os.close(fd)
            raise OSError(
                error.errno, f"{error.strerror}, and {layout.size} bytes are needed", what
            ) from error

    @classmethod
    def reopen(
        cls, path: Path, layout: WeightLayout, ids: Mapping[Slot, bytes], *, is_memory: bool
    ) -> Self | None:
        """Open the file of an earlier process; return None if it is not one of this layout."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        size, head = os.fstat(fd).st_size, os.pread(fd, len(layout.header), 0)
        if size != layout.size or head != layout.header:
            os.close(fd)
            return None
        image = cls(fd, layout, is_memory=is_memory)
        image.ids.update(ids)
        return image

    def keep_slots(self, slots: Iterable[Slot]) -> None:
        """Forget the content of all other slots: boxes of another cut of the tensors."""
        wanted = set(slots)
        self.ids = {slot: id_ for slot, id_ in self.ids.items() if slot in wanted}

    def write(self, slot: Slot, id_: bytes, bits: Bits) -> None:
        """Fill a slot with the content of a chunk, given in the dtype of this image.

        Raises:
            OSError: writing failed.
        """
        self.ids.pop(slot, None)
        name, box = slot
        if self._is_memory:
            self._array(name)[box.slices] = bits.reshape(box.sizes)
        else:
            raw = np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data
            self._write_runs(name, box, raw)
        self.ids[slot] = id_

    def read(self, slot: Slot) -> Bits:
        """Return a copy of the content of a slot, as it is."""
        name, box = slot
        found: Bits = np.ascontiguousarray(self._array(name)[box.slices]).reshape(box.sizes)
        return found

    def checked(self, slot: Slot) -> Bits:
        """Return a copy of the content of a slot, compared with its id.

        Raises:
            DamagedError: it differs.
        """
        name, _ = slot
        bits = self.read(slot)
        raw: Buffer = bits.reshape(-1).view(np.uint8).data
        if chunk_id(self.layout.tensors[name].dtype, raw) != self.ids.get(slot):
            raise DamagedError(f"the copy of {name!r} that is held does not match its hash")
        return bits

    def sync(self) -> None:
        """Make the file durable.

        Raises:
            OSError: that failed.
        """
        os.fsync(self.fd)

    def close(self) -> None:
        """Release the file. Views of it stay valid."""
        if self._map is not None:
            self._map = None  # unmapped with the last view of it
            os.close(self.fd)

    def _array(self, name: str) -> Bits:
        spec = self.layout.tensors[name]
        assert self._map is not None
        count, kind = math.prod(spec.shape), element(spec.dtype).bits
        if not count:
            return np.empty(spec.shape, kind)
        flat = np.frombuffer(self._map, kind, count, self.layout.starts[name])
        return flat.reshape(spec.shape)

    def _write_runs(self, name: str, box: Box, raw: memoryview) -> None:
        spec = self.layout.tensors[name]
        item, start = element(spec.dtype).itemsize, self.layout.starts[name]
        for place, first, count in runs(box, spec.shape):
            _write_at(self.fd, start + place * item, raw[first * item : (first + count) * item])


def _write_at(fd: int, offset: int, data: memoryview) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        offset, data = offset + done, data[done:]
