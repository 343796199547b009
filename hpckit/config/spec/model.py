"""The models of `conf/model/`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive

Vocabulary = Annotated[int, Field(ge=2, lt=2**31)]
Context = Annotated[int, Field(ge=2, lt=2**31)]
Classes = Annotated[int, Field(ge=2, lt=2**31)]
Depths = Annotated[tuple[Count, ...], Field(min_length=1)]


@dataclass(frozen=True, config=GROUP)
class ExpertsSpec:
    """Perceptrons of which each token goes through a few (Shazeer et al. 2017); all get theirs."""

    count: Count
    """Experts of a block."""
    per_token: Count
    """Those that a token goes through: the ones that it scores highest."""
    hidden: Count | None
    """Features inside of an expert; null: 4 x `width`, as of the perceptron they replace."""
    balance_rate: Annotated[float, Field(ge=0)]
    """By how much a step raises the bias of an expert's score that had fewer tokens than the mean,
    and lowers that of one that had more (Wang et al. 2024); scores are between 0 and 1."""


@dataclass(frozen=True, config=GROUP)
class GptSpec:
    """A decoder-only transformer in the form of GPT-2."""

    kind: Literal["gpt"]
    """Which model."""
    vocab: Vocabulary
    """Different tokens; bytes of text are 257, of tokens `hpckit data pack` tells how many."""
    layers: Count
    """Transformer blocks."""
    heads: Count
    """Attention heads; must divide `width`."""
    width: Count
    """Features of the residual stream."""
    seq_len: Context
    """Tokens of context."""
    experts: ExpertsSpec | None
    """What each block has in place of one perceptron; null: just that."""


@dataclass(frozen=True, config=GROUP)
class LlamaSpec:
    """A decoder-only transformer in the form of Llama."""

    kind: Literal["llama"]
    """Which model."""
    vocab: Vocabulary
    """Different tokens; bytes of text are 257, of tokens `hpckit data pack` tells how many."""
    layers: Count
    """Transformer blocks."""
    heads: Count
    """Attention heads of queries; must divide `width`."""
    kv_heads: Count
    """Attention heads of keys and values, each for as many of queries (Ainslie et al. 2023); must
    divide `heads`."""
    width: Count
    """Features of the residual stream."""
    hidden: Count
    """Features inside the perceptron of a block."""
    seq_len: Context
    """Tokens of context."""
    rope_theta: Positive
    """Base of the angles by which positions turn queries and keys (Su et al. 2021)."""
    norm_eps: Positive
    """What is added to the mean square that RMSNorm divides by."""
    tied: bool
    """Whether the token embedding is the output layer too."""


@dataclass(frozen=True, config=GROUP)
class ResnetSpec:
    """A residual network of bottleneck blocks for images."""

    kind: Literal["resnet"]
    """Which model."""
    classes: Classes
    """Different labels."""
    depths: Depths
    """Blocks of each stage; from one to the next, sides halve and channels double."""
    channels: Count
    """Of the stem, and inside the blocks of the first stage; a block gives four times as
    many as it has inside."""
    image_size: Count
    """Pixels of a side of an image."""
    sync_norm: bool
    """Whether batch normalisation takes the moments of all ranks' micro-batches together; false:
    of each micro-batch alone, so that results depend on which samples are in one."""


@dataclass(frozen=True, config=GROUP)
class VitSpec:
    """A vision transformer, whose features are averaged over the patches of an image."""

    kind: Literal["vit"]
    """Which model."""
    classes: Classes
    """Different labels."""
    layers: Count
    """Transformer blocks."""
    heads: Count
    """Attention heads; must divide `width`."""
    width: Count
    """Features of the residual stream."""
    patch: Count
    """Pixels of a side of a patch; must divide `image_size`."""
    image_size: Count
    """Pixels of a side of an image."""
    positions: Literal["sincos", "learned"]
    """How a patch knows its place. sincos: by fixed waves of rows and columns (Beyer et al. 2022);
    learned: by a parameter (Dosovitskiy et al. 2021)."""


DecoderSpec = GptSpec | LlamaSpec
ImageSpec = ResnetSpec | VitSpec
ModelSpec = DecoderSpec | ImageSpec
MODEL_KINDS = ("gpt", "llama", "resnet", "vit")
