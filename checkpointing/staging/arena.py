"""Anonymous shared memory, which any process with its file descriptor can map and which the kernel
frees with its last holder.

No file is left behind however its holders end, and no other user can open it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import StageError
from checkpointing.staging.slot_layout import PAGE, round_up

THREADS = min(4, os.cpu_count() or 1)
# a process that reads an arena that shrinks would be killed by SIGBUS
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14; not in mmap's constants
_PART = 16 << 20  # bytes that one thread populates at a time

madvise: Callable[..., int] = ctypes.CDLL(None, use_errno=True).madvise  # releases the GIL
madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]  # type: ignore[attr-defined]


class Arena:
    """A shared memory region of fixed size.

    `close` releases this process's descriptor and mapping; views stay valid while they are
    referenced, and keep the memory. Thread-safe.
    """

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        """Use `create` or `attach` instead."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._fd, self.size, self._writable = fd, size, writable
        self._lock = threading.Lock()
        self._mapped = (0, 0)  # where the bytes begin and end that `map_ahead` has mapped
        self._cells: NDArray[np.uint8] | None
        # not kept in an attribute, so that the mapping ends with the last view of it
        self._cells = np.frombuffer(mmap.mmap(fd, size, access=access), np.uint8)

    @classmethod
    def create(cls, size: int, name: str = "arena") -> Self:
        """Returns new memory of at least `size` bytes (whole pages), filled with zeros. The kernel
        allocates a page when it is first touched.

        Raises:
            StageError: the system refuses it.
            ValueError: `size` is not positive.
        """
        if size <= 0:
            raise ValueError(f"the size of an arena must be above 0 bytes, got {size}")
        size = round_up(size, PAGE)
        try:
            fd = os.memfd_create(f"hpckit-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _refused(size, error) from error
        try:
            os.fchmod(fd, 0o600)  # users to whom /proc shows the descriptor cannot open it
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            return cls(fd, size, writable=True)
        except OSError as error:
            os.close(fd)
            raise _refused(size, error) from error

    @classmethod
    def attach(cls, fd: int, *, writable: bool = True) -> Self:
        """Map the memory behind a descriptor that another process has sent. The arena owns `fd`
        from now on, unless this raises.

        Raises:
            StageError: it is not an arena: it is not sealed against changes of its size, or it is
                empty.
        """
        try:
            seals, size = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd).st_size
        except OSError as error:
            raise _no_arena(fd, str(error)) from error
        if seals & _SEALS != _SEALS:
            raise _no_arena(fd, "it is not sealed, so its size may change under a reader")
        if size == 0 or size % PAGE:
            raise _no_arena(fd, f"its size is {size} bytes, not whole pages")
        try:
            os.set_inheritable(fd, False)
            return cls(fd, size, writable=writable)
        except OSError as error:
            raise StageError(f"cannot map an arena of {size} bytes: {error}") from error

    @property
    def fd(self) -> int:
        """The descriptor, to send to another process. The arena keeps it open."""
        self._open()
        return self._fd

    @property
    def is_closed(self) -> bool:
        return self._cells is None

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Returns bytes `offset` to `offset + length`, without a copy.

        Raises:
            ValueError: they are not all inside the arena, or it is closed.
        """
        cells = self._open()
        self._check_inside(offset, length)
        return cells[offset : offset + length]

    def read_into(self, offset: int, into: memoryview) -> None:
        """Copy bytes from `offset` on into `into`. They are read by the kernel unless `map_ahead`
        has mapped all of them: a page that is read once costs more to map than to copy, and one
        that is mapped is copied in a third of the time.

        Raises:
            ValueError: they are not all inside the arena, or it is closed.
        """
        self._check_inside(offset, len(into))
        start, stop = self._mapped
        if len(into) and start <= offset and offset + len(into) <= stop:
            # releases the GIL, as the kernel's copy does
            np.copyto(np.frombuffer(into, np.uint8), self.view(offset, len(into)))
            return
        while len(into):
            count = os.preadv(self.fd, [into], offset)
            into, offset = into[count:], offset + count

    def map_ahead(self, start: int, stop: int) -> bool:
        """Map the pages from byte `start` up to `stop` into this process, for `read_into`. Of
        several calls, only those count of which each begins where the one before ended. Pages that
        were never written are allocated.

        Args:
            start: a multiple of the page size.

        Returns:
            Whether they are mapped. If not, the kernel cannot do it, and reads are as before.

        Raises:
            ValueError: they are not all inside the arena, or it is closed.
        """
        part = self.view(start, stop - start)
        if madvise(part.ctypes.data, part.size, _MADV_POPULATE_READ) != 0:
            return False
        first, last = self._mapped
        self._mapped = (first if last == start else start, stop)
        return True

    def prefault(self, threads: int = THREADS, start: int = 0, stop: int | None = None) -> None:
        """Allocate and map the pages from byte `start` up to `stop` (None: to the end) now, so that
        the first copy into them is as fast as later ones. The content is not changed.

        Args:
            start: a multiple of the page size.

        Raises:
            StageError: there is not enough memory.
        """
        cells = self._open()[start:stop]
        try:
            if not self._writable or not self._populate(cells, threads):
                self._touch(cells, start, threads)
        except OSError as error:
            raise StageError(
                f"not enough host memory for an arena of {self.size} bytes: {error}; use fewer "
                "slots"
            ) from error

    def close(self) -> None:
        """Release it; a second call does nothing."""
        with self._lock:
            if self._cells is not None:
                self._cells = None
                os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_cells", None) is not None:
            self.close()

    def _open(self) -> NDArray[np.uint8]:
        if self._cells is None:
            raise ValueError("this arena is closed")
        return self._cells

    def _check_inside(self, offset: int, length: int) -> None:
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(
                f"bytes {offset} to {offset + length} are outside the arena of {self.size} bytes"
            )

    def _populate(self, cells: NDArray[np.uint8], threads: int) -> bool:
        """Populate the pages by madvise. Returns whether the kernel supports that."""

        def populate(part: NDArray[np.uint8]) -> bool:
            if madvise(part.ctypes.data, part.size, _MADV_POPULATE_WRITE) == 0:
                return True
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                return False  # the kernel does not support it
            raise OSError(code, os.strerror(code))

        return all(_each_part(populate, cells, threads))

    def _touch(self, cells: NDArray[np.uint8], start: int, threads: int) -> None:
        """Touch the pages without writing, since another process may be writing."""
        if self._writable:
            os.posix_fallocate(self._fd, start, cells.size)
        _each_part(lambda part: int(part[::PAGE].max()), cells, threads)


def _each_part(
    work: Callable[[NDArray[np.uint8]], Any], cells: NDArray[np.uint8], threads: int
) -> list[Any]:
    parts = [cells[at : at + _PART] for at in range(0, cells.size, _PART)]
    with ThreadPoolExecutor(threads, "prefault") as pool:
        return list(pool.map(work, parts))


def _refused(size: int, error: OSError) -> StageError:
    return StageError(f"cannot create shared memory of {size} bytes: {error}; use fewer slots")


def _no_arena(fd: int, why: str) -> StageError:
    return StageError(f"descriptor {fd} is not an arena: {why}; send one from Arena.create()")
