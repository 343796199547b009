"""Which shards make room: the pure choice, against a check of all alternatives."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from data.cache.space.eviction_choice import EvictionCandidate, choose_victims

times = st.one_of(st.none(), st.integers(0, 9).map(float))
candidates = st.lists(
    st.builds(
        EvictionCandidate, st.just(""), st.integers(1, 9), times, st.integers(0, 9).map(float)
    ),
    max_size=6,
).map(
    lambda all_: [
        EvictionCandidate(str(i), c.bytes, c.next_use_s, c.used_s) for i, c in enumerate(all_)
    ]
)


def value(one: EvictionCandidate) -> tuple[bool, float]:
    """The higher, the worse it is to lose it."""
    return (False, one.used_s) if one.next_use_s is None else (True, -one.next_use_s)


def may_go(one: EvictionCandidate, needed_s: float) -> bool:
    return one.next_use_s is None or one.next_use_s > needed_s


@given(candidates, st.integers(1, 30), st.integers(0, 9).map(float))
def test_enough_goes_and_nothing_that_is_needed_sooner(
    all_: list[EvictionCandidate], shortage: int, needed_s: float
) -> None:
    chosen = choose_victims(all_, shortage, needed_s)
    allowed = [one for one in all_ if may_go(one, needed_s)]
    if chosen is None:
        assert sum(one.bytes for one in allowed) < shortage
        return
    assert set(chosen) <= set(allowed)
    assert sum(one.bytes for one in chosen) >= shortage
    assert len(set(chosen)) == len(chosen)


@given(candidates, st.integers(1, 30), st.integers(0, 9).map(float))
def test_the_best_to_lose_of_what_was_chosen_cannot_be_spared(
    all_: list[EvictionCandidate], shortage: int, needed_s: float
) -> None:
    chosen = choose_victims(all_, shortage, needed_s) or []
    gained = sum(one.bytes for one in chosen)
    assert all(gained - one.bytes < shortage for one in chosen)


@given(candidates, st.integers(1, 30), st.integers(0, 9).map(float))
def test_the_most_valuable_victim_is_as_cheap_as_it_can_be(
    all_: list[EvictionCandidate], shortage: int, needed_s: float
) -> None:
    chosen = choose_victims(all_, shortage, needed_s)
    if not chosen:
        return
    worst = max(map(value, chosen))
    allowed = [one for one in all_ if may_go(one, needed_s)]
    for size in range(1, len(allowed) + 1):
        for others in combinations(allowed, size):
            if sum(one.bytes for one in others) >= shortage:
                assert max(map(value, others)) >= worst


def test_the_order_is_the_farthest_next_use_after_the_unplanned() -> None:
    now, soon, late = (EvictionCandidate(str(t), 1, t, 0.0) for t in (1.0, 2.0, 30.0))
    old, fresh = EvictionCandidate("old", 1, None, 5.0), EvictionCandidate("fresh", 1, None, 6.0)
    all_ = [now, soon, late, fresh, old]
    want = [[old], [old, fresh], [old, fresh, late], [old, fresh, late, soon]]
    assert [choose_victims(all_, n, 1.0) for n in (1, 2, 3, 4)] == want
    assert choose_victims(all_, 5, 1.0) is None
