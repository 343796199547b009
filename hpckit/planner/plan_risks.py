"""The risks of a planned run: what may come differently, by how much, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpckit.config.spec import RunSpec
from hpckit.planner.assumptions import RESTART_S
from hpckit.planner.run_estimate import RunEstimate
from hpckit.planner.run_totals import RunTotals
from hpckit.text.quantities import size, span

_MANY_FAILURES = 1.0
_HEAVY_NETWORK = 0.2
"""Share of a step in communication from which on a slower network is a risk."""
_LITTLE_GOODPUT = 0.95


@dataclass(frozen=True)
class PlanRisk:
    """An assumption of the plan that may turn out to be wrong."""

    what: str
    effect: str
    remedy: str


def risks(spec: RunSpec, plan: RunEstimate, totals: RunTotals | None) -> Iterator[PlanRisk]:
    """Yield the risks, those of memory first."""
    yield from _memory(plan)
    if totals is not None:
        yield from _time(plan, totals)
        yield from _failures(spec, plan, totals)
    if plan.compute == "fp16":
        yield PlanRisk(
            "gradients overflow in fp16",
            "steps are skipped while the loss scale adapts; some models diverge",
            "precision=bf16 if the card supports it; follow skipped_steps in the report",
        )


def _memory(plan: RunEstimate) -> Iterator[PlanRisk]:
    peak = plan.footprint.peak.total
    if not plan.fits:
        yield PlanRisk(
            "the run does not fit into the memory of the GPU",
            f"it needs {size(peak)}, and {size(plan.room)} are available: it ends at its first "
            "step",
            "use the recommended layout, more nodes or larger cards",
        )
    elif not plan.has_headroom:
        yield PlanRisk(
            f"memory may exceed its estimate by {plan.error:.0%}",
            f"{size(peak * (1 + plan.error))} of {size(plan.room)}: out of memory",
            "use the recommended layout, or try one node first",
        )


def _time(plan: RunEstimate, totals: RunTotals) -> Iterator[PlanRisk]:
    share = plan.assumptions.utilisation
    yield PlanRisk(
        f"the cards reach less than the assumed {share:.0%} of their peak",
        f"with {50 * share:.3g}% while computing, the run takes up to {span(2 * totals.wall_s)} in "
        f"place of {span(totals.wall_s)}, and its cost rises in proportion",
        "measure the FLOP/s of a step on one node first (hpckit bench profile); divided by the "
        f"{plan.card.tflops[plan.compute]:,.4g} TFLOP/s of the card, they are --mfu",
    )
    assert plan.speed is not None
    step = plan.speed.step
    waits = step.tensor + step.expert + step.data
    if plan.nodes > 1 and waits > _HEAVY_NETWORK * step.total:
        yield PlanRisk(
            "the network is slower than its data sheet",
            f"{waits / step.total:.0%} of a step is communication that nothing hides; half the "
            f"bandwidth adds {waits / step.total:.0%} to the time",
            "measure it before: hpckit bench collectives and hpckit bench scaling",
        )


def _failures(spec: RunSpec, plan: RunEstimate, totals: RunTotals) -> Iterator[PlanRisk]:
    mtbf_s = plan.goodput.mtbf_s
    if totals.failures >= _MANY_FAILURES:
        yield PlanRisk(
            f"about {totals.failures:,.0f} failures are expected, one every {span(mtbf_s)}",
            f"each costs a restart of {span(RESTART_S)}, and {span(totals.interval_s / 2)} of "
            "repeated steps on average",
            "keep spare nodes (elastic.spares), and replicas in memory (checkpoint.replicas=1)",
        )
    if totals.goodput < _LITTLE_GOODPUT:
        better = plan.goodput
        gain = (
            f"save every {span(better.interval_s)}, which gives {better.fraction:.1%}"
            if better.fraction > totals.goodput + 0.005
            else "a faster store, or fewer nodes with more work each"
        )
        yield PlanRisk(
            f"only {totals.goodput:.1%} of the time is training that counts",
            f"{span(totals.lost_s)} go into saves, restarts and repeated steps",
            gain,
        )
    if spec.checkpoint.url is None:
        yield PlanRisk(
            "checkpoints lie in the run directory",
            f"they may take {size(totals.kept_bytes)} there, and are lost with the file system",
            "check the quota, or name a store: checkpoint.url=",
        )
    limit = spec.cluster.slurm.time_limit if spec.cluster.slurm is not None else None
    if spec.cluster.slurm is not None and limit is None:
        yield PlanRisk(
            "the time limit of the partition may be shorter than the run",
            f"the run takes {span(totals.wall_s)}; it continues in further jobs, each of which "
            "waits in the queue",
            "set cluster.slurm.time_limit, and leave launch.continuation as it is",
        )
