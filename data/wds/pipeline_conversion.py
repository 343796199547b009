"""Conversion of an existing webdataset pipeline, whose source is replaced by that of `data`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import webdataset
from webdataset import cache, compat, filters, shardlists, tariterators
from webdataset.pytorch import DataLoader

from data.errors import DataError
from data.wds.dataset import StreamingDataset
from data.wds.stages.stage_kinds import (
    Stage,
    StageKind,
    arguments,
    describe_stage,
    kind_of,
    per_sample,
    skips_errors,
)
from data.wds.stages.stage_plan import note

_SPLIT = (shardlists.split_by_node, shardlists.split_by_worker, shardlists.single_node_only)
_OPENERS = (cache.StreamingOpen, cache.FileCache)
_CHECKS = (compat.check_empty, shardlists.non_empty)


def from_wds(pipeline: webdataset.DataPipeline, **options: Any) -> StreamingDataset:
    """Convert a `wds.WebDataset` or `wds.DataPipeline` to a dataset with the source of `data` and
    the pipeline's own stages.

    Shard lists, splitters, shuffles of shards, resampling, openers, caches, and the stages that
    expand and group tars are replaced; so is `with_epoch`, which counts on each rank here and not
    in each worker. The pipeline is not changed, and samples are decoded as it decodes them. The
    order is shuffled if the pipeline had any shuffle, and is that of the shards if it had none.

    Args:
        options: as of `StreamingDataset`, and `shards` for other addresses, such as a manifest,
            than those in the pipeline.

    Raises DataError for a pipeline that cannot be converted, and for stages that an exact one does
    not allow.
    """
    if not isinstance(pipeline, webdataset.DataPipeline):
        raise DataError(f"expected a WebDataset or DataPipeline, got {type(pipeline).__name__}")
    stages = list(pipeline.pipeline)
    if stages and isinstance(stages[0], DataLoader):
        raise DataError("this is a loader: give its dataset, and use data.wds.WebLoader over it")
    end = _source_end(stages)
    source, rest = stages[:end], stages[end:]
    rest = [stage for stage in rest if stage not in _CHECKS]
    given = dict(options)
    shards = given.pop("shards", None)
    if shards is None:
        shards = _urls(source)
    selects = [_replacement(stage, given) for stage in source[1:]]
    given.setdefault("shuffle", any(_shuffles(stage) for stage in stages))
    dataset = StreamingDataset(shards, **given)
    dataset = dataset.compose(*(select for select in selects if select is not None), *rest)
    return _passes(dataset, pipeline, endless=isinstance(source[0], shardlists.ResampledShards))


def _source_end(stages: Sequence[Stage]) -> int:
    """Return how many stages are the source: up to the one that makes samples of files."""
    for number, stage in enumerate(stages, start=1):
        function = getattr(stage, "f", None)
        if function in (tariterators.group_by_keys, tariterators.tarfile_samples):
            return number
        if stage is tariterators.tarfile_samples or stage is tariterators.group_by_keys:
            return number
    raise DataError(
        "this pipeline has no stage that makes samples from tars, such as tarfile_to_samples():"
        " give the shards and stages to StreamingDataset(shards).compose(...)"
    )


def _urls(source: Sequence[Stage]) -> list[str]:
    first = source[0]
    if isinstance(first, shardlists.SimpleShardList | shardlists.ResampledShards):
        urls = list(first.urls)
    elif isinstance(first, list) and all(isinstance(url, str) for url in first):
        urls = first
    else:
        raise DataError(
            f"the shards of {type(first).__name__} are unknown: give them as"
            " from_wds(pipeline, shards=...), and several datasets as data.mixed(...)"
        )
    return [_address(url) for url in urls]


def _address(url: str) -> str:
    if url.startswith("file:") and not url.startswith("file://"):
        return url.removeprefix("file:")
    return url


def _replacement(stage: Stage, given: dict[str, Any]) -> Stage | None:
    """Return the stage that replaces a stage of the source; sets options that follow from it.

    Raises DataError if its effect would be lost.
    """
    function = getattr(stage, "f", stage)
    if isinstance(stage, _OPENERS):
        if isinstance(stage, cache.FileCache):
            note("webdataset's cache is replaced: give cache= and cache_bytes=")
        _set_read_errors(stage.handler, given)
    elif kind_of(stage) is StageKind.NOTHING or function in (*_SPLIT, *_CHECKS):
        pass
    elif function is shardlists.resampled_:
        raise DataError("resampled() of a list of shards is not supported: use repeat() instead")
    elif function in (
        tariterators.tar_file_expander,
        tariterators.group_by_keys,
        tariterators.tarfile_samples,
        tariterators.url_opener,
    ):
        return _replace_tar_stage(
            stage if hasattr(stage, "f") else filters.FilterFunction(stage), given
        )
    else:
        raise DataError(
            f"{describe_stage(stage)} comes before the tars are read, which is replaced here: "
            "leave it out, or give its shards as from_wds(pipeline, shards=...)"
        )
    return None


def _replace_tar_stage(stage: Stage, given: dict[str, Any]) -> Stage | None:
    found = arguments(stage)
    usual = {"keys": tariterators.base_plus_ext, "lcase": True, "rename_files": None}
    for name, value in usual.items():
        if found.get(name, value) is not value:
            raise DataError(
                f"{name}= changes which files make a sample, which the index decides here"
            )
    _set_read_errors(found.get("handler"), given)
    select, suffixes = found.get("select_files"), found.get("suffixes")
    if select is not None:
        return per_sample(_Select(select))
    return None if suffixes is None else per_sample(_Suffixes(frozenset(suffixes)))


class _Select:
    """Applies `select_files` to each file of a sample."""

    def __init__(self, select: Callable[[str], bool]) -> None:
        self._select = select

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        for sample in source:
            key = sample["__key__"]
            kept = {n: v for n, v in sample.items() if n[:2] == "__" or self._select(f"{key}.{n}")}
            if any(name[:2] != "__" for name in kept):
                yield kept


class _Suffixes:
    """Keeps the files of a sample whose extensions are in `suffixes`."""

    def __init__(self, suffixes: frozenset[str]) -> None:
        self._suffixes = suffixes

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        for sample in source:
            yield {n: v for n, v in sample.items() if n[:2] == "__" or n in self._suffixes}


def _set_read_errors(handler: Any, given: dict[str, Any]) -> None:
    """Set the option by which a source that ignored errors still skips them, but counted and
    limited."""
    if skips_errors(handler) and "errors" not in given:
        given.setdefault("read_errors", "skip")


def _shuffles(stage: Stage) -> bool:
    if isinstance(stage, shardlists.ResampledShards):
        return True
    if isinstance(stage, shardlists.SimpleShardList):
        return stage.seed is not None
    if kind_of_or_none(stage) is not StageKind.NOTHING:
        return False
    size = (
        stage.bufsize if isinstance(stage, webdataset.detshuffle) else arguments(stage)["bufsize"]
    )
    return bool(size and size > 1)


def kind_of_or_none(stage: Stage) -> StageKind | None:
    """Return the kind of an object, None if it is not a stage."""
    try:
        return kind_of(stage)
    except DataError:
        return None


def _passes(
    dataset: StreamingDataset, pipeline: webdataset.DataPipeline, *, endless: bool
) -> StreamingDataset:
    items = pipeline.nsamples if pipeline.repetitions != 1 else -1
    if endless and items <= 0:
        note("resampling is replaced by an endless order in which no sample is left out")
        return dataset.repeat()
    if pipeline.repetitions == sys.maxsize:
        return dataset.with_epoch(items) if items > 0 else dataset.repeat()
    return dataset.repeat(pipeline.repetitions, items) if pipeline.repetitions > 1 else dataset
