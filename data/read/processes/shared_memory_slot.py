"""Shared memory that transfers one object at a time from one process to another.

The object is pickled by protocol 5 (PEP 574) into the memory, and the bytes of its arrays follow
unchanged. The memory is a memfd: it has no name, no other process can open it, and the kernel frees
it with the last process that has it, however that one ends. Tensors are pickled as buffers; torch
is used only if it is imported already.
"""

import copyreg
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from itertools import accumulate
from pickle import PickleBuffer
from typing import Any, NamedTuple, SupportsIndex

_ALIGNED = 64  # bytes, as vector instructions need
_PAGE = 1 << 16
_IN_LINE = 1 << 10  # bytes of an array below which pickling it costs less


class PickleLayout(NamedTuple):
    """The layout of an object in a slot."""

    pickled: int
    """Bytes of its pickle, which comes first."""
    buffers: tuple[int, ...]
    """Bytes of each buffer that follows, aligned."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Return [begin, end) of each buffer."""
        begins = accumulate(self.buffers, lambda at, size: _up(at + size), initial=self._first)
        return [(at, at + size) for at, size in zip(begins, self.buffers, strict=False)]

    @property
    def end(self) -> int:
        return max(self.pickled, *(end for _, end in self.spans)) if self.buffers else self.pickled

    @property
    def _first(self) -> int:
        return _up(self.pickled)


class SharedMemorySlot:
    """A shared memory buffer with the descriptor `fd`. One process puts an object, then another one
    takes it, in turn.

    Objects are unpickled, so only processes that trust each other may share one.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.grown = 0
        """How often the memory was too small, after its first object."""
        self._memory: mmap.mmap | None = None

    @classmethod
    def make(cls) -> "SharedMemorySlot":
        """Create an empty slot. Raises OSError."""
        fd = os.memfd_create("hpckit-batch", os.MFD_CLOEXEC)
        os.fchmod(fd, 0o600)
        return cls(fd)

    def __del__(self) -> None:
        os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def put(self, thing: object) -> PickleLayout:
        """Replace the object in the slot, which grows as needed.

        Raises OSError if there is no memory, and whatever pickling raises.
        """
        before = self.size
        buffers: list[memoryview] = []

        def aside(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= _IN_LINE:
                buffers.append(view)
            return view.nbytes < _IN_LINE

        writer = _Writer(self)
        pickler = pickle.Pickler(writer, 5, buffer_callback=aside)
        pickler.dispatch_table = _reductions()
        pickler.dump(thing)
        layout = PickleLayout(writer.at, tuple(view.nbytes for view in buffers))
        memory = self.reserved(layout.end)
        for view, (begin, end) in zip(buffers, layout.spans, strict=True):
            memory[begin:end] = view
        self.grown += 0 < before < self.size
        return layout

    def take(self, layout: PickleLayout) -> Any:
        """Return the object with copies of its arrays: the slot is free for the next one."""
        with memoryview(self._mapped(layout.end)) as view:
            buffers = [bytearray(view[begin:end]) for begin, end in layout.spans]
            return pickle.loads(  # noqa: S301 (this process started the one that put it there)
                view[: layout.pickled], buffers=buffers
            )

    def borrow(self, layout: PickleLayout) -> Any:
        """Return the object with arrays that are views of this memory, copied on write. No object
        may be put after that."""
        view = memoryview(mmap.mmap(self.fd, max(layout.end, 1), access=mmap.ACCESS_COPY))
        buffers = [view[begin:end] for begin, end in layout.spans]
        return pickle.loads(  # noqa: S301 (put there by the process that started this one)
            view[: layout.pickled], buffers=buffers
        )

    def reserved(self, size: int) -> mmap.mmap:
        """Return the memory, with at least `size` bytes. Raises OSError if there is not enough."""
        if size > self.size or self._memory is None:
            room = max(-(-(size + size // 4) // _PAGE) * _PAGE, _PAGE)
            # a write to pages that cannot be allocated would kill the process
            os.posix_fallocate(self.fd, 0, room)
        return self._mapped(size)

    def _mapped(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self.fd, self.size)
        return self._memory


class _Writer:
    """A file object that a pickle is written to."""

    def __init__(self, slot: SharedMemorySlot) -> None:
        self._slot = slot
        self.at = 0

    def write(self, piece: Any) -> SupportsIndex:
        with memoryview(piece) as view:
            end = self.at + view.nbytes
            self._slot.reserved(end)[self.at : end] = view
            self.at = end
            return view.nbytes


def _up(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _reductions() -> dict[type, Callable[[Any], Any]]:
    """Return the entries of a pickler's `dispatch_table` for tensors."""
    table: dict[type, Callable[[Any], Any]] = dict(copyreg.dispatch_table)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):  # another thread may be importing it
        table[torch.Tensor] = _reduced_tensor
    return table


def _reduced_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    is_plain = (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )
    if not is_plain:
        return tensor.__reduce_ex__(5)
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    name = str(tensor.dtype).removeprefix("torch.")
    return _restored_tensor, (PickleBuffer(content), name, tuple(tensor.shape))


def _restored_tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)
