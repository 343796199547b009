"""What is wrong with a run now, or was at its end, as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.report.overview import Overview
from hpckit.text.quantities import ago


def present_problems(it: Overview, now: float) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a run now: the name and the text of each line.

    Args:
        now: seconds since the epoch.
    """
    p = it.progress
    single = {
        "hang": it.hang,
        "wrong rank": p.wrong,
        "updates": p.skipped_updates,
        "replicas differ": p.differing,
    }
    yield from ((name, text) for name, text in single.items() if text is not None)
    yield from (("straggler", text) for text in (p.stragglers if it.is_alive else ()))
    yield from (("health", text) for text in p.health_problems)
    for bad in it.bad:
        yield "bad node", f"{bad.host}, {ago(bad.time, now)}: {bad.problem}"
    if it.problem is not None:
        yield "note", it.problem
