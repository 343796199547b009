"""Which errors mean that memory ran out; real ones where this machine can have them."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.distributed import DistBackendError

from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.trainer.memory.out_of_memory import memory_of

GPU, HOST = MemoryKind.GPU, MemoryKind.HOST
NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:2356, unhandled cuda error (run with NCCL_DEBUG=INFO for "
    "details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)


def caught(fail: Callable[[], object]) -> BaseException:
    with pytest.raises((RuntimeError, MemoryError)) as found:
        fail()
    return found.value


def after_a_lack(*, cause: bool, is_hidden: bool = False) -> BaseException:
    """An error of a user's, as `raise` makes it of, or in the handling of, a lack of memory."""
    error, lack = KeyError("the step failed"), torch.OutOfMemoryError("CUDA out of memory.")
    error.__context__ = lack
    error.__cause__ = lack if cause else None
    error.__suppress_context__ = cause or is_hidden
    return error


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("of any wording"), GPU),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), GPU),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), GPU),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), GPU),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), GPU),
        (DistBackendError(NCCL), GPU),
        (caught(lambda: torch.empty(2**50)), HOST),
        (caught(lambda: np.empty(2**50)), HOST),
        (MemoryError(), HOST),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
            HOST,
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), HOST),
        (after_a_lack(cause=True), GPU),
        (after_a_lack(cause=False), GPU),
        (after_a_lack(cause=False, is_hidden=True), None),
        (RuntimeError(NCCL), None),
        (DistBackendError("NCCL error in: x, unhandled system error"), None),
        (RuntimeError("my replay buffer is out of memory slots"), None),
        (RuntimeError("the last run died of: CUDA out of memory. Tried to allocate"), None),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"), None),
        (ValueError("CUDA out of memory. Tried to allocate 2.00 GiB."), None),
        (OSError(errno.ENOSPC, "No space left on device"), None),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_lack_of_memory_is_told_from_talk_of_it(
    error: BaseException, memory: MemoryKind | None
) -> None:
    assert memory_of(error) == memory


def test_causes_that_go_round_come_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert memory_of(first) is None
