"""The detection of the call that first used a GPU in a process whose forks become workers.

Forks of a process that has used CUDA cannot use it: torch refuses, and the driver fails. No code
that runs before the fork may therefore use CUDA. If this module is imported before all other parts
of torch, the first use is recorded together with its call stack.
"""

from __future__ import annotations

import ctypes
import functools
import os
import traceback
from collections.abc import Callable
from typing import Any

from hpckit.torch_internals import native_module

CALLS = ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getArchFlags")
"""Functions of `torch._C` after which torch refuses CUDA in every fork. All other functions with
this effect call one of these (tested with torch 2.9.1, 2.14.1 and 2.15.0)."""
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED, which the driver returns for all other calls before `cuInit`."""
_FRAMES = 6


class FirstDeviceUse:
    """The first use of a GPU in this process, or in the process that it was forked from.

    Args:
        module: the module with the functions `CALLS`, of which builds of torch may lack some.
    """

    def __init__(self, module: Any) -> None:
        self.call: str | None = None
        """The function and its call stack, the innermost call last; None if no use was detected."""
        self.is_of_driver = False
        """Whether only `check_driver` has detected the use."""
        self._module = module
        self._real = {name: getattr(module, name) for name in CALLS if hasattr(module, name)}
        for name, function in self._real.items():
            setattr(module, name, self._recording(name, function))

    def check_driver(self) -> None:
        """Check whether the driver was initialised without these functions, which torch does not
        detect."""
        if self.call is None and is_driver_initialised():
            self.call = "NVIDIA's driver was initialised, not by torch's Python code"
            self.is_of_driver = True

    def stop(self) -> None:
        """Remove the recording from torch, since uses from here on are allowed."""
        for name, function in self._real.items():
            setattr(self._module, name, function)

    def _recording(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def record(*args: Any) -> Any:
            if self.call is None:
                self.call = f"torch._C.{name}, called by {_callers()}"
            return function(*args)

        return record


def is_driver_initialised(load: Callable[..., Any] = ctypes.CDLL) -> bool:
    """Whether this process has called `cuInit`. The check does not load the driver, and does not
    detect a call in the process that this one was forked from."""
    try:
        driver = load("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:  # it is not loaded
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _callers() -> str:
    """Return the files, lines and functions of the current call stack, without those of this
    module."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
    shown = [frame for frame in frames if "importlib" not in frame.filename][-_FRAMES:]
    return " > ".join(f"{_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in shown)


def _short(path: str) -> str:
    return path.rpartition("site-packages/")[2]


FIRST_USE = FirstDeviceUse(native_module)
