"""Stages that choose, split and batch again, mixtures and loaders give what webdataset gives, and
resume at the exact item on any ranks."""

from __future__ import annotations

import json
import pickle
import random
import tarfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from webdataset import autodecode

from data import DataError, FingerprintError, SampleError, StreamingDataset, mixed, open_dataset
from data.read.sample_stream import MixedStream
from data.wds import WebLoader, from_wds
from data.wds.pipeline_source import after_fork
from tests.integration.data.test_wds_pipelines import dataset, plain
from tests.integration.data.wds_shards import KEYS, write_shards

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"))


def renamed(name: str) -> str:
    """Other keys, other extensions, and samples of ten that become one."""
    return f"new/{name}".replace("seg.txt", "mask.TXT").replace("k00", "k.").replace(".jpg", ".png")


def without_urls(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name not in ("__url__",)}


def numbers(urls: list[str], **kw: Any) -> Any:
    return dataset(urls, **kw).decode(only="cls").to_tuple("cls", "__key__")


PIPELINES: dict[str, Callable[[list[str]], Any]] = {
    "slice": lambda u: numbers(u).slice(10),
    "slice by steps": lambda u: numbers(u).slice(3, 30, 4).batched(3),
    "slice of batches": lambda u: numbers(u).batched(4).slice(2, 9, 3),
    "slice to the end": lambda u: numbers(u).batched(4).slice(10, None),
    "slices": lambda u: numbers(u).slice(5, 40).batched(4).slice(1, None, 2),
    "slice of epochs": lambda u: numbers(u).slice(10).batched(3).repeat(3),
    "unbatched": lambda u: numbers(u).batched(4).unbatched(),
    "dicts": lambda u: (
        dataset(u).decode(only="cls").rename(cls="cls", keep=0).batched(5).unbatched()
    ),
    "batched again": lambda u: numbers(u).batched(4).unbatched().batched(5),
    "whole batches": lambda u: (
        numbers(u).batched(4, partial=False).unbatched().batched(5, partial=False)
    ),
    "unlisted": lambda u: numbers(u).listed(4).unlisted().map_tuple(str).batched(6),
    "three times": lambda u: numbers(u).batched(4).unbatched().batched(6).unbatched().listed(9),
    "map of batches": lambda u: (
        numbers(u).batched(4).map(lambda b: (b[0] + 1, b[1])).unbatched().listed(2)
    ),
    "same shard twice": lambda u: numbers([u[0], u[1], u[0]]),
    "rename_files": lambda u: dataset(u, rename_files=renamed).map(without_urls),
    "renamed, then selected": lambda u: dataset(
        u, rename_files=renamed, select_files=lambda name: name.endswith(".png")
    ).map(without_urls),
}
_IN_STEPS = ("slice", "slice of batches", "batched again", "three times", "same shard twice")


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_a_pipeline_gives_the_same_as_webdataset(urls: list[str], name: str) -> None:
    theirs = plain(list(PIPELINES[name](urls)))
    assert theirs
    assert plain(list(from_wds(PIPELINES[name](urls)))) == theirs


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_it_resumes_at_every_item(urls: list[str], name: str) -> None:
    whole = plain(list(from_wds(PIPELINES[name](urls), seed=1, shuffle=True)))
    for stop in {0, 1, len(whole) // 2, len(whole) - 1, len(whole)}:
        first = from_wds(PIPELINES[name](urls), seed=1, shuffle=True)
        begun = plain(list(islice(first, stop)))
        state = json.loads(json.dumps(first.state_dict()))
        after = from_wds(PIPELINES[name](urls), seed=1, shuffle=True)
        after.load_state_dict(state)
        assert begun + plain(list(after)) == whole


@pytest.mark.parametrize("name", _IN_STEPS)
@pytest.mark.parametrize("workers", [2])
def test_workers_give_the_same(urls: list[str], name: str, workers: int) -> None:
    whole = plain(list(WebLoader(from_wds(PIPELINES[name](urls), seed=1, shuffle=True))))
    loader = WebLoader(from_wds(PIPELINES[name](urls), seed=1, shuffle=True), num_workers=workers)
    assert plain(list(loader)) == whole


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_have_the_samples_of_one(urls: list[str], world: int) -> None:
    """With the same global batch: a slice counts the samples of all ranks, and batches that are
    batched again are as many on each."""

    def of(build: Callable[[Any], Any], rank: int, count: int) -> list[Any]:
        base = StreamingDataset(urls, seed=2, rank=rank, world_size=count)
        return list(build(base.to_tuple("__key__")))

    def keys(build: Callable[[Any], Any], count: int) -> Counter[str]:
        ranks = [of(build, rank, count) for rank in range(count)]
        assert len({len(items) for items in ranks}) == 1
        return Counter(str(key) for items in ranks for item in items for key in item[0])

    each = 6 // world
    sliced = lambda base: base.slice(12, 36).batched(each)  # noqa: E731
    assert keys(sliced, world) == keys(lambda base: base.slice(12, 36).batched(6), 1)
    blocks = lambda base: base.batched(each).slice(1, None, 2)  # noqa: E731
    assert keys(blocks, world) == keys(lambda base: base.batched(6).slice(1, None, 2), 1)
    again = keys(lambda base: base.batched(each).unbatched().batched(4), world)
    assert again == Counter(f"k{i:03d}" for i in range(KEYS))


def test_a_slice_resumes_on_other_ranks_and_on_no_other_slice(urls: list[str]) -> None:
    def of(rank: int, world: int, stop: int = 40) -> Any:
        base = StreamingDataset(urls, seed=2, rank=rank, world_size=world, tail="straddle")
        return base.slice(4, stop).to_tuple("__key__").batched(12 // world)

    whole = [sorted(batch[0]) for batch in of(0, 1)]
    first = of(0, 1)
    assert sorted(next(iter(first))[0]) == whole[0]
    state, rest = first.state_dict(), []
    for rank in range(3):
        other = of(rank, 3)
        other.load_state_dict(state)
        rest.append([batch[0] for batch in other])
    assert [sorted(k for keys in step for k in keys) for step in zip(*rest, strict=True)] == whole[
        1:
    ]
    with pytest.raises(FingerprintError, match="slice is"):
        of(0, 1, 41).load_state_dict(state)
    with pytest.raises(FingerprintError, match="slice is"):
        StreamingDataset(urls, seed=2).load_state_dict(state)


def test_what_was_split_has_to_be_as_many(urls: list[str]) -> None:
    halved = numbers(urls).batched(4).map(lambda b: (b[0][:1], b[1][:1])).unbatched()
    with pytest.raises(DataError, match="another number of samples"):
        list(from_wds(halved))


def test_a_pass_has_to_end_with_the_batches_that_are_split(urls: list[str]) -> None:
    again = numbers(urls).batched(4).unbatched().batched(6)
    assert len(list(from_wds(again.compose().with_epoch(4)))) == 4
    with pytest.raises(DataError, match="use a multiple of 2"):
        list(from_wds(again.compose().with_epoch(3)))


# mixtures


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_a_mixture_has_each_dataset_by_its_weight_and_with_its_stages(
    urls: list[str], in_pipeline: bool
) -> None:
    mix: Any = wds.RandomMix(
        [dataset(urls).to_tuple("__key__"), dataset(urls[:2]).to_tuple("txt")], [0.75, 0.25]
    )
    pipeline = wds.DataPipeline(mix, wds.shuffle(10)) if in_pipeline else mix
    ours = from_wds(pipeline).listed(128)
    items = [value for batch in islice(ours, 8) for (value,) in batch]
    assert sum(isinstance(item, str) for item in items) == 768
    assert set(items) == {f"k{i:03d}" for i in range(KEYS)} | {
        f"text of {i}".encode() for i in range(18)
    }
    after = from_wds(pipeline)
    after.load_state_dict(ours.state_dict())
    assert after.state_dict()["position"] == 1024
    again = from_wds(pipeline).listed(16)
    again.load_state_dict(ours.state_dict())
    rest = list(islice(after, 16))  # within a step, the order is that of the streams
    assert Counter(map(str, rest)) == Counter(map(str, next(iter(again))))


def test_round_robin_takes_turns_and_a_dataset_may_be_there_twice(urls: list[str]) -> None:
    both = wds.DataPipeline(
        wds.RoundRobin([dataset(urls).to_tuple("__key__"), dataset(urls[:1]).to_tuple("cls")]),
        wds.batched(2, collation_fn=None),
    )
    for batch in islice(from_wds(both), 20):
        assert {type(item) for (item,) in batch} == {str, bytes}
    same = wds.RoundRobin([wds.WebDataset(urls, shardshuffle=9).to_tuple("__key__")] * 2)
    items = [key for (key,) in next(iter(from_wds(same).listed(2 * KEYS)))]
    assert Counter(items) == Counter([f"k{i:03d}" for i in range(KEYS)] * 2)
    assert items[::2] != items[1::2]


@pytest.mark.parametrize("draws", [3, 12])
def test_resampled_lists_become_passes_of_as_many_epochs(urls: list[str], draws: int) -> None:
    def pipeline() -> Any:
        return wds.DataPipeline(
            wds.SimpleShardList(urls),
            wds.resampled(draws),
            wds.tarfile_to_samples(),
            wds.to_tuple("__key__"),
        )

    ours = from_wds(pipeline())
    assert len(list(ours)) == ours.pass_items() == draws * KEYS // len(urls)
    theirs = wds.DataPipeline(wds.SimpleShardList(urls), wds.resampled(), *pipeline().pipeline[2:])
    assert len(list(islice(from_wds(theirs), 3 * KEYS))) == 3 * KEYS


def test_a_mixture_of_names_keeps_them_in_a_forked_process(urls: list[str]) -> None:
    stream = mixed([open_dataset(url) for url in urls[:2]], [1, 2], names=["a", "b"])
    forked = after_fork(stream)
    assert isinstance(forked, MixedStream)
    assert (forked.names, forked.identity) == (("a", "b"), stream.identity)


# errors


def test_errors_are_of_the_classes_that_webdataset_raises(urls: list[str], tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.tar")
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"no tar" * 1000)

    def run(pipeline: Any) -> None:
        list(pipeline)

    cases: list[tuple[Callable[[], Any], type[Exception]]] = [
        (lambda: numbers([gone]), FileNotFoundError),
        (lambda: dataset([str(broken)]), tarfile.ReadError),
        (lambda: dataset(urls).to_tuple("nothing"), ValueError),
        (lambda: dataset(urls).decode(wds.handle_extension("cls", fail)), autodecode.DecodingError),
        (lambda: numbers(urls).batched(4).map(fail).unbatched(), ValueError),
    ]
    for build, kind in cases:
        with pytest.raises(kind):
            run(build())
        with pytest.raises(kind) as caught:
            run(from_wds(build()))
        assert isinstance(caught.value, DataError)
    with pytest.raises(SampleError) as failed:
        run(from_wds(dataset(urls).map(lambda sample: sample["nothing"])))
    assert isinstance(failed.value.__cause__, KeyError)


def fail(value: Any) -> Any:
    raise ValueError("not this one")


# loaders

LOADERS: dict[str, Callable[[Any, Any], Any]] = {
    "batch_size": lambda load, u: load(numbers(u), batch_size=4),
    "drop_last": lambda load, u: load(numbers(u), batch_size=4, drop_last=True),
    "batched again": lambda load, u: (
        load(numbers(u).batched(4), batch_size=None).unbatched().shuffle(0).batched(6)
    ),
    "mapped": lambda load, u: (
        load(numbers(u).batched(4), batch_size=None)
        .unbatched()
        .batched(6)
        .map(lambda b: b[0].sum())
    ),
    "sliced": lambda load, u: load(numbers(u).batched(4), batch_size=None).slice(3),
    "repeated": lambda load, u: load(numbers(u).batched(5), batch_size=None).repeat(2),
    "left out": lambda load, u: load(numbers(u).batched(5), batch_size=None).map(odd),
    "selected": lambda load, u: load(numbers(u).batched(5), batch_size=None).select(odd),
    "handled": lambda load, u: load(numbers(u).batched(5), batch_size=None).map(
        never, handler=wds.ignore_and_continue
    ),
}


def odd(batch: Any) -> Any:
    return batch if batch[0][0] % 2 else None


def never(batch: Any) -> Any:
    return odd(batch)[0] if odd(batch) else fail(batch)


def ours(pipeline: Any, **options: Any) -> WebLoader:
    return WebLoader(from_wds(pipeline), **options)


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_a_loader_has_the_stages_of_webdataset(urls: list[str], name: str) -> None:
    theirs = plain(list(LOADERS[name](wds.WebLoader, urls)))
    loader = LOADERS[name](ours, urls)
    assert plain(list(loader)) == theirs
    for stop in (1, len(theirs) // 2):
        first = LOADERS[name](ours, urls)
        begun = plain(list(islice(first, stop)))
        after = LOADERS[name](ours, urls)
        after.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert begun + plain(list(after)) == theirs


def test_stages_of_a_loader_run_in_the_consumer_and_with_workers(urls: list[str]) -> None:
    def loader(workers: int) -> WebLoader:
        base = ours(numbers(urls).batched(4), num_workers=workers).unbatched().batched(6)
        mapped: WebLoader = base.map(counted).with_epoch(6)
        return mapped

    def counted(batch: Any) -> Any:
        seen.append(1)
        return batch

    seen: list[int] = []
    alone, with_workers = plain(list(loader(0))), plain(list(loader(2)))
    assert with_workers == alone
    assert len(seen) == 12


def test_random_numbers_of_a_loader_s_stages_follow_the_position(urls: list[str]) -> None:
    def loader() -> WebLoader:
        base = ours(numbers(urls).batched(4))
        mapped: WebLoader = base.map(lambda batch: (batch[1], random.random()))
        return mapped

    whole = list(loader())
    assert len({chance for _, chance in whole}) == len(whole)
    first = loader()
    assert list(islice(first, 5)) == whole[:5]
    after = loader()
    after.load_state_dict(first.state_dict())
    assert list(after) == whole[5:]


def test_what_a_loader_cannot_count_is_refused_by_name(urls: list[str]) -> None:
    mapped = ours(numbers(urls).batched(4)).map(list)
    for build, said in (
        (lambda: mapped.unbatched(), r"unbatched\(\) after map\(\) of a WebLoader"),
        (lambda: mapped.slice(3), r"slice\(\) after map\(\)"),
        (lambda: mapped.rsample(0.5), r"rsample\(\) after map\(\)"),
        (lambda: ours(numbers(urls)).mcached(), "decoded samples"),
        (lambda: ours(numbers(urls), drop_last=True), "needs batch_size"),
        (lambda: ours(numbers(urls).batched(4), batch_size=2), "second batched"),
    ):
        with pytest.raises(ValueError, match=said):
            build()


def test_a_repeated_shard_is_refused_unless_it_is_meant(urls: list[str]) -> None:
    with pytest.raises(DataError, match="given twice"):
        open_dataset([urls[0], urls[0]])
    twice = open_dataset([urls[0], urls[1], urls[0]], repeated_shards="keep")
    assert [twice.read(i)["__key__"] for i in (0, 9, 18)] == ["k000", "k009", "k000"]


def test_renamed_files_are_sent_to_other_processes(urls: list[str]) -> None:
    pipeline = dataset(urls, rename_files=lambda name: renamed(name)).to_tuple("__key__")
    ours_ = from_wds(pipeline)
    assert ours_.samples == len(list(pipeline))
    sent = pickle.loads(pickle.dumps(ours_))
    assert [key for (key,) in sent] == [key for (key,) in pipeline]
    with pytest.raises(DataError, match="rename_files failed on"):
        open_dataset(urls, rename_files=fail)
