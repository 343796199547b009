"""The checkpoints of a run: how it resumes, when it saves, and the last save before it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from checkpointing import (
    Auto,
    Best,
    Checkpointer,
    CheckpointerOptions,
    Every,
    Last,
    Minutes,
    SaveError,
    Steps,
    Unevaluated,
)
from checkpointing.save_policy import SavePolicy
from checkpointing.service.client.early_start import start_early
from hpckit.config.rules.validation_and_evaluation import EVAL_PREFIX, best_policy
from hpckit.config.spec import CheckpointSpec, EvalSpec, KeepSpec, RunSpec
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.rundir.fork_record import read_fork
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.metrics.step_metrics import StepMetrics
from hpckit.trainer.optim.ema import with_narrow_averages
from hpckit.trainer.precision.finite_check import NAMES, FiniteCheck
from hpckit.trainer.rank_agreement import RankAgreement
from hpckit.trainer.rank_setup import RankContext
from hpckit.trainer.timing.snapshot_waits import SnapshotWaits
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.validation import ValidationSchedule

log = logging.getLogger(__name__)

LAST_SAVE_TRIES = 6
LAST_SAVE_PAUSE_S = 5.0


class RunCheckpoints:
    """Restores the state of a run at its start and saves it from then on.

    The state is a mapping from names to objects, as `Checkpointer` takes it. No checkpoint is saved
    from parameters or metrics that are not finite.
    """

    def __init__(
        self,
        context: RankContext,
        agreement: RankAgreement,
        finite_check: FiniteCheck,
        validations: ValidationSchedule,
        phases: StepPhases,
    ) -> None:
        cfg, run = context.cfg, context.env.at.run
        options = checkpointer_options(cfg)
        self._context, self._agreement = context, agreement
        self._finite_check, self._validations = finite_check, validations
        self._checkpointer = Checkpointer(
            checkpoint_root(cfg, run), replace(options, on_event=context.events.emit_kind)
        )
        self._is_due = limit_clock_checks(
            self._checkpointer.due, options.every, agreement.is_clock_check_due
        )
        self._snapshot_waits = SnapshotWaits(phases)
        self._unchanged_step: int | None = 0
        """The step whose state needs no save; None: every state needs one."""

    def restore(
        self,
        state: Mapping[str, Any],
        problem_of_state: Callable[[], str | None] | None = None,
        *,
        prefer_certified: bool = False,
        avoid: Mapping[str, str] | None = None,
    ) -> int | None:
        """Restore `state` from the newest usable checkpoint or snapshot. Collective.

        Args:
            problem_of_state: called once `state` is restored; returns why that checkpoint must not
                be used, besides parameters that are not finite.
            prefer_certified: as of `Checkpointer.restore`; if no certified one is left, there is an
                event.
            avoid: as of `Checkpointer.restore`.

        Returns:
            The step of the restored state, or None if there is no checkpoint.

        Raises:
            checkpointing.CheckpointError: there are checkpoints and none can be loaded.
            TrainingError: the run is a fork and its first checkpoint is gone.
        """
        self._snapshot_waits.watch(state.values())
        context = self._context
        # A restart in place has all nodes of the attempt before it.
        is_memory_here = context.attempt > 0 or context.env.is_memory_here
        restore = partial(
            self._checkpointer.restore,
            avoid=avoid,
            await_unseen=not is_memory_here,
            prefer_certified=prefer_certified,
            is_fresh=True,  # without a checkpoint that can be used, the run ends
            check=lambda: (
                self._finite_check.problem_of(state) or (problem_of_state and problem_of_state())
            ),
        )
        step = with_narrow_averages(restore, dict(state))
        if step is None and (fork := read_fork(context.env.at.run)) is not None:
            raise TrainingError(
                f"this run is a fork from {fork}, and {fork.store} has no checkpoint of it; fork "
                "that run again"
            )
        if prefer_certified and step is not None and not self._checkpointer.restored_certified:
            what = (
                f"the run continues from step {step}, which is not certified: no certified "
                "checkpoint can be used"
            )
            log.warning("%s", what)
            context.emit_once(Degraded(subject=DegradedSubject.CERTIFICATION, what=what))
        self._unchanged_step = step or 0
        return step

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` is to be saved: the policy says so, or the step was
        validated with the metric that chooses the best checkpoint, or it is to be evaluated. The
        same on all ranks."""
        is_due = self._is_due(step) or self._validations.has_best_metric(step)
        every = self._context.cfg.eval.every
        return is_due or (every is not None and step % every == 0)

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: StepMetrics,
        certify: Callable[[], str],
    ) -> None:
        """Start to save `state` after `step`, unless it is the state that was restored. Collective.

        Args:
            certify: as `ComputationCheck.certify`.

        Raises:
            NotFiniteError, TrainingError: as `FiniteCheck`.
            WrongComputationError, TrainingError: as `certify`.
            checkpointing.SaveError: an earlier save has failed, or this one cannot begin.
        """
        if step == self._unchanged_step and not self._validations.has_best_metric(step):
            return
        self._finite_check.require(step, metrics.means(NAMES))
        self._finite_check.require_parameters(step, state)
        certified = certify()
        saved = {**metrics.newest, **self._validations.metrics(step)}
        metrics.flush()  # the records of all steps that are saved have to exist
        self._checkpointer.save(
            step,
            dict(state),
            metrics=saved,
            deadline_s=self._deadline_s(),
            certified=certified,
        )
        self._snapshot_waits.expect()

    def save_last(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: StepMetrics,
        certify: Callable[[], str],
    ) -> None:
        """Save `state` and wait until the save is committed. A failed save is repeated for a while,
        since the loss of these steps would cost far more.

        Raises:
            SaveError: the last try has failed, too.
        """
        for tries_left in reversed(range(LAST_SAVE_TRIES)):
            try:
                self.save(step, state, metrics, certify)
                self._checkpointer.wait()
                return
            except SaveError:
                if not tries_left:
                    raise
                self._unchanged_step = None  # a state restored from memory may be in no store
                log.warning(
                    "the last save is tried again in %g s, at most %d more times",
                    LAST_SAVE_PAUSE_S,
                    tries_left,
                )
                time.sleep(LAST_SAVE_PAUSE_S)

    def close(self) -> None:
        """Wait until all saves are committed, and end."""
        self._checkpointer.close()

    def _deadline_s(self) -> float | None:
        """Return the seconds within which the save has to be durable, if the run is to leave."""
        if not self._agreement.is_leaving:
            return None
        return max(0.0, self._context.heartbeats.seconds_left())


