"""Samples that cannot be read or transformed: left out, replaced, or too many."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import Batch, DataError, Loader, Sample, SampleContext, SampleError, open_dataset
from data.read.batches.batch_fetcher import substitute
from tests.unit.data.tars import write_tar

N = 24
BAD = frozenset({3, 11})


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(4):
        numbers = range(shard * 6, shard * 6 + 6)
        write_tar(tmp_path / f"s-{shard}.tar", [(f"{i:02d}.txt", b"%d" % i) for i in numbers])
    return tmp_path


def decode(sample: Sample, context: SampleContext) -> tuple[int, float]:
    number = int(sample["txt"])
    if number in BAD:
        raise ValueError(f"{number} is bad")
    return number, float(context.rng.random())


def epoch(shards: Path, world: int = 1, **options: Any) -> list[Batch]:
    """All batches of one epoch, of all ranks, step by step."""
    ranks = [
        Loader(
            open_dataset(shards),
            global_batch=6,
            rank=rank,
            world_size=world,
            transform=decode,
            epochs=1,
            **options,
        )
        for rank in range(world)
    ]
    return [batch for step in zip(*ranks, strict=True) for batch in step]


def test_a_bad_sample_is_left_out_and_said(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batches = epoch(shards, errors="skip")
    found = sorted(number for batch in batches for number, _ in batch.data)
    assert found == sorted(set(range(N)) - BAD)
    assert sum(batch.errors for batch in batches) == 2
    for batch in batches:
        rows = (batch.data, batch.keys, batch.indices, batch.datasets, batch.positions, batch.mask)
        assert len({len(row) for row in rows}) == 1
        assert [int(key) for key in batch.keys] == [number for number, _ in batch.data]
    assert "bad sample 2 is skipped: position" in caplog.text
    assert "ValueError: 11 is bad" in caplog.text


def test_a_bad_sample_is_replaced_by_the_same_one_on_any_world(shards: Path) -> None:
    def by_position(batches: list[Batch]) -> dict[int, Any]:
        return {
            p: data
            for batch in batches
            for p, data in zip(batch.positions, batch.data, strict=True)
        }

    one = by_position(epoch(shards, errors="substitute"))
    assert len(one) == N
    assert not BAD & {number for number, _ in one.values()}
    assert by_position(epoch(shards, world=2, errors="substitute")) == one
    assert by_position(epoch(shards, world=3, errors="substitute", threads=1)) == one


def test_a_substitute_is_transformed_as_the_sample_of_the_position_that_it_takes(
    shards: Path,
) -> None:
    given: list[tuple[SampleContext, float]] = []

    def transform(sample: Sample, context: SampleContext) -> int:
        given.append((context, float(context.rng.random())))
        if int(sample["txt"]) in BAD:
            raise ValueError("bad")
        return len(given) - 1

    loader = Loader(
        open_dataset(shards),
        global_batch=6,
        seed=5,
        transform=transform,
        errors="substitute",
        threads=0,
        epochs=2,
    )
    delivered = [
        (position, given[number])
        for batch in loader
        for position, number in zip(batch.positions, batch.data, strict=True)
    ]
    assert len(given) == len(delivered) + 2 * len(BAD)
    for position, (context, number) in delivered:
        assert context == SampleContext(position, position // N, 5)
        assert number == SampleContext(position, position // N, 5).rng.random()


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_too_many_are_an_error_that_names_the_last(shards: Path, policy: str) -> None:
    with pytest.raises(DataError, match=r"\d samples were bad.* the last was .*is bad"):
        epoch(shards, errors=policy, most_errors=1)

    def hopeless(sample: Sample, context: SampleContext) -> None:
        raise ValueError("no")

    loader = Loader(
        open_dataset(shards),
        global_batch=6,
        transform=hopeless,
        errors=policy,  # type: ignore[arg-type]
        most_errors_in_a_row=4,
    )
    with pytest.raises(DataError, match=r"\d+ of them one after another"):
        next(iter(loader))


def test_an_error_that_is_not_borne_ends_the_iteration(shards: Path) -> None:
    with pytest.raises(SampleError, match=r"ValueError: (3|11) is bad"):
        epoch(shards)


def test_a_shard_that_is_gone_is_one_error_for_each_of_its_samples(shards: Path) -> None:
    dataset = open_dataset(shards)
    (shards / "s-2.tar").unlink()
    loader = Loader(dataset, global_batch=6, epochs=1, errors="skip")
    found = [int(key) for batch in loader for key in batch.keys]
    assert sorted(found) == [i for i in range(N) if i // 6 != 2]
    assert loader.usage.errors == 6


@given(st.integers(0, 10**12), st.integers(1, 8), st.integers(1, 10**6), st.integers(1, 100))
def test_substitutes_are_of_the_same_epoch(
    position: int, attempt: int, samples: int, streams: int
) -> None:
    other = substitute(position, attempt, samples, streams)
    assert other // samples == position // samples


def test_evaluation_pads_with_masked_repeats_or_drops(shards: Path) -> None:
    def take(**options: Any) -> list[Batch]:
        it = Loader(open_dataset(shards), global_batch=10, epochs=1, shuffle=False, **options)
        return list(islice(it, 9))

    padded = take(tail="pad")
    assert [batch.mask.sum() for batch in padded] == [10, 10, 4]
    real = [
        key
        for batch in padded
        for key, counts in zip(batch.keys, batch.mask, strict=True)
        if counts
    ]
    assert real == [f"{i:02d}" for i in range(N)]
    assert [batch.keys for batch in take(tail="drop")] == [batch.keys for batch in padded[:2]]
