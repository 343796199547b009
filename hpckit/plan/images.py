"""Parameters and floating-point operations of models of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpckit.run.spec import ImageSpec, ResnetSpec, VitSpec

_COLOURS, _EXPANSION = 3, 4
_STEM, _MIDDLE = 7, 3  # sides of kernels


@dataclass(frozen=True)
class Layer:
    """A convolution without a bias; a matrix product is one of a single place."""

    weights: int
    given: int
    """Channels, each with a gain and a bias behind it."""
    places: int
    """At which it computes."""

    @property
    def flops(self) -> int:
        """Forward, a sample."""
        return 2 * self.weights * self.places


def per_sample(model: ImageSpec) -> int:
    """Forward and backward, a sample, of convolutions, matrix products and attention: the backward
    pass takes twice what forward does, but for the first layer, whose input has no gradient."""
    forward, first = _resnet_flops(model) if isinstance(model, ResnetSpec) else _vit_flops(model)
    return 3 * forward - first


def parameter_count(model: ImageSpec) -> int:
    """All."""
    if isinstance(model, ResnetSpec):
        *convolutions, head = layers(model)
        return sum(c.weights + 2 * c.given for c in convolutions) + head.weights + head.given
    width, places = model.width, (model.image_size // model.patch) ** 2
    blocks = model.layers * (12 * width * width + 13 * width)
    positions = places * width if model.positions == "learned" else 0
    ends = _patches(model) + width + 2 * width + model.classes * (width + 1)
    return blocks + positions + ends


def layers(model: ResnetSpec) -> Iterator[Layer]:
    """From the stem to the output layer."""
    side = -(-model.image_size // 2)
    yield _convolution(_COLOURS, model.channels, _STEM, side)
    side, taken = -(-side // 2), model.channels
    for stage, depth in enumerate(model.depths):
        inner = model.channels * 2**stage
        for number in range(depth):
            before = side
            if stage > 0 and number == 0:
                side = -(-side // 2)
            yield _convolution(taken, inner, 1, before)
            yield _convolution(inner, inner, _MIDDLE, side)
            yield _convolution(inner, _EXPANSION * inner, 1, side)
            if number == 0 and (side != before or taken != _EXPANSION * inner or stage > 0):
                yield _convolution(taken, _EXPANSION * inner, 1, side)
            taken = _EXPANSION * inner
    yield _convolution(taken, model.classes, 1, 1)


def _convolution(taken: int, given: int, kernel: int, side: int) -> Layer:
    return Layer(taken * given * kernel**2, given, side**2)


def _resnet_flops(model: ResnetSpec) -> tuple[int, int]:
    """Of all layers, and of the first, forward."""
    found = [layer.flops for layer in layers(model)]
    return sum(found), found[0]


def _vit_flops(model: VitSpec) -> tuple[int, int]:
    places, width = (model.image_size // model.patch) ** 2, model.width
    first = 2 * places * _patches(model)
    block = 2 * places * 12 * width * width + 4 * places * places * width
    return first + model.layers * block + 2 * width * model.classes, first


def _patches(model: VitSpec) -> int:
    """Weights of the first layer."""
    return _COLOURS * model.patch**2 * model.width
