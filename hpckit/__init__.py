"""hpckit: preemption-tolerant PyTorch training on Slurm.

from hpckit import training_run, RunSpec
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpckit.run.spec import RunSpec
    from hpckit.training.run import TrainingRun, training_run

__all__ = ["RunSpec", "TrainingRun", "training_run"]


def __getattr__(name: str) -> Any:
    """Import on first use: the launcher lives in this package too, and must not import torch."""
    if name in ("TrainingRun", "training_run"):
        from hpckit.training import run

        return getattr(run, name)
    if name == "__version__":
        from hpckit.run.version import VERSION

        return VERSION
    if name == "RunSpec":
        from hpckit.run.spec import RunSpec

        return RunSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
