"""A vision transformer, whose tokens are patches of an image and whose features are averaged.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), in the form and with the initial values
of Beyer et al., "Better plain ViT baselines for ImageNet-1k" (2022) and its code (big_vision),
except for biases inside of blocks, which start at zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hpckit.config.spec import VitSpec
from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.gpt import GPTBlock

WAVELENGTH = 10_000.0
"""Ratio of the longest to the shortest wavelength of positions."""


class ViT(Model):
    """A vision transformer, which computes logits of classes from images."""

    def __init__(self, size: VitSpec) -> None:
        super().__init__()
        width, side = size.width, size.image_size // size.patch
        self.patches = nn.Conv2d(3, width, size.patch, stride=size.patch)
        self._side = side
        if size.positions == "learned":
            self.positions = nn.Parameter(torch.empty(side * side, width))
        else:
            self.register_buffer("positions", torch.empty(side * side, width), persistent=False)
        self.blocks = nn.ModuleDict(
            {
                str(n): GPTBlock(width, size.heads, is_causal=False, experts=None)
                for n in range(size.layers)
            }
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, size.classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the logits (batch, classes) of `images`, (batch, 3, side, side), whether or not
        there are labels."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.positions.to(x.dtype)
        for block in self.blocks.values():
            x = block(x)
        out: Tensor = self.head(self.norm(x).mean(1))
        return out

    @torch.no_grad()
    def initialize_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Initialize a whole parameter by its name. The output layer is zero, so that all classes
        are equally likely. Matrices of blocks are uniform (Glorot & Bengio 2010), and those of
        queries, keys and values are separate matrices in this."""
        if name == "positions" and isinstance(self.positions, nn.Parameter):
            tensor.normal_(0.0, tensor.shape[1] ** -0.5, generator=generator)
        elif name == "positions":
            tensor.copy_(sincos_positions(self._side, tensor.shape[1]))
        elif name.endswith(".bias") or name == "head.weight":
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1.0)
        elif name == "patches.weight":
            tensor.normal_(0.0, tensor[0].numel() ** -0.5, generator=generator)
        else:
            rows, inputs = tensor.shape
            outputs = rows // 3 if name.endswith("qkv.weight") else rows
            bound = math.sqrt(6 / (inputs + outputs))
            tensor.uniform_(-bound, bound, generator=generator)


def sincos_positions(side: int, width: int) -> Tensor:
    """Return the position embeddings of a grid, (side x side, width): sines and cosines of the
    columns, then of the rows (Vaswani et al. 2017, in two dimensions)."""
    quarter = width // 4
    rates = WAVELENGTH ** -(torch.arange(quarter) / max(1, quarter - 1))
    row, column = (
        place.flatten() for place in torch.meshgrid(*2 * [torch.arange(side)], indexing="ij")
    )
    angles = [place[:, None] * rates for place in (column, row)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
