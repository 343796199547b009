"""Any number of workers gives the same sequence, and its state goes on with any other number."""

import json
import pickle
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data import DataError, FingerprintError, Loader, Usage, open_dataset
from data.wds.dataset import StreamingDataset
from data.wds.loader import WebLoader
from tests.effort import some
from tests.integration.data.wds_shards import KEYS, keys_of, write_shards

BATCH = 5


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"))


def augment(each: dict[str, Any]) -> dict[str, Any]:
    chance = (random.random(), float(np.random.rand()), float(torch.rand(())))
    return {"__key__": each["__key__"], "chance": chance}


def pipeline(urls: list[str], size: int = BATCH, **kw: Any) -> StreamingDataset:
    base: Any = StreamingDataset(urls, seed=3, streams=4, window=2, **kw)
    found: StreamingDataset = base.map(augment).to_tuple("__key__", "chance").batched(size)
    return found


def passes(dataset: Any, count: int) -> list[Any]:
    """Batches of several passes, end to end."""
    return [batch for _ in range(count) for batch in dataset]


def comparable(batches: list[Any]) -> list[Any]:
    return [(list(batch[0]), [[float(x) for x in c] for c in batch[1]]) for batch in batches]


@pytest.fixture(scope="module")
def three(urls: list[str]) -> list[Any]:
    """Three passes, made in this process."""
    found = comparable(passes(pipeline(urls), 3))
    assert len(found) == 30
    return found


