"""Documents packed into sequences: every token once, on any topology, and from any state."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import (
    Batch,
    DataError,
    Dataset,
    FingerprintError,
    Loader,
    Packing,
    Sample,
    SampleContext,
    SampleError,
    Sequences,
    ShardWriter,
    mixed,
    open_dataset,
)

LENGTH, BATCH, MOST = 16, 6, 1000
RNG = np.random.default_rng(5)
SIZES = RNG.integers(0, 40, 150).tolist()


def content(document: int, size: int) -> bytes:
    """Token t of document d is d * MOST + t + 1, so 0 is none."""
    return (document * MOST + np.arange(1, size + 1)).astype("<u4").tobytes()


def make(folder: Path, sizes: list[int] = SIZES, first: int = 0) -> Dataset:
    with ShardWriter(folder / "s-%03d.tar", max_samples=20, tokens="bin:uint32") as writer:
        for number, size in enumerate(sizes, start=first):
            writer.write({"__key__": f"{number:05d}", "bin": content(number, size)})
    return open_dataset(folder)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("packed"))


def loader(dataset: Any, *, pack: Packing | None = None, **options: Any) -> Loader:
    order = {"streams": 4, "window": 2, "seed": 3} if isinstance(dataset, Dataset) else {}
    settings = {"global_batch": BATCH, **order, **options}
    return Loader(dataset, pack=pack or Packing(LENGTH, block=40), **settings)


def lines(batch: Batch) -> list[tuple[int, ...]]:
    """The sequences of a batch, without what only fills it."""
    return [tuple(line) for line in batch.data.tokens[batch.mask].tolist()]


def of_all_ranks(dataset: Any, world: int, steps: int, state: Any = None, **more: Any) -> list[Any]:
    """Each step's sequences, sorted; and the state after the last one."""
    found: list[list[tuple[int, ...]]] = [[] for _ in range(steps)]
    states = []
    for rank in range(world):
        one = loader(dataset, rank=rank, world_size=world, **more)
        if state is not None:
            one.load_state_dict(state)
        for step, batch in enumerate(islice(one, steps)):
            found[step] += lines(batch)
        states.append(one.state_dict())
        one.close()
    assert all(each == states[0] for each in states)
    return [*map(sorted, found), states[0]]


def check_boundaries(data: Sequences) -> None:
    assert data.tokens.shape == data.document_ids.shape == data.position_ids.shape
    length = data.tokens.shape[1]
    for tokens, ids in zip(data.tokens, data.document_ids, strict=True):
        assert ((tokens == 0) == (ids == -1)).all()
        for one in range(ids.max() + 1):
            assert (np.diff(tokens[ids == one]) == 1).all(), "one document, without a gap"
    ends = data.cu_seqlens.tolist()
    assert ends[0] == 0
    assert ends[-1] == data.tokens.size
    assert np.diff(ends).max() == data.max_seqlen
    flat = data.tokens.ravel()
    for begin, end in pairwise(ends):
        assert begin // length == (end - 1) // length, "no document crosses sequences"
        assert data.position_ids.ravel()[begin:end].tolist() == list(range(end - begin))
        assert (np.diff(flat[begin:end]) == (1 if flat[begin] else 0)).all()


def test_every_token_once_per_epoch(dataset: Dataset) -> None:
    found = []
    for batch in loader(dataset, epochs=1, tail="pad"):
        check_boundaries(batch.data)
        found += [token for line in lines(batch) for token in line if token]
    every = [d * MOST + t for d, size in enumerate(SIZES) for t in range(1, size + 1)]
    assert sorted(found) == every


def test_there_is_little_padding(tmp_path: Path) -> None:
    sizes = RNG.integers(1, 200, 2000).tolist()
    many = make(tmp_path, sizes)
    full = Packing(256, block=2000)
    tokens = [b.data.tokens for b in loader(many, pack=full, epochs=1, tail="pad", streams=2)]
    assert np.mean(np.concatenate(tokens) == 0) < 0.03


@pytest.mark.parametrize("world", [2, 3, 6])
@pytest.mark.parametrize("options", [{}, {"threads": 5}, {"uneven": "pad"}])
def test_the_same_on_any_topology(dataset: Dataset, world: int, options: dict[str, Any]) -> None:
    assert of_all_ranks(dataset, 1, 60) == of_all_ranks(dataset, world, 60, **options)


