"""Several datasets under weights: their shares, and going on with other weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import Batch, DataError, Dataset, FingerprintError, Loader, mixed, open_dataset
from data.order.mixture import MixtureSegment, segment
from tests.effort import times
from tests.unit.data.order import order_reference as reference
from tests.unit.data.tars import write_tar

SIZES = (50, 30)


@pytest.fixture
def datasets(tmp_path: Path) -> list[Dataset]:
    for name, size in zip("ab", SIZES, strict=True):
        (tmp_path / name).mkdir()
        for shard in range(2):
            files = [(f"{name}{i:02d}.txt", b"x") for i in range(shard, size, 2)]
            write_tar(tmp_path / name / "same-name-0.tar".replace("0", str(shard)), files)
    return [open_dataset(tmp_path / name) for name in "ab"]


def take(loader: Loader, count: int) -> list[Batch]:
    return list(islice(loader, count))


def test_each_dataset_gives_its_share_and_each_of_its_samples_once_per_epoch(
    datasets: list[Dataset],
) -> None:
    batches = take(Loader(mixed(datasets, [3, 1], seed=2, block=64), global_batch=8), 40)
    which = Counter(number for batch in batches for number in batch.datasets)
    assert which == {0: 240, 1: 80}
    keys = [key for batch in batches for key in batch.keys]
    assert all(
        key[0] == "ab"[n] for b in batches for key, n in zip(b.keys, b.datasets, strict=True)
    )
    at = sorted((p, k) for b in batches for p, k in zip(b.positions, b.keys, strict=True))
    of_a = [key for _, key in at if key[0] == "a"]
    for epoch in range(4):
        assert len(set(of_a[epoch * 50 : epoch * 50 + 50])) == 50
    assert Counter(keys)["b00"] in (2, 3)


def test_what_is_left_out_is_so_in_every_epoch_of_its_dataset(datasets: list[Dataset]) -> None:
    whole = [batch.keys[0] for batch in take(Loader(mixed(datasets, [3, 1]), global_batch=1), 400)]
    cured = Loader(mixed(datasets, [3, 1]), global_batch=8)
    cured.skip(20, 28)
    kept = [key for at, key in enumerate(whole) if at < 20 or key not in whole[20:28]]
    got = [key for batch in take(cured, 20) for key in sorted(batch.keys)]
    resumed = Loader(mixed(datasets, [3, 1]), global_batch=5)
    resumed.load_state_dict(json.loads(json.dumps(cured.state_dict())))
    got += [key for batch in take(resumed, 20) for key in sorted(batch.keys)]
    assert sorted(got) == sorted(kept[:260])
    assert sum(source.samples for source in resumed.sources) == 260


def test_a_dataset_ends_if_all_its_samples_are_left_out(datasets: list[Dataset]) -> None:
    stream = mixed(datasets, [1, 1], names=["large", "small"])
    whole = [batch.keys[0] for batch in take(Loader(stream, global_batch=1), 400)]
    cured = Loader(stream, global_batch=8)
    assert not cured.ended_sources
    assert cured.skip_problem(0, 80) is None
    cured.skip(0, 80)  # its 30 samples, and most of the other one's
    assert cured.ended_sources == ("small",)
    left = {key for key in whole if key[0] == "a"} - set(whole[:80])
    assert left
    assert {key for batch in take(cured, 20) for key in batch.keys} == left
    resumed = Loader(stream, global_batch=4)
    resumed.load_state_dict(json.loads(json.dumps(cured.state_dict())))
    assert resumed.ended_sources == ("small",)
    assert [source.weight for source in resumed.sources] == [1.0, 0.0]
    assert {key for batch in take(resumed, 20) for key in batch.keys} == left
    problem = resumed.skip_problem(0, 400)
    assert problem is not None
    assert "none would be left" in problem


def test_the_mixture_is_the_same_on_any_world(datasets: list[Dataset]) -> None:
    one = take(Loader(mixed(datasets, [3, 1]), global_batch=8), 10)
    ranks = [
        take(Loader(mixed(datasets, [3, 1]), global_batch=8, rank=rank, world_size=4), 10)
        for rank in range(4)
    ]
    for step, batch in enumerate(one):
        assert sorted(batch.keys) == sorted(k for rank in ranks for k in rank[step].keys)


def test_weights_may_change_where_a_run_goes_on(datasets: list[Dataset]) -> None:
    before = Loader(mixed(datasets, [1, 1], block=10), global_batch=10)
    first = take(before, 4)
    state = json.loads(json.dumps(before.state_dict()))
    after = Loader(mixed(datasets, [4, 1], block=10), global_batch=10)
    after.load_state_dict(state)
    second = take(after, 3)
    which = Counter(number for batch in second for number in batch.datasets)
    assert which == {0: 24, 1: 6}
    seen = [key for batch in first + second for key in batch.keys if key[0] == "a"]
    assert len(seen) == len(set(seen)), "its own samples go on where they were"
    again = Loader(mixed(datasets, [4, 1], block=10), global_batch=10)
    again.load_state_dict(json.loads(json.dumps(after.state_dict())))
    assert len(again.state_dict()["segments"]) == 2


def test_a_state_of_an_earlier_release_keeps_its_order(datasets: list[Dataset]) -> None:
    saved = Loader(mixed(datasets, [3, 1], seed=2, block=64), global_batch=8).state_dict()
    assert saved["order"] == "mix-2"
    older = {**saved, "order": "mix-1", "position": 16}
    due = reference.mixture(segment(0, [3, 1]).parts, 2, 64, 2, order="mix-1")[16:]
    changed = reference.mixture(segment(0, [1, 1]).parts, 2, 64, 2, 16, order="mix-1")
    for weights, expected in (([3, 1], due), ([1, 1], changed)):
        loader = Loader(mixed(datasets, weights, seed=2, block=64), global_batch=8)
        loader.load_state_dict(json.loads(json.dumps(older)))
        batches = take(loader, 10)
        at = sorted(
            zip(
                (position for batch in batches for position in batch.positions),
                (which for batch in batches for which in batch.datasets),
                strict=True,
            )
        )
        assert at == list(zip(range(16, 96), expected[:80], strict=True))
        assert loader.state_dict()["order"] == "mix-1"
    loader = Loader(mixed(datasets, [3, 1], seed=2, block=64), global_batch=8)
    with pytest.raises(FingerprintError, match="mix-3"):
        loader.load_state_dict({**older, "order": "mix-3"})


def test_a_state_that_is_loaded_instead_of_another_leaves_nothing_of_it(
    datasets: list[Dataset],
) -> None:
    """As where the newest checkpoint is refused once it is loaded, and an older one is taken."""
    first = Loader(mixed(datasets, [1, 1]), global_batch=10)
    older = first.state_dict() | {"position": 20}
    second = Loader(mixed(datasets, [1, 3]), global_batch=10)
    second.load_state_dict({**older, "position": 40})
    newer = second.state_dict() | {"position": 60}
    found = []
    for states in ([newer, older], [older]):
        loader = Loader(mixed(datasets, [4, 1]), global_batch=10)
        for state in states:
            loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.mixture_change is not None
        assert loader.mixture_change.position == 20
        found.append(loader.state_dict())
    assert found[0] == found[1]


def test_a_state_of_other_datasets_is_refused(datasets: list[Dataset]) -> None:
    state = Loader(mixed(datasets, [1, 1]), global_batch=10).state_dict()
    with pytest.raises(FingerprintError, match=r"dataset 0 is '.*dataset 1 is '"):
        Loader(mixed(datasets[::-1], [1, 1]), global_batch=10).load_state_dict(state)
    with pytest.raises(FingerprintError):
        Loader(datasets[0], global_batch=10).load_state_dict(state)
    broken = {**state, "segments": [[5, [1, 1]]]}
    with pytest.raises(DataError, match="its segments are not valid"):
        Loader(mixed(datasets, [1, 1]), global_batch=10).load_state_dict(broken)


def test_a_named_dataset_that_has_other_shards_is_named(datasets: list[Dataset]) -> None:
    state = Loader(mixed(datasets, [1, 1], names=["a", "b"]), global_batch=10).state_dict()
    changed = mixed([datasets[0], datasets[0]], [1, 1], names=["a", "new"], seed=0, window=3)
    with pytest.raises(FingerprintError, match="is not given; of a, new, shards, seed") as caught:
        Loader(changed, global_batch=10).load_state_dict(state)
    assert set(caught.value.differences) == {"dataset 0", "dataset 1"}
    fewer = mixed(datasets[:1], [1], names=["a"])
    with pytest.raises(FingerprintError, match="with a weight of 0"):
        Loader(fewer, global_batch=10).load_state_dict(state)
    with pytest.raises(DataError, match="give new shards as a further dataset"):
        Loader(mixed(datasets, [1, 1]), global_batch=10, grow="next_epoch")


def test_the_state_is_small_and_one_of_before_is_taken(datasets: list[Dataset]) -> None:
    """Which named each dataset and its order by all their fields."""
    both = mixed(datasets, [0.7, 0.3], seed=2**32)
    state = Loader(both, global_batch=10).state_dict()
    assert len(json.dumps({**state, "position": 10**12})) < 200
    orders = [
        {**order.identity, "fingerprint": dataset.fingerprint}
        for order, dataset in zip(both.orders, datasets, strict=True)
    ]
    loader = Loader(mixed(datasets, [0.7, 0.3], seed=2**32), global_batch=10)
    loader.load_state_dict({**state, "datasets": orders, "position": 20})
    assert min(take(loader, 1)[0].positions) == 20
    other = [orders[0], {**orders[1], "window": 9}]
    loader = Loader(mixed(datasets, [0.7, 0.3], seed=2**32), global_batch=10)
    with pytest.raises(FingerprintError) as caught:
        loader.load_state_dict({**state, "datasets": other, "position": 20})
    assert list(caught.value.differences) == ["dataset 1"]


def test_a_mixture_has_no_epochs(datasets: list[Dataset]) -> None:
    with pytest.raises(DataError, match="epochs=1: a mixture never ends"):
        Loader(mixed(datasets, [1, 1]), global_batch=10, epochs=1, tail="pad")


@pytest.mark.parametrize(
    "option", [{"seed": 3}, {"streams": 4}, {"window": 2}, {"shuffle": False}, {"remix_every": 2}]
)
def test_options_of_the_order_are_those_of_the_mixture(
    datasets: list[Dataset], option: dict[str, Any]
) -> None:
    (name,) = option
    with pytest.raises(DataError, match=f"{name}=.* has an order of its own, by {name}="):
        Loader(mixed(datasets, [1, 1]), global_batch=10, **option)
    if name != "shuffle":
        Loader(mixed(datasets, [1, 1], **option), global_batch=10, **option)
    with pytest.raises(DataError, match="a mixture never ends"):
        Loader(mixed(datasets, [1, 1]), global_batch=10, tail="drop")


def test_datasets_are_assigned_to_streams_again(datasets: list[Dataset]) -> None:
    usual, remixed = mixed(datasets, [1, 1]), mixed(datasets, [1, 1], remix_every=1)
    state = Loader(usual, global_batch=10).state_dict()
    with pytest.raises(FingerprintError):
        Loader(remixed, global_batch=10).load_state_dict(state)


@pytest.mark.parametrize("weights", [[1.0], [1, -1], [0, 0], [float("nan"), 1]])
def test_impossible_weights_are_refused(datasets: list[Dataset], weights: list[float]) -> None:
    with pytest.raises(DataError, match="weights"):
        mixed(datasets, weights)


def order_by_hand(batches: list[Batch]) -> list[tuple[int, str]]:
    """Return (dataset, key) of each position, in order."""
    rows = [
        (position, dataset, key)
        for batch in batches
        for position, dataset, key in zip(batch.positions, batch.datasets, batch.keys, strict=True)
    ]
    return [(dataset, key) for _, dataset, key in sorted(rows)]


PLANS = st.lists(
    st.tuples(st.integers(1, 90), st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)),
    max_size=3,
    unique_by=lambda each: each[0],
)


@settings(max_examples=times(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plans=st.lists(PLANS, min_size=1, max_size=3),
    stops=st.lists(st.integers(0, 4), min_size=2, max_size=2),
    worlds=st.lists(st.sampled_from([1, 2, 3, 6]), min_size=3, max_size=3),
)
def test_a_curriculum_that_changes_at_each_resume_gives_what_plain_python_gives(
    datasets: list[Dataset],
    plans: list[list[tuple[int, tuple[int, int]]]],
    stops: list[int],
    worlds: list[int],
) -> None:
    """The oracle keeps a list of (position, weights) and cuts it at each resume; the order of a
    dataset is that of a loader of it alone."""
    alone = [take(Loader(dataset, global_batch=80, threads=0), 1) for dataset in datasets]
    keys = [[key for _, key in order_by_hand(batches)] for batches in alone]
    state, position, found = None, 0, list[tuple[int, str]]()
    due = [(0, (1, 1))]
    for number, plan in enumerate(plans):
        stages = sorted(plan)
        mixture = mixed(datasets, [1, 1], stages=stages, names=["a", "b"], block=16)
        if number:
            planned = [(0, (1, 1)), *stages]
            was = [each for each in due if each[0] <= position]
            now = [each for each in planned if each[0] <= position][-1][1]
            if segment(0, was[-1][1]).parts != segment(0, now).parts:
                was = [*[each for each in was if each[0] < position], (position, now)]
            due = [*was, *[each for each in planned if each[0] > position]]
        else:
            due = [(0, (1, 1)), *stages]
        world, steps = worlds[number], stops[number] if number < len(stops) else 4
        ranks = []
        for rank in range(world):
            loader = Loader(mixture, global_batch=6, rank=rank, world_size=world, threads=0)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            ranks.append((loader, take(loader, steps)))
        found += order_by_hand([batch for _, taken in ranks for batch in taken])
        states = [loader.state_dict() for loader, _ in ranks]
        assert all(each == states[0] for each in states)
        state, position = states[0], position + 6 * steps
        assert [each.samples for each in ranks[0][0].sources] == [
            sum(which == dataset for which, _ in found) for dataset in (0, 1)
        ]
    read, expected = [0, 0], list[tuple[int, str]]()
    for (begin, weights), (end, _) in pairwise([*due, (position, (1, 1))]):
        blocks = -(-(end - begin) // 16)
        if blocks <= 0:
            continue
        for which in reference.mixture(segment(0, weights).parts, 0, 16, blocks, begin)[
            : end - begin
        ]:
            expected.append((which, keys[which][read[which]]))
            read[which] += 1
    assert found == expected[: len(found)]


def test_named_datasets_may_be_added_and_given_in_another_order(datasets: list[Dataset]) -> None:
    loader = Loader(mixed(datasets[:1], [1], names=["a"], block=40), global_batch=10)
    take(loader, 2)
    more = mixed(datasets[::-1], [3, 1], names=["b", "a"], block=40)
    after = Loader(more, global_batch=10)
    after.load_state_dict(loader.state_dict())
    change = after.mixture_change
    assert change is not None
    assert (change.position, change.before, change.after) == (
        20,
        {"a": 1.0, "b": 0.0},
        {"a": 0.25, "b": 0.75},
    )
    take(after, 4)
    assert {each.name: each.samples for each in after.sources} == {"a": 30, "b": 30}
    assert [each.name for each in after.sources] == ["a", "b"]
    assert after.sources[1].epochs == 1
    fewer = Loader(mixed(datasets[:1], [1], names=["a"], block=40), global_batch=10)
    with pytest.raises(FingerprintError, match="more datasets than are given"):
        fewer.load_state_dict(after.state_dict())


def test_the_same_weights_in_another_order_of_the_datasets_are_no_change(tmp_path: Path) -> None:
    """Of thirds, the first one is rounded up: the order in which datasets are given decides it."""
    datasets = {}
    for name in "abc":
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "s.tar", [(f"{name}{i:02d}.txt", b"x") for i in range(20)])
        datasets[name] = open_dataset(tmp_path / name)

    def loader(names: str) -> Loader:
        of = [datasets[name] for name in names]
        thirds = [1] * 3
        return Loader(mixed(of, thirds, names=list(names), stages=[(70, thirds)]), global_batch=5)

    first = loader("abc")
    take(first, 7)
    again = loader("cab")
    again.load_state_dict(first.state_dict())
    assert again.mixture_change is None
    assert [batch.keys for batch in take(again, 20)] == [batch.keys for batch in take(first, 20)]
    assert again.state_dict() == first.state_dict()


def test_stages_after_other_weights_begin_where_the_plan_says(datasets: list[Dataset]) -> None:
    """The plan gets the weights that were, in its own order of the datasets, and is asked only if
    they are others than those of the mixture."""
    asked = list[tuple[list[tuple[int, tuple[int, ...]]], int]]()

    def plan(before: Sequence[MixtureSegment], position: int) -> list[tuple[int, tuple[int, int]]]:
        asked.append(([(part.position, part.parts) for part in before], position))
        return [(position, (3, 1)), (position + 20, (0, 1))]

    loader = Loader(mixed(datasets, [1, 1], names=["a", "b"], block=40), global_batch=10)
    take(loader, 2)
    state = loader.state_dict()
    options: dict[str, Any] = {"names": ["b", "a"], "block": 40, "stage_plan": plan}
    same = Loader(mixed(datasets[::-1], [1, 1], stages=[(30, [0, 1])], **options), global_batch=10)
    same.load_state_dict(state)
    assert not asked
    assert [at for at, _ in same.state_dict()["segments"]] == [0, 30]
    other = Loader(mixed(datasets[::-1], [3, 1], stages=[(30, [0, 1])], **options), global_batch=10)
    other.load_state_dict(state)
    half = 500_000_000
    assert asked == [([(0, (half, half))], 20)]
    quarter = half // 2
    assert other.state_dict()["segments"] == [
        [0, [half, half]],
        [20, [quarter, 3 * quarter]],
        [40, [2 * half, 0]],
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": ["a"]}, "2 datasets, but 1 names"),
        ({"names": "ab"}, "weights and names are lists"),
        ({"names": {"a", "b"}}, "weights and names are lists"),
        ({"stages": [(5, {"a": 1, "b": 2})]}, "weights and names are lists"),
        ({"names": ["a", "a"]}, "names must be different"),
        ({"stages": [(5, [1])]}, "2 datasets, but 1 weights"),
        ({"stages": [(5, [1, 1]), (5, [1, 2])]}, "rising positions"),
        ({"stages": [(0, [1, 1])]}, "rising positions"),
    ],
)
def test_impossible_stages_are_refused(
    datasets: list[Dataset], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        mixed(datasets, [1, 1], **options)
