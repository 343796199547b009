"""Memory of a GPU that trains an image model, by category, from its blocks, which differ in size.

It is counted tensor by tensor, as autograd keeps them: batch normalisation keeps its input, and the
following layers keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from hpckit.config.parallel_degrees import degrees, gathers_layers
from hpckit.config.spec import GptSpec, ImageSpec, ResnetSpec, RunSpec, VitSpec
from hpckit.planner.memory.memory_footprint import (
    BYTES,
    FsdpBuffers,
    MemoryUse,
    kept_by_optimizer,
    micro_batches,
    wrapping,
)
from hpckit.planner.model.activations import ActivationBatch, gradients_of_block, of_block, of_input
from hpckit.planner.model.image_layers import ConvolutionLayer, blocks, patches_of, stem
from hpckit.planner.model.parameter_shapes import ParameterShape, block, elements

_FP32 = 4
_INDEX = 8  # bytes of the index of a maximum


@dataclass(frozen=True)
class _Part:
    """A block, with the bytes for a micro-batch."""

    parameters: list[ParameterShape]
    kept: int
    """Bytes kept for the backward pass."""
    taken: int
    """Bytes that are kept with recompute: its input, or that of the next one."""
    widest: int
    """Gradients of activations at their largest."""
    again: int = 0
    """Further gradients at the end of recompute."""


@dataclass(frozen=True)
class _Ends:
    """All layers beside the blocks, in the same numbers."""

    parameters: list[ParameterShape]
    head: list[ParameterShape]
    """The parameters behind the blocks, whose gradients wait for the others."""
    kept: int
    gone: int
    """Kept bytes that are freed before blocks run backward."""


def checkpoint_numbers(spec: RunSpec, model: ImageSpec) -> int:
    """Return the number of parameters, of the optimizer's values for them, and of running
    moments."""
    ends, inside = _parts(model, ActivationBatch(1, _FP32, 1))
    kept = kept_by_optimizer(spec, ends.parameters)
    kept += kept_by_optimizer(spec, _all(inside), are_inside=isinstance(model, VitSpec))
    return elements(ends.parameters) + elements(_all(inside)) + kept + _running(model)


def moments_of_images(spec: RunSpec, model: ImageSpec, world: int) -> dict[str, MemoryUse]:
    """Return the memory of any of `world` ranks by moment, as of `MemoryFootprint`."""
    found = degrees(spec.parallel, world)
    count, samples = micro_batches(spec, world)
    compute, master = BYTES[spec.precision.compute], BYTES[spec.precision.master]
    gathers = gathers_layers(spec.parallel.zero, found) and found.shard > 1
    fsdp = wrapping(spec, world, gathers_layers=gathers)
    ends, inside = _parts(
        model, ActivationBatch(samples, compute, 1, is_plain=spec.memory.attention == "math")
    )
    shard, everything = found.shard, [*ends.parameters, *_all(inside)]
    mine, whole = elements(everything, shard=shard), elements(everything)
    kept = kept_by_optimizer(spec, ends.parameters, shard=shard)
    kept += kept_by_optimizer(
        spec, _all(inside), shard=shard, are_inside=isinstance(model, VitSpec)
    )
    accumulated = 0
    if count > 1:
        is_whole = spec.parallel.no_sync
        accumulated = BYTES[spec.precision.reduce] * whole if is_whole else master * mine
    logits = samples * model.classes * _FP32
    reduced = MemoryUse(
        parameters=master * mine,
        gathered=fsdp.copy * elements(ends.parameters if fsdp.gathers_layers else everything),
        gradients=master * mine,
        optimizer=master * kept,
        activations=0,
        logits=0,
        buffers=elements(ends.parameters) * fsdp.reducing,
    )
    loss = replace(
        reduced,
        gathered=reduced.gathered + fsdp.layer * elements(inside[-1].parameters),
        gradients=accumulated,
        activations=ends.kept + sum(_left(spec, part) for part in inside),
        logits=3 * logits,
        buffers=0,
    )
    backward = [_backward(spec, loss, ends, inside, n, shard, fsdp) for n in range(len(inside))]
    optimizer = replace(reduced, gathered=0, buffers=_optimizer_buffers(spec, master * mine))
    return {
        "loss": loss,
        "backward": max(backward, key=lambda memory: memory.total),
        "reduced": reduced,
        "optimizer": optimizer,
    }


def kept_by_images(model: ImageSpec, batch: ActivationBatch) -> int:
    """Return the bytes that all blocks keep of a micro-batch."""
    return sum(part.kept for part in _parts(model, batch)[1])


def _backward(
    spec: RunSpec,
    loss: MemoryUse,
    ends: _Ends,
    inside: list[_Part],
    number: int,
    shard: int,
    fsdp: FsdpBuffers,
) -> MemoryUse:
    """Return the memory when the block of that number runs backward: those behind it have left
    gradients, of which the newest are in transit, and the one before it is prefetched."""
    here, behind = inside[number], inside[number + 1 :]
    ahead = [one for part in inside[max(0, number - 1) : number + 1] for one in part.parameters]
    alone = ends.parameters if fsdp.gathers_layers else [*ends.parameters, *_all(inside)]
    # if all ranks have copies, a gradient is reduced in place
    settled = behind[1:] if shard == 1 and fsdp.reducing else behind
    done = BYTES[spec.precision.master] * elements(_all(settled), shard=shard)
    if loss.gradients:  # accumulated whole until they are reduced, or here
        is_whole = spec.parallel.no_sync
        done -= BYTES[spec.precision.reduce] * elements(_all(behind)) if is_whole else done
    moving = behind[0].parameters if behind else []
    return replace(
        loss,
        gathered=fsdp.copy * elements(alone) + fsdp.layer * elements(ahead),
        gradients=loss.gradients + done,
        activations=ends.kept
        - ends.gone
        + sum(_left(spec, part) for part in inside[:number])
        + here.kept
        + here.widest
        + (0 if spec.memory.activation_checkpointing == "none" else here.again),
        logits=0,
        buffers=fsdp.reducing * elements(moving) + fsdp.copy * elements(ends.head),
    )


def _left(spec: RunSpec, part: _Part) -> int:
    """Return the bytes that a block keeps."""
    return part.kept if spec.memory.activation_checkpointing == "none" else part.taken


def _optimizer_buffers(spec: RunSpec, gradients: int) -> int:
    """Return the bytes that the optimizer computes with, as of decoders."""
    return 0 if spec.optim.kind == "adamw" else gradients


def _parts(model: ImageSpec, batch: ActivationBatch) -> tuple[_Ends, list[_Part]]:
    """Return the layers beside the blocks, and the blocks, in the order of the forward pass."""
    image = batch.samples * 3 * model.image_size**2
    if isinstance(model, VitSpec):
        return _vit(model, batch, image * batch.size)
    return _resnet(model, batch, image * batch.size)


def _vit(model: VitSpec, batch: ActivationBatch, image: int) -> tuple[_Ends, list[_Part]]:
    """Return the parts of a ViT, whose blocks are those of GPT-2."""
    places, width = (model.image_size // model.patch) ** 2, model.width
    like = GptSpec("gpt", model.classes, model.layers, model.heads, width, places, None)
    vector, table = ParameterShape((width,)), ParameterShape((places, width))
    beside = [ParameterShape((width, patches_of(model) // width)), vector, vector, vector]
    beside += [table] if model.positions == "learned" else []
    head = [ParameterShape((model.classes, width)), ParameterShape((model.classes,))]
    taken = of_input(like, batch)
    ends = _Ends([*beside, *head], head, kept=image + taken, gone=taken)
    one = _Part(block(like), of_block(like, batch), taken, gradients_of_block(like, batch))
    return ends, [one] * model.layers


def _resnet(model: ResnetSpec, batch: ActivationBatch, image: int) -> tuple[_Ends, list[_Part]]:
    size, first = batch.samples * batch.size, stem(model)
    given = first.given * first.places
    pooled = first.given * (-(-model.image_size // 4)) ** 2
    kept = image + size * (2 * given + pooled) + batch.samples * _INDEX * pooled
    found = []
    for convolutions in blocks(model):
        out = convolutions[2].given * convolutions[2].places
        # the output of each convolution, and of all but the shortcut's also its positive part
        numbers = sum(c.given * c.places for c in (*convolutions, *convolutions[:3]))
        # input and output of the last sum are kept until the positive part of the output exists
        again = size * out if len(convolutions) > 3 else 0
        parameters = _of_layers(convolutions)
        found.append(_Part(parameters, size * numbers, size * out, 2 * size * out, again))
    features = found[-1].parameters[-1].shape[0]
    head = [ParameterShape((model.classes, features)), ParameterShape((model.classes,))]
    return _Ends([*_of_layers([first]), *head], head, kept, gone=0), found


def _of_layers(convolutions: Iterable[ConvolutionLayer]) -> list[ParameterShape]:
    """Return weights, and the gain and bias behind them."""
    return [
        one
        for layer in convolutions
        for one in (
            ParameterShape((layer.given, layer.weights // layer.given)),
            *2 * [ParameterShape((layer.given,))],
        )
    ]


def _running(model: ImageSpec) -> int:
    """Return the number of running means and variances."""
    if isinstance(model, VitSpec):
        return 0
    return 2 * sum(layer.given for layer in chain([stem(model)], *blocks(model)))


def _all(parts: Iterable[_Part]) -> list[ParameterShape]:
    return [one for part in parts for one in part.parameters]
