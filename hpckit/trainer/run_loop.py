"""The run loop, which a training function works with: it resumes, steps, saves, and leaves when
asked to.

    def main(cfg):
        with training_run(cfg) as run:
            model, optimizer, scheduler, loader = build(cfg, run)
            run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
            for batch in run.steps(loader):
                loss = step(model, optimizer, batch)
                run.log(loss=loss)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist

from checkpointing import Checkpointer, SaveError
from data import Batch, Loader
from hpckit.config.batch_size import global_batch, lr_scale
from hpckit.config.last_step import last_step
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase, WorkerRequest
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.rundir.directory import checkpoint_root, run_name
from hpckit.trainer.checkpoint_policies import interval, limit_clock_checks, retention
from hpckit.trainer.device.device_capability import require
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.memory.memory_snapshot import record_allocations
from hpckit.trainer.metrics.loader_statistics import LoaderStatistics
from hpckit.trainer.metrics.step_metrics import StepMetrics, Value
from hpckit.trainer.optim.ema import with_narrow_averages
from hpckit.trainer.parallel.collectives import check_all_reduce
from hpckit.trainer.parallel.device_mesh import make_mesh, place_in, stage_of
from hpckit.trainer.parallel.process_group import agreed_attempt, join, make_deterministic
from hpckit.trainer.precision.canary import build_canary
from hpckit.trainer.precision.finite_check import NAMES, FiniteCheck
from hpckit.trainer.random_seeds import mix, seed_all, seed_step
from hpckit.trainer.rank_agreement import Agreement
from hpckit.trainer.sample_ledger_writer import SampleLedgerWriter
from hpckit.trainer.timing.communication_cost import CommunicationMonitor
from hpckit.trainer.timing.profiler import Profiler
from hpckit.trainer.timing.snapshot_waits import SnapshotWaits
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.trackers.tracker_builder import deliveries
from hpckit.trainer.validation import (
    Measure,
    Validate,
    ValidationInterruptedError,
    ValidationSchedule,
    evaluating,
    over_ranks,
    sample_means,
    was_validated,
)

log = logging.getLogger(__name__)

LAST_SAVE_TRIES = 6
LAST_SAVE_PAUSE_S = 5.0


@contextmanager
def training_run(cfg: RunSpec) -> Iterator[TrainingRun]:
    """Enter the run that `cfg` describes, as this rank of the generation that started the process.

    Leaving the block waits until every save is committed. An exception ends this attempt.

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
    """The run as a training function sees it: facts about this rank, and the loop over steps."""

    def __init__(self, cfg: RunSpec, env: WorkerEnvironment) -> None:
        self._cfg = cfg
        self._env = env
        self._heartbeats = HeartbeatTable.attach(env.board, env.local_world_size)
        self._step = 0
        self._resumed_at: int | None = 0
        self._left = self._is_done = False
        self._validation = ValidationSchedule(cfg)
        self.tracked: dict[str, Any] = {}
        """The state of the run, by the names given to `track`."""
        self._initialize: Callable[[], None] | None = None
        self._report_phase(WorkerPhase.STARTING)
        if cfg.debug.deterministic:
            make_deterministic(cfg.train.seed)
        at = env.at
        self.device = torch.device(env.device, env.local_rank if env.device == "cuda" else 0)
        require(cfg, self.device)
        if cfg.memory.snapshot:
            record_allocations(self.device)
        join(env.device, env.local_rank, cfg.launch.collective_timeout_s)
        self.mesh = make_mesh(env.device, cfg.parallel)
        """The device mesh of all ranks, with those of the dimensions "pipeline", "replicate",
        "shard" and "tensor" that `parallel` uses."""
        self.place = place_in(self.mesh)
        """The coordinate of this rank: which part of each batch it takes, and which ranks take the
        same part."""
        self.rank = env.rank
        self.world_size = env.world_size
        self.global_batch = global_batch(cfg, env.world_size)
        """Number of samples of a step on this number of ranks."""
        self.share = self.global_batch // self.place.data_size
        """Number of samples that this rank takes in a step."""
        self.lr_scale = lr_scale(cfg, env.world_size)
        """Factor of the learning rate on this number of ranks: see `elastic.scale_lr` and
        `optim.scale`."""
        self._attempt = agreed_attempt(env.attempt, env.local_world_size)
        self._events = EventLog(
            at.run.events, generation=at.generation, attempt=self._attempt, rank=env.rank
        )
        if cfg.health.all_reduce:
            seconds = check_all_reduce(self.device)
            self.tell("all_reduce", seconds=seconds, world_size=self.world_size)
        self._finite = FiniteCheck(cfg, at.run.events, self._events)
        self._agreement = Agreement()
        every = interval(cfg.checkpoint)
        self._checkpointer = Checkpointer(
            checkpoint_root(cfg, at.run),
            run=run_name(cfg),
            every=every,
            keep=retention(cfg.checkpoint.keep),
            compress=cfg.checkpoint.compress,
            depth=cfg.checkpoint.depth,
            replicas=cfg.checkpoint.replicas,
            local=cfg.checkpoint.local,
            staging=cfg.checkpoint.staging,
            max_unsaved=cfg.checkpoint.max_unsaved_minutes,
            check_replicas=cfg.checkpoint.check_replicas or False,
            may_differ=cfg.checkpoint.may_differ,
            on_event=self._events.emit,
        )
        self._is_due = limit_clock_checks(self._checkpointer.due, every, self._agreement.is_time)
        self._parts = StepPhases.on(self.device)
        self.timed = self._parts.timed
        """`with run.timed("forward"):` counts the time of the block as this phase of the step,
        which is one of `hpckit.trainer.timing.step_phases.PARTS`. Time outside of any block counts
        as "other"."""
        self._waits = SnapshotWaits(self._parts)
        self._watch = CommunicationMonitor(
            self.device, cfg.train.trace_share, stage_of(self.mesh), self._events
        )
        self._metrics: StepMetrics | None = None
        self._ledger: SampleLedgerWriter | None = None
        self._canary = build_canary(cfg, self.world_size, self.device)
        name = f"g{at.generation:03d}-attempt{self._attempt}-rank{self.rank}"
        self._profiler = Profiler(cfg.debug.profile, at.run.profile, name, self._events.emit)

    @property
    def step(self) -> int:
        """Number of steps finished in the whole run."""
        return self._step

    def track(self, **state: Any) -> None:
        """Name the objects that make up the run's state: modules, optimizers, and anything with a
        state_dict.

        `steps` restores all of them, and they are saved from then on.
        """
        self.tracked.update(state)

    def when_new(self, begin: Callable[[], None]) -> None:
        """Have `steps` call `begin` on all ranks if there is no checkpoint to resume from: to
        initialize parameters, or to load pretrained ones."""
        self._initialize = begin

    def log(self, **values: Value) -> None:
        """Log metrics of this step: means over the rank's samples, or its counts of `tokens`,
        `samples` and of the model's `flops`.

        They are averaged over ranks (counts are summed) when the step is recorded. A `loss` or
        `grad_norm` that is not finite ends the attempt before it is saved, see `FiniteCheck`.
        """
        if self._metrics is None:
            raise TrainingError("run.log belongs inside the loop over run.steps(loader)")
        self._metrics.log(values)

    def tell(self, kind: str, **fields: Any) -> None:
        """Write an event of the run, once for all ranks."""
        if self.rank == 0:
            self._events.emit(kind, **fields)

    def steps(self, loader: Loader, validate: Validate | None = None) -> Iterator[Batch]:
        """Resume, then yield this rank's batch of each step that is left.

        The loop ends at `train.steps` (with a canary, at the canary's own last step), or at the
        step boundary at which all ranks agree that they were asked to leave. Everything is saved by
        then.

        Args:
            validate: called on every rank each `train.validate_every` steps, with the tracked
                modules in eval mode and without gradients. What it returns is averaged over ranks,
                written to the events, and saved under its names with the prefix `val_`. See
                `evaluate`.

        Raises:
            checkpointing.CheckpointError: there are checkpoints and none can be loaded.
            TrainingError: this is the second loop of the training function.
        """
        if self._metrics is not None:
            raise TrainingError("run.steps was called twice: a run has one loop over its steps")
        if validate is None and self._cfg.train.validate_every is not None:
            raise TrainingError("train.validate_every: give run.steps(loader, validate=...) too")
        self._waits.watch(self.tracked.values())
        self._resume(loader)
        self._metrics, self._ledger = self._open_records(loader)
        run_events = self._env.at.run.events
        if (
            validate
            and self._validation.is_due(self._step)
            and not was_validated(self._step, run_events)
        ):
            self._validate(validate)  # which the previous attempt had no time for
            self._save_if_due()
        batches, overfits = iter(loader), self._cfg.debug.overfit
        if overfits:
            batches = repeat(next(batches))
        total = last_step(self._cfg)
        while self._step < total and not self._left:
            if (
                self._agreement.exchange(self._step, self._heartbeats.request())
                is not WorkerRequest.NONE
            ):
                self._left = True
                break
            self._profiler.before(self._step + 1)
            seed_step(self._cfg.train.seed, self._step, self.place.data)
            self._watch.begin()
            with self.timed("data_wait"):
                batch = next(batches)
            if self._ledger:
                unique = [f"{k}#{i}" for k, i in zip(batch.keys, batch.indices, strict=True)]
                self._ledger.enter(self._step + 1, batch.positions, unique)
            yield batch
            self._watch.end()
            self._step += 1
            if self._metrics.end_step(self._step, last=self._step == total):
                self._finite.require(self._step, self._metrics.newest)
                self._agreement.pace(self._metrics.step_s)
                self._heartbeats.note_memory(self._env.local_rank, self._metrics.peak_bytes)
            self._report_phase(WorkerPhase.TRAINING)
            if self._canary:
                self._canary.look(self._step, self._metrics.newest)
            if validate and self._validation.is_due(self._step):
                self._validate(validate)
            self._save_if_due()
        self._profiler.close()
        loader.close()

    def evaluate(self, batches: Iterable[Batch], measure: Measure) -> dict[str, float]:
        """Return the means of what `measure` gives for each sample of all ranks' `batches`, by
        name.

        It is meant for a validate function. Each rank has its part of the same steps, as from a
        `data.Loader` with `tail="pad"`, whose padding samples do not count. If all ranks were asked
        to leave, it does not return, and the validation is repeated when the run resumes.
        """
        return sample_means(self._until_asked(batches), measure, self.device)

    def _until_asked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if self._agreement.exchange(0, self._heartbeats.request()) is not WorkerRequest.NONE:
                raise ValidationInterruptedError
            self._report_phase(WorkerPhase.VALIDATING)
            yield batch

    def finish(self) -> None:
        """End the run after the training function has returned: save if needed, and record the end.

        Raises:
            TrainingError: the training function left the loop early; the step it was in is not
                saved.
        """
        total = last_step(self._cfg)
        if not self._left and self._step < total:
            raise TrainingError(
                f"the training function ended in step {self._step + 1} of {total}: "
                "let the loop over run.steps end by itself, and set train.steps to end it earlier"
            )
        self._report_phase(WorkerPhase.SAVING)
        if self._left or self._canary is None:  # no run resumes from a canary
            self._save_for_good()
        self._checkpointer.close()
        if self._canary and not self._left:
            self.tell("canary", **self._canary.end(is_first=self.rank == 0))
        self._agreement.close()
        dist.barrier()
        self._report_phase(WorkerPhase.LEFT if self._left else WorkerPhase.DONE)
        self._is_done = not self._left
        log.info("%s at step %d", "left on request" if self._left else "done", self._step)
        dist.destroy_process_group()

    def close(self) -> None:
        """Close all files. Takes part in no collective, so it is safe after an error."""
        self._profiler.close()
        if self._metrics:
            self._metrics.close(self._is_done)
        if self._ledger:
            self._ledger.close()
        self._events.close()

    def _report_phase(self, phase: WorkerPhase) -> None:
        self._heartbeats.report(self._env.local_rank, phase, self._step, self._env.attempt)

    def _validate(self, validate: Validate) -> None:
        """Validate, unless all ranks were asked to leave meanwhile: then they leave."""
        assert self._metrics is not None
        begun_s = time.monotonic()
        self._report_phase(WorkerPhase.VALIDATING)
        seed_all(mix(self._cfg.train.seed, "validation", self.place.data))
        try:
            with self.timed("validation"), evaluating(self.tracked.values()):
                found = over_ranks(validate())
        except ValidationInterruptedError:
            log.info("validation after step %d is left to the next generation", self._step)
            self._left = True
            return
        named = self._validation.done(self._step, found)
        self._metrics.validated(self._step, named, time.monotonic() - begun_s)
        self._report_phase(WorkerPhase.TRAINING)

    def _open_records(self, loader: Loader) -> tuple[StepMetrics, SampleLedgerWriter | None]:
        at, every = self._env.at, 1 if self._canary else self._cfg.train.log_every
        tensorboard = at.run.tensorboard if self.rank == 0 else None
        ledger = (
            SampleLedgerWriter(at.run.ledger, at.generation, self._attempt, self.rank)
            if self._cfg.debug.ledger and self.place.is_first
            else None
        )
        trackers = deliveries(self._cfg, at.run, self._events) if self.rank == 0 else []
        about = (LoaderStatistics(loader), self._parts, self._watch, self.device, self.place.copies)
        metrics = StepMetrics(self._events, tensorboard, every, self._step, *about, trackers)
        return metrics, ledger

    def _state(self) -> dict[str, Any]:
        canary = {"canary": self._canary} if self._canary else {}
        return {**self.tracked, **canary, "run": {"step": self._step}}

    def _resume(self, loader: Loader) -> None:
        begun, first = time.monotonic(), loader.state_dict()
        is_here = self._attempt > 0 or self._env.is_memory_here  # a restart in place has all nodes
        check = partial(self._finite.problem_of, self.tracked)
        restore = partial(self._checkpointer.restore, await_unseen=not is_here, check=check)
        restored = with_narrow_averages(restore, self._state())
        if restored is None and self._initialize:
            self._initialize()
        self._step = self._resumed_at = restored or 0
        if self._cfg.debug.overfit:
            loader.load_state_dict(first)
        self._report_phase(WorkerPhase.RESUMED)
        log.info("training from step %d of %d", self._step, last_step(self._cfg))
        if self.rank == 0:
            stands = loader.state_dict()
            self._events.emit(
                "training_started",
                step=self._step,
                world_size=self.world_size,
                global_batch=self.global_batch,
                samples=None if "pack" in stands else loader.samples,  # packed documents span steps
                position=stands["position"],
                restore_s=time.monotonic() - begun,
            )

    def _save_for_good(self) -> None:
        """Save, and if that fails, retry for a while: starting over would cost far more.

        Raises:
            SaveError: the store was not available again in that time.
        """
        for left in reversed(range(LAST_SAVE_TRIES)):
            try:
                self._save()
                self._checkpointer.wait()
                return
            except SaveError:
                if not left:
                    raise
                self._resumed_at = None  # what was in memory alone is in no store: save it again
                log.warning("trying again in %g s, %d times at most", LAST_SAVE_PAUSE_S, left)
                time.sleep(LAST_SAVE_PAUSE_S)

    def _save_if_due(self) -> None:
        if self._is_due(self._step) or self._validation.judges(self._step):
            self._report_phase(WorkerPhase.SAVING)  # in buckets, it may wait for the store
            with self.timed("checkpoint_stall"):
                self._save()
            self._report_phase(WorkerPhase.TRAINING)

    def _save(self) -> None:
        is_old = self._step == self._resumed_at and not self._validation.judges(self._step)
        if is_old or self._metrics is None:
            return  # nothing new
        self._finite.require(self._step, self._metrics.means(NAMES))
        self._finite.require_parameters(self._step, self.tracked)
        metrics = {**self._metrics.newest, **self._validation.metrics(self._step)}
        left_s = max(0.0, self._heartbeats.seconds_left()) if self._left else None
        self._metrics.flush()  # or their records might be lost
        self._checkpointer.save(self._step, self._state(), metrics=metrics, deadline_s=left_s)
        self._waits.expect()
