"""How much of a retry budget the present supervisor has used up: what `judge` counts, told later
from events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.elastic.verdict import Kind, Past, failures_in_a_row
from hpckit.run.events import Event


def used(events: Sequence[Event], kind: Kind) -> int:
    """Failures of `kind` in a row without a new checkpoint, of the supervisor that came last."""
    past: list[Past] = []
    saved = 0
    for event in events:
        if event.kind == "run_started":
            past = []
        elif event.kind == "generation_started":
            saved = int(event["from_step"])
        elif event.kind == "generation_ended":
            progress = int(event["saved_step"]) > saved
            past.append(Past(Kind(event["verdict"]), progress))
    if not past or past[-1].kind is not kind:
        return failures_in_a_row(kind, past)
    # as `judge` does it: the last failure counts even if there was progress before it
    return 1 + (0 if past[-1].progress else failures_in_a_row(kind, past[:-1]))
