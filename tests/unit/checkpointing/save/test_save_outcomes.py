"""What a trainer makes of what its node's service says."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from checkpointing.errors import OtherRankError, SaveError
from checkpointing.events import Events
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.commit_wait import wait_together
from checkpointing.save.save_outcomes import OutcomeListener, SaveOutcome, SaveStatus

COMMITTED = {"kind": "committed", "step": 1, "id": "x", "bytes": 5, "new_bytes": 3}


def outcomes() -> tuple[OutcomeListener, list[tuple[str, dict[str, Any]]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    emit = Events(lambda kind, **fields: events.append((kind, fields)), rank=0)
    return OutcomeListener(emit, "file:///store"), events


def test_a_commit_is_told_once_and_nothing_worse_after_it() -> None:
    found, events = outcomes()
    found.begin(1)
    for message in (
        {"kind": "failed", "step": 1, "error": "full"},
        COMMITTED,
        COMMITTED,  # of a service that was started again
        {"kind": "failed", "step": 1, "error": "prune"},
        {"kind": "dropped", "step": 1},
    ):
        found.handle(message)
    assert found.of(1) == SaveOutcome(SaveStatus.COMMITTED)
    assert [kind for kind, _ in events] == ["checkpoint_failed", "checkpoint_committed"]
    assert events[1][1] == {
        **{"step": 1, "store": "file:///store"},
        **{"id": "x", "bytes": 5, "new_bytes": 3, "seconds": found.seconds},
    }
    assert 0 < found.seconds < 60, "by a clock that nobody sets"
    assert found.durable == 1


def test_nobody_here_knows_how_long_a_save_of_others_took() -> None:
    found, events = outcomes()
    found.handle(COMMITTED)
    assert "seconds" not in events[0][1]


def test_a_step_may_be_saved_again_after_going_back() -> None:
    found, events = outcomes()
    found.begin(1)
    found.handle(COMMITTED)
    found.clear()
    assert found.of(1).fate is SaveStatus.GONE
    assert found.durable is None
    found.begin(1)
    assert found.of(1).fate is SaveStatus.UNDER_WAY
    found.handle(COMMITTED)
    assert [kind for kind, _ in events] == ["checkpoint_committed"] * 2


def test_what_was_dropped_or_displaced_is_gone() -> None:
    found, events = outcomes()
    for step in (1, 2, 3):
        found.begin(step)
    found.handle({"kind": "dropped", "step": 1})
    found.handle({**COMMITTED, "step": 2})
    found.handle({"kind": "displaced"})
    assert found.of(1).why == "replaced by a newer one, because the store is slower than the saves"
    assert found.of(2).fate is SaveStatus.COMMITTED
    assert found.of(3).why.startswith("another process has joined")
    assert [kind for kind, _ in events] == ["save_dropped", "checkpoint_committed"]


def test_a_service_that_cannot_be_started_fails_what_is_under_way_for_now() -> None:
    found, events = outcomes()
    found.begin(1)
    found.handle({"kind": "service_lost"})
    assert found.of(1).fate is SaveStatus.UNDER_WAY
    found.handle({"kind": "service_failed", "error": "no memory"})
    assert found.of(1) == SaveOutcome(SaveStatus.FAILED, "the node's checkpoint service: no memory")
    found.handle(COMMITTED)
    assert found.of(1).fate is SaveStatus.COMMITTED
    kinds = ["service_lost", "checkpoint_failed", "checkpoint_committed"]
    assert [kind for kind, _ in events] == kinds


def test_waiting_ends_when_something_becomes_of_it() -> None:
    found, _ = outcomes()
    found.begin(1)
    assert found.wait(1, 0.0).fate is SaveStatus.UNDER_WAY
    threading.Timer(0.05, found.handle, [COMMITTED]).start()
    assert found.wait(1, 60.0).fate is SaveStatus.COMMITTED


class Said(RankGroup):
    """Ranks of which the others have an answer ready."""

    def __init__(self, *others: object) -> None:
        self.rank, self.world_size, self.control = 0, 1 + len(others), None
        self._others = others

    def all_gather(self, thing: Any, group: object) -> list[Any]:
        return [thing, *self._others]


def test_all_ranks_wait_for_the_same() -> None:
    found, _ = outcomes()
    found.begin(1)
    found.handle(COMMITTED)
    done = SaveOutcome(SaveStatus.COMMITTED)
    wait_together(Said((1, done), (1, done)), found, 1)
    wait_together(Said((None, None)), found, None)
    with pytest.raises(SaveError, match="saving step 1: rank 2: no room"):
        wait_together(Said((1, done), (1, SaveOutcome(SaveStatus.FAILED, "no room"))), found, 1)
    with pytest.raises(SaveError, match=r"different steps, in order of rank: \[1, 2\]"):
        wait_together(Said((2, done)), found, 1)
    with pytest.raises(SaveError, match=r"different steps, in order of rank: \[1, None\]"):
        wait_together(Said((None, None)), found, 1)


def test_one_that_was_skipped_is_told_when_those_before_it_have_ended() -> None:
    found, _ = outcomes()
    found.begin(1)
    found.begin(2)
    found.end(2, SaveStatus.GONE, "no place")
    assert found.wait(2, 0.0) == SaveOutcome(SaveStatus.GONE, "no place", is_behind=True)
    looks = 0

    class Looking(Said):
        def all_gather(self, thing: Any, group: object) -> list[Any]:
            nonlocal looks
            looks += 1
            if looks == 2:
                found.handle(COMMITTED)
            return [thing, *self._others]

    with pytest.raises(SaveError, match="saving step 2: rank 0: no place; rank 1: no place"):
        wait_together(Looking((2, SaveOutcome(SaveStatus.GONE, "no place"))), found, 2)
    assert looks == 3
    assert found.wait(2, 0.0) == SaveOutcome(SaveStatus.GONE, "no place")


def test_a_save_under_way_is_remembered_however_many_were_skipped_after_it() -> None:
    found, _ = outcomes()
    found.begin(1)
    for step in range(2, 60):
        found.begin(step)
        found.end(step, SaveStatus.GONE, "no place")
    assert found.wait(59, 0.0) == SaveOutcome(SaveStatus.GONE, "no place", is_behind=True)
    found.handle(COMMITTED)
    assert found.wait(59, 0.0) == SaveOutcome(SaveStatus.GONE, "no place")


def test_what_was_dropped_without_a_word_is_not_waited_for() -> None:
    """The service dropped it for a newer one, and ended before it said so."""
    found, _ = outcomes()
    found.begin(1)
    found.begin(2)
    found.handle({**COMMITTED, "step": 2})
    found.begin(3)
    found.end(3, SaveStatus.GONE, "no place")
    assert found.wait(3, 0.0) == SaveOutcome(SaveStatus.GONE, "no place")


def test_nobody_waits_for_a_place_behind_what_fails() -> None:
    found, _ = outcomes()
    found.begin(1)
    found.begin(2)
    found.end(2, SaveStatus.GONE, "no place")
    with pytest.raises(SaveError, match="saving step 2: rank 0: no place; rank 1: no room"):
        wait_together(Said((2, SaveOutcome(SaveStatus.FAILED, "no room"))), found, 2)
    found.handle({"kind": "failed", "step": 1, "error": "no room"})
    assert found.wait(2, 0.0) == SaveOutcome(SaveStatus.FAILED, "no place; no room")
    behind = SaveOutcome(SaveStatus.GONE, "no place", is_behind=True)
    with pytest.raises(SaveError, match="rank 0: no place; no room; rank 1: no place"):
        wait_together(Said((2, behind)), found, 2)
    found.handle({**COMMITTED, "step": 1})
    assert found.wait(2, 0.0) == SaveOutcome(SaveStatus.GONE, "no place")


def test_a_rank_that_is_gone_is_a_failure_for_who_waits_for_a_step() -> None:
    class Gone(Said):
        def all_gather(self, thing: Any, group: object) -> list[Any]:
            raise OtherRankError("another rank has ended: Connection closed")

    found, _ = outcomes()
    found.begin(1)
    found.handle(COMMITTED)
    wait_together(Gone(), found, None)
    with pytest.raises(SaveError, match="another rank has ended: Connection closed"):
        wait_together(Gone(), found, 1)