def test_each_pass_has_each_sample_once_in_its_own_order(three: list[Any]) -> None:
    epochs = [keys_of(three[at : at + 10]) for at in (0, 10, 20)]
    assert all(sorted(epoch) == [f"k{i:03d}" for i in range(KEYS)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_loaders_hand_on_the_same_sequence(urls: list[str], three: list[Any], workers: int) -> None:
    ours = WebLoader(pipeline(urls), num_workers=workers)
    assert comparable(passes(ours, 2)) == three[:20]
    theirs: Any = DataLoader(pipeline(urls), batch_size=None, num_workers=workers)
    assert comparable(passes(theirs, 2)) == three[:20]


def test_persistent_workers_go_on_with_the_next_pass(urls: list[str], three: list[Any]) -> None:
    loader: Any = DataLoader(
        pipeline(urls), batch_size=None, num_workers=2, persistent_workers=True
    )
    assert comparable(passes(loader, 3)) == three


def test_a_plain_loader_that_was_broken_off_begins_the_next_pass(
    urls: list[str], three: list[Any]
) -> None:
    torch.manual_seed(0)  # such that each iteration of the loader has the same seed
    loader: Any = DataLoader(pipeline(urls), batch_size=None, num_workers=2)
    iterator = iter(loader)
    assert comparable([next(iterator)]) == three[:1]
    del iterator
    torch.manual_seed(0)
    assert comparable(list(loader)) == three[10:20]
    torch.manual_seed(0)
    assert comparable(list(loader)) == three[20:]


def test_workers_that_are_spawned_give_the_same(urls: list[str], three: list[Any]) -> None:
    dataset = pipeline(urls)
    assert dataset.samples == KEYS
    plain: Any = DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert comparable(list(plain)) == three[:10]


NAP_S = 0.001


def slow(each: dict[str, Any]) -> dict[str, Any]:
    time.sleep(NAP_S)
    if each["__key__"] == "k007":
        raise ValueError("this one")
    return augment(each)


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_where_the_time_goes_is_told(urls: list[str], workers: int | None) -> None:
    """By the dataset itself or by a loader over it, of all passes, and each bad sample once."""
    source: Any = StreamingDataset(urls, seed=3, streams=4, window=2, errors="skip")
    dataset = source.map(slow).to_tuple("__key__", "chance").batched(BATCH)
    loader = dataset if workers is None else WebLoader(dataset, num_workers=workers)
    assert loader.usage == Usage()
    batches = passes(loader, 2)
    usage = loader.usage
    assert (usage.batches, usage.samples) == (len(batches), 2 * KEYS)
    assert usage.errors == loader.errors == 2
    assert usage.transform_s >= 2 * KEYS * NAP_S
    assert usage.bytes > 0 < usage.read_s
    assert 0 < usage.wait_s <= usage.elapsed_s
    assert usage.diagnosis()


def test_samples_that_the_loader_batches(urls: list[str]) -> None:
    def keys(workers: int) -> list[Any]:
        dataset = StreamingDataset(urls, global_batch=4).to_tuple("__key__")
        return [batch[0] for batch in DataLoader(dataset, batch_size=4, num_workers=workers)]

    assert keys(0) == keys(1) == keys(2) == keys(3)
    assert sorted(key for batch in keys(2) for key in batch) == [f"k{i:03d}" for i in range(KEYS)]


def test_random_stops_and_changes_of_workers_and_ranks(urls: list[str]) -> None:
    """The union over ranks is the same sequence of samples, whatever stops and goes on."""
    for trial in range(2):
        chance = random.Random(trial)
        state: dict[str, Any] | None = None
        seen: dict[str, list[float]] = {}
        count = 0
        while count < 2 * KEYS:
            world = chance.choice([1, 2, 3])
            size, steps = chance.randrange(2, 5), chance.randrange(1, 4)
            states = []
            for rank in range(world):
                dataset = pipeline(urls, size, rank=rank, world_size=world, tail="straddle")
                loader = WebLoader(dataset, num_workers=chance.choice([0, 0, 0, 0, 2]))
                if state is not None:
                    loader.load_state_dict(state)
                for keys, chances in islice(loader, steps):
                    count += len(keys)
                    for key, found in zip(keys, chances, strict=True):
                        seen.setdefault(key, []).extend(float(x) for x in found)
                states.append(loader.state_dict())
            assert all(other == states[0] for other in states)
            state = json.loads(json.dumps(states[0]))
            assert state["position"] <= count or count >= KEYS
        assert len(seen) == KEYS
        assert state is not None
        whole = pipeline(urls, 1, tail="straddle").repeat()
        expected: dict[str, list[float]] = {}
        for keys, chances in islice(whole, state["position"]):
            expected.setdefault(keys[0], []).extend(float(x) for x in chances[0])
        assert {k: sorted(v) for k, v in seen.items()} == {
            k: sorted(v) for k, v in expected.items()
        }


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_state_knows_nothing_of_what_was_read_ahead(
    urls: list[str], three: list[Any], before: int
) -> None:
    for stop in some([0, 4, 10], [1, 9]):
        loader = WebLoader(pipeline(urls, prefetch=4), num_workers=before)
        first = list(islice(loader, stop))
        state = loader.state_dict()
        after = WebLoader(pipeline(urls), num_workers=(before + 2) % 4)
        after.load_state_dict(state)
        again = comparable(first) + comparable(list(after))
        assert again == three[: len(again)]
        assert len(again) == 10
        assert comparable(list(after)) == three[10:20]


def test_a_loader_of_ours_goes_on_where_a_pipeline_was(urls: list[str], three: list[Any]) -> None:
    dataset = pipeline(urls)
    assert comparable(list(islice(dataset, 4))) == three[:4]
    loader = Loader(open_dataset(urls), global_batch=BATCH, seed=3, streams=4, window=2)
    loader.load_state_dict(dataset.state_dict())
    batches = iter(loader)
    assert [list(next(batches).keys) for _ in range(5)] == [keys for keys, _ in three[4:9]]
    back = pipeline(urls)
    back.load_state_dict(loader.state_dict())
    loader.close()
    assert comparable(list(back)) == three[9:10]


def test_inside_a_step_of_single_samples(urls: list[str]) -> None:
    def single(**kw: Any) -> Any:
        return StreamingDataset(urls, **({"global_batch": 6} | kw)).to_tuple("__key__")

    whole = list(single())
    first = single()
    begun = list(islice(first, 8))
    state = first.state_dict()
    assert (state["position"], state["within"]) == (6, 2)
    for workers in (0, 2):
        after = WebLoader(single(), num_workers=workers)
        after.load_state_dict(state)
        assert begun + [tuple(each) for each in after] == whole
    for other in ({"global_batch": 8}, {"rank": 0, "world_size": 2}):
        with pytest.raises(DataError, match="inside a step"):
            single(**other).load_state_dict(state)


def stopped(loader: Any, steps: int) -> tuple[list[Any], Any]:
    iterator = iter(loader)
    found = comparable([next(iterator) for _ in range(steps)])
    return found, pickle.loads(pickle.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("workers", "every"), some([(0, 1), (1, 1), (3, 3)], [(0, 3), (1, 3), (3, 1)])
)
def test_a_stateful_data_loader_goes_on_exactly(
    urls: list[str], three: list[Any], workers: int, every: int
) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return torchdata.StatefulDataLoader(
            pipeline(urls), batch_size=None, num_workers=workers, snapshot_every_n_steps=every
        )

    for steps in (0, 4, 10):
        first, state = stopped(loader(), steps)
        after = loader()
        after.load_state_dict(state)
        assert first + comparable(list(after)) == three[:10]
        assert comparable(list(after)) == three[10:20]
        for other in (0, 2):
            dataset = pipeline(urls)
            dataset.load_state_dict(state)
            rest = list(islice(WebLoader(dataset, num_workers=other), 3))
            assert comparable(rest) == three[steps : steps + 3][: len(rest)]


def test_a_stateful_data_loader_at_the_end_of_a_pass(urls: list[str], three: list[Any]) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    first = torchdata.StatefulDataLoader(pipeline(urls), batch_size=None, num_workers=2)
    assert comparable(list(first)) == three[:10]
    after = torchdata.StatefulDataLoader(pipeline(urls), batch_size=None, num_workers=2)
    after.load_state_dict(first.state_dict())
    assert comparable(passes(after, 2)) == three[10:]


def test_the_states_of_workers_make_one_without_torchdata(urls: list[str]) -> None:
    """The protocol by hand: what a StatefulDataLoader keeps of three workers, two of them ahead."""
    identity = pipeline(urls).state_dict()
    of = [
        {"position": p, "skip": 2, "worker": w, "workers": 3, "until": 47}
        for w, p in enumerate((20, 10, 15))
    ]
    kept = {f"worker_{w}": {"dataset_state": {**identity, **one}} for w, one in enumerate(of)}
    state = {"_snapshot": {"_worker_snapshots": kept}, "_steps_since_snapshot": 1}
    dataset, whole = pipeline(urls), list(pipeline(urls))
    dataset.load_state_dict(state)
    assert comparable(list(dataset)) == comparable(whole[5:])
    with pytest.raises(DataError, match="only worker 1 of 3"):
        pipeline(urls).load_state_dict(kept["worker_1"]["dataset_state"])


def test_states_that_do_not_belong_are_refused(urls: list[str], tmp_path: Path) -> None:
    state = pipeline(urls).state_dict()
    other = write_shards(tmp_path, 20)
    with pytest.raises(FingerprintError):
        pipeline(other).load_state_dict(state)
    with pytest.raises(FingerprintError):
        StreamingDataset(urls, seed=4, streams=4, window=2).load_state_dict(state)
    for wrong in (
        {},
        {"position": -1},
        {**state, "position": "5"},
        {**state, "position": 2**62},
        {**state, "until": "5"},
        {**state, "worker": "a", "workers": 2},
        {"dataset_state": None},
    ):
        with pytest.raises(DataError):
            pipeline(urls).load_state_dict(wrong)
    dataset = pipeline(urls)
    next(iter(dataset))
    with pytest.raises(DataError, match="after iteration began"):
        dataset.load_state_dict(state)
    loader = WebLoader(pipeline(urls))
    next(iter(loader))
    with pytest.raises(DataError, match="after iteration began"):
        loader.load_state_dict(state)


def test_an_iteration_ends_when_another_begins(urls: list[str], three: list[Any]) -> None:
    for make in (lambda: pipeline(urls), lambda: WebLoader(pipeline(urls))):
        dataset: Any = make()
        first: Iterator[Any] = iter(dataset)
        assert comparable([next(first), next(first)]) == three[:2]
        second = iter(dataset)
        assert comparable([next(second)]) == three[2:3]
        with pytest.raises(DataError, match="another iteration"):
            next(first)
        assert comparable([next(second)]) == three[3:4]


def test_the_generators_are_left_as_they_were(urls: list[str]) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    list(pipeline(urls))
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected
