"""How much of a retry budget the present supervisor has used up, as `judge` counts it, determined
later from events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.agent.verdict_record import VerdictKind
from hpckit.events.event_log import Event
from hpckit.supervisor.verdict import failures_in_a_row, past_of


def used_retries(events: Sequence[Event], kind: VerdictKind) -> int:
    """Counts the successive failures of `kind` without a new checkpoint, as the supervisor that
    started last counts them."""
    past = past_of(events)
    if not past or past[-1].kind is not kind:
        return failures_in_a_row(kind, past)
    # as in `judge`, the last failure counts even after progress in its generation
    return 1 + (0 if past[-1].progress else failures_in_a_row(kind, past[:-1]))
