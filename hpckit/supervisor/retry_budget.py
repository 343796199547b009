"""How much of a retry budget the present supervisor has used up: what `judge` counts, told later
from events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.agent.verdict_record import VerdictKind
from hpckit.events.event_log import Event
from hpckit.supervisor.verdict import failures_in_a_row, past_of


def used_retries(events: Sequence[Event], kind: VerdictKind) -> int:
    """Failures of `kind` in a row without a new checkpoint, as the supervisor that came last counts
    them."""
    past = past_of(events)
    if not past or past[-1].kind is not kind:
        return failures_in_a_row(kind, past)
    # as `judge` does it: the last failure counts even if there was progress before it
    return 1 + (0 if past[-1].progress else failures_in_a_row(kind, past[:-1]))
