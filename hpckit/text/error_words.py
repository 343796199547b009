"""The words of an error, by which two attempts are compared, and whether they are of a GPU."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(0x[0-9a-f]+|\d+)")
_DEVICE = re.compile(r"AcceleratorError|CUDA|CUDNN|CUBLAS|NCCL|HIP error", re.IGNORECASE)


def error_words(type_name: str, message: str) -> str:
    """Return the type and message of an error with numbers (addresses, processes, times) replaced,
    which are equal if another attempt fails with the same error."""
    return _NUMBER.sub("#", f"{type_name}: {message}")


def names_gpu(type_name: str, message: str) -> bool:
    """Return whether an error is of a GPU or its libraries, by its type or message. On another GPU
    it may not occur."""
    return _DEVICE.search(f"{type_name}: {message}") is not None
