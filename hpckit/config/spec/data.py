"""The training data."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Decay, Natural, Text


@dataclass(frozen=True, config=GROUP)
class PackSpec:
    """How `data.shards` are created if they do not exist yet."""

    source: str
    """Folder of files to pack, or `stdlib` for the sources of Python's standard library."""
    suffixes: tuple[str, ...]
    """Suffixes of the files to pack; empty: all files."""
    exclude: tuple[str, ...]
    """Names or glob patterns of files and folders to leave out."""
    samples_per_shard: Count
    """Number of samples per tar."""


@dataclass(frozen=True, config=GROUP)
class ImagesSpec:
    """How images with labels are transformed for a model."""

    augment: bool
    """Whether images are randomly cropped and flipped (Szegedy et al. 2015); false: center crop."""
    label_smoothing: Decay
    """Label smoothing: probability that is spread evenly over all classes (Szegedy et al. 2016)."""


@dataclass(frozen=True, config=GROUP)
class DataSpec(EarlierAttributes, group="data"):
    """The WebDataset shards to train on (`conf/data/`)."""

    shards: Text
    """Folder of tars, glob, brace pattern `{000..012}`, one tar, or a `dataset.index`; each may be
    at a URL such as s3://. Or token files, which are read in place from a file system: a flat
    `.bin` file as of nanoGPT, Megatron's `.bin` with its `.idx` (or the name of both without the
    suffix), or a folder that `save_to_disk` of Hugging Face's datasets wrote."""
    validation: Text | None
    """Validation shards, in the form of `shards`; null: none. See `train.validate_every`."""
    text: Literal["bytes", "tokens"]
    """Content of a sample for hpckit's own training function. bytes: the text of one document, of
    which a window is used; tokens: the token ids of one document, as `hpckit data pack --tokenizer`
    writes them. Documents of tokens are packed into windows, each of which counts as one sample of
    `train.global_batch`."""
    document_mask: bool
    """Whether packed documents are masked from each other: attention does not cross documents,
    positions restart, and no token predicts the first one of the next document. It needs a mask, so
    flash attention is not available on GPUs. false: attention spans all documents of a window."""
    dtype: Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"] | None
    """Type of the tokens of a flat `.bin` file; null: uint16. Other token files have their own."""
    end_of_text: Natural | None
    """Token that ends each document of a flat `.bin` file, as 50256 of GPT-2; null: the file is cut
    into windows of `model.seq_len` + 1 tokens."""
    column: Text | None
    """Column of a Hugging Face dataset that has the tokens; null: input_ids."""
    pack: PackSpec | None
    """How to create `shards` at the first use; null: they must exist."""
    images: ImagesSpec | None
    """Transforms of images with labels; null: samples are not images."""
    prefetch: Count
    """Number of batches to read ahead."""
    threads: Natural
    """Reader threads of one rank; 0: the training process reads each batch when it needs it."""
    streams: Count
    """Number of interleaved sequences of shards. With a multiple of the number of nodes, no two
    nodes read the same shard."""
    window: Count
    """Shuffle window: number of shards per stream whose samples are shuffled together."""
    remix_every: Natural
    """Number of epochs after which shards are assigned to other streams, so that other samples meet
    in a batch. 0: a shard keeps its stream for the whole run, and so its nodes, whose caches have
    it."""
    cache: Text | None
    """Folder on each node's own disk that caches remote shards; null: they are read over the
    network in each epoch."""
    cache_gb: Natural
    """Largest size of `cache` in GB."""
    cache_local: bool | Literal["auto"]
    """Whether shards that are files are cached, too. true: all of them; auto: those on shared file
    systems such as NFS and Lustre; false: none."""
    check: Literal["auto", "content", "headers"]
    """What is verified against the index when a sample is read. content: the checksum of its bytes,
    which detects any corruption; it needs an index with checksums, which `hpckit data index --hash`
    and `hpckit data pack` write. headers: the tar headers, which detect another version of a shard.
    auto: content if the index has checksums, else headers."""
