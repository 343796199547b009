"""The residual network: its size, its start, and that it computes what transformers' does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from hpckit.config.spec import ResnetSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.models.batch_norm import BatchNorm, BatchNormMoments
from hpckit.trainer.models.model_builder import build, make
from hpckit.trainer.models.resnet import HEAD_STD

SMALL = ResnetSpec("resnet", classes=5, depths=(1, 2), channels=8, image_size=32, sync_norm=False)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def reference(size: ResnetSpec, model: nn.Module) -> ResNetForImageClassification:
    """The same network, with the parameters and running moments of `model`."""
    channels = [4 * size.channels * 2**stage for stage in range(len(size.depths))]
    about = ResNetConfig(
        embedding_size=size.channels,
        hidden_sizes=channels,
        depths=[*size.depths],
        id2label=dict(enumerate("abcdefgh"[: size.classes])),
    )
    there = ResNetForImageClassification(about)
    state = model.state_dict()
    theirs = {name: _named_here(name, size) for name in there.state_dict() if "tracked" not in name}
    assert set(theirs.values()) == set(state)
    there.load_state_dict({name: state[ours] for name, ours in theirs.items()}, strict=False)
    return there


def _named_here(name: str, size: ResnetSpec) -> str:
    *_, kind = name.split(".")
    if name.startswith("classifier"):
        return f"head.{kind}"
    if "embedder" in name:
        return f"{'stem' if 'convolution' in name else 'norm'}.{kind}"
    found = re.search(r"stages\.(\d)\.layers\.(\d)\.(?:shortcut|layer\.(\d))\.(\w+)", name)
    assert found
    stage, number, layer, what = found.groups()
    block = f"blocks.{sum(size.depths[: int(stage)]) + int(number)}"
    if layer is None:
        return f"{block}.shortcut.{int(what == 'normalization')}.{kind}"
    return f"{block}.{'conv' if what == 'convolution' else 'norm'}{int(layer) + 1}.{kind}"


def test_resnet50_has_as_many_parameters_as_torchvisions() -> None:
    settings = ["experiment=images", "data.shards=/data", "model=resnet50"]
    model = build(compose_spec(settings).model)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


@pytest.mark.parametrize("training", [True, False])
def test_it_computes_what_transformers_does(training: bool) -> None:
    model = make(SMALL, seed=1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(0.1 * torch.rand(tensor.shape))  # no gain is zero, no moment as at first
    there = reference(SMALL, model)
    gradients = []
    for one in (model.train(training), there.train(training)):
        found = one(images())
        logits = found if isinstance(found, torch.Tensor) else found.logits
        loss = nn.functional.cross_entropy(logits, torch.arange(4))
        loss.backward()  # type: ignore[no-untyped-call]
        first = next(p for name, p in one.named_parameters() if p.shape[-1] == 7)
        gradients.append((logits, first.grad))
    (ours, our_gradient), (theirs, their_gradient) = gradients
    assert ours.std() > 0.01
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-3, atol=1e-5)


def test_it_starts_as_goyal_et_al_have_it() -> None:
    model = make(replace(SMALL, channels=32), seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm3.weight")):
            assert (parameter == 0).all(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        elif name == "head.weight":
            assert parameter.std().item() == pytest.approx(HEAD_STD, rel=0.1)
        else:
            outputs = parameter.shape[0] * parameter[0, 0].numel()
            assert parameter.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=0.1), name
    for name, buffer in model.named_buffers():
        assert (buffer == (1 if name.endswith("running_var") else 0)).all(), name


def test_a_block_begins_as_its_shortcut() -> None:
    model = make(replace(SMALL, depths=(2,)), seed=1)
    x = torch.rand(2, 32, 8, 8)
    assert torch.equal(model.blocks["1"](x), x)


def test_running_moments_are_of_fp32_whatever_the_parameters_are() -> None:
    model = build(SMALL, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}


def test_what_was_in_memory_before_does_not_become_a_moment() -> None:
    norm = BatchNorm(3, sync=False)
    assert not norm.batch_mean.any()
    assert not norm.batch_var.any()
    norm.batch_mean.fill_(float("nan"))  # as on a model that was made on the meta device
    norm.batch_var.fill_(float("inf"))
    BatchNormMoments(norm)
    norm(torch.randn(4, 3, 5, 5))
    assert norm.batch_mean.isfinite().all()
    assert norm.batch_var.isfinite().all()


def test_normalisation_is_that_of_torch() -> None:
    norm, there = BatchNorm(3, sync=False), nn.BatchNorm2d(3, momentum=1.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
        norm.bias.copy_(torch.tensor([0.0, -1.0, 3.0]))
        there.load_state_dict(norm.state_dict(), strict=False)
    x = 2 + 3 * torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(norm(x), there(x))
    torch.testing.assert_close(norm.batch_mean, there.running_mean)
    torch.testing.assert_close(norm.batch_var, there.running_var)
    assert norm(x.bfloat16()).dtype == torch.bfloat16
