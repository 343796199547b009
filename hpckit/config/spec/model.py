"""The models of `conf/model/`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Positive

Vocabulary = Annotated[int, Field(ge=2, lt=2**31)]
Context = Annotated[int, Field(ge=2, lt=2**31)]
Classes = Annotated[int, Field(ge=2, lt=2**31)]
Depths = Annotated[tuple[Count, ...], Field(min_length=1)]


@dataclass(frozen=True, config=GROUP)
class ExpertsSpec(EarlierAttributes, group="model.experts"):
    """A mixture of experts without dropped tokens (Shazeer et al. 2017)."""

    count: Count
    """Number of experts per block."""
    top_k: Count
    """Number of experts that each token is routed to: those with the highest scores."""
    hidden: Count | None
    """Hidden size of an expert; null: 4 x `width`, as in the MLP that experts replace."""
    balance_rate: Annotated[float, Field(ge=0)]
    """Step size of the auxiliary-loss-free load balancing (Wang et al. 2024): each step raises the
    routing bias of experts with fewer tokens than the mean, and lowers that of the others. Scores
    are between 0 and 1."""


@dataclass(frozen=True, config=GROUP)
class GptSpec:
    """A decoder-only transformer with the architecture of GPT-2."""

    kind: Literal["gpt"]
    """Architecture of the model."""
    vocab: Vocabulary
    """Vocabulary size: 257 for bytes of text; for tokens, `hpckit data pack` prints it."""
    layers: Count
    """Number of transformer blocks."""
    heads: Count
    """Number of attention heads; it must divide `width`."""
    width: Count
    """Hidden size: number of features of the residual stream."""
    seq_len: Context
    """Context length in tokens."""
    experts: ExpertsSpec | None
    """Mixture of experts in place of the MLP of each block; null: an MLP."""


@dataclass(frozen=True, config=GROUP)
class LlamaSpec:
    """A decoder-only transformer with the architecture of Llama."""

    kind: Literal["llama"]
    """Architecture of the model."""
    vocab: Vocabulary
    """Vocabulary size: 257 for bytes of text; for tokens, `hpckit data pack` prints it."""
    layers: Count
    """Number of transformer blocks."""
    heads: Count
    """Number of query heads; it must divide `width`."""
    kv_heads: Count
    """Number of key and value heads, as in grouped-query attention (Ainslie et al. 2023); it must
    divide `heads`."""
    width: Count
    """Hidden size: number of features of the residual stream."""
    hidden: Count
    """Hidden size of the MLP."""
    seq_len: Context
    """Context length in tokens."""
    rope_theta: Positive
    """Base of the rotary position embedding (Su et al. 2021)."""
    norm_eps: Positive
    """Epsilon of RMSNorm."""
    tied: bool
    """Whether the token embedding and the output layer share weights."""


@dataclass(frozen=True, config=GROUP)
class ResnetSpec:
    """A residual network of bottleneck blocks for images."""

    kind: Literal["resnet"]
    """Architecture of the model."""
    classes: Classes
    """Number of classes."""
    depths: Depths
    """Number of blocks of each stage; each stage halves the resolution and doubles the channels."""
    channels: Count
    """Channels of the stem and inside the blocks of the first stage; the output of a block has four
    times as many."""
    image_size: Count
    """Image height and width in pixels."""
    sync_norm: bool
    """Whether batch normalisation uses the statistics of all ranks (SyncBatchNorm); false: those of
    each micro-batch, so results depend on which samples are in it."""


@dataclass(frozen=True, config=GROUP)
class VitSpec:
    """A vision transformer with global average pooling over patches."""

    kind: Literal["vit"]
    """Architecture of the model."""
    classes: Classes
    """Number of classes."""
    layers: Count
    """Number of transformer blocks."""
    heads: Count
    """Number of attention heads; it must divide `width`."""
    width: Count
    """Hidden size: number of features of the residual stream."""
    patch: Count
    """Patch height and width in pixels; it must divide `image_size`."""
    image_size: Count
    """Image height and width in pixels."""
    positions: Literal["sincos", "learned"]
    """Position embedding. sincos: fixed 2D sines and cosines (Beyer et al. 2022); learned: a
    parameter (Dosovitskiy et al. 2021)."""


DecoderSpec = GptSpec | LlamaSpec
ImageSpec = ResnetSpec | VitSpec
ModelSpec = DecoderSpec | ImageSpec
MODEL_KINDS = ("gpt", "llama", "resnet", "vit")
