"""The training data."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import (
    GROUP,
    Count,
    Decay,
    Natural,
    Positive,
    RunName,
    Text,
    Weight,
)

TokenType: TypeAlias = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"
]


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
class MixtureSourceSpec:
    """One dataset of a mixture."""

    shards: Text
    """Shards or token files, in the form of `data.shards`."""
    weight: Weight | None = None
    """Share of what is read, up to a factor that all sources have in common. 0: none from where the
    run resumes with it, or until a stage gives it more. Either all sources have a weight, or all a
    budget."""
    budget: Count | None = None
    """Number of tokens or samples (`unit`) that the run may take of it; budgets are its shares."""
    epochs: Positive | None = None
    """The most times that the run may read it, which is checked before it starts; null: once with a
    budget, else any number."""
    dtype: TokenType | None = None
    """As `data.dtype`, which it has by default if it is a flat file."""
    end_of_text: Natural | None = None
    """As `data.end_of_text`, which it has by default if it is a flat file."""
    column: Text | None = None
    """As `data.column`, which it has by default."""


@dataclass(frozen=True, config=GROUP)
class MixtureStageSpec:
    """Weights from some point of a run on, a stage of a curriculum."""

    step: Count | None = None
    """Number of steps after which they are used."""
    tokens: Count | None = None
    """Number of tokens, over all sources, after which they are used; null: `step` is given."""
    weights: dict[str, Weight] = field(default_factory=dict)
    """Weight of each source; those that are not named are paused."""


@dataclass(frozen=True, config=GROUP)
class MixtureSpec:
    """A mixture of datasets, in place of `data.shards`. Weights, budgets, epochs and stages can
    change, and sources can be added, when the run resumes: `hpckit resume RUN data.mixture...`."""

    sources: dict[RunName, MixtureSourceSpec]
    """The datasets, by names of your choice. Each has `shards`, as `data.shards`, and either
    `weight`, its share up to a common factor (0: paused), or `budget`, the number that the run may
    take of it; and may have `epochs`, the most times that it may be read (null: once with a budget,
    else any number), and `dtype`, `end_of_text` and `column` of its own."""
    unit: Literal["samples", "tokens"]
    """What weights and budgets are shares and numbers of."""
    stages: tuple[MixtureStageSpec, ...]
    """Curriculum: later weights, in order; before the first stage those of the sources apply. Each
    has `weights` by source (those that are not named are paused), and either `step` or `tokens`,
    after which many they are used."""
    block: Annotated[int, Field(ge=1, le=1048576)]
    """Number of samples of which each source has its exact share; a source may not have less than
    one of them. The documents of 8 such blocks are packed together."""


@dataclass(frozen=True, config=GROUP)
class DataSpec(EarlierAttributes, group="data"):
    """The WebDataset shards to train on (`conf/data/`)."""

    shards: Text | None
    """Folder of tars, glob, brace pattern `{000..012}`, one tar, or a `dataset.index`; each may be
    at a URL such as s3://. Or token files, which are read in place from a file system: a flat
    `.bin` file as of nanoGPT, Megatron's `.bin` with its `.idx` (or the name of both without the
    suffix), or a folder that `save_to_disk` of Hugging Face's datasets wrote. Or, for text=bytes
    and images, files of other formats: a folder of MDS or LitData, `.jsonl`, `.parquet`, `.arrow`
    or a folder of `save_to_disk`; and tars that are compressed (`.tar.gz`, `.tar.zst`), which are
    unpacked into `cache`. null: `mixture` has the datasets."""
    mixture: MixtureSpec | None
    """Several datasets that are mixed by weight, in place of `shards`; null: there is one."""
    identity_mixture: dict[str, Any] | None
    """The value of `data.mixture` with which the run was started, if `hpckit resume RUN` has
    changed it, or if the run is a fork. Only `resume` and `fork` set it; the run keeps its name."""
    grow: Literal["refuse", "next_epoch"]
    """What becomes of shards that were added to the dataset when a run resumes. refuse: the run
    does not continue; next_epoch: the epoch that has begun continues as it was, and they are part
    of the next one. Shards that are missing or have changed are refused in any case."""
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
    flash attention is not available on GPUs, except by memory.attention=varlen. false: attention
    spans all documents of a window."""
    balance: Literal["attention"] | None
    """How the windows of packed documents of a step are divided among ranks and micro-batches.
    attention: so that each has equally much attention to compute, the sum of the squares of the
    documents' lengths, which differs much between windows if memory.attention=varlen computes no
    more than that. null: by the shards that they come from, of which a rank then reads few."""
    dtype: TokenType | None
    """Type of the tokens of a flat `.bin` file; null: uint16. Other token files have their own."""
    end_of_text: Natural | None
    """Token that ends each document of a flat `.bin` file, as 50256 of GPT-2; null: the file is cut
    into windows of `model.seq_len` + 1 tokens."""
    column: Text | None
    """Column of a Hugging Face dataset that has the tokens; null: input_ids. With text=bytes, the
    field of the text in samples of several fields, such as lines of JSON, tables, MDS and LitData;
    null: samples have one field."""
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
    cache_peers: bool
    """Whether the nodes of the run share their caches: a shard that several nodes need is fetched
    once from its source, and they get it from each other. It needs `cache`. The nodes prove to each
    other that they belong to this generation of the run; what is sent is not encrypted. The address
    is that of `cluster.slurm.interface`, or else the one on the route to the node of rank 0, or
    HPCKIT_PEER_ADDRESS where it is set."""
    check: Literal["auto", "content", "headers"]
    """What is verified against the index when a sample is read. content: the checksum of its bytes,
    which detects any corruption; it needs an index with checksums, which `hpckit data index --hash`
    and `hpckit data pack` write. headers: the tar headers, which detect another version of a shard.
    auto: content if the index has checksums, else headers."""
