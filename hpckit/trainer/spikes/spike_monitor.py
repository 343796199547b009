"""The monitor of spikes in the run loop: it ends the attempt of a spike, and `past_rollbacks` has
the next one leave out the spike's samples and the checkpoints that were trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data import Loader
from hpckit.events.schema import SpikeFound
from hpckit.trainer.batches.step_source import StepSource
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import barrier
from hpckit.trainer.rank_setup import RankContext
from hpckit.trainer.spikes.rollback_plan import Rollback, Spike, SpikeSteps, is_one_too_many
from hpckit.trainer.spikes.spike_detection import SpikeDetector


class SpikeError(RuntimeError):
    """There was a spike; the next attempt continues before it, without its samples."""


class SpikeMonitor:
    """Looks for spikes in the steps of one attempt."""

    def __init__(
        self,
        context: RankContext,
        source: StepSource,
        detector: SpikeDetector,
        made: Sequence[Rollback],
    ) -> None:
        """
        Args:
            made: the rollbacks of earlier attempts.

        Raises:
            TrainingError: the batches are not from a `data.Loader`, whose samples can be left out.
        """
        spec = context.cfg.heal
        if not isinstance(source.loader, Loader):
            raise TrainingError(
                f"heal=rollback leaves out samples by their positions, which {source.name} does "
                "not have; use data.Loader, or heal=skip, which works with any loader"
            )
        self._context, self._spec = context, spec
        self._source, self._detector, self._made = source, detector, made
        self._loader = source.loader
        self._steps = SpikeSteps(spec.patience, spec.before)

    @property
    def saved(self) -> dict[str, Any]:
        """The values to save with a state, which `load` takes."""
        return {"spike_steps": self._steps.saved}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue to count outliers in a row as the run did whose `saved` this was; states of
        earlier versions have no such count."""
        if "spike_steps" in saved:
            self._steps.load(saved["spike_steps"])

    def check(self, step: int, begun: int, means: Mapping[str, float]) -> None:
        """Check a step.

        Args:
            begun: position of the loader before the step.
            means: what was logged in the step, as means over ranks.

        Raises:
            SpikeError: there was a spike, with this step as its last one.
            TrainingError: there was one, after too many others.
        """
        positions = (begun, self._source.position or 0)
        spike = self._steps.update(step, positions, self._detector.update(means))
        if spike is not None:
            self._end(spike)

    def _end(self, spike: Spike) -> None:
        """End the attempt, as the steps of a spike have changed the parameters."""
        spec, step = self._spec, spike.step
        problem = self._loader.skip_problem(spike.first_position, spike.end_position)
        is_last = problem is not None or is_one_too_many(self._made, step, spec.most, spec.within)
        what = " and ".join(map(str, spike.outliers))
        self._context.emit_once(
            SpikeFound(
                first_step=spike.first_step,
                step=step,
                what=what,
                first_position=spike.first_position,
                end_position=spike.end_position,
                is_left_out=not is_last,
            )
        )
        barrier()  # agents end the other ranks once one has failed, and this event has to exist
        spike_text = f"spike in steps {spike.first_step} to {step}: {what}"
        if problem is not None:
            raise TrainingError(
                f"{spike_text}; its samples cannot be left out: {problem}. A smaller heal.patience "
                "or heal.before leaves out fewer"
            )
        if is_last:
            raise TrainingError(
                f"{spike_text}; there were {spec.most} rollbacks within {spec.within} steps "
                "already (heal.most, heal.within), so the samples are hardly the cause. A lower "
                "optim.lr, more warmup or another precision may help"
            )
        raise SpikeError(
            f"{spike_text}; the run continues from the newest checkpoint before, without the "
            f"samples at positions {spike.first_position} to {spike.end_position - 1}"
        )
