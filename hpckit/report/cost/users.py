"""What the runs of each user have cost."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.report.cost.cost_summary import RunCost, sum_of
from hpckit.rundir.directory import RunDir


def owner_of(run: RunDir) -> str:
    """Return the user who owns a run directory; his number, if this machine does not know him."""
    try:
        return run.path.owner()
    except KeyError:
        return str(run.path.stat().st_uid)


def cost_by_user(costs: Sequence[tuple[str, RunCost]]) -> dict[str, RunCost]:
    """Return the cost of all runs of each user, the one with the most node-hours first. Pure.

    Args:
        costs: the user and the cost of each run.
    """
    users = dict.fromkeys(user for user, _ in costs)
    sums = {user: sum_of([cost for whose, cost in costs if whose == user]) for user in users}
    return dict(sorted(sums.items(), key=lambda item: -item[1].total_hours))
