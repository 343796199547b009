"""hpckit: preemption-tolerant PyTorch training on Slurm.

from hpckit import training_run, RunSpec
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpckit import distribution, earlier_names

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec
    from hpckit.trainer.run_loop import TrainingRun, training_run

__all__ = ["RunSpec", "TrainingRun", "training_run"]
_HOMES = {
    "RunSpec": "hpckit.config.spec",
    "TrainingRun": "hpckit.trainer.run_loop",
    "training_run": "hpckit.trainer.run_loop",
}


def __dir__() -> list[str]:
    """List the names for users, also those that were not used yet, for completion."""
    return sorted([*__all__, "__version__", "client"])


def __getattr__(name: str) -> Any:
    """Import on first use: the launcher lives in this package too, and must not import torch."""
    if name == "__version__":
        from hpckit.version import VERSION

        return VERSION
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "hpckit", "checkpointing", "data"):
            raise
        raise ModuleNotFoundError(
            f"hpckit.{name} needs the package {missing}, which is not installed in {sys.prefix}: "
            f"{distribution.LAUNCHER}",
            name=error.name,
        ) from error
    return getattr(home, name)


earlier_names.install()
distribution.warn_of_conflict(__file__.removesuffix("/hpckit/__init__.py"))
