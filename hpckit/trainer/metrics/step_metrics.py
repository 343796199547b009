"""Step metrics, which are averaged over ranks and written to events, TensorBoard files and
trackers."""

from __future__ import annotations

import json
import logging
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.events import step_phases
from hpckit.events.event_log import EventLog
from hpckit.events.schema import DataBound
from hpckit.trainer.device.peak_flops import known_peak
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.memory import peak_memory
from hpckit.trainer.memory.peak_memory import peak_bytes, peak_name
from hpckit.trainer.metrics import loader_statistics
from hpckit.trainer.metrics.loader_statistics import LoaderStatistics
from hpckit.trainer.metrics.record_writer import StepRecordWriter
from hpckit.trainer.metrics.source_metrics import PREFIX, SourceMetrics
from hpckit.trainer.parallel.collectives import reduced, start_reduce
from hpckit.trainer.timing import communication_cost
from hpckit.trainer.timing.communication_cost import CommunicationMonitor
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.trackers.tracker_delivery import TrackerDelivery

log = logging.getLogger(__name__)

Value = float | int | Tensor
TOKENS = "tokens"
"""Name of the metric that is a rank's count of tokens; it is summed and becomes `tokens_per_s`."""
SAMPLES = "samples"
"""Name of the metric that is a rank's count of samples, for models without tokens; it is summed and
becomes `samples_per_s`."""
FLOPS = "flops"
"""Name of the metric that is a rank's count of the FLOPs that the model needs; it is summed and
becomes `mfu`, its share of the peak FLOP/s of the GPUs (Chowdhery et al. 2022)."""

SLOWEST = ("data_wait_s", "checkpoint_stall_s")
"""Step phases whose maximum over ranks is recorded too, under these names with `_max`, because all
ranks wait for the slowest one."""

RESERVED = frozenset(
    (
        *("time", "kind", "step", "generation", "attempt", "node", "rank", "submission"),
        *(
            "tokens_per_s",
            "samples_per_s",
            "mfu",
            "step_s",
            *peak_memory.NAMES,
            *communication_cost.NAMES,
        ),
        *(*step_phases.NAMES, *(f"{name}_max" for name in SLOWEST)),
        *loader_statistics.NAMES,
    )
)
"""Names that step records use themselves, so that no logged metric may have them."""


@dataclass(frozen=True)
class StepMeasurements:
    """The sources of what a step record has beside the logged metrics."""

    loader: LoaderStatistics
    sources: SourceMetrics
    phases: StepPhases
    communication: CommunicationMonitor
    device: torch.device


@dataclass(frozen=True)
class StepRecordOptions:
    """How often steps are recorded, and where to."""

    every: int
    """Number of steps from one record to the next."""
    tensorboard: Path | None
    """Folder of the TensorBoard files, which rank 0 writes; None on other ranks."""
    copies: int = 1
    """Number of ranks that take the same samples."""
    trackers: Sequence[TrackerDelivery] = ()
    """Trackers of rank 0, which get the records too."""


