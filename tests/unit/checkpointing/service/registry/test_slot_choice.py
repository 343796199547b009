from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.service.registry.slot_choice import SlotState, SlotStatus, choose_next_slot

NOT_EMPTY = [state for state in SlotState if state is not SlotState.EMPTY]


@st.composite
def slots(draw: st.DrawFn, least: int = 1, *, writing: bool = True) -> list[SlotStatus]:
    """Steps and orders of arrival do not go together: a generation may have gone back in time."""
    allowed = [s for s in SlotState if writing or s is not SlotState.WRITING]
    states = draw(st.lists(st.sampled_from(allowed), min_size=least, max_size=6))
    orders = draw(st.permutations(range(len(states))))
    return [
        SlotStatus()
        if state is SlotState.EMPTY
        else SlotStatus(state, draw(st.integers(0, 9)), order)
        for state, order in zip(states, orders, strict=True)
    ]


@given(slots())
def test_what_is_being_written_stays(given: list[SlotStatus]) -> None:
    chosen = choose_next_slot(given)
    assert chosen is None or given[chosen].state is not SlotState.WRITING


@given(slots(least=2))
def test_the_newest_whole_snapshot_stays(given: list[SlotStatus]) -> None:
    chosen = choose_next_slot(given)
    newest = max((s.order for s in given if s.state in NOT_EMPTY), default=None)
    assert chosen is None or given[chosen].state is SlotState.EMPTY or given[chosen].order != newest


@given(slots(least=2, writing=False))
def test_with_two_slots_and_nothing_being_written_there_is_always_one(
    given: list[SlotStatus],
) -> None:
    assert choose_next_slot(given) is not None


@given(slots(least=3))
def test_with_three_slots_and_one_being_written_there_is_always_one(
    given: list[SlotStatus],
) -> None:
    if sum(slot.state is SlotState.WRITING for slot in given) <= 1:
        assert choose_next_slot(given) is not None


@given(slots())
def test_a_waiting_snapshot_goes_only_for_want_of_another_and_the_oldest_first(
    given: list[SlotStatus],
) -> None:
    chosen = choose_next_slot(given)
    if chosen is None or given[chosen].state is not SlotState.WAITING:
        return
    assert len(given) > 1
    newest = max(slot.order for slot in given)
    others = [slot for slot in given if slot.order != newest]
    assert all(slot.state in (SlotState.WAITING, SlotState.WRITING) for slot in others)
    assert given[chosen].order == min(s.order for s in others if s.state is SlotState.WAITING)


def test_a_single_slot_is_filled_anew_only_when_nothing_is_lost() -> None:
    free = {state: choose_next_slot([SlotStatus(state, 1, 0)]) for state in SlotState}
    assert free == {
        SlotState.EMPTY: 0,
        SlotState.LOST: 0,
        SlotState.DURABLE: 0,
        SlotState.WAITING: None,
        SlotState.WRITING: None,
    }
