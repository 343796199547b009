"""Assigns a machine's GPUs to simulated nodes, by the device files and without torch, and its cores
to workers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.text.quantities import count

_GPU = re.compile(r"nvidia(\d+)$")


@dataclass(frozen=True)
class Devices:
    """The devices of the workers."""

    kind: str
    """`cpu` or `cuda`."""
    visible: tuple[str, ...]
    """GPU numbers or UUIDs of this machine; empty on the CPU."""
    note: str | None
    """Why the choice may be unexpected, if it is."""

    def of_node(self, node: int, per_node: int) -> str:
        """Returns CUDA_VISIBLE_DEVICES of simulated node `node`."""
        return ",".join(self.visible[node * per_node : (node + 1) * per_node])


def visible_gpus(env: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns the GPUs that this process may use."""
    if (stated := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(part.strip() for part in stated.split(",") if part.strip() not in ("", "-1"))
    numbers = sorted(int(m[1]) for entry in dev.iterdir() if (m := _GPU.match(entry.name)))
    return tuple(str(number) for number in range(len(numbers)))


def gpu_model(proc: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """Returns the driver's name of this machine's first GPU, or None if there is none."""
    for about in sorted(proc.glob("*/information")):
        for line in about.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                return value.strip()
    return None


def choose_devices(wanted: str, needed: int, gpus: Sequence[str]) -> Devices:
    """Returns the devices for `needed` workers, given the available `gpus` and the spec's `wanted`.

    Raises:
        ValueError: CUDA is wanted and there are too few GPUs.
    """
    if wanted == "cpu":
        return Devices("cpu", (), None)
    if len(gpus) >= needed:
        return Devices("cuda", tuple(gpus), None)
    short = f"{count(needed, 'worker')}, but {count(len(gpus), 'GPU')} on this node"
    if wanted == "cuda":
        raise ValueError(f"cluster.device: cuda needs a GPU for every worker: {short}")
    return Devices("cpu", (), f"on the CPU: {short}" if gpus else None)


def even_share(workers: int) -> int:
    """Returns the threads of each worker if workers share this process's cores evenly."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