class StepMetrics:
    """Collects the metrics that are logged in each step and records every `every`-th step.

    Tensors stay on their device until then: between two records no step waits for the device.
    """

    def __init__(
        self,
        events: EventLog,
        measurements: StepMeasurements,
        options: StepRecordOptions,
        step: int,
    ) -> None:
        """`step`: number of steps that are finished."""
        self._events, self._every, self._copies = events, options.every, options.copies
        self._loader, self._phases = measurements.loader, measurements.phases
        self._sources = measurements.sources
        self._communication, self._device = measurements.communication, measurements.device
        self._diagnosis = loader_statistics.LoaderDiagnosis()
        self._peak_flops = known_peak(self._device)
        self._has_warned_of_missing_peak = False
        self._records = (
            StepRecordWriter(events, options.tensorboard, options.trackers)
            if options.tensorboard
            else None
        )
        self._step_values: dict[str, Value] = {}
        self._counted: dict[str, Value] = dict.fromkeys((TOKENS, SAMPLES, FLOPS), 0)
        self._phases.take()  # leaves out the time before the first step
        self._since = (step, time.monotonic())
        self.newest: dict[str, float] = {}
        """The logged metrics, averaged over ranks, of the newest recorded step."""
        self._logged: Mapping[str, Value] = {}
        self._names: tuple[str, ...] | None = None
        """The names that all ranks logged before the newest record."""
        self.peak_bytes = 0
        """Peak memory of this rank in bytes, as of `peak_memory.peak_bytes`, until the newest
        record."""
        self.step_s = 0.0
        """Seconds of a step before the newest record, on the slowest rank."""

    def log(self, values: Mapping[str, Value]) -> None:
        """Log values of the current step; a later value replaces an earlier one.

        Raises:
            TrainingError: a name is reserved for the records themselves, or a value is not one real
                number.
        """
        for name, value in values.items():
            if problem := _problem(name, value):
                raise TrainingError(f"run.log({name}=...): {problem}")
        self._step_values.update(values)

    def end_step(self, step: int, is_last: bool) -> bool:
        """End step `step`; write a record if one is due, and return whether one was.

        Collective if a record is due: every rank has to call it for the same steps.
        """
        logged, self._step_values = self._step_values, {}
        self._logged = logged
        for name in self._counted:
            self._counted[name] += logged.pop(name, 0)  # on its device: no step waits for it
        if step % self._every and not is_last:
            return False
        begun, since = self._since
        self._warn_of_missing_peak()
        spent = [seconds / (step - begun) for seconds in self._phases.take()]
        now = time.monotonic()
        extremes, totals = self._reduced(logged, spent)
        highest, trace_times = self._highest(extremes)
        values, sums, loader_sums, source_sums = self._totals(totals)
        losses = self._sources.losses(source_sums)
        self.newest = dict(values)
        record = {
            **values,
            **_rates(sums, now - since, self._copies),
            **loader_statistics.record_of(loader_sums, dist.get_world_size(), now - since),
            **_phase_values(sums[4:]),
            **highest,
            **self._communication.record(step, *trace_times),
            **{f"{PREFIX}{name}": loss for name, loss in losses.items()},
        }
        self._since, self._counted = (step, now), dict.fromkeys(self._counted, 0)
        if self._records is not None:
            self._records.write("step", step, record)
            for event in self._sources.events(step, losses):
                self._events.emit(event)
        diagnosis = self._diagnosis.update(loader_sums, now - since)
        if diagnosis and self._records is not None:
            self._events.emit(DataBound(step=step, **diagnosis))
        return True

    def log_source_losses(self, losses: Tensor, sources: Tensor) -> None:
        """Log the losses of single tokens or samples, as `SourceMetrics.note`."""
        self._sources.note(losses, sources)

    def means(self, names: Sequence[str]) -> dict[str, float]:
        """Return means over ranks of what was logged under these names in the newest step, without
        names that were not. Collective."""
        return means_of(self._logged, names)

    def record_validation(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Record the results of the validation after `step`, which are the same on all ranks, and
        the seconds that it took."""
        if self._records is not None:
            self._records.write("validated", step, values, seconds=seconds)

    def _reduced(
        self, logged: Mapping[str, Value], spent: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return the maxima and the sums over ranks that `_highest` and `_totals` split up.
        Collective: both reductions run at once if this rank logged the names of the record before;
        the maxima then show whether all other ranks did too.

        Raises:
            TrainingError: on every rank, if not all ranks logged the same names.
        """
        names, digest = _names_and_digest(tuple(logged))
        by_name = dict(zip(step_phases.NAMES, spent, strict=True))
        waits = [by_name[name] for name in SLOWEST]
        self.peak_bytes = peak_bytes(self._device)
        own = [digest, -digest, sum(spent), self.peak_bytes]
        wait_for_maxima = start_reduce(
            [*own, *waits, *self._communication.times()], dist.ReduceOp.MAX
        )
        start_sums = partial(start_reduce, self._to_sum(names, logged, spent), dist.ReduceOp.SUM)
        wait_for_sums = start_sums() if names == self._names else None
        highest, lowest, *rest = wait_for_maxima()
        if highest != -lowest:
            raise TrainingError(
                f"run.log: ranks logged different metrics in one step, this one {[*names]}; "
                "log the same names on every rank"
            )
        self._names = names
        return rest, (wait_for_sums or start_sums())()

    def _to_sum(
        self, names: Sequence[str], logged: Mapping[str, Value], spent: Sequence[float]
    ) -> list[float]:
        world = dist.get_world_size()
        values = [_number(logged[name]) for name in names]
        counted = [_number(count) for count in self._counted.values()]
        own = [*counted, self._peak_flops, *(s / world for s in spent)]
        return [*values, *own, *self._sources.take(), *self._loader.take()]

    def _highest(self, extremes: Sequence[float]) -> tuple[dict[str, float], Sequence[float]]:
        """Return the maxima over all ranks for the record, and those of the times of
        `CommunicationMonitor`."""
        self.step_s, peak, *others = extremes
        slowest, trace_times = others[: len(SLOWEST)], others[len(SLOWEST) :]
        named = {f"{name}_max": s for name, s in zip(SLOWEST, slowest, strict=True)}
        return {peak_name(self._device): peak, **named}, trace_times

    def _totals(
        self, totals: Sequence[float]
    ) -> tuple[dict[str, float], Sequence[float], Sequence[float], Sequence[float]]:
        """Return the means over all ranks of the logged metrics; then the sums of the counts and of
        the peak FLOP/s and the means of the step phases; then the sums of the loader statistics
        since the last record; then those of the sources."""
        world, names = dist.get_world_size(), self._names or ()
        means = {name: total / world for name, total in zip(names, totals, strict=False)}
        rest = totals[len(names) :]
        own = len(self._counted) + 1 + len(step_phases.NAMES)
        loaders = own + 2 * len(self._sources.names)
        return means, rest[:own], rest[loaders:], rest[own:loaders]

    def _warn_of_missing_peak(self) -> None:
        is_known = self._device.type != "cuda" or not math.isnan(self._peak_flops)
        if self._counted[FLOPS] and not is_known and not self._has_warned_of_missing_peak:
            self._has_warned_of_missing_peak = True
            log.info("the records have no MFU, because the peak FLOP/s of this GPU is not known")

    def flush(self) -> None:
        """Wait until all records are written."""
        if self._records is not None:
            self._records.flush()

    def close(self, is_done: bool = False) -> None:
        """Write what is buffered and close all files; `is_done`: the run has ended, not just this
        attempt."""
        if self._records is not None:
            self._records.close(is_done)


def means_of(values: Mapping[str, Value], names: Sequence[str]) -> dict[str, float]:
    """Return means over ranks of the values that have one of these names, without names that no
    rank has. Collective."""
    numbers = [_number(values.get(name, 0.0)) for name in names]
    known = [float(name in values) for name in names]
    sums = reduced([*numbers, *known], dist.ReduceOp.SUM)
    each = zip(names, sums, sums[len(names) :], strict=False)
    return {name: total / count for name, total, count in each if count}


@lru_cache(maxsize=16)
def _names_and_digest(logged: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return these names in order, and a number that identifies the set of them."""
    names = tuple(sorted(logged))
    return names, zlib.crc32(json.dumps(names).encode())


def _problem(name: str, value: object) -> str | None:
    """Return why `value` cannot be a metric called `name`; None if it can."""
    if name in RESERVED:
        return "hpckit's own records use this name; choose another"
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return f"needs one real number, got a tensor of {tuple(value.shape)} {value.dtype}"
    elif not isinstance(value, int | float):
        return f"needs a number, got {value!r}"
    return None


def _rates(sums: Sequence[float], seconds: float, copies: int) -> dict[str, float]:
    tokens, samples, flops, peak = sums[:4]
    counts = {"tokens_per_s": tokens, "samples_per_s": samples}
    found = {name: count / copies / seconds for name, count in counts.items() if count}
    if flops and not math.isnan(peak):
        found["mfu"] = flops / copies / seconds / peak
    return found


def _phase_values(means: Sequence[float]) -> dict[str, float]:
    """Return the seconds of a step and those of each of its phases, from those of the phases."""
    return {"step_s": sum(means), **dict(zip(step_phases.NAMES, means, strict=True))}


def _number(value: Value) -> float:
    """Return the number that a tensor holds, for which this waits for the device."""
    return float(value.item() if isinstance(value, Tensor) else value)
