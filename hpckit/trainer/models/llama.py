"""A decoder-only transformer in the form of Llama: RMSNorm, rotary position embeddings, gated
perceptrons and grouped-query attention.

Touvron et al., "Llama 2" (2023); Grattafiori et al., "The Llama 3 Herd of Models" (2024).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpckit.config.spec import LlamaSpec
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.models.document_mask import DocumentMask, attend
from hpckit.trainer.models.unembedding import Unembedding


class LlamaAttention(nn.Module):
    """Causal self-attention in which several query heads share one key and value head."""

    def __init__(self, size: LlamaSpec) -> None:
        super().__init__()
        self.head_width, self.theta = size.width // size.heads, size.rope_theta
        shared = size.kv_heads * self.head_width
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, shared, bias=False)
        self.value = nn.Linear(size.width, shared, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        positions = torch.arange(x.shape[1], device=x.device) if mask is None else mask.positions
        cos, sin = rotary_angles(positions, self.head_width, self.theta)
        query, key = (rotate(self._heads(y), cos, sin) for y in (self.query(x), self.key(x)))
        mixed = attend(query, key, self._heads(self.value(x)), mask, enable_gqa=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (batch, time, features) to (batch, heads, time, head width)."""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)


def rotary_angles(positions: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines by which rotary position embeddings rotate pairs of features, in
    fp32. Pair i consists of the features i and i + width / 2.

    Args:
        positions: (time,) or (batch, time).

    Returns:
        Two of (1, time, width) or (batch, 1, time, width), for all heads.
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    turns = positions.float().unsqueeze(-1) * theta**-exponents
    both = torch.cat((turns, turns), dim=-1).unsqueeze(-3)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x`, (batch, heads, time, head width), with each pair of features rotated, in its
    dtype."""
    first, second = x.float().chunk(2, dim=-1)
    out = x.float() * cos + torch.cat((-second, first), dim=-1) * sin
    return out.to(x.dtype)


class LlamaMLP(nn.Module):
    """A perceptron with gated hidden features (SwiGLU, Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class LlamaBlock(nn.Module):
    """One transformer block: attention, then a perceptron."""

    def __init__(self, size: LlamaSpec) -> None:
        super().__init__()
        self.norm_attention = nn.RMSNorm(size.width, size.norm_eps)
        self.attention = LlamaAttention(size)
        self.norm_mlp = nn.RMSNorm(size.width, size.norm_eps)
        self.mlp = LlamaMLP(size.width, size.hidden)

    def forward(self, x: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        x = x + self.attention(self.norm_attention(x), mask=mask)
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class LlamaEmbedding(nn.Module):
    """The token embedding."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedding (batch, time, width) of `tokens`, (batch, time) integers."""
        out: Tensor = self.token(tokens)
        return out


class Llama(DecoderModel):
    """A Llama model, whose output layer has a weight of its own or that of the token embedding."""

    COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    ROWS = RESIDUAL = ("attention.out", "mlp.down")

    def __init__(self, size: LlamaSpec, part: LayerRange | None = None) -> None:
        """`part`: the blocks of a pipeline stage; None: the whole model."""
        part = part or LayerRange.whole(size.layers)
        super().__init__(part, (LlamaBlock(size) for _ in range(part.begin, part.end)))
        self._is_tied = size.tied
        if part.is_first or (part.is_last and size.tied):
            self.embedding = LlamaEmbedding(size.vocab, size.width)
        if part.is_last:
            self.norm = nn.RMSNorm(size.width, size.norm_eps)
            self.unembedding = Unembedding()
            if not self._is_tied:
                self.output = nn.Linear(size.width, size.vocab, bias=False)

    @property
    def tied(self) -> Tensor | None:
        return self.embedding.token.weight if self._is_tied else None

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        out: Tensor = self.embedding(tokens)
        return out

    def predict(self, x: Tensor, targets: Tensor | None) -> Tensor:
        layer = self.embedding.token if self._is_tied else self.output
        out: Tensor = self.unembedding(self.norm(x), layer.weight, targets)
        return out
