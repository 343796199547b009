"""Rules for models and the training functions that can train them, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.entry_points import BYTES_AND_END, IMAGES, LANGUAGE_MODEL
from hpckit.config.spec import DecoderSpec, ImageSpec, LlamaSpec, ResnetSpec, RunSpec, VitSpec


def decoder_of(spec: RunSpec) -> DecoderSpec:
    """Returns the model of a run that is known to train a decoder."""
    assert isinstance(spec.model, DecoderSpec)
    return spec.model


def model_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    yield from _trained(spec)
    match spec.model:
        case ResnetSpec():
            yield from _resnet(spec, spec.model)
        case VitSpec():
            yield from _vit(spec.model)
        case _:
            yield from _decoder(spec, spec.model)


def _trained(spec: RunSpec) -> Iterator[str]:
    """Yields violations for models that hpckit's own training functions do not accept;
    other training functions check it themselves."""
    kind, are_images = spec.model.kind, isinstance(spec.model, ImageSpec)
    if spec.entry == LANGUAGE_MODEL and are_images:
        yield f"entry: {spec.entry} trains decoders, not a {kind}; use entry={IMAGES}"
    if spec.entry == LANGUAGE_MODEL and spec.data.images is not None:
        yield f"data.images: must be null when entry={spec.entry}"
    if spec.entry == IMAGES and not are_images:
        yield f"model.kind: {spec.entry} trains resnet or vit, not {kind}"
    if spec.entry == IMAGES and spec.data.images is None:
        yield f"data.images: is required when entry={spec.entry}; use data=images"


def _decoder(spec: RunSpec, model: DecoderSpec) -> Iterator[str]:
    is_ours, of_bytes = spec.entry == LANGUAGE_MODEL, spec.data.text == "bytes"
    if is_ours and of_bytes and model.vocab < BYTES_AND_END:
        yield (
            f"model.vocab: {model.vocab} is less than the {BYTES_AND_END} tokens that text as "
            "bytes needs"
        )
    if of_bytes and not spec.data.document_mask:
        yield (
            "data.document_mask: false requires data.text=tokens, because a window of bytes is one "
            "document"
        )
    if model.width % model.heads:
        yield f"model.heads: {model.heads} heads do not divide model.width={model.width}"
    if isinstance(model, LlamaSpec) and model.heads % model.kv_heads:
        yield f"model.kv_heads: {model.kv_heads} do not divide model.heads={model.heads}"
    if isinstance(model, LlamaSpec) and model.width // model.heads % 2:
        yield (
            f"model.heads: {model.heads} heads of model.width={model.width} have "
            f"{model.width // model.heads} features each, but rotary positions need an even number"
        )


def _resnet(spec: RunSpec, model: ResnetSpec) -> Iterator[str]:
    if spec.train.micro_batch == 1 and needs_two_samples(model):
        yield (
            f"train.micro_batch: 1 sample of model.image_size={model.image_size} leaves one value "
            f"per channel to normalise; use 2 samples, or more than {_sides(model)} pixels"
        )


def needs_two_samples(model: ResnetSpec) -> bool:
    """Return whether one sample leaves one value per channel, which has no variance."""
    return model.image_size <= _sides(model)


def _sides(model: ResnetSpec) -> int:
    """Return the pixels of a side that the model makes one value of."""
    return int(2 ** (len(model.depths) + 1))  # the stem and its pooling each halve the resolution


def _vit(model: VitSpec) -> Iterator[str]:
    if model.width % model.heads:
        yield f"model.heads: {model.heads} heads do not divide model.width={model.width}"
    if model.image_size % model.patch:
        yield (
            f"model.patch: {model.patch} does not divide model.image_size={model.image_size} pixels"
        )
    if model.positions == "sincos" and model.width % 4:
        yield (
            f"model.width: {model.width} is not a multiple of 4, which sines and cosines of rows "
            "and columns require; or use model.positions=learned"
        )
