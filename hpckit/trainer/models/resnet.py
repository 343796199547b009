"""A residual network of bottleneck blocks, such as ResNet-50.

He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride in the 3 x 3
convolution ("v1.5") and the initial values of Goyal et al., "Accurate, Large Minibatch SGD" (2017),
section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpckit.config.spec import ResnetSpec
from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.batch_norm import BatchNorm

EXPANSION = 4
"""Ratio of the output channels of a block to its inner channels."""
HEAD_STD = 0.01
"""Standard deviation of the output layer's weights."""


class Bottleneck(nn.Module):
    """A bottleneck block, in which a 3 x 3 convolution has fewer channels than input and output,
    with a shortcut around it."""

    def __init__(self, inputs: int, inner: int, stride: int, *, sync: bool) -> None:
        """`inputs`, `inner`: number of channels; `sync`: see `BatchNorm`."""
        super().__init__()
        outputs = EXPANSION * inner
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = BatchNorm(inner, sync=sync)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.norm2 = BatchNorm(inner, sync=sync)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = BatchNorm(outputs, sync=sync)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs, sync=sync)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block for `x`, (batch, input channels, side, side), and return (batch, output
        channels, side / stride, side / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(Model):
    """A ResNet, which computes logits of classes from images."""

    def __init__(self, size: ResnetSpec) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, size.channels, 7, stride=2, padding=3, bias=False)
        self.norm = BatchNorm(size.channels, sync=size.sync_norm)
        self.blocks = nn.ModuleDict({str(n): block for n, block in enumerate(_blocks(size))})
        features = EXPANSION * size.channels * 2 ** (len(size.depths) - 1)
        self.head = nn.Linear(features, size.classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the logits (batch, classes) of `images`, (batch, 3, side, side), whether or not
        there are labels."""
        x = functional.relu(self.norm(self.stem(images)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for block in self.blocks.values():
            x = block(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out

    @torch.no_grad()
    def initialize_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Initialize a whole parameter or buffer by its name. Convolutions are normal, with a
        variance by their outputs (He et al. 2015). The last gain of each block is zero, so that the
        block starts as its shortcut."""
        if name.endswith("running_var"):
            tensor.fill_(1.0)
        elif name.endswith(("bias", "norm3.weight", "mean", "var")):
            tensor.zero_()
        elif tensor.dim() == 1:
            tensor.fill_(1.0)
        elif name == "head.weight":
            tensor.normal_(0.0, HEAD_STD, generator=generator)
        else:
            nn.init.kaiming_normal_(
                tensor, mode="fan_out", nonlinearity="relu", generator=generator
            )


def _blocks(size: ResnetSpec) -> Iterator[Bottleneck]:
    inputs = size.channels
    for stage, depth in enumerate(size.depths):
        inner = size.channels * 2**stage
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            yield Bottleneck(inputs, inner, stride, sync=size.sync_norm)
            inputs = EXPANSION * inner
