"""A dataset that grows between a state and its resume: the epoch that has begun keeps its samples,
and further shards are in the next one."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import (
    DataError,
    Dataset,
    FingerprintError,
    Loader,
    Packing,
    TokenFiles,
    open_dataset,
)
from data.read.loader_options import LoaderOptions
from data.read.sample_stream import SingleStream
from data.read.sliced_stream import BlockSlice, SlicedStream
from tests.unit.data.order import order_reference as reference
from tests.unit.data.tars import write_tar
from tests.unit.data.token_files import write_flat

COUNTS = [7, 5, 9]
"""Samples of each shard."""
SEED, STREAMS, WINDOW = 3, 4, 2


def add(folder: Path, shard: int, count: int) -> None:
    files = [(f"s{shard}-{i:02d}.txt", b"x" * (i + 1)) for i in range(count)]
    write_tar(folder / f"s-{shard}.tar", files)


def shards(folder: Path, counts: list[int]) -> Dataset:
    folder.mkdir(exist_ok=True)
    for shard, count in enumerate(counts):
        if not (folder / f"s-{shard}.tar").exists():
            add(folder, shard, count)
    return open_dataset(folder)


def loader(dataset: Dataset, rank: int = 0, world: int = 1, **options: Any) -> Loader:
    fields = {"global_batch": 2, "grow": "next_epoch", **options}
    return Loader(
        dataset,
        seed=SEED,
        streams=STREAMS,
        window=WINDOW,
        rank=rank,
        world_size=world,
        **fields,
    )


def epochs(*of: list[int]) -> list[str]:
    """The keys of the samples of epochs with shards of these counts, one after the other."""
    return [
        f"s{shard}-{sample:02d}"
        for epoch, counts in enumerate(of)
        for shard, sample in reference.epoch_order(counts, SEED, STREAMS, WINDOW, epoch)
    ]


def keys(of: Loader, steps: int) -> list[str]:
    """In the order of the stream."""
    found = []
    for batch in islice(of, steps):
        found += [key for _, key in sorted(zip(batch.positions, batch.keys, strict=True))]
    return found


def test_the_epoch_goes_on_as_it_was_and_the_next_one_has_all(tmp_path: Path) -> None:
    before = loader(shards(tmp_path, COUNTS), global_batch=4)
    taken = keys(before, 8)  # 32 samples: epochs of 21 end at 42
    grown = shards(tmp_path, [*COUNTS, 6, 4])
    one = loader(grown)
    one.load_state_dict(before.state_dict())
    assert one.growth is not None
    assert (one.growth.before, one.growth.after) == (3, 5)
    assert (one.growth.position, one.growth.epoch) == (42, 2)
    expected = epochs(COUNTS, COUNTS, [*COUNTS, 6, 4], [*COUNTS, 6, 4])
    batches = list(islice(one, 36))
    found = [key for b in batches for _, key in sorted(zip(b.positions, b.keys, strict=True))]
    assert [*taken, *found] == expected[: 32 + 72]
    assert [b.epoch for b in batches] == [
        *([1] * 5),
        *([2] * 16),
        *([3] * 15),
    ], "42 = 32 + 2 * 5, and 31 samples more"
    assert Counter(expected[42:73]) == Counter(dict.fromkeys(epochs([*COUNTS, 6, 4]), 1))
    assert len(str(one.state_dict())) < 400


def test_on_any_world_and_after_further_growths_and_resumes(tmp_path: Path) -> None:
    start = loader(shards(tmp_path, COUNTS))
    found = keys(start, 4)  # 8 of 21
    state = start.state_dict()
    two = [loader(shards(tmp_path, [*COUNTS, 6]), rank, 2) for rank in range(2)]
    for each in two:
        each.load_state_dict(state)
    steps = zip(*(islice(each, 10) for each in two), strict=True)
    for both in steps:  # to 28: 7 samples of the second epoch, which has 27
        found += [
            key
            for _, key in sorted(
                (p, k) for b in both for p, k in zip(b.positions, b.keys, strict=True)
            )
        ]
    assert two[0].state_dict() == two[1].state_dict()
    third = loader(shards(tmp_path, [*COUNTS, 6, 4]))
    third.load_state_dict(two[0].state_dict())
    assert third.growth is not None
    assert third.growth.position == 21 + 27
    found += keys(third, 3)
    # before the begin of that version the dataset grows again: it takes its place
    last = loader(shards(tmp_path, [*COUNTS, 6, 4, 8]))
    last.load_state_dict(third.state_dict())
    assert last.growth is not None
    assert last.growth.position == 21 + 27
    found += keys(last, 30)
    whole = [*COUNTS, 6, 4, 8]
    assert found == epochs(COUNTS, [*COUNTS, 6], whole, whole)[: len(found)]
    state = last.state_dict()
    assert [version[:3] for version in state["grown"]] == [[0, 0, 3], [21, 1, 4], [48, 2, 6]]
    same = loader(shards(tmp_path, whole), grow="refuse")
    same.load_state_dict(state)
    assert same.growth is None
    assert same.has_grown
    assert keys(same, 5) == epochs(COUNTS, [*COUNTS, 6], whole, whole)[len(found) :][:10]


def test_growth_at_the_begin_of_an_epoch_is_at_once(tmp_path: Path) -> None:
    start = loader(shards(tmp_path, COUNTS), global_batch=3)
    keys(start, 7)
    after = loader(shards(tmp_path, [*COUNTS, 6]))
    after.load_state_dict(start.state_dict())
    assert keys(after, 13) == epochs(COUNTS, [*COUNTS, 6])[21:47]
    new = loader(shards(tmp_path, [*COUNTS, 6, 1]))
    new.load_state_dict(loader(shards(tmp_path, COUNTS)).state_dict() | {"position": 0})
    assert keys(new, 5) == epochs([*COUNTS, 6, 1])[:10], "nothing was read before"


def test_lengths_are_those_of_the_epochs(tmp_path: Path) -> None:
    start = loader(shards(tmp_path, COUNTS), epochs=2)
    keys(start, 3)
    after = loader(shards(tmp_path, [*COUNTS, 6]), epochs=2)
    after.load_state_dict(start.state_dict())
    assert after.steps_per_epoch == 11
    assert len(after) == 24, "21 and 27 samples"
    assert len(list(after)) == 24 - after.steps_done + after.steps_done - 3
    assert after.steps_per_epoch == 14


def test_without_leave_a_grown_dataset_is_refused_by_name(tmp_path: Path) -> None:
    start = loader(shards(tmp_path, COUNTS), grow="refuse")
    keys(start, 3)
    state = start.state_dict()
    assert "shards" not in state
    after = loader(shards(tmp_path, [*COUNTS, 6]), grow="refuse")
    with pytest.raises(FingerprintError, match=r"one more shard .*s-3.tar on; grow="):
        after.load_state_dict(state)
    allowed = loader(shards(tmp_path, [*COUNTS, 6]))
    allowed.load_state_dict(state)  # saved before anybody thought of growing
    assert keys(allowed, 20) == epochs(COUNTS, [*COUNTS, 6])[6:46]


def test_a_slice_of_a_dataset_that_has_grown_is_refused(tmp_path: Path) -> None:
    options, chosen = LoaderOptions(global_batch=2), BlockSlice(0, 20, 2)
    before = SlicedStream(SingleStream.of(shards(tmp_path, COUNTS), options), chosen)
    grown = shards(tmp_path / "more", [*COUNTS, 6])
    after = SlicedStream(SingleStream.of(grown, options), chosen)
    assert before.resumed(before.identity, 4).identity == before.identity
    with pytest.raises(FingerprintError, match="one more shard"):
        after.resumed(before.identity, 4)


def test_shards_that_are_missing_changed_or_in_between_are_refused(tmp_path: Path) -> None:
    start = loader(shards(tmp_path, COUNTS))
    keys(start, 3)
    state = start.state_dict()
    (tmp_path / "s-2.tar").rename(tmp_path / "aside")
    with pytest.raises(DataError, match=r"3 shards, and there are 2: some are missing"):
        loader(open_dataset(tmp_path)).load_state_dict(state)
    add(tmp_path, 2, 8)
    with pytest.raises(DataError, match=r"one of the shards up to .*s-2.tar has changed"):
        loader(open_dataset(tmp_path)).load_state_dict(state)
    (tmp_path / "aside").rename(tmp_path / "s-2.tar")
    write_tar(tmp_path / "s-1b.tar", [("new.txt", b"new")])
    with pytest.raises(DataError, match="names that sort after all others"):
        loader(open_dataset(tmp_path)).load_state_dict(state)


@pytest.mark.parametrize("grown", [[], [[0, 0, "x", "y"]], [[0, 0, 3, "f"], [5, 1, 3, "g"]], 7])
def test_a_damaged_state_is_refused(tmp_path: Path, grown: object) -> None:
    state = loader(shards(tmp_path, COUNTS)).state_dict()
    with pytest.raises(DataError):
        loader(shards(tmp_path, COUNTS)).load_state_dict({**state, "grown": grown})


def test_only_batches_that_straddle_epochs_may_grow(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="straddle"):
        loader(shards(tmp_path, COUNTS), tail="drop")
    start = loader(shards(tmp_path, COUNTS))
    keys(start, 3)
    after = loader(shards(tmp_path, [*COUNTS, 6]))
    after.load_state_dict(start.state_dict())
    with pytest.raises(DataError, match="cannot follow"):
        loader(shards(tmp_path, [*COUNTS, 6]), grow="refuse", tail="pad").load_state_dict(
            after.state_dict()
        )


def test_packed_token_files_grow_by_files(tmp_path: Path) -> None:
    """Each document comes once in each epoch, and the packs of the epoch that has begun stay."""

    def documents(file: int, count: int) -> list[list[int]]:
        return [[1000 * file + n + 1] * (1 + n % 5) + [0] for n in range(count)]

    def opened() -> Dataset:
        files = TokenFiles(dtype="uint16", end_of_text=0)
        return open_dataset(str(tmp_path / "*.bin"), token_files=files)

    def packed(dataset: Dataset) -> Loader:
        return loader(dataset, pack=Packing(12, block=16))

    for file, count in enumerate((30, 20)):
        write_flat(tmp_path / f"t{file}.bin", documents(file, count))
    start = packed(opened())
    uninterrupted = packed(opened())
    first = [batch.data.tokens.tolist() for batch in islice(start, 5)]
    write_flat(tmp_path / "t2.bin", documents(2, 25))
    after = packed(opened())
    after.load_state_dict(start.state_dict())
    assert after.growth is not None
    assert after.growth.position == 50
    batches = list(islice(after, 60))
    of_epochs = [
        [token for row in batch.data.tokens.tolist() for token in row if token] for batch in batches
    ]
    whole = [batch.data.tokens.tolist() for batch in islice(uninterrupted, 100)]
    assert first == whole[:5]
    in_first = next(n for n, tokens in enumerate(of_epochs) if any(t > 2000 for t in tokens))
    assert [b.data.tokens.tolist() for b in batches[: in_first - 1]] == whole[5 : 4 + in_first]
    counted = Counter(token for tokens in of_epochs for token in tokens)
    more = Counter(token for rows in first for row in rows for token in row if token)
    seen = counted + more
    assert {token for token in seen if token > 2000} == {2001 + n for n in range(25)}
    epochs_seen = {token: seen[token] / (1 + (token - 1) % 1000 % 5) for token in seen}
    old = [epochs_seen[t] for t in epochs_seen if t < 2000]
    new = [epochs_seen[t] for t in epochs_seen if t > 2000]
    assert max(old) - 1 <= max(new) <= max(old), "the new ones missed the first epoch"
    again = packed(opened())
    again.load_state_dict(after.state_dict())
    assert len(list(islice(again, 3))) == 3


def test_shards_that_come_before_the_first_sequence_are_read_from_the_first_epoch_on(
    tmp_path: Path,
) -> None:
    def packed() -> Loader:
        files = TokenFiles(dtype="uint16", end_of_text=0)
        dataset = open_dataset(str(tmp_path / "*.bin"), token_files=files)
        return loader(dataset, pack=Packing(12, block=16))

    write_flat(tmp_path / "t0.bin", [[1, 0]] * 30)
    state = packed().state_dict()
    write_flat(tmp_path / "t1.bin", [[2, 0]] * 20)
    after, fresh = packed(), packed()
    after.load_state_dict(state)
    assert after.growth is not None
    assert (after.growth.position, after.growth.epoch) == (0, 0)
    assert after.state_dict() == fresh.state_dict()
