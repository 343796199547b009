"""The records of a run's steps on one rank: metrics, the sample ledger, step traces and a
profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from data import Batch
from hpckit.trainer.batches.step_source import StepSource
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.metrics.loader_statistics import LoaderStatistics
from hpckit.trainer.metrics.source_metrics import SourceMetrics
from hpckit.trainer.metrics.step_metrics import StepMeasurements, StepMetrics, StepRecordOptions
from hpckit.trainer.parallel.device_mesh import stage_of
from hpckit.trainer.rank_setup import RankContext
from hpckit.trainer.sample_ledger_writer import SampleLedgerWriter
from hpckit.trainer.timing.communication_cost import CommunicationMonitor
from hpckit.trainer.timing.profiler import Profiler
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.timing.straggler_cost import RankPlace
from hpckit.trainer.trackers.tracker_builder import build_deliveries

if TYPE_CHECKING:
    from hpckit.trainer.measurement.step_costs import StepCostMeter


class RunRecords:
    """Records each step of a loop over the batches of `source`, from its begin to its end."""

    def __init__(
        self,
        context: RankContext,
        source: StepSource,
        step: int,
        phases: StepPhases,
        tracked: Mapping[str, Any],
    ) -> None:
        """Args:
        step: number of steps that were finished before the loop.
        tracked: the state of the run by name.
        """
        cfg, at, events = context.cfg, context.env.at, context.events
        self._profiler = _open_profiler(context, tracked)
        place = RankPlace(at.node, stage_of(context.mesh))
        self._communication = CommunicationMonitor(
            context.device, cfg.train.trace_share, place, phases, events
        )
        self._ledger = _open_ledger(context)
        self.metrics = StepMetrics(
            events,
            StepMeasurements(
                LoaderStatistics(source),
                SourceMetrics(source, context.device),
                phases,
                self._communication,
                context.device,
            ),
            _record_options(context),
            step,
        )
        """The metrics of the steps, averaged over ranks."""

    def begin_step(self, step: int) -> None:
        """Begin step `step` (from 1), before its batch is read."""
        if self._profiler is not None:
            self._profiler.begin_step(step)
        self._communication.begin()

    def note_batch(self, step: int, batch: Any) -> None:
        """Write the samples of step `step` to the ledger, if there is one.

        Raises:
            TrainingError: the batch does not say which samples it has.
        """
        if self._ledger is None:
            return
        if isinstance(batch, Batch):
            keys = [f"{k}#{i}" for k, i in zip(batch.keys, batch.indices, strict=True)]
            self._ledger.write(step, batch.positions, keys)
        else:
            self._ledger.write(step, (), _keys_of(batch))

    def end_step(self, step: int, *, is_last: bool) -> bool:
        """End step `step`, when the training function asks for the next batch.

        Returns:
            Whether the metrics were reduced over ranks and recorded, which is a collective.
        """
        self._communication.end()
        return self.metrics.end_step(step, is_last)

    def close_profile(self) -> None:
        """Write the profile, after the last step."""
        if self._profiler is not None:
            self._profiler.close()

    def close(self, is_done: bool) -> None:
        """Write what is buffered and close all files; `is_done`: the run has ended, not just this
        attempt. Not collective."""
        self.close_profile()
        self.metrics.close(is_done)
        if self._ledger is not None:
            self._ledger.close()


def _open_profiler(
    context: RankContext, tracked: Mapping[str, Any]
) -> Profiler | StepCostMeter | None:
    cfg, at, rank = context.cfg, context.env.at, context.env.rank
    name = f"g{at.generation:03d}-attempt{context.attempt}-rank{rank}"
    if not cfg.debug.profile.costs:
        return Profiler(cfg.debug.profile, at.run.profile, name, context.events.emit)
    if rank != 0:
        return None
    from hpckit.trainer.measurement.step_costs import (
        StepCostMeter,  # imports what few runs need
    )

    return StepCostMeter(cfg, context.device, tracked, at.run.profile, name)


def _keys_of(batch: Any) -> list[str]:
    """Return the keys of the samples of a batch that is not from a `data.Loader`."""
    keys = batch.get("__key__") if isinstance(batch, Mapping) else None
    if keys is None:
        raise TrainingError(
            f"debug.ledger: a batch of class {type(batch).__name__} does not say which samples it "
            'has; have the loader give dicts with their keys as "__key__", use data.Loader, or set '
            "debug.ledger=false"
        )
    return [keys] if isinstance(keys, str) else [str(key) for key in keys]


def _open_ledger(context: RankContext) -> SampleLedgerWriter | None:
    if not (context.cfg.debug.ledger and context.coordinate.is_first):
        return None
    at = context.env.at
    return SampleLedgerWriter(at.run.ledger, at.generation, context.attempt, context.env.rank)


def _record_options(context: RankContext) -> StepRecordOptions:
    cfg, run = context.cfg, context.env.at.run
    is_writer, has_canary = context.env.rank == 0, cfg.debug.canary.mode is not None
    return StepRecordOptions(
        every=1 if has_canary else cfg.train.log_every,
        tensorboard=run.tensorboard if is_writer else None,
        copies=context.coordinate.copies,
        trackers=build_deliveries(cfg, run, context.events) if is_writer else (),
    )
