"""The loaders of the training functions that come with hpckit."""

from __future__ import annotations

from functools import partial
from typing import Any

from data import CachePeers, DataError, Dataset, Loader, in_order, mixed, open_dataset
from data.read.sample_stream import MixedStream
from hpckit.config.mixture import SourceSize, is_packed, options_of, stages, stages_from
from hpckit.config.rules.token_files import order_options, reading_options
from hpckit.config.spec import RunSpec
from hpckit.trainer.batches.recorded_loader import RecordedLoader
from hpckit.trainer.run_loop import TrainingRun
from hpckit.trainer.validation import Measure, Validate


def open_loader(cfg: RunSpec, run: TrainingRun, **reading: Any) -> Loader:
    """Open a loader over `data.shards` or `data.mixture` that yields this rank's part of each
    global batch.

    Args:
        reading: the arguments of `data.Loader` that say how samples are transformed.
    """
    arguments = {**_rank_arguments(cfg, run), "batch_ramp": run.batch_ramp, **reading}
    if cfg.data.mixture is not None:
        return Loader(open_mixture(cfg, run.cache_peers()), **arguments)
    assert cfg.data.shards is not None  # the spec is valid
    dataset = _open_dataset(cfg, cfg.data.shards, run.cache_peers())
    loader = RecordedLoader(dataset, grow=cfg.data.grow, **order_options(cfg), **arguments)
    loader.record, loader.is_writer = run.dataset_record, run.rank == 0
    return loader


def open_mixture(cfg: RunSpec, peers: CachePeers | None = None) -> MixedStream:
    """Open the sources of `data.mixture`, and mix them as it says.

    Args:
        peers: the caches of the other nodes of the run.

    Raises:
        DataError: a source cannot be opened, or cannot be mixed with these weights.
    """
    mixture = cfg.data.mixture
    assert mixture is not None
    datasets = [
        _open_dataset(options_of(cfg, source), source.shards, peers)
        for source in mixture.sources.values()
    ]
    counts = [dataset.manifest.n_tokens for dataset in datasets]
    sizes = [
        SourceSize(len(dataset), None if tokens is None else int(tokens.sum()))
        for dataset, tokens in zip(datasets, counts, strict=True)
    ]
    try:
        first, *later = stages(cfg, sizes)
    except ValueError as error:
        raise DataError(str(error)) from error
    return mixed(
        datasets,
        first.weights,
        stages=later,
        stage_plan=partial(stages_from, cfg, sizes) if is_packed(cfg) else None,
        names=list(mixture.sources),
        block=mixture.block,
        **order_options(cfg),
    )


def build_validation(
    cfg: RunSpec, run: TrainingRun, measure: Measure, **reading: Any
) -> Validate | None:
    """Return the function that validates on the samples of `data.validation`, which returns the
    means of what `measure` returns; None if the spec has no such samples.

    The batches are as large as those of training; `reading` is as for `open_loader`.
    """
    if cfg.data.validation is None:
        return None
    dataset = _open_dataset(cfg, cfg.data.validation, run.cache_peers())
    samples = in_order(dataset, samples=cfg.train.validate_samples, seed=cfg.train.seed)

    def validate() -> dict[str, float]:
        loader = Loader(samples, tail="pad", epochs=1, **_rank_arguments(cfg, run), **reading)
        try:
            return run.evaluate(loader, measure)
        finally:
            loader.close()

    return validate


def _open_dataset(cfg: RunSpec, shards: str, peers: CachePeers | None) -> Dataset:
    return open_dataset(
        shards,
        cache=cfg.data.cache,
        cache_bytes=cfg.data.cache_gb * 10**9,
        cache_local=cfg.data.cache_local,
        check=cfg.data.check,
        peers=peers,
        **reading_options(cfg, shards),
    )


def _rank_arguments(cfg: RunSpec, run: TrainingRun) -> dict[str, Any]:
    return {
        "global_batch": run.global_batch,
        "rank": run.place.data,
        "world_size": run.place.data_size,
        "prefetch": cfg.data.prefetch,
        "threads": cfg.data.threads,
    }
