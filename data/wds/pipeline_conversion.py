"""Conversion of an existing webdataset pipeline, whose source is replaced by that of `data`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import webdataset
from webdataset import cache, compat, filters, mix, shardlists, tariterators
from webdataset.pytorch import DataLoader

from data.errors import PipelineError
from data.index.shard_listing import Shards
from data.wds.dataset import StreamingDataset
from data.wds.pipeline_source import PartOfMixture, ShardMixture
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
from data.wds.streaming_options import StreamingOptions

_SPLIT = (shardlists.split_by_node, shardlists.split_by_worker, shardlists.single_node_only)
_OPENERS = (cache.StreamingOpen, cache.FileCache)
_RESAMPLED = shardlists.resampled_
_MIX_BLOCK = 1024  # positions of which each dataset of a mixture gets its share
_CHECKS = (compat.check_empty, shardlists.non_empty)


def from_wds(
    pipeline: webdataset.DataPipeline | mix.RandomMix | mix.RoundRobin, **options: Any
) -> StreamingDataset:
    """Convert a `wds.WebDataset`, `wds.DataPipeline` or mixture of them to a dataset with the
    source of `data` and the pipeline's own stages.

    Shard lists, splitters, shuffles of shards, resampling, openers, caches, and the stages that
    expand and group tars are replaced; so is `with_epoch`, which counts on each rank here and not
    in each worker. The pipeline is not changed, and samples are decoded as it decodes them. The
    order is shuffled if the pipeline had any shuffle, and is that of the shards if it had none.

    A `RandomMix` or `RoundRobin` of pipelines, or a pipeline that begins with one, becomes an
    endless mixture by the same weights, in which each dataset keeps its stages.

    Args:
        options: as of `StreamingDataset`, and `shards` for other addresses, such as a manifest,
            than those in the pipeline.

    Raises PipelineError for a pipeline that cannot be converted, and for stages that an exact one
    does not allow.
    """
    if isinstance(pipeline, mix.RandomMix | mix.RoundRobin):
        pipeline = webdataset.DataPipeline(pipeline)
    if not isinstance(pipeline, webdataset.DataPipeline):
        raise PipelineError(f"expected a WebDataset or DataPipeline, got {type(pipeline).__name__}")
    stages = list(pipeline.pipeline)
    if stages and isinstance(stages[0], mix.RandomMix | mix.RoundRobin):
        return _from_mix(pipeline, options)
    source = _source_of(pipeline, options)
    given = {**source.given, "shuffle": source.given.get("shuffle", source.shuffles)}
    dataset = StreamingDataset(source.shards, **given).compose(*source.stages)
    return _passes(dataset, pipeline, source.draws)


def _from_mix(pipeline: webdataset.DataPipeline, options: dict[str, Any]) -> StreamingDataset:
    """Convert a pipeline that begins with a mixture."""
    first, *rest = pipeline.pipeline
    if "shards" in options:
        raise PipelineError("shards= is for one dataset: a mixture has those of its pipelines")
    weights = getattr(first, "probs", None) or [1] * len(first.datasets)
    if len(weights) != len(first.datasets):
        raise PipelineError(f"{len(first.datasets)} datasets, but {len(weights)} probs")
    shuffles = any(_shuffles(stage) for stage in rest)
    sources = [_source_of(_pipeline_in_mix(one), options) for one in first.datasets]
    if all(source.given.get("read_errors") for source in sources):
        options = {"read_errors": "skip", **options}
    whole = StreamingOptions(**options)
    own = [
        PartOfMixture(
            source.shards,
            replace(
                whole,
                shuffle=options.get("shuffle", shuffles or source.shuffles),
                rename_files=source.given.get("rename_files"),
                repeated_shards=source.given.get("repeated_shards", "raise"),
            ),
        )
        for source in sources
    ]
    block = len(own) if isinstance(first, mix.RoundRobin) else _MIX_BLOCK
    note(
        f"{type(first).__name__} is replaced by an endless mixture by the same weights: it does not"
        " end with a dataset, and each dataset begins its next epoch where one ends"
    )
    mixture = ShardMixture(tuple(own), tuple(float(weight) for weight in weights), block)
    dataset = StreamingDataset.of_mixture(
        mixture, whole, tuple(tuple(source.stages) for source in sources)
    )
    rest = [stage for stage in rest if stage not in _CHECKS]
    return _passes(dataset.compose(*rest), pipeline, sys.maxsize)


def _pipeline_in_mix(pipeline: Any) -> webdataset.DataPipeline:
    if isinstance(pipeline, webdataset.DataPipeline):
        return pipeline
    raise PipelineError(
        f"a mixture of {type(pipeline).__name__} cannot be converted: each of its datasets has to "
        "be a WebDataset or DataPipeline"
    )


@dataclass
class _Source:
    """A pipeline's shards, the options that follow from how it reads them, and its other stages."""

    shards: Shards
    given: dict[str, Any]
    stages: list[Stage]
    shuffles: bool
    draws: Fraction | int | None
    """The epochs of a pass that draws shards with replacement, `sys.maxsize` if it never ends;
    None if it does not."""


