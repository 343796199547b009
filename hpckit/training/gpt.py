"""A decoder-only transformer in the form of GPT-2: pre-norm blocks, GELU, learned positions.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_STD = 0.02
"""Standard deviation of all weights at initialisation (GPT-2)."""


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (batch, time, width); the same shape comes back."""
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head width)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """One transformer block: attention, then a two-layer perceptron four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (batch, time, width); the same shape comes back."""
        x = x + self.attention(self.norm_attention(x))
        hidden = functional.gelu(self.mlp_in(self.norm_mlp(x)))
        out: Tensor = x + self.mlp_out(hidden)
        return out


class GPT(nn.Module):
    """Tokens to logits; the token embedding doubles as the output layer."""

    def __init__(self, *, vocab: int, layers: int, heads: int, width: int, seq_len: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens`: (batch, time) integers; returns logits (batch, time, vocab)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.token.weight)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fill all parameters as GPT-2 does: normal weights of `INIT_STD`, zero biases.

        The layers that write into the residual stream are scaled by 1/sqrt(2 x layers), so that
        its variance does not grow with depth. The draws come from a generator of their own: the
        same seed gives the same model, whatever ran before.
        """
        generator = torch.Generator().manual_seed(seed)
        residual = INIT_STD / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                std = residual if name.endswith(("attention.out", "mlp_out")) else INIT_STD
                module.weight.normal_(0.0, std, generator=generator)
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            if isinstance(module, nn.Linear):
                module.bias.zero_()
