"""A fork server under a spy: `python -m` this, in place of `hpckit.trainer.torchrun.fork_server`.

Each use of a GPU from Python, by it or by a torchrun that it forks, is a line of the file that the
variable SPY_FILE names, and so is what each worker finds when it begins. Workers train nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

USES = "uses a GPU"
WORKER = "worker: "
_DRIVERS = ("libcuda.so", "libnvidia-ml.so", "libamdhip", "libze_loader")
_LOOKS = "is_driver_initialised"  # of hpckit.trainer.torchrun.first_device_use, which loads none
_PREFIXES = ("_cuda_", "_accelerator_", "_xpu_", "_mtia_")
_PYTHON = ("is_available", "device_count", "init", "_lazy_init", "current_device", "set_device")
_HARMLESS = ("_isInBadFork", "_isBuilt")  # flags, which no driver is asked for


def say(line: str) -> None:
    with open(os.environ["SPY_FILE"], "a") as file:
        file.write(f"{line}\n")


def watch(module: ModuleType, names: list[str]) -> None:
    for name in names:
        setattr(module, name, _watched(f"{module.__name__}.{name}", getattr(module, name)))


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        stack = traceback.extract_stack()[-8:-1]
        by = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in stack)
        say(f"{USES}: {name}, called by {by}")
        return function(*args, **named)

    return called


def hear(event: str, args: tuple[Any, ...]) -> None:
    """As an audit hook: libraries of drivers that are loaded."""
    if event != "ctypes.dlopen" or not any(name in str(args[0]) for name in _DRIVERS):
        return
    if not any(frame.name == _LOOKS for frame in traceback.extract_stack()):
        say(f"{USES}: loads {args[0]}")


def in_worker() -> None:
    """In place of `hpckit.trainer.torchrun.forked_workers.run_forked_worker`."""
    import torch

    mapped = Path("/proc/self/maps").read_text()
    found = [name for name in ("libcuda.so", "libnvidia-ml.so") if name in mapped]
    say(f"{WORKER}bad fork {torch.cuda._is_in_bad_fork()}, drivers {found}")


def main() -> None:
    sys.addaudithook(hear)
    import torch
    import torch.accelerator
    import torch.cuda

    of_c = [
        name
        for name in dir(torch._C)
        if name.startswith(_PREFIXES) and not name.endswith(_HARMLESS)
        if callable(getattr(torch._C, name)) and not isinstance(getattr(torch._C, name), type)
    ]
    watch(torch._C, of_c)
    for module in (torch.cuda, torch.accelerator):
        watch(module, [name for name in _PYTHON if hasattr(module, name)])
    if os.environ.get("SPY_BAIT"):
        torch.cuda.is_available()  # which NVML may answer, if the environment says so
        getattr(torch._C, "_cuda_getDeviceCount", int)()
    from hpckit.trainer.torchrun import fork_server, forked_workers

    forked_workers.run_forked_worker = in_worker
    fork_server.main()


if __name__ == "__main__":
    main()