def _source_of(pipeline: webdataset.DataPipeline, options: dict[str, Any]) -> _Source:
    stages = list(pipeline.pipeline)
    if stages and isinstance(stages[0], DataLoader):
        raise PipelineError(
            "this is a loader: give its dataset, and use data.wds.WebLoader over it"
        )
    end = _source_end(stages)
    source, rest = stages[:end], stages[end:]
    given = dict(options)
    shards = given.pop("shards", None)
    if shards is None:
        shards = _urls(source)
        if len(set(shards)) < len(shards):
            given.setdefault("repeated_shards", "keep")
            note("shards that are given several times are read as often in each epoch")
    selects = [_replacement(stage, given) for stage in source[1:]]
    return _Source(
        shards,
        given,
        [each for each in (*selects, *rest) if each is not None and each not in _CHECKS],
        any(_shuffles(stage) for stage in stages),
        _draws(source),
    )


def _draws(source: Sequence[Stage]) -> Fraction | int | None:
    """Return the epochs that as many shards are as a pass draws with replacement."""
    first = source[0]
    drawn = [
        arguments(stage)["n"]
        for stage in source
        if getattr(stage, "f", None) is shardlists.resampled_
    ]
    if isinstance(first, shardlists.ResampledShards):
        drawn.append(first.nshards)
    if not drawn:
        return None
    urls = _urls(source)
    return sys.maxsize if drawn[-1] == sys.maxsize else Fraction(drawn[-1], len(urls))


def _source_end(stages: Sequence[Stage]) -> int:
    """Return how many stages are the source: up to the one that makes samples of files."""
    for number, stage in enumerate(stages, start=1):
        function = getattr(stage, "f", None)
        if function in (tariterators.group_by_keys, tariterators.tarfile_samples):
            return number
        if stage is tariterators.tarfile_samples or stage is tariterators.group_by_keys:
            return number
    raise PipelineError(
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
        raise PipelineError(
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

    Raises PipelineError if its effect would be lost.
    """
    function = getattr(stage, "f", stage)
    if isinstance(stage, _OPENERS):
        if isinstance(stage, cache.FileCache):
            note("webdataset's cache is replaced: give cache= and cache_bytes=")
        _set_read_errors(stage.handler, given)
    elif kind_of(stage) is StageKind.NOTHING or function in (*_SPLIT, *_CHECKS, _RESAMPLED):
        pass
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
        raise PipelineError(
            f"{describe_stage(stage)} comes before the tars are read, which is replaced here: "
            "leave it out, or give its shards as from_wds(pipeline, shards=...)"
        )
    return None


def _replace_tar_stage(stage: Stage, given: dict[str, Any]) -> Stage | None:
    found = arguments(stage)
    usual = {"keys": tariterators.base_plus_ext, "lcase": True}
    for name, value in usual.items():
        if found.get(name, value) is not value:
            raise PipelineError(
                f"{name}= changes which files make a sample, which the index decides here: use "
                "rename_files"
            )
    if found.get("rename_files") is not None:
        given.setdefault("rename_files", found["rename_files"])
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
    if isinstance(stage, shardlists.ResampledShards) or getattr(stage, "f", None) is _RESAMPLED:
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
    except PipelineError:
        return None


def _passes(
    dataset: StreamingDataset, pipeline: webdataset.DataPipeline, draws: Fraction | int | None
) -> StreamingDataset:
    repetitions, items = pipeline.repetitions, pipeline.nsamples
    items = items if repetitions != 1 else -1
    if draws is not None and dataset.pipeline.settings.plan.slices:
        raise PipelineError(
            "slice() of resampled shards ends a pass in webdataset, but counts the samples of each "
            "epoch in a StreamingDataset: use with_epoch(n) for passes of n items"
        )
    if draws is not None and items <= 0:
        if draws == sys.maxsize or repetitions == sys.maxsize:
            note("resampling is replaced by an endless order in which no sample is left out")
            return dataset.repeat()
        note(
            f"resampling is replaced by passes of {float(draws * repetitions):g} epochs, in an "
            "order in which no sample is left out"
        )
        return dataset.with_epochs(Fraction(draws) * repetitions)
    if repetitions == sys.maxsize:
        return dataset.with_epoch(items) if items > 0 else dataset.repeat()
    return dataset.repeat(repetitions, items) if repetitions > 1 else dataset
