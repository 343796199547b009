"""Who tells whom: everybody hears once, from somebody who has heard before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.exchange import tree


@given(members=st.sets(st.integers(0, 500), min_size=1, max_size=70), data=st.data())
def test_a_tree_reaches_every_member_once(members: set[int], data: st.DataObject) -> None:
    ranks = sorted(members)
    source = data.draw(st.sampled_from(ranks))
    places = {rank: tree(ranks, source, rank) for rank in ranks}
    assert places[source].parent is None
    told = [child for place in places.values() for child in place.children]
    assert sorted(told) == sorted(members - {source})
    for rank in ranks:
        for child in places[rank].children:
            assert places[child].parent == rank
        steps, at = 0, rank
        while (parent := places[at].parent) is not None:
            at, steps = parent, steps + 1
        assert at == source
        assert steps <= len(ranks).bit_length()