def checkpointer_options(cfg: RunSpec) -> CheckpointerOptions:
    """Return the options of the `Checkpointer` of a run."""
    spec = cfg.checkpoint
    return CheckpointerOptions(
        run=run_name(cfg),
        every=save_policy(spec),
        keep=retention_policies(spec.keep, cfg.eval),
        compress=spec.compress,
        depth=spec.depth,
        replicas=spec.replicas,
        local=spec.local,
        staging="slots" if spec.staging == "buffers" else "buckets",
        max_unsaved=spec.max_unsaved_minutes,
        check_replicas=spec.check_replicas or False,
        may_differ=spec.may_differ,
    )


def start_service_early(cfg: RunSpec, run: RunDir) -> None:
    """Start the checkpoint service of this node, if it is not running, while the ranks meet."""
    start_early(checkpointer_options(cfg).service_config(checkpoint_root(cfg, run)))


def save_policy(spec: CheckpointSpec) -> Steps | Minutes | Auto | None:
    """Return the policy that says when to save; None: only at the end."""
    if spec.every_steps is not None:
        return Steps(spec.every_steps)
    if spec.mtbf_hours is not None:
        return Auto(mtbf_s=3600 * spec.mtbf_hours)
    return Minutes(spec.every_minutes) if spec.every_minutes is not None else None


def limit_clock_checks(
    due: Callable[[int], bool], policy: SavePolicy | None, is_check_due: Callable[[int], bool]
) -> Callable[[int], bool]:
    """Return `due` with fewer calls: a policy by the clock costs an exchange of all ranks, so it is
    asked only after steps for which `is_check_due` is true."""
    if policy is None or not policy.uses_clock:
        return due
    return lambda step: is_check_due(step) and due(step)


def retention_policies(
    spec: KeepSpec, evaluation: EvalSpec
) -> list[Last | Every | Best | Unevaluated]:
    """Return the policies that say which checkpoints are kept."""
    policies: list[Last | Every | Best | Unevaluated] = [Last(spec.last)]
    if spec.every is not None:
        policies.append(Every(spec.every))
    if spec.best is not None:
        policies.append(Best(spec.best))
    if (best := best_policy(evaluation)) is not None:
        policies.append(best)
    if evaluation.every is not None:
        policies.append(Unevaluated(evaluation.every, 3600 * evaluation.keep_hours, EVAL_PREFIX))
    return policies
