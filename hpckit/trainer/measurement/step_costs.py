"""Measures what the steps of a run cost by operation and by layer (`debug.profile.costs`).

First come the steps that `debug.profile` names, under torch's profiler. Then one more step counts
operations, bytes and memory, which would make the profile slower. At the end the device is measured
alone. Only rank 0 does this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hpckit.config.spec import RunSpec
from hpckit.system.atomic_files import write_text
from hpckit.trainer.device.device_queue import synchronize
from hpckit.trainer.measurement.activation_memory import ActivationMemory
from hpckit.trainer.measurement.cost_report import COSTS, ENDING, StepCosts
from hpckit.trainer.measurement.machine_peaks import measure_peaks
from hpckit.trainer.measurement.operation_counter import OperationCounter
from hpckit.trainer.measurement.operation_times import operation_costs
from hpckit.trainer.parallel.data_parallel import DTYPES

log = logging.getLogger(__name__)


class StepCostMeter:
    """Measures steps, and writes the costs to a file."""

    def __init__(
        self,
        cfg: RunSpec,
        device: torch.device,
        tracked: Mapping[str, Any],
        folder: Path,
        name: str,
    ) -> None:
        """Args:
        tracked: the state of the run by name, of which modules are looked at.
        folder, name: the folder of the file, and the begin of its name.
        """
        self._cfg, self._device = cfg, device
        self._modules = {key: one for key, one in tracked.items() if isinstance(one, nn.Module)}
        self._file = folder / f"{name}.{ENDING}"
        self._profile: profile | None = None
        self._counting: ExitStack | None = None
        self._events: list[Any] = []
        self._counter = OperationCounter()
        self._memory = ActivationMemory(self._modules)

    def begin_step(self, step: int) -> None:
        """Begin step `step` (from 1), and end the step before it. An attempt that resumes after the
        first of the steps measures nothing."""
        start, steps = self._cfg.debug.profile.start, self._cfg.debug.profile.steps
        if start is None:
            return
        if step == start:
            self._start_profile()
        elif self._profile is not None and step == start + steps:
            self._end_profile(self._profile)
            self._start_counting()
        elif self._counting is not None:
            self._end_counting(self._counting)

    def close(self) -> None:
        """End what is measured, even in the middle of its steps."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        if self._counting is not None:
            self._end_counting(self._counting)

    def _start_profile(self) -> None:
        is_gpu = self._device.type == "cuda"
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
        self._profile = profile(activities=kinds)
        self._profile.start()

    def _end_profile(self, done: profile) -> None:
        synchronize(self._device)
        done.stop()
        self._events = [*(done.events() or [])]  # type: ignore[no-untyped-call]
        self._profile = None

    def _start_counting(self) -> None:
        self._counting = ExitStack()
        if self._cfg.memory.compile:
            return  # compiled code is not seen
        self._counting.enter_context(self._memory.measure())
        self._counting.enter_context(self._counter)

    def _end_counting(self, counting: ExitStack) -> None:
        counting.close()
        self._counting = None
        found = self._costs()
        try:
            self._file.parent.mkdir(exist_ok=True)
            write_text(self._file, COSTS.dump_json(found, indent=2).decode() + "\n")
        except OSError as error:
            log.error("the costs of steps could not be written: %s", error)

    def _costs(self) -> StepCosts:
        shown, is_gpu = self._cfg.debug.profile, self._device.type == "cuda"
        assert shown.start is not None
        dtype = DTYPES[self._cfg.precision.compute]
        return StepCosts(
            device=torch.cuda.get_device_name(self._device) if is_gpu else "cpu",
            torch=torch.__version__,
            threads=torch.get_num_threads(),
            first_step=shown.start,
            steps=shown.steps,
            is_compiled=self._cfg.memory.compile,
            peaks=measure_peaks(self._device, dtype),
            operations=operation_costs(self._events, shown.steps, self._counter.counts),
            layers=self._memory.layers,
        )
