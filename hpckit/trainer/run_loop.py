"""The run loop that a training function iterates over: it resumes, steps, saves, and leaves on
request.

    def main(cfg):
        with training_run(cfg) as run:
            model, optimizer, scheduler, loader = build(cfg, run)
            run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
            for batch in run.steps(loader):
                loss = step(model, optimizer, batch)
                run.log(loss=loss)

The loader is any iterable; `hpckit.trainer.batches.step_source` has the kinds.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from checkpointing import PerRank
from data import CachePeers
from hpckit.config.batch_size import SchedulePoint, batch_ramp, schedule_point
from hpckit.config.last_step import last_step
from hpckit.config.spec import RunSpec
from hpckit.events.checkpoints_left_behind import checkpoints_left_behind
from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.schema import (
    BatchRampChanged,
    CanaryEnded,
    DatasetGrown,
    Degraded,
    DegradedSubject,
    Event,
    MixtureChanged,
    TrainingStarted,
)
from hpckit.ipc.heartbeat_table import WorkerPhase
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.batches.cache_peers import connect_caches
from hpckit.trainer.batches.source_choice import open_source
from hpckit.trainer.batches.step_source import (
    OtherWorldRule,
    SharedStateSource,
    StepSource,
    StepSourceOptions,
)
from hpckit.trainer.certification.computation_check import ComputationCheck
from hpckit.trainer.certification.doubtful_checkpoints import PastDifferences
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.metrics.step_metrics import Value, means_of
from hpckit.trainer.precision.canary import build_canary
from hpckit.trainer.precision.finite_check import FiniteCheck
from hpckit.trainer.random_seeds import seed_step
from hpckit.trainer.rank_agreement import RankAgreement
from hpckit.trainer.rank_setup import set_up_rank
from hpckit.trainer.run_checkpoints import RunCheckpoints, start_service_early
from hpckit.trainer.run_records import RunRecords
from hpckit.trainer.spikes.past_rollbacks import PastRollbacks
from hpckit.trainer.spikes.spike_detection import NAMES, SpikeDetector
from hpckit.trainer.spikes.spike_monitor import SpikeMonitor
from hpckit.trainer.spikes.update_skipping import UpdateSkipper
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.validation import Measure, Validate, ValidationRunner, ValidationSchedule

log = logging.getLogger(__name__)
T = TypeVar("T")


@contextmanager
def training_run(cfg: RunSpec) -> Iterator[TrainingRun]:
    """Enter the run that `cfg` describes, as the rank that this process is.

    At the end of the block all saves are committed. An exception ends this attempt.

    Raises:
        RuntimeError: on entry, if hpckit did not start this process.
    """
    run = TrainingRun(cfg, WorkerEnvironment.from_env())
    try:
        yield run
        run.finish()
    finally:
        run.close()


class TrainingRun:
    """The run as a training function uses it: facts about this rank, and the loop over steps."""

    def __init__(self, cfg: RunSpec, env: WorkerEnvironment) -> None:
        """Set up this rank, as `hpckit.trainer.rank_setup.set_up_rank`. Collective."""
        if env.local_rank == 0:
            start_service_early(cfg, env.at.run)
        context = set_up_rank(cfg, env)
        self._cfg, self._context, self._heartbeats = cfg, context, context.heartbeats
        self.device = context.device
        self.mesh = context.mesh
        """The device mesh of all ranks, with those of the dimensions "pipeline", "replicate",
        "shard" and "tensor" that `parallel` uses."""
        self.place = context.coordinate
        """The coordinate of this rank in the mesh, which says what part of each global batch the
        rank takes, and which ranks take the same part."""
        self.rank, self.world_size = env.rank, env.world_size
        self.dataset_record = env.at.run.dataset_record
        """The file that keeps the names of the shards which the run has read."""
        self.global_batch = context.global_batch
        """Number of samples of a step on all ranks together."""
        self.batch_ramp = batch_ramp(cfg, env.world_size)
        """How a step grows to `global_batch` samples (`train.batch_ramp`), for
        `data.Loader(..., batch_ramp=run.batch_ramp)`; None: it has them from the first step on."""
        self.local_batch = context.local_batch
        """Number of samples that this rank takes in a step, once the batch has its full size."""
        self.lr_scale = context.lr_scale
        """Factor of the learning rate on this number of ranks: see `elastic.scale_lr` and
        `optim.scale`."""
        self.tracked: dict[str, Any] = {}
        """The state of the run, by the names given to `track`."""
        self._phases = StepPhases.on(self.device)
        self.timed = self._phases.timed
        """`with run.timed("forward"):` counts the time of the block as this phase of the step,
        which is one of `hpckit.trainer.timing.step_phases.PARTS`. Time outside of any block counts
        as "other"."""
        self._step, self._is_done = 0, False
        self._agreement = RankAgreement()
        self._finite_check = FiniteCheck(cfg, env.at.run.events, context.events)
        self._canary = build_canary(cfg, self.world_size, self.device)
        validations = ValidationSchedule(cfg)
        self._validation = ValidationRunner(context, self._agreement, validations, self.timed)
        self._checkpoints = RunCheckpoints(
            context, self._agreement, self._finite_check, validations, self._phases
        )
        self._initialize: Callable[[], None] = _keep_parameters
        self._records: RunRecords | None = None  # until `steps`, which has the loader
        heal = cfg.heal
        self._detector = SpikeDetector(heal.deviations, heal.window) if heal.on_spike else None
        self._spikes: SpikeMonitor | None = None  # until `steps`, which has the loader
        self._skipper: UpdateSkipper | None = None  # as above
        self._check: ComputationCheck | None = None  # as above
        self._went_back: tuple[PastRollbacks, PastDifferences] | None = None  # as above
        self._cache_peers: CachePeers | None = None  # until `cache_peers`
        self._loader_state: dict[str, Any] = {}
        """What is saved of the loader of `steps`, by the name under which it is tracked."""

    @property
    def step(self) -> int:
        """Number of steps finished in the whole run."""
        return self._step

    def schedule_point(self, seen: int) -> SchedulePoint:
        """Return the place of the present step in the schedule of the learning rate, in the unit of
        `optim.schedule_unit`.

        Args:
            seen: the samples of all steps before, as `Batch.seen` of a `data.Loader` has them.
        """
        return schedule_point(self._cfg, self.world_size, self._step, seen)

    def track(self, **state: Any) -> None:
        """Name the objects that make up the run's state: modules, optimizers, and anything with a
        state_dict.

        `steps` restores all of them, and they are saved from then on. The loader of `steps` is
        tracked as "loader" if it is not named here; a `data.Loader` has to be named.
        """
        self.tracked.update(state)

    def when_new(self, initialize: Callable[[], None]) -> None:
        """Have `steps` call `initialize` on all ranks if there is no checkpoint to resume from, to
        initialize parameters or to load pretrained ones."""
        self._initialize = initialize

    def steps(
        self,
        loader: Iterable[T],
        validate: Validate | None = None,
        other_world: OtherWorldRule = "error",
    ) -> Iterator[T]:
        """Resume, then yield this rank's batch of each remaining step.

        The loop ends at `train.steps` (with a canary, at the last step of the canary), or at the
        step boundary at which all ranks agree that they were asked to leave. Afterwards `finish`
        saves everything.

        Args:
            loader: any iterable of batches; where it ends, its next epoch begins. A `data.Loader`
                or `from_wds` dataset continues exactly on any number of ranks. Another loader with
                `state_dict` and `load_state_dict`, or `get_state` and `set_state`, continues
                exactly on the same number of ranks. Of any other iterable, the batches that the run
                has seen are read again and discarded.
            validate: called on every rank each `train.validate_every` steps, with the tracked
                modules in eval mode and without gradients. What it returns is averaged over ranks,
                written to the events, and saved under its names with the prefix `val_`. See
                `evaluate`.
            other_world: what becomes of a position that each rank has of its own, on another number
                of ranks. "error": the run ends before its first step; "next_epoch": the rest of the
                epoch is left out, and each rank begins the next one; "first": each rank gets the
                position of rank 0; a function: it is called with the loader's states of all saved
                ranks, this rank and the number of ranks, and returns the state of this rank.

        Raises:
            checkpointing.CheckpointError: there are checkpoints and none can be loaded.
            TrainingError: `loader` is not iterable, is empty, or cannot be continued; nothing is
                tracked; this is the second loop of the training function; or
                `train.validate_every` is set and `validate` is not given.
        """
        self._check_loop(validate)
        source = self._open_source(loader, other_world)
        self._resume(source, self._prepare_resume(source))
        records = self._records = RunRecords(
            self._context, source, self._step, self._phases, self.tracked
        )
        if validate and self._validation.is_overdue(self._step):
            self._validate(validate, records)
            self._save_if_due(records)
        total = last_step(self._cfg)
        while self._step < total and not self._is_leaving():
            records.begin_step(self._step + 1)
            begun = source.position if self._detector else None
            if self._skipper is not None:
                self._skipper.begin_step(self._step + 1, begun)
            with self.timed("data_wait"):
                batch = source.take(self._step)
            records.note_batch(self._step + 1, batch)
            yield batch
            self._step += 1
            self._end_step(records, begun, is_last=self._step == total)
            if validate and self._validation.is_due(self._step):
                self._validate(validate, records)
            self._save_if_due(records)
        records.close_profile()
        source.close()

    def cache_peers(self) -> CachePeers | None:
        """Return the caches of the nodes of this run, for `data.open_dataset(..., peers=)`; None
        unless `data.cache_peers` is set. Collective when it is called first: call it on all
        ranks."""
        if self._cache_peers is None:
            self._cache_peers = connect_caches(self._context)
        return self._cache_peers

    def log(self, **values: Value) -> None:
        """Log metrics of this step: means over the rank's samples, or its counts of `tokens`,
        `samples` and of the model's `flops`.

        They are averaged over ranks (counts are summed) when the step is recorded. A `loss` or
        `grad_norm` that is not finite ends the attempt before the step is saved, see `FiniteCheck`.

        Raises:
            TrainingError: it is called outside of the loop over `steps`, a name is reserved, or a
                value is not one real number.
        """
        if self._records is None:
            raise TrainingError("run.log belongs inside the loop over run.steps(loader)")
        self._records.metrics.log(values)

    def log_source_losses(self, losses: Tensor, sources: Tensor) -> None:
        """Log the losses of the step by source of a mixture, whose means since the last record are
        reported for each source; without a mixture, nothing happens.

        Args:
            losses: of single tokens or samples of this rank, in any shape.
            sources: in the same shape, the number of the source of each, as `Batch.datasets` has
                them; a negative number for one that does not count.

        Raises:
            TrainingError: it is called outside of the loop over `steps`.
        """
        if self._records is None:
            raise TrainingError(
                "run.log_source_losses belongs inside the loop over run.steps(loader)"
            )
        self._records.metrics.log_source_losses(losses, sources)

    def should_update(self, **values: Value) -> bool:
        """Return whether the optimizer should make this step: with `heal=skip`, not if the loss or
        the norm of the gradients is far from those of earlier steps. Without it, always.

        Call it once in each step, on all ranks, when all gradients are there:

            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if run.should_update(loss=loss, grad_norm=norm):
                optimizer.step()
            scheduler.step()

        All ranks get the same answer. A step without an update counts as a step, so schedulers
        follow it, and averages of parameters do not. Running moments of torch's normalisations are
        set to what they were before the step. Collective with `heal=skip`.

        Args:
            values: the `loss` and the `grad_norm` of the step, and in fp16 the `loss_scale` that it
                was computed with; what is not given is not looked at.

        Raises:
            TrainingError: too many updates were left out already (`heal.most`); or it is called
                outside of the loop over `steps`, twice in a step, or with another name.
        """
        if self._records is None:
            raise TrainingError("run.should_update belongs inside the loop over run.steps(loader)")
        if wrong := [name for name in values if name not in NAMES]:
            raise TrainingError(
                f"run.should_update({wrong[0]}=...): give some of {', '.join(NAMES)}"
            )
        if self._skipper is None:
            return True
        return self._skipper.decide(means_of(values, NAMES))

    def note_computation(self, compute: Callable[..., object], *tensors: Tensor) -> None:
        """Name what this rank computes in this step, so that another rank can compute it again for
        `checkpoint.certify`.

        Call it in each step, on all ranks. After some of the steps, each rank calls its own
        `compute` with its own tensors, and then with those of another rank, and all compare the
        gradients. Gradients, buffers and random number generators are afterwards as they were
        before; what else `compute` changes stays changed.

        Args:
            compute: computes the gradients of one micro-batch with the tracked modules: a forward
                and a backward pass, without the optimizer and without collectives of its own. It
                is called as `compute(*tensors)`.
            tensors: the micro-batch, all that `compute` needs of it. At most eight.

        Raises:
            TrainingError: another rank cannot be sent these tensors.
        """
        if self._check is not None:
            self._check.note(compute, tensors)

    def emit_event(self, kind: str | Event, **fields: Any) -> None:
        """Write an event of the run on rank 0, once for all ranks.

        Args:
            kind: an event of `hpckit.events.schema`; or the name of a kind of your own, which the
                schema does not have.
            fields: the fields of an event of your own, as plain JSON.
        """
        if isinstance(kind, Event):
            self._context.emit_once(kind)
        elif self.rank == 0:
            self._context.events.emit_kind(kind, **fields)

    def evaluate(self, batches: Iterable[Any], measure: Measure) -> dict[str, float]:
        """Return the means, by name, of what `measure` returns for each sample of all ranks'
        `batches`. Collective.

        It is meant for a validate function. Each rank has its part of the same steps, as from a
        `data.Loader` with `tail="pad"`, whose padding samples do not count. Every sample of another
        loader counts, also one that its sampler repeats to give all ranks the same number. If all
        ranks are asked to leave, it does not return, and the validation is repeated when the run
        resumes.
        """
        return self._validation.evaluate(self._step, batches, measure)

    def finish(self) -> None:
        """End the run after the training function has returned: save if needed, and report the end.
        Collective.

        Raises:
            TrainingError: the training function left the loop early; the step it was in is not
                saved.
        """
        total, is_leaving = last_step(self._cfg), self._agreement.is_leaving
        if not is_leaving and self._step < total:
            raise TrainingError(
                f"the training function ended in step {self._step + 1} of {total}: "
                "the loop over run.steps has to run to its end; set train.steps to end it earlier"
            )
        self._report(WorkerPhase.SAVING)
        if self._records and (is_leaving or self._canary is None):  # no run resumes from a canary
            certify = _leave_uncertified if is_leaving else self._certify
            self._checkpoints.save_last(self._step, self._state(), self._records.metrics, certify)
        self._checkpoints.close()
        if self._canary and not is_leaving:
            self.emit_event(CanaryEnded(**self._canary.end(is_first=self.rank == 0)))
        self._agreement.close()
        dist.barrier()
        self._report(WorkerPhase.LEFT if is_leaving else WorkerPhase.DONE)
        self._is_done = not is_leaving
        log.info("%s at step %d", "left on request" if is_leaving else "done", self._step)
        dist.destroy_process_group()

    def close(self) -> None:
        """Close all files. It takes part in no collective, so it is safe after an error."""
        if self._records is not None:
            self._records.close(self._is_done)
        if self._cache_peers is not None:
            self._cache_peers.close()
        self._context.events.close()

    @property
    def share(self) -> int:
        """The earlier name of `local_batch`."""
        warnings.warn("run.share is run.local_batch now", FutureWarning, stacklevel=2)
        return self.local_batch

    def tell(self, kind: str | Event, **fields: Any) -> None:
        """Write an event; the earlier name of `emit_event`."""
        warnings.warn("run.tell is run.emit_event now", FutureWarning, stacklevel=2)
        self.emit_event(kind, **fields)

    def _check_loop(self, validate: Validate | None) -> None:
        if self._records is not None:
            raise TrainingError("run.steps was called twice: a run has one loop over its steps")
        if validate is None and self._cfg.train.validate_every is not None:
            raise TrainingError("train.validate_every: give run.steps(loader, validate=...) too")
        if not self.tracked:
            raise TrainingError(
                "run.steps: nothing is tracked, so nothing would be saved; before the loop, call "
                "run.track(model=model, optimizer=optimizer, loader=loader)"
            )

    def _open_source(self, loader: Iterable[Any], other_world: OtherWorldRule) -> StepSource:
        """Return the source of the batches, and note what is saved of it."""
        names = [name for name, held in self.tracked.items() if _loader_of(held) is loader]
        declared = self.tracked[names[0]] if names else None
        if isinstance(declared, PerRank) and other_world == "error":
            other_world = declared.other_world
        options = StepSourceOptions(
            partial(seed_step, self._cfg.train.seed, rank=self.place.data),
            (self.place.data, self.place.data_size),
            self.local_batch,
            other_world,
            repeats_first=self._cfg.debug.overfit,
        )
        source = open_source(loader, options, self.tracked)
        if names:
            self._loader_state = dict.fromkeys(names, source.tracked)
        elif isinstance(source, SharedStateSource) and source.counts_samples:
            # checkpoints of earlier releases have no state of an untracked data.Loader
            log.warning(
                "the %s is not tracked: a resumed run would begin at its first sample again; call "
                "run.track(loader=loader) before run.steps",
                source.name,
            )
        else:
            name = "loader" if "loader" not in self.tracked else "loader of run.steps"
            self._loader_state = {name: source.tracked}
        return source

    def _prepare_resume(self, source: StepSource) -> Mapping[str, str]:
        """Prepare what depends on earlier attempts, and return the ids of the checkpoints that they
        have left behind, and why. Collective."""
        context, detector, heal = self._context, self._detector, self._cfg.heal
        earlier = EarlierEvents(context.env.at.run.events, is_reader=self.rank == 0)
        # also if neither is looked for any more: it must not return to what it has left behind
        rollbacks, differences = PastRollbacks(earlier, source), PastDifferences(earlier)
        self._went_back = rollbacks, differences
        if self._cfg.checkpoint.certify is not None:
            self._check = ComputationCheck(context, earlier)
        if detector is not None and heal.on_spike == "skip":
            self._skipper = UpdateSkipper(context, source, detector, earlier)
        elif detector is not None:
            self._spikes = SpikeMonitor(context, source, detector, rollbacks.made)
        return checkpoints_left_behind(earlier.by_time)

    def _resume(self, source: StepSource, left_behind: Mapping[str, str]) -> None:
        """Restore the state of the run, or initialize its parameters. Collective.

        Args:
            left_behind: the ids of checkpoints that are not used, and why.
        """
        begun_s = time.monotonic()
        self._restore(left_behind)
        skipped = source.resume(self._step, partial(self._report, WorkerPhase.STARTING))
        if skipped is not None:
            self._warn_of_loader(str(skipped))
        if self._step > 0 and source.samples_seen is None:
            self._require_no_need_of_samples_seen()
        self._report_changed_source(source)
        self._report(WorkerPhase.RESUMED)
        log.info("training from step %d of %d", self._step, last_step(self._cfg))
        self.emit_event(
            TrainingStarted(
                step=self._step,
                world_size=self.world_size,
                global_batch=self.global_batch,
                batch_ramp=source.batch_ramp,
                seen=source.samples_seen,
                samples=source.samples,
                loader=source.foreign_loader,
                position=source.position,
                restore_s=time.monotonic() - begun_s,
            )
        )

    def _restore(self, left_behind: Mapping[str, str]) -> None:
        """Restore the state from a checkpoint or, if there is none, initialize the parameters, and
        begin what watches the steps. Collective."""
        assert self._went_back is not None
        rollbacks, _ = self._went_back
        spikes, skipper, state = self._spikes, self._skipper, self._state()
        restored = self._checkpoints.restore(
            state,
            partial(self._problem_of_state, state["run"]),
            # the parameters may be wrong for longer than the loss has shown
            prefer_certified=self._check is not None and rollbacks.is_rolling_back,
            avoid=left_behind,
        )
        if restored is None:
            self._initialize()
        if (what := rollbacks.leave_out()) is not None:
            self._warn_of_loader(what)
        self._step = restored or 0
        if self._detector is not None:
            self._detector.load(state["run"].get("watched", {}))
        if spikes is not None:
            spikes.load(state["run"])
        if skipper is not None:
            tracked = self.tracked.values()
            skipper.begin(self._step, [one for one in tracked if isinstance(one, nn.Module)])
        if self._check is not None:
            modules = {n: held for n, held in self.tracked.items() if isinstance(held, nn.Module)}
            self._check.begin(self._step, modules)

    def _warn_of_loader(self, what: str) -> None:
        log.warning("%s", what)
        self.emit_event(Degraded(subject=DegradedSubject.LOADER, what=what))

    def _require_no_need_of_samples_seen(self) -> None:
        """Check that the config does without the number of sequences before the checkpoint.

        Raises:
            TrainingError: it does not.
        """
        unit = self._cfg.optim.schedule_unit
        if unit != "steps":
            raise TrainingError(
                f"optim.schedule_unit={unit}: the checkpoint of an earlier release does not say "
                "how many sequences came before it; use schedule_unit=steps"
            )
        if self._cfg.train.sequence_ramp is not None:
            raise TrainingError(
                "train.sequence_ramp: the checkpoint of an earlier release does not say how many "
                "sequences came before it, so that they would be short once more; use null"
            )

    def _report_changed_source(self, source: StepSource) -> None:
        """Report in which ways the samples continue otherwise than before the checkpoint."""
        if (change := source.mixture_change) is not None:
            at, before, after = change.position, change.before, change.after
            log.info("the mixture changes at sample %d: %s, then %s", at, before, after)
            self.emit_event(
                MixtureChanged(
                    step=self._step, reason="resume", position=at, before=before, after=after
                )
            )
        if (grown := source.growth) is not None:
            log.info(
                "the dataset has grown from %d to %d shards; the epoch that begins at sample %d "
                "has all of them",
                grown.before,
                grown.after,
                grown.position,
            )
            self.emit_event(DatasetGrown(step=self._step, **vars(grown)))
        if (ramps := source.batch_ramp_change) is not None:
            was, now = (None if one is None else list(vars(one).values()) for one in ramps)
            log.info("the ramp of the batch changes: from %s to %s", was, now)
            self.emit_event(BatchRampChanged(step=self._step, before=was, after=now))

    def _problem_of_state(self, saved: Mapping[str, Any]) -> str | None:
        """Return why the restored state must not be used; None if it may be.

        Args:
            saved: what was saved of the run.
        """
        assert self._went_back is not None
        rollbacks, differences = self._went_back
        return differences.problem_of_state(saved) or rollbacks.problem_of_state(saved)

    def _certify(self) -> str:
        """Return how the present state was certified; "": it was not. Collective."""
        if self._check is None:
            return ""
        # each computation takes at most as long as a step, and may hang as one
        as_a_step = partial(self._report, WorkerPhase.TRAINING)
        as_a_step()
        with self.timed("certification"):
            how = self._check.certify(self._step, as_a_step)
        self._report(WorkerPhase.SAVING)
        return how

    def _is_leaving(self) -> bool:
        """Whether all ranks have agreed to leave; asks them at this step boundary."""
        agreement = self._agreement
        if not agreement.is_leaving:
            agreement.exchange(self._step, self._heartbeats.request())
        return agreement.is_leaving

    def _end_step(self, records: RunRecords, begun: int | None, *, is_last: bool) -> None:
        """End the step that began at the position `begun` of the loader. Collective."""
        metrics = records.metrics
        if self._check is not None:
            self._check.note_step()
        if self._skipper is not None and self._skipper.end_step():
            self._finite_check.excuse(self._step)
        is_recorded = records.end_step(self._step, is_last=is_last)
        if self._spikes is not None:
            self._spikes.check(self._step, begun or 0, metrics.means(NAMES))
        if is_recorded:
            self._finite_check.require(self._step, metrics.newest)
            self._agreement.set_step_duration(metrics.step_s)
            self._heartbeats.report_memory(metrics.peak_bytes)
        self._report(WorkerPhase.TRAINING)
        if self._canary:
            self._canary.check_step(self._step, metrics.newest)

    def _validate(self, validate: Validate, records: RunRecords) -> None:
        self._validation.run(self._step, validate, self.tracked.values(), records.metrics)

    def _save_if_due(self, records: RunRecords) -> None:
        if self._checkpoints.is_due(self._step):
            self._report(WorkerPhase.SAVING)  # with bucket staging, a save may wait for the store
            with self.timed("checkpoint_stall"):
                self._checkpoints.save(self._step, self._state(), records.metrics, self._certify)
            self._report(WorkerPhase.TRAINING)

    def _state(self) -> dict[str, Any]:
        canary = {"canary": self._canary} if self._canary else {}
        run: dict[str, Any] = {"step": self._step}
        for one in self._went_back or ():
            run |= one.saved
        if self._detector is not None:  # a resumed run compares its next step as this one would
            run["watched"] = self._detector.saved
        if self._spikes is not None:
            run |= self._spikes.saved
        return {**self.tracked, **self._loader_state, **canary, "run": run}

    def _report(self, phase: WorkerPhase) -> None:
        self._heartbeats.report(phase, self._step)


def _loader_of(held: Any) -> Any:
    return held.held if isinstance(held, PerRank) else held


def _leave_uncertified() -> str:
    """Certify nothing, where there is no time for it."""
    return ""


def _keep_parameters() -> None:
    """Leave the parameters as the training function has made them."""
