"""The detection of out-of-memory errors by their type and by the messages of libraries.

A message that merely mentions memory does not count. This module does not import torch, whose
exception types it knows by name.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.trainer.errors import message_of

_GPU_TYPE = "torch.OutOfMemoryError"
_NCCL_TYPE = "torch.distributed.DistBackendError"
# Beginnings of the message of a RuntimeError of torch.
_GPU = re.compile(
    r"(CUDA|HIP|XPU) out of memory\. Tried to allocate"
    r"|(CUDA|HIP) error: out of memory"
    r"|(CUDA|HIP|cuDNN|cusolver|cuFFT) error: \w*ALLOC_FAILED\b"
)
_HOST = re.compile(
    r"(\[enforce fail at [^\]]*\] [^\n]*)?DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|unable to mmap \d+ bytes [^\n]*: Cannot allocate memory \(12\)"
)
# NCCL has the cause at the end of a longer message.
_NCCL = re.compile(r"Cuda failure (\d+ )?'out of memory'|Failed to CUDA (host )?[cm]alloc")


def memory_of(error: BaseException) -> MemoryKind | None:
    """Return the kind of memory that has run out according to `error` or its causes; None if none
    has."""
    return next((found for one in _with_causes(error) if (found := _of_one(one))), None)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes in the reverse order of a traceback."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _of_one(error: BaseException) -> MemoryKind | None:
    if isinstance(error, MemoryError):
        return MemoryKind.HOST
    if isinstance(error, OSError):
        return MemoryKind.HOST if error.errno == errno.ENOMEM else None
    if not isinstance(error, RuntimeError):
        return None
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    text = message_of(error)
    if _GPU_TYPE in names or _GPU.match(text) or (_NCCL_TYPE in names and _NCCL.search(text)):
        return MemoryKind.GPU
    return MemoryKind.HOST if _HOST.match(text) else None
