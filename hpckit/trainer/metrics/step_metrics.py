"""Step metrics: averaged over ranks and written to the event log and TensorBoard files."""

from __future__ import annotations

import json
import logging
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.events import step_phases
from hpckit.events.event_log import EventLog
from hpckit.trainer.device.peak_flops import known_peak
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.memory import peak_memory
from hpckit.trainer.memory.peak_memory import peak_bytes, peak_name
from hpckit.trainer.metrics import loader_statistics
from hpckit.trainer.metrics.loader_statistics import LoaderStatistics
from hpckit.trainer.metrics.record_writer import StepRecordWriter
from hpckit.trainer.parallel.collectives import reduced, reducing
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
becomes `mfu`, its share of the peak of the cards (Chowdhery et al. 2022)."""

SLOWEST = ("data_wait_s", "checkpoint_stall_s")
"""Step phases whose maximum over ranks is recorded too, under these names with `_max`, since all
ranks wait for it somewhere."""

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
"""Names that a step record has anyway."""


class StepMetrics:
    """Collects the metrics that are logged in each step and records every `every`-th step.

    Tensors stay on their device until then: between two records no step waits for the device.
    """

    def __init__(
        self,
        events: EventLog,
        tensorboard: Path | None,
        every: int,
        at: int,
        taken: LoaderStatistics,
        spent: StepPhases,
        watch: CommunicationMonitor,
        device: torch.device,
        copies: int = 1,
        trackers: Sequence[TrackerDelivery] = (),
    ) -> None:
        """Args:
        tensorboard: folder for rank 0's files, None on other ranks.
        at: number of steps finished.
        copies: number of ranks that take the same samples.
        trackers: trackers of rank 0, which get the records too.
        """
        self._copies = copies
        self._events = events
        self._loader, self._diagnosis = taken, loader_statistics.LoaderDiagnosis()
        self._parts, self._watch, self._device = spent, watch, device
        self._peak_flops = known_peak(device)
        self._has_warned = False
        self._records = StepRecordWriter(events, tensorboard, trackers) if tensorboard else None
        self._every = every
        self._step_values: dict[str, Value] = {}
        self._counted: dict[str, Value] = dict.fromkeys((TOKENS, SAMPLES, FLOPS), 0)
        self._parts.taken()  # leaves out what was before the first step
        self._since = (at, time.monotonic())
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
            TrainingError: a name that records use themselves, or a value that is no real number.
        """
        for name, value in values.items():
            if problem := _problem(name, value):
                raise TrainingError(f"run.log({name}=...): {problem}")
        self._step_values.update(values)

    def end_step(self, step: int, last: bool) -> bool:
        """Finish steps up to `step`; writes the record if one is due, and returns whether it did.

        Collective when a record is due: every rank has to call it for the same steps.
        """
        logged, self._step_values = self._step_values, {}
        self._logged = logged
        for name in self._counted:
            self._counted[name] += logged.pop(name, 0)  # on its device: no step waits for it
        if step % self._every and not last:
            return False
        begun, since = self._since
        self._warn_of_missing_peak()
        spent = [seconds / (step - begun) for seconds in self._parts.taken()]
        now = time.monotonic()
        extremes, totals = self._exchanged(logged, spent)
        highest, times = self._highest(extremes)
        values, sums, taken = self._totals(totals)
        self.newest = dict(values)
        record = {
            **values,
            **_rates(sums, now - since, self._copies),
            **loader_statistics.record_of(taken, dist.get_world_size(), now - since),
            **_split(sums[4:]),
            **highest,
            **self._watch.record(step, *times),
        }
        self._since, self._counted = (step, now), dict.fromkeys(self._counted, 0)
        if self._records is not None:
            self._records.write("step", step, record)
        diagnosis = self._diagnosis.news(taken, now - since)
        if diagnosis and self._records is not None:
            self._events.emit("data_bound", step=step, **diagnosis)
        return True

    def means(self, names: Sequence[str]) -> dict[str, float]:
        """Return means over ranks of what was logged under these names in the newest step, 0 for
        names that were not. Collective."""
        sums = reduced([_number(self._logged.get(n, 0.0)) for n in names], dist.ReduceOp.SUM)
        world = dist.get_world_size()
        return {name: total / world for name, total in zip(names, sums, strict=True)}

    def validated(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Record the results of validation after `step`, which are the same on all ranks."""
        if self._records is not None:
            self._records.write("validated", step, values, seconds=seconds)

    def _exchanged(
        self, logged: Mapping[str, Value], spent: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return the reduced numbers that `_highest` and `_totals` split up. Collective: both
        reductions run at once if this rank logged the names of the record before; the result then
        shows whether all others did too.

        Raises:
            TrainingError: on every rank, if not all ranks logged the same names.
        """
        names, digest = _known(tuple(logged))
        by_name = dict(zip(step_phases.NAMES, spent, strict=True))
        waits = [by_name[name] for name in SLOWEST]
        self.peak_bytes = peak_bytes(self._device)
        about = [digest, -digest, sum(spent), self.peak_bytes]
        maxima = reducing([*about, *waits, *self._watch.times()], dist.ReduceOp.MAX)
        add = partial(reducing, self._to_sum(names, logged, spent), dist.ReduceOp.SUM)
        sums = add() if names == self._names else None
        highest, lowest, *rest = maxima()
        if highest != -lowest:
            raise TrainingError(
                f"run.log: ranks logged different metrics in one step, this one {[*names]}; "
                "log the same names on every rank"
            )
        self._names = names
        return rest, (sums or add())()

    def _to_sum(
        self, names: Sequence[str], logged: Mapping[str, Value], spent: Sequence[float]
    ) -> list[float]:
        world = dist.get_world_size()
        values = [_number(logged[name]) for name in names]
        counted = [_number(count) for count in self._counted.values()]
        own = [*counted, self._peak_flops, *(s / world for s in spent)]
        return [*values, *own, *self._loader.taken()]

    def _highest(self, extremes: Sequence[float]) -> tuple[dict[str, float], Sequence[float]]:
        """Return maxima over all ranks, for the record and of the times of
        `CommunicationMonitor`."""
        self.step_s, peak, *others = extremes
        slowest, times = others[: len(SLOWEST)], others[len(SLOWEST) :]
        named = zip(SLOWEST, slowest, strict=True)
        return {peak_name(self._device): peak, **{f"{name}_max": s for name, s in named}}, times

    def _totals(
        self, totals: Sequence[float]
    ) -> tuple[dict[str, float], Sequence[float], Sequence[float]]:
        """Return means over all ranks of the logged metrics; sums of counts, sums of the peaks of
        the cards, and means of the step phases; and sums of the loader statistics since the last
        record."""
        world, names = dist.get_world_size(), self._names or ()
        means = {name: total / world for name, total in zip(names, totals, strict=False)}
        rest = totals[len(names) :]
        own = len(self._counted) + 1 + len(step_phases.NAMES)
        return means, rest[:own], rest[own:]

    def _warn_of_missing_peak(self) -> None:
        is_known = self._device.type != "cuda" or not math.isnan(self._peak_flops)
        if self._counted[FLOPS] and not is_known and not self._has_warned:
            self._has_warned = True
            log.info("no MFU in the records: what this card can do is not known")

    def flush(self) -> None:
        """Wait until all records are written."""
        if self._records is not None:
            self._records.flush()

    def close(self, is_done: bool = False) -> None:
        """Write what is buffered and end; `is_done`: the run has ended."""
        if self._records is not None:
            self._records.close(is_done)


@lru_cache(maxsize=16)
def _known(logged: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return these names in order, and a number that identifies them."""
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


def _split(means: Sequence[float]) -> dict[str, float]:
    """Split numbers into the seconds of a step and those of its phases."""
    return {"step_s": sum(means), **dict(zip(step_phases.NAMES, means, strict=True))}


def _number(value: Value) -> float:
    """Return the number in a tensor, after the work queued before it is done."""
    return float(value.item() if isinstance(value, Tensor) else value)
