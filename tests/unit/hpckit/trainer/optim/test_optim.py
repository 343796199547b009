"""The learning rate's course, what is decayed, and steps of Muon."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hpckit.config.spec import OptimSpec
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.optim import build_ema, build_optimizer, lr_factor, set_lr
from hpckit.trainer.optim.muon import Muon, orthogonalised
from tests.unit.hpckit.specs_and_processes import make_spec

VALUES: dict[str, Any] = {
    "kind": "adamw",
    "lr": 1e-3,
    "schedule": "cosine",
    "min_lr_ratio": 0.1,
    "schedule_unit": "steps",
    "warmup_steps": 10,
    "decay_ratio": None,
    "base_batch": None,
    "scale": None,
    "weight_decay": 0.2,
    "momentum": None,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "grad_clip": 1.0,
    "ema_decay": None,
}
SPEC = OptimSpec(**VALUES)
MUON = replace(SPEC, kind="muon", momentum=0.95)
SGD = replace(SPEC, kind="sgd", momentum=0.9, beta1=None, beta2=None, eps=None)
WSD = replace(SPEC, schedule="wsd", decay_ratio=0.2)


@settings(deadline=None)
@given(
    schedule=st.sampled_from(["cosine", "linear", "wsd"]),
    warmup=st.integers(0, 50),
    after=st.integers(1, 200),
    low=st.floats(0, 1, allow_nan=False),
    share=st.floats(0.01, 1),
)
def test_it_rises_to_the_peak_then_only_falls_and_never_below_its_floor(
    schedule: Any, warmup: int, after: int, low: float, share: float
) -> None:
    steps = warmup + after
    decay = min(share, after / steps) if schedule == "wsd" else None
    spec = replace(
        SPEC, schedule=schedule, warmup_steps=warmup, min_lr_ratio=low, decay_ratio=decay
    )
    factors = [lr_factor(step, spec, steps) for step in range(steps + 5)]
    rise, fall = factors[:warmup], factors[warmup:]
    assert rise == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert all(a >= b for a, b in pairwise(fall))
    assert all(low - 1e-9 <= factor <= 1 + 1e-9 for factor in fall)
    assert factors[-1] == pytest.approx(low)
    if after > 1:
        assert factors[steps - 1] == pytest.approx(low), "of the last step"
    if schedule != "wsd":
        assert fall[0] == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_half_way_down_it_is_half_way_between_peak_and_floor(schedule: Any) -> None:
    spec = replace(SPEC, schedule=schedule)
    assert lr_factor(10 + 45, spec, steps=101) == pytest.approx(0.55)


def test_a_cosine_is_flat_at_both_ends() -> None:
    begin, middle = (lr_factor(at, SPEC, 101) - lr_factor(at + 1, SPEC, 101) for at in (10, 55))
    assert begin < middle / 20


def test_what_is_stable_stays_at_the_peak_until_the_last_share_of_steps() -> None:
    factors = [lr_factor(step, WSD, steps=100) for step in range(100)]
    assert factors[10:80] == [1.0] * 70
    falls = [a - b for a, b in pairwise(factors[79:])]
    assert falls == pytest.approx([0.9 / 20] * 20), "on a line"


@settings(deadline=None)
@given(step=st.integers(10, 10**6))
def test_a_constant_one_stays_at_the_peak(step: int) -> None:
    assert lr_factor(step, replace(SPEC, schedule="constant", min_lr_ratio=None), 100) == 1.0


def parameters_by_decay(spec: OptimSpec, model: nn.Module) -> dict[str, float]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: group["weight_decay"]
        for group in build_optimizer(model, spec).param_groups
        for p in group["params"]
    }


@pytest.mark.parametrize("spec", [SPEC, MUON, SGD], ids=["adamw", "muon", "sgd"])
def test_matrices_are_decayed_and_vectors_are_not(spec: OptimSpec) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 2))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    both = nn.ModuleDict({"blocks": model, "frozen": frozen})
    assert parameters_by_decay(spec, both) == {
        f"blocks.{name}": 0.2 if p.dim() >= 2 else 0.0 for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("spec", [SPEC, MUON, SGD], ids=["adamw", "muon", "sgd"])
def test_all_groups_get_the_rate_of_the_step(spec: OptimSpec) -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), spec)
    for step in range(40):
        lr = set_lr(optimizer, spec, step, 40, scale=0.5)
        assert lr == pytest.approx(5e-4 * lr_factor(step, spec, 40))
        assert [group["lr"] for group in optimizer.param_groups] == [lr, lr]


@pytest.mark.parametrize("model", ["gpt_nano", "llama_nano"])
def test_muon_has_the_matrices_of_blocks_and_adamw_the_rest(model: str) -> None:
    from hpckit.submit.compose import compose_spec

    decoder = make(compose_spec([f"model={model}"]).model, seed=0)
    optimizer = build_optimizer(decoder, MUON)
    names = {id(p): name for name, p in decoder.named_parameters()}
    inside, *others = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert inside == {n for n, p in decoder.blocks.named_parameters("blocks") if p.dim() == 2}
    rest = set().union(*others)
    assert "embedding.token.weight" in rest
    assert rest | inside == {*names.values()}


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 99))
def test_singular_values_come_near_one(rows: int, columns: int, seed: int) -> None:
    matrix = random(seed, rows, columns)
    before = torch.linalg.svdvals(matrix)
    after = torch.linalg.svdvals(orthogonalised(matrix).float())
    large = before > 0.05 * before.norm()
    assert after[large].min() > 0.5
    assert after.max() < 1.4


def test_each_matrix_of_a_stack_counts_alone_and_nothing_stays_nothing() -> None:
    stack = torch.stack([random(1, 5, 3), 100 * random(2, 5, 3), torch.zeros(5, 3)])
    found = orthogonalised(stack)
    for matrix, one in zip(stack, found, strict=True):
        assert torch.equal(orthogonalised(matrix), one)
    assert not found[2].any()


@pytest.mark.parametrize("shape", [(16, 8), (8, 16)])
def test_its_steps_on_matrices_are_those_of_torch(shape: tuple[int, int]) -> None:
    mine, theirs = (nn.Parameter(random(0, *shape)) for _ in range(2))
    ours = Muon([{"params": [mine], "momentum": 0.9, "weight_decay": 0.1}], lr=0.02)
    reference = torch.optim.Muon(
        [theirs], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(1, 4):
        mine.grad, theirs.grad = random(step, *shape), random(step, *shape)
        ours.step()
        reference.step()  # type: ignore[no-untyped-call]
    moved = (theirs - random(0, *shape)).norm()
    assert (mine - theirs).norm() < 0.05 * moved  # which is rounding in bf16


def test_its_steps_on_all_else_are_those_of_adamw() -> None:
    mine, theirs = (nn.Linear(3, 4) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    optimizers = build_optimizer(mine, MUON), build_optimizer(theirs, SPEC)
    for step in range(3):
        for model, optimizer in zip((mine, theirs), optimizers, strict=True):
            model.weight.grad, model.bias.grad = random(step, 4, 3), random(step, 4)
            optimizer.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_sgd_steps_as_goyal_et_al_with_nesterovs_momentum() -> None:
    model = nn.Linear(2, 3)
    optimizer = build_optimizer(model, SGD)
    weight, momentum = model.weight.detach().clone(), torch.zeros(3, 2)
    for step in range(3):
        model.weight.grad, model.bias.grad = random(step, 3, 2), torch.zeros(3)
        gradient = model.weight.grad + 0.2 * weight
        momentum = 0.9 * momentum + gradient
        weight = weight - 1e-3 * (gradient + 0.9 * momentum)
        optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight)


def test_without_momentum_sgd_keeps_nothing() -> None:
    model = nn.Linear(2, 3)
    optimizer = build_optimizer(model, replace(SGD, momentum=0.0))
    model.weight.grad = random(0, 3, 2)
    optimizer.step()
    assert all(tensor is None for state in optimizer.state.values() for tensor in state.values())


def test_moments_of_normalisation_are_averaged_as_parameters_are() -> None:
    model = nn.BatchNorm2d(3)
    del model.num_batches_tracked
    ema = build_ema(model, 0.75)
    assert ema is not None
    model.get_buffer("running_mean").add_(4.0)
    ema.update()
    assert ema.state_dict().keys() == model.state_dict().keys()
    assert (ema.state_dict()["running_mean"] == 1.0).all()


def test_the_average_is_that_of_the_formula_and_comes_back() -> None:
    model = nn.Linear(2, 3)
    expected = model.weight.detach().clone()
    ema = build_ema(model, 0.75)
    assert ema is not None
    for step in range(3):
        with torch.no_grad():
            model.weight.add_(random(step, 3, 2))
        ema.update()
        expected = 0.75 * expected + 0.25 * model.weight.detach()
    assert torch.allclose(ema.state_dict()["weight"], expected)
    other = build_ema(nn.Linear(2, 3), 0.75)
    assert other is not None
    other.load_state_dict(ema.state_dict())
    assert torch.equal(other.state_dict()["weight"], ema.state_dict()["weight"])


def test_the_average_of_bf16_parameters_moves_by_a_thousandth() -> None:
    model = nn.Linear(2, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
        ema = build_ema(model, 0.999)
        assert ema is not None
        model.weight.fill_(2.0)
    for _ in range(100):
        ema.update()
    found = ema.state_dict()["weight"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((3, 2), 2 - 0.999**100))


def test_there_is_no_average_where_none_is_asked_for() -> None:
    assert build_ema(nn.Linear(2, 2), make_spec().optim.ema_decay) is None
