"""Determines which GPU the ranks of a run will have, as far as this machine can know."""

from __future__ import annotations

from hpckit.agent.device_assignment import gpu_model
from hpckit.config.spec import RunSpec
from hpckit.planner.gpu_cards import GpuCard, recognise


def card_of(spec: RunSpec) -> GpuCard | None:
    """Returns the GPU by the type that the job asks for, or by this machine's driver; None:
    unknown."""
    if spec.cluster.device == "cpu":
        return None
    slurm = spec.cluster.slurm
    name = gpu_model() if slurm is None else slurm.gpu_type
    return None if name is None else recognise(name)
