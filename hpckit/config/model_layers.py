"""The linear layers in a block of a model, by name, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpckit.config.spec import DecoderSpec, GptSpec, LoraSpec


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer with a weight of shape (outputs, inputs)."""

    outputs: int
    inputs: int
    divided: Literal[0, 1]
    """The dimension of the weight that tensor parallelism shards."""


def layers(model: DecoderSpec) -> dict[str, LinearLayer]:
    """Returns the layers of a block."""
    width = model.width
    if isinstance(model, GptSpec):
        return {
            "attention.qkv": LinearLayer(3 * width, width, 0),
            "attention.out": LinearLayer(width, width, 1),
            "mlp.up": LinearLayer(4 * width, width, 0),
            "mlp.down": LinearLayer(width, 4 * width, 1),
        }
    keys, hidden = width // model.heads * model.kv_heads, model.hidden
    return {
        "attention.query": LinearLayer(width, width, 0),
        "attention.key": LinearLayer(keys, width, 0),
        "attention.value": LinearLayer(keys, width, 0),
        "attention.out": LinearLayer(width, width, 1),
        "mlp.gate": LinearLayer(hidden, width, 0),
        "mlp.up": LinearLayer(hidden, width, 0),
        "mlp.down": LinearLayer(width, hidden, 1),
    }


def adapted(model: DecoderSpec, lora: LoraSpec) -> dict[str, LinearLayer]:
    """Returns the layers that have adapters."""
    return {
        name: layer
        for name, layer in layers(model).items()
        if any(is_meant(name, asked) for asked in lora.target_modules)
    }


def is_meant(name: str, asked: str) -> bool:
    """Returns whether `asked` is the name of a layer, or a dotted prefix of it."""
    return f"{name}.".startswith(f"{asked}.")
