"""Parameters and floating-point operations of image models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpckit.config.spec import ImageSpec, ResnetSpec, VitSpec
from hpckit.planner.model.activations import Recompute

_COLOURS, _EXPANSION = 3, 4
_STEM, _MIDDLE = 7, 3  # sides of kernels


@dataclass(frozen=True)
class ConvolutionLayer:
    """A convolution without a bias; a matrix product is a convolution at a single place."""

    weights: int
    given: int
    """Number of output channels, each followed by a gain and a bias."""
    places: int
    """Number of places at which it computes."""

    @property
    def flops(self) -> int:
        """Return the operations of a sample, forward."""
        return 2 * self.weights * self.places


def per_sample(model: ImageSpec) -> int:
    """Return the operations of a sample, forward and backward, in convolutions, matrix products and
    attention: the backward pass takes twice those of forward, except for the first layer, whose
    input has no gradient."""
    forward, first = _resnet_flops(model) if isinstance(model, ResnetSpec) else _vit_flops(model)
    return 3 * forward - first


def computed_per_sample(model: ImageSpec, recompute: Recompute) -> int:
    """Return the operations that a GPU executes: with `recompute`, some or all of a block runs
    forward twice."""
    forward, first = _resnet_flops(model) if isinstance(model, ResnetSpec) else _vit_flops(model)
    again = {"none": 0, "selective": 0, "full": forward - first}[recompute]
    if recompute == "selective" and isinstance(model, VitSpec):
        again = 2 * model.layers * _places(model) * 5 * model.width**2  # out and down
    return per_sample(model) + again


def parameter_count(model: ImageSpec) -> int:
    """Return the number of all parameters."""
    if isinstance(model, ResnetSpec):
        *convolutions, head = layers(model)
        return sum(c.weights + 2 * c.given for c in convolutions) + head.weights + head.given
    width, places = model.width, _places(model)
    blocks = model.layers * (12 * width * width + 13 * width)
    positions = places * width if model.positions == "learned" else 0
    ends = patches_of(model) + width + 2 * width + model.classes * (width + 1)
    return blocks + positions + ends


def layers(model: ResnetSpec) -> Iterator[ConvolutionLayer]:
    """Yield the layers from the stem to the output layer."""
    yield stem(model)
    for block in blocks(model):
        yield from block
    features = _EXPANSION * model.channels * 2 ** (len(model.depths) - 1)
    yield _convolution(features, model.classes, 1, 1)


def stem(model: ResnetSpec) -> ConvolutionLayer:
    """Return the first convolution; its output is pooled to half a side."""
    return _convolution(_COLOURS, model.channels, _STEM, -(-model.image_size // 2))


def blocks(model: ResnetSpec) -> Iterator[list[ConvolutionLayer]]:
    """Yield the blocks: three convolutions each, and one of the shortcut where that has one."""
    side, taken = -(-model.image_size // 4), model.channels
    for stage, depth in enumerate(model.depths):
        inner = model.channels * 2**stage
        for number in range(depth):
            before = side
            if stage > 0 and number == 0:
                side = -(-side // 2)
            found = [
                _convolution(taken, inner, 1, before),
                _convolution(inner, inner, _MIDDLE, side),
                _convolution(inner, _EXPANSION * inner, 1, side),
            ]
            if number == 0 and (side != before or taken != _EXPANSION * inner or stage > 0):
                found.append(_convolution(taken, _EXPANSION * inner, 1, side))
            yield found
            taken = _EXPANSION * inner


def _convolution(taken: int, given: int, kernel: int, side: int) -> ConvolutionLayer:
    return ConvolutionLayer(taken * given * kernel**2, given, side**2)


def _resnet_flops(model: ResnetSpec) -> tuple[int, int]:
    """Return the operations of all layers, and of the first, forward."""
    found = [layer.flops for layer in layers(model)]
    return sum(found), found[0]


def _vit_flops(model: VitSpec) -> tuple[int, int]:
    places, width = _places(model), model.width
    first = 2 * places * patches_of(model)
    block = 2 * places * 12 * width * width + 4 * places * places * width
    return first + model.layers * block + 2 * width * model.classes, first


def _places(model: VitSpec) -> int:
    return int(model.image_size // model.patch) ** 2


def patches_of(model: VitSpec) -> int:
    """Return the number of weights of the first layer."""
    return _COLOURS * model.patch**2 * model.width
