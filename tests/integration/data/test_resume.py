"""Exactly once per epoch, through any number of stops and changes of world and batch size."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from data import Dataset, Loader, open_dataset, pack_folder


def make(folder: Path, count: int, samples_per_shard: int) -> Dataset:
    source = folder / "src"
    source.mkdir()
    for i in range(count):
        (source / f"{i:04d}.txt").write_bytes(str(i).encode())
    pack_folder(source, folder / "out", samples_per_shard=samples_per_shard)
    return open_dataset(folder / "out")


def generation(
    dataset: Dataset, state: dict[str, str | int] | None, world: int, size: int, steps: int
) -> tuple[list[str], dict[str, str | int]]:
    """Run all ranks of one generation for `steps` steps; the keys seen and the state they agree on.

    Each rank prefetches further than it delivers, as it would when it is preempted.
    """
    keys: list[list[str]] = []
    states = []
    for rank in range(world):
        loader = Loader(
            dataset,
            global_batch=size,
            rank=rank,
            world_size=world,
            seed=5,
            prefetch=3,
            uneven="ragged",
        )
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        keys.append([key for _ in range(steps) for key in next(iterator).keys])
        states.append(loader.state_dict())
        loader.close()
    assert all(other == states[0] for other in states)
    seen: dict[str, str | int] = json.loads(json.dumps(states[0]))
    return [key for of_rank in keys for key in of_rank], seen


@pytest.mark.parametrize("trial", range(6))
def test_random_generations_see_each_sample_once_per_epoch(tmp_path: Path, trial: int) -> None:
    chance = random.Random(trial)
    count = chance.randrange(40, 200)
    dataset = make(tmp_path, count, chance.randrange(3, 40))
    seen = Counter({f"{i:04d}": 0 for i in range(count)})
    state: dict[str, str | int] | None = None
    position = 0
    while position < 3 * count:
        world = chance.choice([1, 2, 3, 5, 8])
        size, steps = chance.randrange(world, 40), chance.randrange(1, 6)
        keys, state = generation(dataset, state, world, size, steps)
        seen.update(keys)
        position += size * steps
        assert state["position"] == position == seen.total()
        epoch, tail = divmod(position, count)
        assert sorted(seen.values()) == [epoch] * (count - tail) + [epoch + 1] * tail


def test_resume_at_every_point_continues_the_same_stream(tmp_path: Path) -> None:
    dataset = make(tmp_path, 17, 4)
    whole, _ = generation(dataset, None, 1, 3, 14)
    for stop in range(1, 13):
        before, state = generation(dataset, None, 1, 3, stop)
        after, _ = generation(dataset, state, 1, 3, 14 - stop)
        assert before + after == whole
