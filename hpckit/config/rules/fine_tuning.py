"""Rules for the weights a run starts from, and for adapters, as pure
functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.entry_points import is_built_in
from hpckit.config.model_layers import adapted, is_meant, layers
from hpckit.config.rules.experts import experts_of
from hpckit.config.spec import DecoderSpec, ImageSpec, InitFromSpec, LoraSpec, RunSpec


def tuning_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first. What a training function
    of the user begins with, and which of its layers have adapters, is its own matter."""
    if not is_built_in(spec):
        yield from _init_from(spec.init_from) if spec.init_from is not None else ()
        return
    if isinstance(spec.model, ImageSpec):
        for key in ("init_from", "lora"):
            if getattr(spec, key) is not None:
                yield f"{key}: requires a decoder, not a {spec.model.kind}; use none"
        return
    if spec.init_from is not None:
        yield from _init_from(spec.init_from)
    if spec.lora is not None:
        yield from _lora(spec.lora, spec.model)


def _init_from(start: InitFromSpec) -> Iterator[str]:
    if start.kind == "checkpoint" and start.item is None:
        yield "init_from.item: is required when init_from.kind=checkpoint"
    if start.kind == "huggingface":
        for name in ("step", "item"):
            if getattr(start, name) is not None:
                yield f"init_from.{name}: must be null when init_from.kind=huggingface"


def _lora(lora: LoraSpec, model: DecoderSpec) -> Iterator[str]:
    if experts_of(model) is not None:
        yield (
            "lora: adapters are not supported for models with experts; use lora=none, or another "
            "model"
        )
        return
    there = layers(model)
    for asked in lora.target_modules:
        if not any(is_meant(name, asked) for name in there):
            yield (
                f"lora.target_modules: a {model.kind} has no layer {asked!r}; its layers are "
                f"{', '.join(there)}"
            )
    if not lora.target_modules:
        yield f"lora.target_modules: is empty; choose from {', '.join(there)}"
    for name, layer in adapted(model, lora).items():
        if lora.rank > (least := min(layer.outputs, layer.inputs)):
            yield f"lora.rank: {lora.rank} is more than the rank of {name} itself, {least}"
