"""Pipelines as webdataset's own documentation has them give the same samples through `from_wds`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from webdataset import filters, tariterators

from data import DataError
from data.wds.dataset import StreamingDataset
from data.wds.pipeline_conversion import from_wds
from data.wds.stages.stage_kinds import per_sample
from tests.integration.data.wds_shards import KEYS, write_shards

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"))


def plain(value: Any) -> Any:
    """Something that compares, of what a pipeline gives."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return np.asarray(value).tolist()
    if isinstance(value, dict):
        skip = ("__url__", "__local_path__")
        return {name: plain(each) for name, each in value.items() if name not in skip}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, bytes | str | int | float | None) else repr(value)[:30]


def augmented(source: Iterable[Any]) -> Iterator[Any]:
    for each in source:
        yield {**each, "more": each["cls"] * 2}


def preprocess(each: dict[str, Any]) -> tuple[Any, ...]:
    return each["npy"] * 2, 1 + each["json"]["number"], each["__key__"]


def gz_like(key: str, value: bytes) -> str | None:
    return value.decode()[::-1] if key.endswith(".txt") else None


def dataset(urls: list[str], **kw: Any) -> Any:
    return wds.WebDataset(urls, shardshuffle=False, **kw)


PIPELINES: dict[str, Callable[[list[str]], Any]] = {
    "bytes": dataset,
    "decode": lambda urls: dataset(urls).decode(),
    "rgb": lambda urls: dataset(urls).decode("rgb").to_tuple("jpg", "json"),
    "pil": lambda urls: dataset(urls).decode("pil").to_tuple("jpg;png", "cls"),
    "torchrgb8": lambda urls: dataset(urls).decode("torchrgb8").to_tuple("jpg cls"),
    "own decoder": lambda urls: dataset(urls).decode(gz_like),
    "only": lambda urls: dataset(urls).decode(only="cls"),
    "partial": lambda urls: dataset(urls).map_dict(cls=int).decode(partial=True),
    "handle_extension": lambda urls: dataset(urls).decode(
        wds.handle_extension("seg.txt", lambda data: len(data))
    ),
    "xdecode": lambda urls: dataset(urls).xdecode(txt=None, must_decode=False).map(dict),
    "map": lambda urls: dataset(urls).decode().map(preprocess),
    "map_tuple": lambda urls: (
        dataset(urls).decode().to_tuple("npy", "cls").map_tuple(lambda a: a + 1, lambda c: -c)
    ),
    "rename": lambda urls: dataset(urls).decode().rename(image="jpg", label="cls;json", keep=False),
    "rename_keys": lambda urls: dataset(urls).rename_keys(text="*.txt", number="cls", must_match=0),
    "extract_keys": lambda urls: dataset(urls).decode().extract_keys("*.npy", "*.cls", "*.json"),
    "select": lambda urls: dataset(urls).decode().select(lambda each: each["cls"] % 3 == 0),
    "map to none": lambda urls: dataset(urls).decode().map(lambda e: e if e["cls"] < 20 else None),
    "batched": lambda urls: dataset(urls).decode().to_tuple("npy", "cls", "__key__").batched(8),
    "dropped": lambda urls: dataset(urls).decode().to_tuple("npy", "cls").batched(8, partial=False),
    "listed": lambda urls: dataset(urls).decode().to_tuple("npy", "cls").listed(8),
    "dicts": lambda urls: dataset(urls).decode(only="cls").rename(cls="cls", keep=0).batched(5),
    "of batches": lambda urls: (
        dataset(urls).decode().to_tuple("npy", "cls").batched(8).map(lambda b: (b[0].sum(), b[1]))
    ),
    "collated": lambda urls: (
        dataset(urls).to_tuple("txt").batched(8, collation_fn=lambda b: b[::-1])
    ),
    "select_files": lambda urls: dataset(urls, select_files=lambda name: name.endswith("s")),
    "of one's own": lambda urls: dataset(urls).decode().compose(per_sample(augmented)),
    "generic": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.decode("torchrgb"),
        wds.to_tuple("jpg", "cls"),
        wds.batched(7),
    ),
    "associate": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.tarfile_to_samples(handler=wds.warn_and_continue),
        wds.associate(lambda key: {"extra": key.upper()}),
    ),
}


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_a_pipeline_gives_the_same_in_the_same_order(urls: list[str], name: str) -> None:
    theirs = plain(list(PIPELINES[name](urls)))
    assert len(theirs) > 5 or name in ("dropped",)
    assert plain(list(from_wds(PIPELINES[name](urls)))) == theirs


