"""Which GPU the ranks of a run will have, as far as anybody here knows."""

from __future__ import annotations

from hpckit.elastic.devices import gpu_model
from hpckit.plan.cards import Card, recognise
from hpckit.run.spec import RunSpec


def card_of(spec: RunSpec) -> Card | None:
    """By the type of GPU that the job asks for, or this machine's driver; None: not known."""
    if spec.cluster.device == "cpu":
        return None
    slurm = spec.cluster.slurm
    name = gpu_model() if slurm is None else slurm.gpu_type
    return None if name is None else recognise(name)