def test_processes_make_the_same(dataset: Dataset) -> None:
    with_threads = [lines(batch) for batch in islice(loader(dataset), 8)]
    one = loader(dataset, workers=2)
    assert [lines(batch) for batch in islice(one, 8)] == with_threads
    one.close()


def test_goes_on_from_any_step_on_another_topology(dataset: Dataset) -> None:
    steps = 45  # more than an epoch
    *whole, _ = of_all_ranks(dataset, 1, steps)
    for after in (1, 7, 29, 33, 44):
        *_, state = of_all_ranks(dataset, 2, after)
        *rest, _ = of_all_ranks(dataset, 3, steps - after, state)
        assert rest == whole[after:], after


def test_a_state_is_small_and_belongs_to_one_packing(dataset: Dataset) -> None:
    one = loader(dataset)
    next(iter(one))
    state = one.state_dict()
    assert len(json.dumps({**state, "position": 2**50})) < 200
    for other in (Packing(LENGTH * 2, block=40), Packing(LENGTH, block=41)):
        with pytest.raises(FingerprintError, match=r"pack is .pack-1 length=16 .* in the state"):
            loader(dataset, pack=other).load_state_dict(state)
    plain = Loader(dataset, global_batch=BATCH, streams=4, window=2, seed=3)
    with pytest.raises(FingerprintError, match="pack"):
        plain.load_state_dict(state)
    with pytest.raises(FingerprintError, match="pack"):
        loader(dataset).load_state_dict(plain.state_dict())
    broken = loader(dataset)
    broken.load_state_dict({**state, "position": 10**6})
    with pytest.raises(DataError, match="is not a cursor of these packs"):
        next(iter(broken))


def test_long_documents_may_be_cut_or_left_out(dataset: Dataset) -> None:
    cut = Packing(LENGTH, block=40, long="cut")
    found = [
        t for b in loader(dataset, pack=cut, epochs=1, tail="pad") for x in lines(b) for t in x
    ]
    assert len([t for t in found if t]) == sum(min(size, LENGTH) for size in SIZES)
    skip = Packing(LENGTH, block=40, long="skip")
    found = [
        t for b in loader(dataset, pack=skip, epochs=1, tail="pad") for x in lines(b) for t in x
    ]
    assert len([t for t in found if t]) == sum(size for size in SIZES if size <= LENGTH)


def one_more(sample: Sample, context: SampleContext) -> Any:
    return [*sample["bin"], 0]


def test_the_transform_must_give_what_was_counted(dataset: Dataset) -> None:
    with pytest.raises(SampleError, match=r"tokens by the index, but an array of shape \(\d+,\)"):
        next(iter(loader(dataset, transform=one_more)))


def test_tokens_that_do_not_fit_are_not_cut(dataset: Dataset) -> None:
    small = Packing(LENGTH, block=40, dtype="uint8")
    with pytest.raises(SampleError, match=r"tokens \d+\.\.\d+ do not fit uint8"):
        list(loader(dataset, pack=small, epochs=1, tail="pad"))

    def halves(sample: Sample, context: SampleContext) -> Any:
        return np.frombuffer(sample["bin"], "<u4") / 2

    with pytest.raises(SampleError, match="of type float64, not whole numbers"):
        next(iter(loader(dataset, transform=halves)))


def test_a_document_that_is_left_out_leaves_its_sequence(dataset: Dataset) -> None:
    def bad(sample: Sample, context: SampleContext) -> Any:
        if sample["__key__"] == "00007":
            raise ValueError("no such thing")
        return np.frombuffer(sample["bin"], "<u4")

    found = []
    for batch in loader(dataset, transform=bad, errors="skip", epochs=1, tail="pad"):
        assert len(batch.data.tokens) == BATCH
        check_boundaries(batch.data)
        found += [token for line in lines(batch) for token in line if token]
    every = [d * MOST + t for d, s in enumerate(SIZES) for t in range(1, s + 1) if d != 7]
    assert sorted(found) == every


def letters(sample: Any) -> int:
    return len(sample["txt"])


def ordinals(sample: Sample, context: SampleContext) -> Any:
    return np.frombuffer(sample["txt"], np.uint8)


def test_any_way_of_counting_with_a_transform_of_ones_own(tmp_path: Path) -> None:
    texts = [b"a" * (1 + i % 9) for i in range(30)]
    with ShardWriter(tmp_path / "t-%03d.tar", tokens=letters) as writer:
        for i, text in enumerate(texts):
            writer.write({"__key__": str(i), "txt": text})
    dataset = open_dataset(tmp_path)
    with pytest.raises(DataError, match="requires a transform"):
        next(iter(loader(dataset)))
    batches = list(loader(dataset, transform=ordinals, epochs=1, tail="pad", global_batch=2))
    assert sum((b.data.tokens[b.mask] > 0).sum() for b in batches) == sum(map(len, texts))


