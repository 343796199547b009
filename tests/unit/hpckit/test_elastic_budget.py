from __future__ import annotations

from hpckit.elastic.budget import used
from hpckit.elastic.verdict import Kind
from hpckit.run.events import Event


def life(*generations: tuple[str, int]) -> list[Event]:
    """A supervisor's generations: how each ended, and the newest checkpoint's step then."""
    events, saved = [Event(0, "run_started", {})], 0
    for verdict, step in generations:
        events.append(Event(0, "generation_started", {"from_step": saved}))
        events.append(Event(0, "generation_ended", {"verdict": verdict, "saved_step": step}))
        saved = step
    return events


def test_failures_of_one_kind_without_a_checkpoint_in_between_are_counted() -> None:
    assert used(life(("crash", 0), ("crash", 0), ("crash", 0)), Kind.CRASH) == 3
    assert used(life(("crash", 0), ("preempted", 0), ("crash", 0)), Kind.CRASH) == 2
    assert used(life(("crash", 0), ("crash", 10)), Kind.CRASH) == 1
    assert used(life(("crash", 10), ("crash", 10)), Kind.CRASH) == 1
    assert used(life(("infra", 0), ("crash", 0)), Kind.CRASH) == 1


def test_another_supervisor_begins_anew() -> None:
    assert used([*life(("crash", 0), ("crash", 0)), *life(("crash", 0))], Kind.CRASH) == 1
    assert used([], Kind.INFRA) == 0
