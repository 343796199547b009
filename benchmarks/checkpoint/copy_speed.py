"""What bounds a save that copies before it returns: ways to copy tensors, in one thread each.

    python -m benchmarks.checkpoint.copy_speed [--mib 256] [--tensor-mib 16] [--rounds 9]

Each way copies the same tensors into shared memory as saves use, or ("private") into memory of this
process. "non-temporal" is memmove in a process whose C library is told to write past the caches
from 1 MiB on, which no call from Python can ask for. Values are processor time of the thread, so
that they can be compared on a machine that others use.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from checkpointing.staging.arena import Arena
from checkpointing.staging.tensor_copy import places_for

BASE, MEMMOVE, PAST_CACHES = "Tensor.copy_, private", "memmove", "memmove, non-temporal"
_PAST_CACHES = {
    "GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x100000"
    ":glibc.cpu.x86_rep_movsb_threshold=0x40000000"
}

_memmove: Callable[..., object] = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=256)
    parser.add_argument("--tensor-mib", type=positive_int, default=16)
    parser.add_argument("--rounds", type=positive_int, default=9)
    parser.add_argument("--child", action="store_true", help="memmove alone; prints its times")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    arms = _arms(settings.mib << 20, settings.tensor_mib << 20)
    if settings.child:
        print(json.dumps(interleave({MEMMOVE: arms[MEMMOVE]}, settings.rounds)[MEMMOVE]))
        return
    measured = interleave(arms, settings.rounds)
    measured[PAST_CACHES] = _in_child()
    report(ArmComparison("copy_speed", BASE, "s", measured), vars(settings))


def _arms(nbytes: int, tensor: int) -> Mapping[str, Callable[[], float]]:
    count = nbytes // tensor
    sources = [torch.randn(tensor // 4) for _ in range(count)]
    private = [torch.ones(tensor // 4) for _ in range(count)]
    arena = Arena.create(nbytes)
    arena.prefault()
    memory = arena.view(0, nbytes)
    shared = places_for(memory, range(0, tensor * len(sources), tensor), sources)
    ways: dict[str, tuple[Callable[[Tensor, Tensor], object], list[Tensor]]] = {
        BASE: (_by_torch, private),
        "Tensor.copy_": (_by_torch, shared),
        "numpy.copyto": (_by_numpy, shared),
        MEMMOVE: (_by_memmove, shared),
    }
    return {name: partial(_seconds, way, to, sources) for name, (way, to) in ways.items()}


def _by_torch(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _by_numpy(target: Tensor, source: Tensor) -> None:
    np.copyto(target.numpy(), source.numpy())


def _by_memmove(target: Tensor, source: Tensor) -> None:
    _memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


def _seconds(
    way: Callable[[Tensor, Tensor], object], targets: list[Tensor], sources: list[Tensor]
) -> float:
    begun_s = time.thread_time()
    for target, source in zip(targets, sources, strict=True):
        way(target, source)
    return time.thread_time() - begun_s


def _in_child() -> list[float]:
    """Returns the times of memmove in a process that writes past the caches."""
    words = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--child"]
    found = subprocess.run(
        words, env={**os.environ, **_PAST_CACHES}, stdout=subprocess.PIPE, check=True
    )
    return [float(one) for one in json.loads(found.stdout)]


if __name__ == "__main__":
    main()
