from __future__ import annotations

from hpckit.agent.verdict_record import VerdictKind
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.supervisor.verdict import used_retries


def life(*generations: tuple[str, int]) -> list[Event]:
    """A supervisor's generations: how each ended, and the newest checkpoint's step then."""
    events, saved = [event_of(0, "run_started", {})], 0
    for verdict, step in generations:
        events.append(event_of(0, "generation_started", {"from_step": saved}))
        events.append(event_of(0, "generation_ended", {"verdict": verdict, "saved_step": step}))
        saved = step
    return events


def test_failures_of_one_kind_without_a_checkpoint_in_between_are_counted() -> None:
    assert used_retries(life(("crash", 0), ("crash", 0), ("crash", 0)), VerdictKind.CRASH) == 3
    assert used_retries(life(("crash", 0), ("preempted", 0), ("crash", 0)), VerdictKind.CRASH) == 2
    assert used_retries(life(("crash", 0), ("crash", 10)), VerdictKind.CRASH) == 1
    assert used_retries(life(("crash", 10), ("crash", 10)), VerdictKind.CRASH) == 1
    assert used_retries(life(("infra", 0), ("crash", 0)), VerdictKind.CRASH) == 1


def test_another_supervisor_begins_anew() -> None:
    assert (
        used_retries([*life(("crash", 0), ("crash", 0)), *life(("crash", 0))], VerdictKind.CRASH)
        == 1
    )
    assert used_retries([], VerdictKind.INFRA) == 0