def test_what_makes_no_sense_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    for pack, options, says in (
        (Packing(0), {}, "length and block must be at least 1"),
        (Packing(8, long="what"), {}, "long must be"),  # type: ignore[arg-type]
        (Packing(8, dtype="nothing"), {}, "nothing"),
        (Packing(8, dtype="float32"), {}, "[Ii]nvalid integer"),
        (Packing(8, pad=-1, dtype="uint16"), {}, "-1"),
        (Packing(8), {"errors": "substitute"}, 'use "skip"'),
        (Packing(8), {"world_size": 4}, "cannot be shared evenly by 4 ranks"),
    ):
        with pytest.raises(DataError, match=says):
            loader(dataset, pack=pack, **options)
    with pytest.raises(DataError, match="or None, got 4096"):
        loader(dataset, pack=4096)  # type: ignore[arg-type]
    with ShardWriter(tmp_path / "s-%03d.tar") as writer:
        writer.write({"__key__": "a", "bin": b"1234"})
    with pytest.raises(DataError, match="has no token counts, which packing requires: index the"):
        loader(open_dataset(tmp_path))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_balanced_ranks_take_the_same_sequences_and_go_on_from_any_state(
    dataset: Dataset, world: int
) -> None:
    """The sequences of a step, and the state after it, are those of ranks that take neighbouring
    streams; the costliest rank has less than without balance, in sum over the steps."""
    plain, balanced = Packing(LENGTH, block=40), Packing(LENGTH, block=40, balance="attention")
    *whole, state = of_all_ranks(dataset, world, 12, pack=plain)
    *first, there = of_all_ranks(dataset, world, 5, pack=balanced)
    *rest, end = of_all_ranks(dataset, 6, 7, there, pack=balanced)
    assert ([*first, *rest], end) == (whole, state)
    if world > 1:
        assert costliest(dataset, world, balanced) < costliest(dataset, world, plain)


def costliest(dataset: Dataset, world: int, pack: Packing) -> int:
    """The attention of the costliest rank of each of some steps, in sum."""
    total = 0
    ranks = [loader(dataset, rank=r, world_size=world, pack=pack) for r in range(world)]
    for batches in zip(*(islice(one, 12) for one in ranks), strict=True):
        total += max(int((np.diff(batch.data.cu_seqlens) ** 2).sum()) for batch in batches)
    return total


