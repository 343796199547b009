"""Which replicas differ, told from the fingerprints of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.replica_differences import (
    MOST,
    NOT_TAKEN,
    MarkedDifferences,
    RankFingerprints,
    ReplicaDifference,
    ReplicaGroup,
    compare,
    describe_difference,
    dump_groups,
    dump_marked,
    event_fields,
    from_bytes,
    load_groups,
    load_marked,
    mark_of,
    ranges,
    summary,
    to_bytes,
)

NAMES = ("model/a", "model/b", "model/c")


def replicas(content: Mapping[int, list[int]], kind: str = "tensor") -> dict[int, RankFingerprints]:
    """Of one group whose ranks hold `NAMES`; the ranks take turns in saving them."""
    told = {}
    for place, (rank, prints) in enumerate(sorted(content.items())):
        names = NAMES if place == 0 else ()
        savers = tuple(i % len(content) for i in range(len(NAMES))) if place == 0 else ()
        group = ReplicaGroup("0" * 16, place, kind, len(NAMES), names, savers)
        told[rank] = RankFingerprints((group,), np.array(prints, np.uint64))
    return told


def test_what_all_hold_alike_does_not_differ() -> None:
    assert compare(replicas({0: [1, 2, 3], 1: [1, 2, 3], 5: [1, 2, 3]})) == []
    assert compare({}) == []


def test_the_odd_rank_is_named_where_there_is_a_majority() -> None:
    (found,) = compare(replicas({0: [1, 2, 3], 1: [1, 9, 3], 2: [1, 2, 3]}))
    assert found == ReplicaDifference("model/b", "tensor", ((0, 2), (1,)), 1)
    assert found.odd == (1,)
    assert describe_difference(found) == (
        "tensor model/b: rank 1 differs from ranks 0,2; the checkpoint has rank 1's"
    )


def test_of_two_nobody_is_the_odd_one() -> None:
    (found,) = compare(replicas({0: [1, 2, 3], 1: [8, 2, 3]}))
    assert found == ReplicaDifference("model/a", "tensor", ((0,), (1,)), 0)
    assert found.odd == ()
    assert "rank 0 and rank 1 differ" in describe_difference(found)


@given(
    st.integers(2, 9).flatmap(
        lambda world: st.tuples(
            st.just(world),
            st.dictionaries(
                st.tuples(st.integers(0, world - 1), st.integers(0, len(NAMES) - 1)),
                st.integers(1, 3),
                max_size=6,
            ),
        )
    )
)
def test_every_flip_is_found_and_nothing_else(
    made: tuple[int, Mapping[tuple[int, int], int]],
) -> None:
    """Each rank has 100 of everything, but for those that have 1, 2 or 3 of something."""
    world, flips = made
    content = {rank: [100] * len(NAMES) for rank in range(world)}
    for (rank, tensor), value in flips.items():
        content[rank][tensor] = value
    found = {one.name: one for one in compare(replicas(content))}
    for index, name in enumerate(NAMES):
        by_rank = {rank: prints[index] for rank, prints in content.items()}
        values = set(by_rank.values())
        assert (name in found) == (len(values) > 1)
        if name in found:
            one = found[name]
            groups = [tuple(r for r, v in by_rank.items() if v == value) for value in values]
            assert set(one.ranks) == set(groups)
            assert one.stored == index % world
            most = max(map(len, groups))
            expected = {r for g in groups if len(g) < most for r in g} if 2 * most > world else ()
            assert set(one.odd) == set(expected)


def test_what_a_rank_has_no_fingerprint_of_is_not_compared() -> None:
    content = {0: [1, 2, 3], 1: [NOT_TAKEN, 2, 3], 2: [1, 2, 4]}
    (found,) = compare(replicas(content))
    assert found.name == "model/c"
    assert compare(replicas({0: [NOT_TAKEN] * 3, 1: [5, 6, 7]})) == []


def test_a_group_whose_first_rank_says_nothing_is_not_compared() -> None:
    told = replicas({0: [1, 2, 3], 1: [1, 2, 4], 2: [1, 2, 5]})
    del told[0]
    assert compare(told) == []


def divided(second: list[int]) -> dict[int, RankFingerprints]:
    """One tensor of which two ranks save a half each: rank 0 holds 1 and 2."""
    first = ReplicaGroup("0" * 16, 0, "tensor", 2, ("w", "w"), (0, 1))
    other = replace(first, place=1, names=(), savers=())
    return {
        0: RankFingerprints((first,), np.array([1, 2], np.uint64)),
        1: RankFingerprints((other,), np.array(second, np.uint64)),
    }


@pytest.mark.parametrize(
    ("second", "stored"), [([1, 9], 1), ([9, 2], 0), ([8, 9], None)], ids=["last", "first", "both"]
)
def test_a_tensor_in_parts_is_one_replica_or_said_to_be_a_mixture(
    second: list[int], stored: int | None
) -> None:
    (found,) = compare(divided(second))
    assert found == ReplicaDifference("w", "tensor", ((0,), (1,)), stored)
    assert ("mixture" in describe_difference(found)) == (stored is None)


def test_shards_of_a_tensor_come_from_one_replica() -> None:
    """A hybrid sharding: ranks 0 and 1 are one replica in two shards, 2 and 3 the other one."""
    told = {}
    for rank in range(4):
        shard, place = rank % 2, rank // 2
        names = ("w",) if place == 0 else ()
        savers = (1,) if place == 0 else ()
        group = ReplicaGroup(f"{shard:016x}", place, "tensor", 1, names, savers)
        told[rank] = RankFingerprints((group,), np.array([10 * place + shard + 1], np.uint64))
    (found,) = compare(told)
    assert found == ReplicaDifference("w", "tensor", ((0, 1), (2, 3)), 2)


def test_what_makes_a_checkpoint_suspect() -> None:
    assert mark_of([]) is None
    buffer = mark_of(compare(replicas({0: [1, 2, 3], 1: [8, 2, 3]}, "buffer")))
    tensor = mark_of(compare(replicas({0: [1, 2, 3], 1: [8, 2, 3]}, "tensor")))
    assert buffer is not None
    assert tensor is not None
    assert not buffer.is_suspect
    assert tensor.is_suspect


def test_plain_data_and_back() -> None:
    differences = [
        ReplicaDifference(f"t{i:03}", "tensor", ((0, 1, 2, 7), (4,)), None if i % 2 else 4)
        for i in range(MOST + 20)
    ]
    mark = mark_of([ReplicaDifference("a", "buffer", ((0,), (1,)), 0), *differences])
    assert mark is not None
    assert (mark.count, len(mark.differences)) == (MOST + 21, MOST)
    assert mark.differences[0].kind == "tensor", "a buffer is of least weight"
    assert load_marked(JsonReader(dump_marked(mark), "it")) == mark
    assert summary(mark).endswith("; and 118 more")
    assert event_fields(mark)["odd_ranks"] == [4]
    (told,) = replicas({0: [1, 2, 3]}).values()
    groups = load_groups(JsonReader({"groups": dump_groups(told.groups)}, "it"), "groups")
    assert groups == told.groups
    assert from_bytes(to_bytes(told.fingerprints), groups, "it").tolist() == [1, 2, 3]


@pytest.mark.parametrize("ranks", ["", "x", "1-", "3,,4", "0-99999999999", "1 2"])
def test_what_are_no_ranks_is_damage(ranks: str) -> None:
    mark = MarkedDifferences(1, (ReplicaDifference("a", "tensor", ((0,), (1,)), 0),))
    plain = dump_marked(mark)
    plain["first"][0]["ranks"] = [ranks]
    with pytest.raises(DamagedError, match="is not a list of ranks"):
        load_marked(JsonReader(plain, "it"))


def test_ranks_beyond_measure_are_damage() -> None:
    """Or a manifest of a few bytes would take all of the memory."""
    mark = MarkedDifferences(1, (ReplicaDifference("a", "tensor", ((0,), (1,)), 0),))
    plain = dump_marked(mark)
    plain["first"][0]["ranks"] = ["0-9999999"] * 1000
    with pytest.raises(DamagedError, match="more than 16,777,216 ranks"):
        load_marked(JsonReader(plain, "it"))


def test_fingerprints_are_as_many_as_the_groups_have_entries() -> None:
    (told,) = replicas({0: [1, 2, 3]}).values()
    with pytest.raises(DamagedError, match="number of its fingerprints"):
        from_bytes(b"12345678", told.groups, "it")


@given(st.sets(st.integers(0, 99), min_size=1))
def test_ranges(ranks: set[int]) -> None:
    mark = MarkedDifferences(
        1, (ReplicaDifference("a", "tensor", (tuple(sorted(ranks)), (100,)), 0),)
    )
    assert load_marked(JsonReader(dump_marked(mark), "it")) == mark
    assert ranges([0, 1, 2, 7]) == "0-2,7"
