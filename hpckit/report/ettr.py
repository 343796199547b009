"""Shares of a run's time that went into steps which count."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.events.schema import StepLogged


def training_share(steps: Sequence[StepLogged], step_s: float) -> float:
    """Return the time of steps that count as a share of the time from the first record to the last.

    Args:
        steps: step records, in the order in which the steps ended.
        step_s: seconds of an undisturbed step.
    """
    if len(steps) < 2:
        return 0.0
    numbers = [event.step for event in steps]
    whole_s = steps[-1].time - steps[0].time
    return float((max(numbers) - min(numbers)) * step_s / whole_s) if whole_s > 0 else 0.0


def ettr(trained_s: float, available_s: float) -> float | None:
    """Return the ETTR, effective training time ratio (Kokolis et al. 2024, "Revisiting Reliability
    in Large-Scale Machine Learning Research Clusters"): the time of steps that count as a share of
    all time from the start of the first job on, in which the run had nodes or waited for them. So
    it counts each start-up and the queue between jobs, which `training_share` does not of the
    first. None: there was no time yet.

    Args:
        trained_s: seconds of steps that count.
        available_s: seconds for which the run had nodes or waited for them.
    """
    return min(1.0, trained_s / available_s) if available_s > 0 else None
