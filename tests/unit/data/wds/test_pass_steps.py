"""Steps cover each pass exactly, on any ranks; workers agree on passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import DataError, Order
from data.wds.pass_registry import PassRegistry
from data.wds.pass_steps import PassSteps, Tail
from data.wds.ranks_and_workers import DataParallelRank, LoaderWorker, ranks


@given(
    samples=st.integers(1, 90),
    each=st.integers(1, 7),
    world=st.integers(1, 5),
    position=st.integers(0, 300),
    tail=st.sampled_from(["straddle", "partial", "drop"]),
    epochs=st.integers(1, 3),
)
def test_steps_of_a_pass_are_a_partition(
    samples: int, each: int, world: int, position: int, tail: Tail, epochs: int
) -> None:
    order, size = Order([samples], streams=4), each * world
    if tail == "drop" and size > samples:
        with pytest.raises(DataError, match="every sample would be dropped"):
            PassSteps(order, size, DataParallelRank(0, world), tail, samples)
        return
    of = [
        PassSteps(order, size, DataParallelRank(rank, world), tail, epochs * samples)
        for rank in range(world)
    ]
    until = of[0].until(position)
    assert until is not None
    assert until > position
    if tail == "partial" and min(samples, samples - position % samples) < world:
        return  # refused, see below
    steps = list(of[0].begins(position, until))
    covered = [p for begin, end in steps for p in range(begin, end)]
    assert covered == sorted(set(covered))
    if tail != "drop":
        assert covered == list(range(position, until))
    else:
        lost = set(range(position, until)) - set(covered)
        assert all(p % samples >= samples - size for p in lost)
    for begin, end in steps:
        shares = [steps.share(begin, end).positions.tolist() for steps in of]
        assert sorted(p for share in shares for p in share) == list(range(begin, end))
        assert all(0 < len(share) <= each + 1 for share in shares)
    assert of[0].advance(position, len(steps)) <= until


def test_ranks_that_would_get_nothing_are_refused() -> None:
    steps = PassSteps(Order([10]), 4, DataParallelRank(0, 4), "partial", 10)
    assert list(steps.begins(0, 10)) == [(0, 4), (4, 10)]
    with pytest.raises(DataError, match="2 samples are left"):
        steps.after(8)


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks(None, None) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks(None, None) == (2, 4)
    assert ranks(1, 3) == (1, 3)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(DataError, match="not numbers"):
        ranks(None, None)


def ten(begin: int) -> int:
    return begin + 10


def test_workers_agree_on_passes_whatever_they_missed() -> None:
    passes, first = PassRegistry(), (5, 10)
    a, b = LoaderWorker(0, 2, 111), LoaderWorker(1, 2, 111)
    assert passes.begin(a, first, ten) == passes.begin(b, first, ten) == (5, 10)
    later = LoaderWorker(0, 2, 222)
    assert passes.begin(later, first, ten) == (10, 20)  # its other worker never came
    c, d = LoaderWorker(1, 2, 333), LoaderWorker(0, 2, 333)
    assert passes.begin(c, first, ten) == passes.begin(d, first, ten) == (20, 30)
    assert passes.begin(c, first, ten) == passes.begin(d, first, ten) == (30, 40)  # seeds recur
    assert passes.begin(LoaderWorker(0, 3, 333), first, ten) == (
        40,
        50,
    )  # other loaders, other workers
    with pytest.raises(DataError, match="too many"):
        passes.begin(LoaderWorker(0, 5000, 1), first, ten)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=80), st.data())
def test_all_workers_of_an_iteration_get_the_same(counts: list[int], data: st.DataObject) -> None:
    passes = PassRegistry()
    for number, count in enumerate(counts):
        seed = data.draw(st.integers(0, 2))
        come = data.draw(st.permutations(range(count)))
        told = {passes.begin(LoaderWorker(w, count, seed), (0, 10), ten) for w in come}
        assert told == {(10 * number, 10 * number + 10)}
