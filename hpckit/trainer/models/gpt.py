"""A decoder-only transformer in the form of GPT-2: pre-norm blocks, GELU, learned positions.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from hpckit.config.spec import ExpertsSpec, GptSpec
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.models.document_mask import DocumentMask, attend
from hpckit.trainer.models.mixture_of_experts import MixtureOfExperts
from hpckit.trainer.models.unembedding import Unembedding


class GPTAttention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self._is_causal = is_causal
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)  # per head: query, key and value
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        heads = self.qkv(x).view(*x.shape[:2], -1, 3, self.head_width)
        query, key, value = heads.permute(3, 0, 2, 1, 4)  # each (batch, heads, time, head width)
        mixed = attend(query, key, value, mask, is_causal=self._is_causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class GPTMLP(nn.Module):
    """A two-layer perceptron four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        out: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return out


class GPTBlock(nn.Module):
    """One transformer block: attention, then a perceptron or experts."""

    def __init__(
        self, width: int, heads: int, *, is_causal: bool, experts: ExpertsSpec | None
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = GPTAttention(width, heads, is_causal=is_causal)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = MixtureOfExperts(width, experts) if experts else GPTMLP(width)

    def forward(self, x: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        x = x + self.attention(self.norm_attention(x), mask=mask)
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class GPTEmbedding(nn.Module):
    """The embedding of tokens and their positions."""

    def __init__(self, vocab: int, seq_len: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(seq_len, width) if positions else None

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the embedding (batch, time, width) of `tokens`, (batch, time) integers."""
        assert self.position is not None
        table = self.position.weight
        if positions is None:
            places = table[: tokens.shape[1]]
        else:
            places = functional.embedding(positions, table)
        out: Tensor = self.token(tokens) + places
        return out


class GPT(DecoderModel):
    """A GPT-2 model, whose token embedding is also the output layer."""

    COLUMNS = ("attention.qkv", "mlp.up")
    ROWS = ("attention.out", "mlp.down")
    RESIDUAL = (*ROWS, "mlp.experts.down")

    def __init__(self, size: GptSpec, part: LayerRange | None = None) -> None:
        """`part`: the blocks of a pipeline stage; None: the whole model."""
        part = part or LayerRange.whole(size.layers)
        width = size.width
        blocks = (
            GPTBlock(width, size.heads, is_causal=True, experts=size.experts)
            for _ in range(part.begin, part.end)
        )
        super().__init__(part, blocks)
        if part.is_first or part.is_last:
            self.embedding = GPTEmbedding(size.vocab, size.seq_len, width, positions=part.is_first)
        if part.is_last:
            self.norm = nn.LayerNorm(width)
            self.unembedding = Unembedding()

    @property
    def tied(self) -> Tensor | None:
        return self.embedding.token.weight

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        out: Tensor = self.embedding(tokens, positions=positions)
        return out

    def predict(self, x: Tensor, targets: Tensor | None) -> Tensor:
        out: Tensor = self.unembedding(self.norm(x), self.embedding.token.weight, targets)
        return out