def test_impossible_balance_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="balance must be"):
        loader(dataset, pack=Packing(LENGTH, balance="tokens"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="micro_batch at least 1"):
        loader(dataset, pack=Packing(LENGTH, balance="attention", micro_batch=0))


def test_a_mixture_is_packed_and_changes_its_weights_with_the_next_block(tmp_path: Path) -> None:
    parts = [make(tmp_path / "a", SIZES[:80]), make(tmp_path / "b", SIZES[80:], first=500)]
    stream = mixed(parts, [1, 1], streams=4, window=2)
    *whole, _ = of_all_ranks(stream, 1, 30)
    *_, state = of_all_ranks(stream, 2, 11)
    *rest, _ = of_all_ranks(stream, 3, 19, state)
    assert rest == whole[11:]
    changed = mixed(parts, [1, 0], streams=4, window=2)
    *_, state_of_none = of_all_ranks(stream, 2, 0)
    *of_changed, _ = of_all_ranks(changed, 1, 5)
    assert of_all_ranks(changed, 1, 5, state_of_none)[:-1] == of_changed, "no block is packed yet"
    *rest, _ = of_all_ranks(changed, 1, 40, state)
    assert rest[0] == whole[11], "of the block that is packed already"
    documents = {token // MOST for step in rest[20:] for line in step for token in line}
    assert max(documents) < 80


def test_a_packed_curriculum_is_the_same_on_any_world_and_counts_its_tokens(
    tmp_path: Path,
) -> None:
    parts = [make(tmp_path / "a", SIZES[:80]), make(tmp_path / "b", SIZES[80:], first=500)]
    stages = [(57, [1, 3]), (130, [0, 1])]
    stream = mixed(parts, [3, 1], stages=stages, names=["a", "b"], streams=4, window=2, block=20)
    *whole, _ = of_all_ranks(stream, 1, 40)
    *first, state = of_all_ranks(stream, 2, 13)
    *second, later = of_all_ranks(stream, 6, 7, state)
    *third, _ = of_all_ranks(stream, 3, 20, json.loads(json.dumps(later)))
    assert [*first, *second, *third] == whole
    counted = [0, 0]
    for step in [*first, *second]:
        for line in step:
            for token in filter(None, line):
                counted[token // MOST >= 500] += 1
    assert later["tokens"] == counted
    read = loader(stream)
    read.load_state_dict(later)
    assert [source.tokens for source in read.sources] == counted
    documents = [{token // MOST for line in step for token in line if token} for step in whole[-8:]]
    assert min(map(min, documents)) >= 500, "the last stage pauses the first source"


def test_tokens_of_a_source_count_from_the_first_one_on_if_others_are_added(tmp_path: Path) -> None:
    parts = [make(tmp_path / "a", SIZES[:80]), make(tmp_path / "b", SIZES[80:], first=500)]
    alone = loader(mixed(parts[:1], [1], names=["a"], streams=4, window=2))
    both = loader(mixed(parts, [1, 1], names=["a", "b"], streams=4, window=2))
    counted = [0, 0]
    for one, steps in ((alone, 5), (both, 15)):
        if one is both:
            both.load_state_dict(alone.state_dict())
        for batch in islice(one, steps):
            for token in filter(None, batch.data.tokens.ravel().tolist()):
                counted[token // MOST >= 500] += 1
        assert [source.tokens for source in one.sources] == counted[: len(one.sources)]


@pytest.mark.parametrize("sizes", [[5] * 30, [5] * 29 + [0]], ids=["all", "all with tokens"])
def test_some_document_has_to_be_left(tmp_path: Path, sizes: list[int]) -> None:
    one = loader(make(tmp_path, sizes))
    with pytest.raises(DataError, match="all 30 documents were left out, and none would be left"):
        one.skip(0, one._plan.packer.cursor_of_epoch(1))  # type: ignore[attr-defined]


def test_some_document_that_still_comes_has_to_be_left(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", [5] * 29 + [0]), make(tmp_path / "b", [5] * 300)
    names, pack = ["first", "second"], Packing(LENGTH, block=40)
    one = Loader(mixed([first, second], [1, 1], names=names), global_batch=2, pack=pack)
    one.skip(0, 4 << 24)
    assert one.ended_sources == ("first",)
    paused = mixed([first, second], [1, 1], stages=[(1000, [1, 0])], names=names)
    problem = Loader(paused, global_batch=2, pack=pack).skip_problem(0, 4 << 24)
    assert problem is not None
    assert "none would be left" in problem


def test_a_state_of_an_earlier_release_that_leaves_out_sequences_is_said(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    one = loader(dataset)
    one.skip(2, 5)
    next(iter(one))
    state = one.state_dict()
    loader(dataset).load_state_dict(state)
    assert not caplog.messages
    loader(dataset).load_state_dict({k: value for k, value in state.items() if k != "seen"})
    assert "may be repeated or lost" in caplog.text


def test_documents_that_are_left_out_are_so_in_later_epochs(dataset: Dataset) -> None:
    before = loader(dataset, global_batch=3)
    given = iter(before)
    next(given)
    begin = before.state_dict()["position"]
    gone = {token // MOST for line in lines(next(given)) for token in line if token}
    end = before.state_dict()["position"]
    assert gone
    cured = loader(dataset, global_batch=3)
    cured.skip(begin, end)
    per_epoch = cured._plan.packer.cursor_of_epoch(1)  # type: ignore[attr-defined]
    seen: dict[int, set[int]] = {}
    state, at_state = None, 0
    for number, batch in enumerate(cured):
        position = cured.state_dict()["position"]
        if position > 2 * per_epoch:
            break
        if position > per_epoch and state is None:
            state, at_state = json.loads(json.dumps(cured.state_dict())), number + 1
        epoch = min(batch.positions) // len(dataset)
        if max(batch.positions) // len(dataset) == epoch:
            seen.setdefault(epoch, set()).update(
                token // MOST for line in lines(batch) for token in line if token
            )
    assert not seen[1] & gone
    rest = loader(dataset, global_batch=3)
    assert state is not None
    rest.load_state_dict(state)
    whole = loader(dataset, global_batch=3)
    whole.skip(begin, end)
    assert [lines(batch) for batch in islice(rest, 5)] == [
        lines(batch) for batch in islice(whole, at_state, at_state + 5)
    ]