@pytest.mark.parametrize("shuffled", ["shards", "samples", "deterministic"])
def test_a_shuffled_pipeline_gives_the_same_samples_in_another_order(
    urls: list[str], shuffled: str
) -> None:
    pipeline = {
        "shards": wds.WebDataset(urls, shardshuffle=100).decode("rgb"),
        "samples": dataset(urls).shuffle(1000).decode("rgb"),
        "deterministic": wds.WebDataset(urls, shardshuffle=100, detshuffle=True).decode("rgb"),
    }[shuffled]
    theirs, ours = list(pipeline), list(from_wds(pipeline))
    order = [each["__key__"] for each in ours]
    assert order != sorted(order)
    assert sorted(order) == [f"k{i:03d}" for i in range(KEYS)]
    by_key = {each["__key__"]: plain(each) for each in theirs}
    assert {each["__key__"]: plain(each) for each in ours} == by_key
    assert order == [each["__key__"] for each in from_wds(pipeline, seed=0)]
    assert order != [each["__key__"] for each in from_wds(pipeline, seed=1)]


def test_the_fluent_methods_are_those_of_webdataset(urls: list[str]) -> None:
    ours = StreamingDataset(urls, shuffle=False).decode("rgb").to_tuple("jpg", "cls").batched(4)
    theirs = dataset(urls).decode("rgb").to_tuple("jpg", "cls").batched(4)
    assert plain(list(ours)) == plain(list(theirs))


