"""The loaders of a run of hpckit's own training functions."""

from __future__ import annotations

from typing import Any

from data import Dataset, Loader, in_order, open_dataset
from hpckit.config.spec import RunSpec
from hpckit.trainer.run_loop import TrainingRun
from hpckit.trainer.validation import Measure, Validate


def open_loader(cfg: RunSpec, run: TrainingRun, **reading: Any) -> Loader:
    """Over the shards of `data`, of this rank's part of each batch.

    Args:
        reading: what a `data.Loader` makes of samples, and how: as of its arguments.
    """
    return Loader(
        _opened(cfg, cfg.data.shards),
        seed=cfg.train.seed,
        streams=cfg.data.streams,
        window=cfg.data.window,
        **_of_rank(cfg, run),
        **reading,
    )


def held_out(cfg: RunSpec, run: TrainingRun, measure: Measure, **reading: Any) -> Validate | None:
    """What validates: means of what `measure` gives for the samples of `data.validation`, in steps
    as those of training; None: there are none. `reading` as of `open_loader`."""
    if cfg.data.validation is None:
        return None
    dataset = _opened(cfg, cfg.data.validation)
    samples = in_order(dataset, samples=cfg.train.validate_samples, seed=cfg.train.seed)

    def validate() -> dict[str, float]:
        loader = Loader(samples, tail="pad", epochs=1, **_of_rank(cfg, run), **reading)
        try:
            return run.evaluate(loader, measure)
        finally:
            loader.close()

    return validate


def _opened(cfg: RunSpec, shards: str) -> Dataset:
    return open_dataset(
        shards,
        cache=cfg.data.cache,
        cache_bytes=cfg.data.cache_gb * 10**9,
        cache_local=cfg.data.cache_local,
        check=cfg.data.check,
    )


def _of_rank(cfg: RunSpec, run: TrainingRun) -> dict[str, Any]:
    return {
        "global_batch": run.global_batch,
        "rank": run.place.data,
        "world_size": run.place.data_size,
        "prefetch": cfg.data.prefetch,
        "threads": cfg.data.threads,
    }
