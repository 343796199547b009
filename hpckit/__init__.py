"""hpckit: preemption-tolerant PyTorch training on Slurm.

from hpckit import training_run, RunSpec
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpckit import distribution, earlier_names

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec
    from hpckit.trainer.run_loop import TrainingRun, training_run

__all__ = ["RunSpec", "TrainingRun", "training_run"]


def __getattr__(name: str) -> Any:
    """Import on first use: the launcher lives in this package too, and must not import torch."""
    if name in ("TrainingRun", "training_run"):
        from hpckit.trainer import run_loop

        return getattr(run_loop, name)
    if name == "__version__":
        from hpckit.version import VERSION

        return VERSION
    if name == "RunSpec":
        from hpckit.config.spec import RunSpec

        return RunSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


earlier_names.install()
distribution.warn_of_conflict(__file__.removesuffix("/hpckit/__init__.py"))