def test_passes_are_as_long_as_they_were_told(urls: list[str]) -> None:
    base = dataset(urls).to_tuple("__key__").batched(10)
    assert [len(list(from_wds(base.compose().with_epoch(n)))) for n in (1, 3, 12)] == [1, 3, 12]
    assert len(list(from_wds(base.compose().repeat(3)))) == 15
    assert len(list(from_wds(base).with_length(17))) == 5
    assert len(from_wds(base).with_length(17)) == 17
    resampled = wds.WebDataset(urls, resampled=True).to_tuple("__key__").batched(47)
    iterator = iter(from_wds(resampled, streams=2, window=2))
    epochs = [next(iterator)[0] for _ in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_slice_of_endless_shards_is_refused(urls: list[str]) -> None:
    drawn = wds.ResampledShards(urls, nshards=5)
    for resampled in (
        wds.WebDataset(urls, resampled=True).slice(5),
        wds.DataPipeline(drawn, wds.tarfile_to_samples(), wds.slice(5)),
    ):
        with pytest.raises(DataError, match=r"use with_epoch\(n\) for passes of n items"):
            from_wds(resampled)


def test_a_pass_without_an_item_is_told(urls: list[str], caplog: pytest.LogCaptureFixture) -> None:
    nothing = wds.WebDataset(urls, select_files=lambda name: False, shardshuffle=False)
    assert list(from_wds(nothing)) == []
    assert "a pass has ended without an item" in caplog.text


def test_rsample_keeps_what_it_kept_before(urls: list[str]) -> None:
    def keys(**kw: Any) -> list[str]:
        sparse = StreamingDataset(urls, **kw).rsample(0.4).to_tuple("__key__").batched(5)
        return [key for batch in sparse for key in batch[0]]

    assert 5 < len(keys()) < 40
    assert keys() == keys(seeded=False) == keys(global_batch=5)
    assert keys() != keys(seed=1)


expander = filters.pipelinefilter(tariterators.tar_file_expander)
grouper = filters.pipelinefilter(tariterators.group_by_keys)
url_opener = tariterators.url_opener
REFUSED: dict[str, tuple[Callable[[list[str]], Any], str]] = {
    "unbatched": (lambda u: dataset(u).unbatched(), "exact=False"),
    "slice of what is kept": (
        lambda u: dataset(u).select(len).slice(10),
        r"slice\(\) after select",
    ),
    "slice of what is split": (
        lambda u: dataset(u).listed(4).unlisted().slice(9),
        r"slice\(\) after unbatched",
    ),
    "slice backwards": (lambda u: dataset(u).slice(-3), r"slice\(-3\): expected"),
    "a generator": (lambda u: dataset(u).compose(augmented), "per_sample"),
    "two batched": (lambda u: dataset(u).batched(4).batched(4), "second batched"),
    "mcached": (lambda u: dataset(u).mcached(), "decoded samples"),
    "stops": (lambda u: dataset(u).decode(handler=wds.ignore_and_stop), "ends the epoch early"),
    "own keys": (
        lambda u: wds.DataPipeline(
            wds.SimpleShardList(u),
            url_opener,
            expander(),
            grouper(keys=lambda name: name.split(".")),
        ),
        "keys= changes",
    ),
    "batches in a mixture": (
        lambda u: wds.RandomMix([dataset(u).batched(2), dataset(u)]),
        "of its own",
    ),
    "a mixture of lists": (lambda u: wds.RoundRobin([[1, 2], dataset(u)]), "cannot be converted"),
    "a loader": (lambda u: wds.WebLoader(dataset(u), batch_size=4), "this is a loader"),
    "no tars": (lambda u: wds.DataPipeline(wds.MockDataset({}, 4), wds.shuffle(3)), "no stage"),
    "unknown list": (
        lambda u: wds.DataPipeline(wds.MockDataset({}, 4), wds.tarfile_to_samples()),
        "are unknown",
    ),
    "unknown before": (
        lambda u: wds.DataPipeline(wds.SimpleShardList(u), augmented, wds.tarfile_to_samples()),
        "comes before the tars",
    ),
    "no pipeline": (lambda u: u, "expected a WebDataset"),
    "batch of none": (lambda u: dataset(u).batched(0), "at least 1"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_exact_is_refused_when_it_is_built(urls: list[str], name: str) -> None:
    pipeline, said = REFUSED[name]
    with pytest.raises(DataError, match=said):
        from_wds(pipeline(urls))


def test_stages_of_any_kind_run_without_exactness(urls: list[str]) -> None:
    pipeline = dataset(urls).decode().to_tuple("cls", "npy").batched(4).unbatched().batched(5)
    theirs, ours = list(pipeline), from_wds(pipeline, exact=False)
    assert plain(list(ours)) == plain(theirs)
    assert ours.state_dict()["position"] == KEYS
    shuffled = dataset(urls).compose(augmented).shuffle(10).to_tuple("__key__")
    found = [key for (key,) in from_wds(shuffled, exact=False)]
    assert sorted(found) == [f"k{i:03d}" for i in range(KEYS)]
    sliced = from_wds(dataset(urls).slice(10).to_tuple("__key__"), exact=False)
    assert [key for (key,) in sliced] == [f"k{i:03d}" for i in range(10)]


def test_a_stage_that_is_not_what_it_was_marked_as_is_found_out(urls: list[str]) -> None:
    def twice(source: Iterable[Any]) -> Iterator[Any]:
        for each in source:
            yield each
            yield each

    with pytest.raises(DataError, match="more than one"):
        list(StreamingDataset(urls).compose(per_sample(twice)))
