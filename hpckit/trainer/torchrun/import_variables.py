"""Environment variables that torch and what it imports read once, at their import.

In a worker that is a fork torch has been imported before the user's code runs, so that a script
which sets such a variable before its own `import torch` sets it in vain. Nothing fails; the run is
therefore watched, and says so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from hpckit.events.schema import DegradedSubject
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.ipc.rank_events import report_degraded

READ_AT_IMPORT = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_JIT",
    "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
    "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",
    "TORCHDYNAMO_DISABLE",
    "TORCHDYNAMO_SUPPRESS_ERRORS",
    "TORCHDYNAMO_VERBOSE",
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TORCHINDUCTOR_BENCHMARK_KERNEL",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_FREEZING",
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS",
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",
    "TORCHINDUCTOR_PROFILE",
    "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES",
    "TORCH_COMPILE_DISABLE",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_LOGS",
    "TORCH_LOGS_FORMAT",
    "TORCH_LOGS_OUT",
    "TORCH_TRACE",
    "TQDM_DISABLE",
    "TQDM_MININTERVAL",
)
"""Variables that torch 2.13 and what it imports (OpenBLAS, MKL, tqdm 4.70) read at their import and
not later, as was seen in runs or in their sources; not all of them."""
_POLL_S = 1.0


def ineffective_settings(
    at_import: Mapping[str, str | None], now: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables, with their values, that were set too late for torch to read them."""
    return {
        name: now[name]
        for name in READ_AT_IMPORT
        if now.get(name) is not None and now[name] != at_import.get(name)
    }


class ImportVariableWatch(threading.Thread):
    """Reports once which variables have been set in vain since it was made."""

    def __init__(self, env: WorkerEnvironment) -> None:
        super().__init__(name="import variables", daemon=True)
        self._env = env
        self._at_import = {name: os.environ.get(name) for name in READ_AT_IMPORT}
        self._is_over = threading.Event()

    def run(self) -> None:
        settings: dict[str, str] = {}
        is_over = False
        while not settings and not is_over:
            is_over = self._is_over.wait(_POLL_S)
            settings = ineffective_settings(self._at_import, os.environ)
        if settings:
            self._report(settings)

    def close(self) -> None:
        """Look once more, at the end of the program."""
        self._is_over.set()
        self.join()

    def _report(self, settings: Mapping[str, str]) -> None:
        what = (
            f"{', '.join(f'{name}={value}' for name, value in settings.items())} has no effect, "
            "since workers are forks of a process that has imported torch before the program "
            "sets it: export it where the run is launched, or set launch.preload=false"
        )
        report_degraded(self._env, DegradedSubject.ENVIRONMENT, what)
