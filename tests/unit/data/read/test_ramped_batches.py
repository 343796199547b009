"""Batches that grow: the same steps on any number of ranks, and after a resume in the middle."""

from itertools import islice, pairwise
from pathlib import Path

import pytest

from data import (
    Batch,
    BatchRamp,
    DataError,
    Dataset,
    Loader,
    Packing,
    TokenFiles,
    open_dataset,
    pack_folder,
)
from tests.unit.data.token_files import write_flat

RAMP = BatchRamp(2, 2, 20, 8)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(37):
        (source / f"{i:03d}.txt").write_bytes(str(i).encode())
    pack_folder(source, tmp_path / "shards", samples_per_shard=5)
    return open_dataset(tmp_path / "shards")


def enumerated(dataset: Dataset, steps: int) -> list[list[int]]:
    """The samples of each step, by the rule of the ramp and the order of a batch of one."""
    every = [batch.indices[0] for batch in islice(Loader(dataset, global_batch=1), 200)]
    found, seen = [], 0
    for _ in range(steps):
        size = 2 + 2 * min(3, seen * 3 // 20)
        found.append(sorted(every[seen : seen + size]))
        seen += size
    return found


def taken(loaders: list[Loader], steps: int) -> list[list[int]]:
    """The samples of each step over all ranks."""
    ranks = [list(islice(loader, steps)) for loader in loaders]
    return [
        sorted(index for batch in step for index in batch.indices)
        for step in zip(*ranks, strict=True)
    ]


def test_a_resume_on_another_world_continues_the_ramp(dataset: Dataset) -> None:
    expected = enumerated(dataset, 12)
    two = [
        Loader(dataset, global_batch=8, batch_ramp=RAMP, rank=rank, world_size=2)
        for rank in range(2)
    ]
    assert taken(two, 5) == expected[:5]
    states = [loader.state_dict() for loader in two]
    for loader in two:
        loader.close()
    assert states[0] == states[1]
    assert len(str(states[0])) < 250
    one = Loader(dataset, global_batch=8, batch_ramp=RAMP)
    one.load_state_dict(states[0])
    assert one.samples_seen == sum(map(len, expected[:5]))
    assert one.batch_ramp_change is None
    assert taken([one], 7) == expected[5:]


def test_each_batch_says_what_came_before(dataset: Dataset) -> None:
    batches = list(islice(Loader(dataset, global_batch=8, batch_ramp=RAMP), 8))
    sizes = [len(each) for each in enumerated(dataset, 8)]
    assert [batch.step_samples for batch in batches] == sizes
    assert [batch.seen for batch in batches] == [sum(sizes[:n]) for n in range(8)]


def test_lengths_count_the_steps_of_the_ramp(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=8, batch_ramp=RAMP, epochs=2)
    batches: list[Batch] = list(islice(loader, 3))
    assert loader.steps_done == 3
    batches += loader
    assert len(batches) == len(loader)
    assert loader.steps_per_epoch == sum(batch.epoch == 0 for batch in batches)
    assert sum(len(batch.indices) for batch in batches) >= 74


def test_what_is_left_out_does_not_count(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=8, batch_ramp=RAMP)
    loader.skip(4, 14)
    batches = list(islice(loader, 8))
    assert [batch.seen for batch in batches] == [
        sum(batch.step_samples for batch in batches[:n]) for n in range(8)
    ]
    assert [batch.step_samples for batch in batches] == [len(e) for e in enumerated(dataset, 8)]


def test_sequences_of_packed_documents_grow(tmp_path: Path) -> None:
    write_flat(tmp_path / "train.bin", [[*range(1, 2 + n % 7), 99] for n in range(300)])
    tokens = open_dataset(
        tmp_path / "train.bin", token_files=TokenFiles(dtype="uint16", end_of_text=99)
    )

    def loader(rank: int, world: int) -> Loader:
        packing = Packing(8, block=40)
        return Loader(
            tokens, global_batch=8, batch_ramp=RAMP, pack=packing, rank=rank, world_size=world
        )

    alone = loader(0, 1)
    whole = [batch.data.tokens.tolist() for batch in islice(alone, 10)]
    assert [len(each) for each in whole] == [2, 2, 2, 2, 4, 4, 6, 8, 8, 8]
    two = [loader(0, 2), loader(1, 2)]
    parts = [list(islice(each, 6)) for each in two]
    for expected, first, second in zip(whole, *parts, strict=False):
        both = [*first.data.tokens.tolist(), *second.data.tokens.tolist()]
        assert sorted(both) == sorted(expected)
    state = two[0].state_dict()
    assert state["seen"] == 16
    resumed = loader(0, 1)
    resumed.load_state_dict(state)
    rest = [batch.data.tokens.tolist() for batch in islice(resumed, 4)]
    assert rest == whole[6:]
    earlier = {name: value for name, value in state.items() if name != "seen"}
    with pytest.raises(DataError, match="earlier release"):
        loader(0, 1).load_state_dict(earlier)


def test_another_ramp_continues_by_the_samples_seen_and_is_told(dataset: Dataset) -> None:
    before = Loader(dataset, global_batch=8)
    list(islice(before, 1))
    after = Loader(dataset, global_batch=8, batch_ramp=RAMP)
    after.load_state_dict(before.state_dict())
    assert after.batch_ramp_change == (None, RAMP)
    assert [batch.step_samples for batch in islice(after, 3)] == [4, 4, 6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch": 16}, "grows to 8 samples"),
        ({"global_batch": 8, "tail": "drop"}, "straddle"),
        ({"global_batch": 8, "world_size": 4}, "batch of 2 cannot be shared evenly by 4"),
    ],
)
def test_impossible_ramps_are_refused(
    dataset: Dataset, options: dict[str, object], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        Loader(dataset, batch_ramp=RAMP, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"batch_ramp must be a data\.BatchRamp or None"):
        Loader(dataset, batch_ramp=(2, 2, 10, 8), global_batch=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("tail", ["straddle", "drop", "pad"])
def test_a_resume_counts_what_came_before_as_the_run_did(dataset: Dataset, tail: str) -> None:
    def loader() -> Loader:
        made = Loader(dataset, global_batch=8, tail=tail)  # type: ignore[arg-type]
        made.skip(3, 6)
        return made

    whole, found = loader(), []
    for batch in islice(whole, 12):
        found.append((batch.seen, whole.state_dict(), whole.samples_seen))
    for (_, state, seen), (then, *_) in pairwise(found):
        resumed = loader()
        resumed.load_state_dict(state)
        assert resumed.samples_seen == seen == then


def test_sequences_that_are_left_out_do_not_move_those_of_their_blocks(tmp_path: Path) -> None:
    write_flat(tmp_path / "train.bin", [[*range(1, 2 + n % 7), 99] for n in range(60)])
    tokens = open_dataset(
        tmp_path / "train.bin", token_files=TokenFiles(dtype="uint16", end_of_text=99)
    )

    def loader(*ranges: tuple[int, int]) -> Loader:
        made = Loader(tokens, global_batch=2, pack=Packing(8, block=10))
        for first, end in ranges:
            made.skip(first, end)
        return made

    before = loader()
    states = [before.state_dict()["position"]]
    plain = []
    for batch in islice(before, 40):
        plain.append(batch.data.tokens.tolist())
        states.append(before.state_dict()["position"])
    at = next(n for n, (a, b) in enumerate(pairwise(states)) if a < 6 << 24 < b)  # an epoch ends
    ranges = [(states[at - 9], states[at + 1])]
    whole, found = loader(*ranges), []
    for batch in islice(whole, 40):
        found.append((batch.data.tokens.tolist(), whole.state_dict()))
    assert found[at - 9][0] == plain[at + 1]
    for number in range(0, 39, 3):
        resumed = loader()
        resumed.load_state_dict(found[number][1])
        assert next(iter(resumed)).data.tokens.tolist() == found[number + 1][0]
        resumed.close()
