"""What a run trains on."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Decay, Natural, Text


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
class ImagesSpec:
    """What becomes of images with labels before a model sees them."""

    augment: bool
    """Whether each is cut out at random and may be mirrored (Szegedy et al. 2015); false: its
    middle is taken."""
    label_smoothing: Decay
    """Share of a label that all classes have in common (Szegedy et al. 2016)."""


@dataclass(frozen=True, config=GROUP)
class DataSpec:
    """The WebDataset shards to train on (`conf/data/`)."""

    shards: Text
    """Folder of tars, glob, brace pattern `{000..012}`, one tar, or a `dataset.index`; also at URLs
    such as s3://."""
    validation: Text | None
    """Shards as `shards`, which nothing is trained on; null: none. See `train.validate_every`."""
    text: Literal["bytes", "tokens"]
    """What hpckit's own training function takes a sample for. bytes: one document, of which it is
    given a window; tokens: a document of numbers, as `hpckit data pack --tokenizer` makes them,
    packed with others into windows, of which each is one sample of `train.global_batch`."""
    boundaries: bool
    """Nothing looks beyond its document: attention ends there, positions begin anew and no token
    predicts the first one of the next; needs a mask, so not flash attention on a GPU. false: the
    documents of a window follow one another."""
    pack: PackSpec | None
    """Pack `shards` on first use; null where they must be there already."""
    images: ImagesSpec | None
    """Samples are images with labels; null: they are not."""
    prefetch: Count
    """Batches read ahead."""
    threads: Natural
    """Reader threads of one rank; 0: the trainer reads each batch itself when it asks for it."""
    streams: Count
    """Sequences of shards that take turns; a multiple of the nodes keeps their shards apart."""
    window: Count
    """Shards of each stream whose samples are shuffled with one another."""
    cache: Text | None
    """Folder on each node's own disk for shards that are not files there; null: they are read over
    the network, over and over."""
    cache_gb: Natural
    """The most that `cache` may hold, in GB."""
    cache_local: bool | Literal["auto"]
    """Whether `cache` is for shards that are files, too. true: all; auto: those on file systems
    that machines share, such as NFS and Lustre; false: files are read where they lie."""
    check: Literal["auto", "content", "headers"]
    """What of each sample is compared with the index as it is read. content: its very bytes, so
    that anything which a disk has changed since is found; needs an index made with `--hash`, as
    that of shards is which hpckit wrote. headers: the tar headers, which tells another shard or
    version. auto: the bytes, where the index has their checksums."""
