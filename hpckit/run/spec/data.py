"""What a run trains on."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from hpckit.run.spec.fields import GROUP, Count, Natural, Text


@dataclass(frozen=True, config=GROUP)
class PackSpec:
    """How shards are made where there are none yet."""

    source: str
    """Folder of files to pack, or `stdlib`: the sources of Python's standard library."""
    suffixes: tuple[str, ...]
    """File name endings to take; empty takes all."""
    exclude: tuple[str, ...]
    """Names or glob patterns of files and folders to leave out."""
    samples_per_shard: Count
    """Samples of one tar."""


@dataclass(frozen=True, config=GROUP)
class DataSpec:
    """The WebDataset shards to train on (`conf/data/`)."""

    shards: Text
    """Folder of tars, glob, brace pattern `{000..012}`, one tar, or a `dataset.index`; also at URLs
    such as s3://."""
    pack: PackSpec | None
    """Pack `shards` on first use; null where they must be there already."""
    prefetch: Count
    """Batches read ahead."""
    threads: Count
    """Reader threads of one rank."""
    streams: Count
    """Sequences of shards that take turns; a multiple of the nodes keeps their shards apart."""
    window: Count
    """Shards of each stream whose samples are shuffled with one another."""
    cache: Text | None
    """Folder on each node's own disk for shards that are not files there; null: they are read over
    the network, over and over."""
    cache_gb: Natural
    """The most that `cache` may hold, in GB."""
