"""Training as one writes it by hand, with nothing of hpckit but the module: no parallel_model, no
sharding, no clipping of its own, the whole batch at once."""

from __future__ import annotations

import math

import torch
from torch.func import functional_call
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import DecoderSpec, LoraSpec, OptimSpec, RunSpec
from hpckit.trainer.models.decoder import LORA_A, LORA_B
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import build, make, materialise
from tests.integration.trainer.test_parallel_model import STEPS, Step, batch

Tensors = dict[str, torch.Tensor]


def by_hand(spec: RunSpec) -> list[Step]:
    """(loss, gradient norm) of each step; with adapters, of weights that they are merged into."""
    size, seed = decoder_of(spec), spec.train.seed
    plain = make(size, seed)
    trained: Tensors = dict(plain.named_parameters())
    if spec.lora:
        plain.requires_grad_(False)
        adapters = drawn(size, spec.lora, seed)
        trained = {name: p.requires_grad_() for name, p in adapters.items()}
    optimizer = optimizer_of(spec.optim, trained)
    tokens = batch()
    found = []
    for _ in range(STEPS):
        weights: Tensors = dict(plain.named_parameters())
        if spec.lora:
            weights = merged(weights, trained, spec.lora.alpha / spec.lora.rank)
        logits = functional_call(plain, weights, (tokens[:, :-1],))
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), spec.optim.grad_clip or math.inf)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def optimizer_of(optim: OptimSpec, trained: Tensors) -> Optimizer:
    """torch's own, one parameter at a time; weight decay on matrices alone."""
    groups = [
        {"params": [p], "weight_decay": optim.weight_decay if p.dim() > 1 else 0.0}
        for p in trained.values()
    ]
    if optim.kind == "sgd":
        assert optim.momentum
        return SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=True, foreach=False)
    assert optim.kind == "adamw"
    assert optim.beta1 is not None
    assert optim.beta2 is not None
    assert optim.eps is not None
    betas = (optim.beta1, optim.beta2)
    return AdamW(groups, lr=optim.lr, betas=betas, eps=optim.eps, foreach=False)


def drawn(size: DecoderSpec, lora: LoraSpec, seed: int) -> Tensors:
    """Adapters as a run begins with them."""
    model = build(size)
    adapt(model, size, lora)
    materialise(model, torch.device("cpu"), seed)
    return {name: p.detach() for name, p in model.named_parameters() if is_adapter(name)}


def merged(plain: Tensors, adapters: Tensors, scale: float) -> Tensors:
    layers = [name.removesuffix(LORA_A) for name in adapters if name.endswith(LORA_A)]
    added = {f"{at}weight": adapters[f"{at}{LORA_B}"] @ adapters[f"{at}{LORA_A}"] for at in layers}
    return plain | {name: plain[name] + scale * change for name, change in added.items()}
