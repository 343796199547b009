"""The training function that times steps with batches of growing size, and trains nothing.

`hpckit bench precision` runs it on one rank. The batches are noise or zeros, so that nothing waits
for data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from pydantic import ValidationError
from torch.distributed.device_mesh import DeviceMesh

from hpckit.config.rules.model import needs_two_samples
from hpckit.config.spec import PrecisionSpec, ResnetSpec, RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.system.atomic_files import write_text
from hpckit.trainer.device.device_capability import lack_of_bf16
from hpckit.trainer.device.device_queue import synchronize
from hpckit.trainer.measurement.batch_size_figures import (
    REPORT,
    SEARCH,
    BatchSizeReport,
    BatchSizeSearch,
    BatchTiming,
    PrecisionName,
    should_double,
)
from hpckit.trainer.measurement.synthetic_batch import synthetic_batch
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.precision.loss_scale import LossScale
from hpckit.trainer.run_loop import training_run

_WARM_UP, _STEPS = 2, 5
_MOST_SKIPPED = 20


def main(cfg: RunSpec) -> None:
    """Time everything in the single step of a run, and write the report.

    Raises:
        SpecError: `user_config` is not a `BatchSizeSearch`.
    """
    search = read_search(cfg)
    with training_run(cfg) as run:
        run.track(nothing=_NoState())
        for _ in run.steps([0]):
            report = time_batches(cfg, search, run.mesh, run.device)
            write_text(Path(search.output), REPORT.dump_json(report, indent=2).decode() + "\n")


def read_search(cfg: RunSpec) -> BatchSizeSearch:
    """Return what `user_config` asks for.

    Raises:
        SpecError: it is something else.
    """
    try:
        return SEARCH.validate_python(cfg.user_config)
    except ValidationError as error:
        raise SpecError([f"user_config: {error.errors()[0]['msg']}"]) from error


def time_batches(
    cfg: RunSpec, search: BatchSizeSearch, mesh: DeviceMesh, device: torch.device
) -> BatchSizeReport:
    """Return the timings of all precisions."""
    timings: list[BatchTiming] = []
    failures: dict[str, str] = {}
    for precision in search.precisions:
        if precision == "bf16" and (why := lack_of_bf16(device)):
            failures[precision] = why
            continue
        try:
            for one in time_precision(cfg, precision, mesh, device, search.most, search.step_s):
                timings.append(one)  # those before an error are kept
        except (RuntimeError, NotImplementedError) as error:
            failures[precision] = str(error).partition("\n")[0]
    return BatchSizeReport(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        timings=tuple(timings),
        failures=failures,
    )


def time_precision(
    spec: RunSpec,
    precision: PrecisionName,
    mesh: DeviceMesh,
    device: torch.device,
    most: int,
    budget_s: float,
) -> Iterator[BatchTiming]:
    """Yield the timings of one precision, for 1, 2, 4, ... samples (from 2 on, if the model cannot
    be trained with one) until twice as many are not
    faster, or memory does not suffice.

    Args:
        most: the largest number of samples.
        budget_s: seconds of a step from which on twice as many are not tried.
    """
    found: list[BatchTiming] = []
    samples = 2 if isinstance(spec.model, ResnetSpec) and needs_two_samples(spec.model) else 1
    while not found or should_double(found, most, budget_s):
        samples = 2 * found[-1].samples if found else samples
        found.append(_time_batch(spec, precision, samples, mesh, device))
        yield found[-1]


def in_precision(spec: RunSpec, precision: PrecisionName) -> RunSpec:
    """Return the run with the option of `conf/precision/` of that name."""
    return replace(spec, precision=PrecisionSpec(compute=precision, reduce="fp32", master="fp32"))


def _time_batch(
    spec: RunSpec, precision: PrecisionName, samples: int, mesh: DeviceMesh, device: torch.device
) -> BatchTiming:
    made = in_precision(spec, precision)
    made = replace(made, train=replace(made.train, micro_batch=samples, global_batch=samples))
    try:
        step, scale = _prepare(made, samples, mesh, device)
        _warm_up(step, scale)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = median(_timed(step, device) for _ in range(_STEPS))
    except torch.OutOfMemoryError:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return BatchTiming(precision, samples, None, None)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return BatchTiming(precision, samples, seconds, peak)


def _prepare(
    spec: RunSpec, samples: int, mesh: DeviceMesh, device: torch.device
) -> tuple[Callable[[], None], LossScale]:
    """Return a whole step of training with `samples` samples, and its loss scale."""
    parallel_model = ParallelModel(spec, mesh, device)
    optimizer = build_optimizer(parallel_model.module, spec.optim)
    inputs, targets, documents, loss_of = synthetic_batch(spec, samples, device)
    if inputs.is_floating_point():
        inputs = torch.randn_like(inputs)  # of zeros, CPUs compute slowly with denormal numbers
    gradients = parallel_model.step_gradients(samples, loss_of)

    def step() -> None:
        optimizer.zero_grad()
        gradients(inputs, targets, documents)
        norm = parallel_model.clip_gradients(spec.optim.grad_clip)
        parallel_model.loss_scale.step(optimizer, norm)

    return step, parallel_model.loss_scale


def _warm_up(step: Callable[[], None], scale: LossScale) -> None:
    """Make the first steps, until one is not skipped because gradients overflow."""
    for number in range(_MOST_SKIPPED):
        before = scale.value
        step()
        if number + 1 >= _WARM_UP and scale.value == before:
            return


def _timed(step: Callable[[], None], device: torch.device) -> float:
    begun_s = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - begun_s


class _NoState:
    """The state of a run that trains nothing."""

    def state_dict(self) -> dict[str, int]:
        return {"steps": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Load nothing."""
