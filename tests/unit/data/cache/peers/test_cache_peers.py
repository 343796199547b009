"""The decisions of nodes that share their caches: who tracks a shard, who has it, and when a node
is given up."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from data.cache.peers.node_ranking import ranked_nodes
from data.cache.peers.peer_group import PeerPace, PeerPatience
from data.cache.peers.shard_holders import FANOUT, KEPT, ShardHolders, choose_holder

NAMES = [f"node{number}" for number in range(8)]
SHARD = "shard"


@given(st.text(max_size=20), st.integers(0, 7))
def test_without_a_node_all_others_keep_their_order(shard: str, lost: int) -> None:
    ranked = [NAMES[node] for node in ranked_nodes(shard, NAMES)]
    rest = [name for name in NAMES if name != NAMES[lost]]
    assert [rest[node] for node in ranked_nodes(shard, rest)] == [
        name for name in ranked if name != NAMES[lost]
    ]


def test_nodes_track_about_as_many_shards() -> None:
    counts = Counter(ranked_nodes(f"shard{number}", NAMES)[0] for number in range(800))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 2 * 100


def test_the_first_one_fetches_and_the_others_form_a_tree() -> None:
    holders = ShardHolders()
    sent = [holders.locate(SHARD, node, ()) for node in range(7)]
    assert sent == [None, 0, 0, 1, 2, 1, 2]
    assert max(Counter(sent[1:]).values()) == FANOUT


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["locate", "whole", "gone"]),
            st.integers(0, 5),
            st.sets(st.integers(0, 5), max_size=3),
        ),
        max_size=40,
    )
)
def test_no_node_waits_for_itself(steps: list[tuple[str, int, set[int]]]) -> None:
    holders = ShardHolders()
    for what, node, failed in steps:
        if what == "locate":
            chosen = holders.locate(SHARD, node, failed)
            assert chosen not in {node, *failed}
        else:
            holders.settle(SHARD, node, is_whole=what == "whole")
        known = holders._shards.get(SHARD, {})
        for start in known:
            seen, at = {start}, known[start].parent
            while at in known and not known[at].is_whole:
                assert at not in seen
                seen.add(at)
                at = known[at].parent


def test_a_node_that_failed_is_not_chosen_again_and_one_that_has_it_is() -> None:
    holders = ShardHolders()
    holders.add(3, [SHARD])
    assert holders.locate(SHARD, 0, ()) == 3
    assert holders.locate(SHARD, 0, {3}) is None
    assert holders.locate(SHARD, 1, ()) == 0
    holders.settle(SHARD, 0, is_whole=False)
    assert holders.locate(SHARD, 2, {1}) is None


def test_a_node_that_another_one_avoids_is_chosen_for_the_others() -> None:
    holders = ShardHolders()
    holders.add(3, [SHARD])
    assert holders.locate(SHARD, 5, (), {3}) is None
    assert holders.locate(SHARD, 1, ()) == 3


def test_only_some_of_the_nodes_that_have_a_shard_are_remembered() -> None:
    holders = ShardHolders()
    for node in range(3 * KEPT):
        holders.add(node, [SHARD])
    assert len(holders._shards[SHARD]) == KEPT
    assert choose_holder(holders._shards[SHARD], 999, ()) is not None


def test_a_node_is_given_up_if_it_stalls_or_is_slow() -> None:
    patience = PeerPatience(stalled_s=10.0, slow_s=5.0, slow_bytes_per_s=1e6)
    quick = PeerPace(patience, 0.0)
    assert all(quick.problem(t, 2_000_000, 1.0, has_more=True) is None for t in range(1, 30))
    slow = PeerPace(patience, 0.0)
    found = [slow.problem(t, 500_000, 1.0, has_more=True) for t in range(1, 6)]
    assert found == [*[None] * 4, "it sends 0.5 MB/s"]
    # one that waits for its own source is not slow
    waiting = PeerPace(patience, 0.0)
    assert all(waiting.problem(t, 500_000, 1.0, has_more=False) is None for t in range(1, 30))
    stalled = PeerPace(patience, 0.0)
    assert stalled.problem(9.0, 0, 0.5, has_more=False) is None
    assert stalled.problem(10.0, 0, 0.5, has_more=False) == "no byte of the shard came for 10 s"
