"""Memory levers change nothing but rounding, number formats little, however a model is spread; and
state goes from each to each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from checkpointing import Checkpointer
from hpckit.config.spec import RunSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.precision.loss_scale import FIRST
from tests.effort import EFFORT, some
from tests.integration.rank_worlds import assert_same, run_world
from tests.integration.trainer.test_parallel_model import (
    BATCHES,
    DEEP,
    FOUR_STAGES,
    KINDS,
    SIZES,
    Step,
    Training,
    everything,
)

WORLD = 4
SPREAD = some(["fsdp", "pp"], ["fsdp_tp"])
SCALED = some(["fsdp_tp", "pp"], ["fsdp"])
TWO_STAGES = some(["fsdp_tp", "gpipe_ddp"], ["fsdp"])
"""For models of two layers, as they are compared with each other."""
FP32 = {
    "plain": [],
    "full": ["memory.activation_checkpointing=full"],
    "selective": ["memory.activation_checkpointing=selective", "memory.loss_chunks=3"],
}
ON_FSDP = {"offload": ["memory.cpu_offload=true"], "math": ["memory.attention=math"]}
FORMATS = {
    "fp16": ["precision=fp16"],
    "bf16_pure": ["precision=bf16_pure"],
    "fp8": ["precision=fp8"],
}


def spec_of(kind: str, levers: Sequence[str], model: str = "gpt_nano") -> RunSpec:
    deep = DEEP if kind in FOUR_STAGES else ()
    return compose_spec([f"model={model}", *SIZES, *deep, *BATCHES, *KINDS[kind], *levers])


Found = tuple[list[Step], dict[str, torch.Tensor]]


def trained(
    rank: int, tmp: Path, specs: dict[str, dict[str, RunSpec]]
) -> dict[str, dict[str, Found]]:
    """By way of spreading and by lever: two steps, and the parameters and state behind them."""
    found: dict[str, dict[str, Found]] = {}
    for kind, levers in specs.items():
        found[kind] = {}
        for name, spec in levers.items():
            one = Training(spec)
            found[kind][name] = list(one.steps(2)), everything(one.state)
    return found if rank == 0 else {}


@pytest.mark.parametrize(
    ("model", "spread"), some([("gpt_nano", SPREAD)], [("llama_nano", ["fsdp_tp"])])
)
def test_memory_levers_change_nothing_but_rounding(
    tmp_path: Path, model: str, spread: list[str]
) -> None:
    specs = {
        kind: {
            name: spec_of(kind, levers, model)
            for name, levers in {**FP32, **(ON_FSDP if kind == "fsdp" else {})}.items()
        }
        for kind in spread
    }
    found = run_world(WORLD, partial(trained, specs=specs), tmp_path)[0]
    for kind, levers in found.items():
        steps, state = levers["plain"]
        for name, (others, reached) in levers.items():
            assert others == [pytest.approx(step, rel=1e-5) for step in steps], (kind, name)
            assert reached.keys() == state.keys()
            is_exact = name in ("full", "offload")  # the same operations on the same numbers
            rtol, atol = (0.0, 0.0) if is_exact else (1e-3, 1e-5)
            for key in state:
                torch.testing.assert_close(
                    reached[key], state[key], rtol=rtol, atol=atol, msg=f"{name} {key}"
                )


def formatted(rank: int, tmp: Path, specs: dict[str, RunSpec]) -> dict[str, list[Step]]:
    return {
        name: list(Training(spec).steps(1 if "fp8" in name else 2)) for name, spec in specs.items()
    }


def test_other_formats_train_to_nearly_the_same_losses(tmp_path: Path) -> None:
    cases = [*((kind, "fp16") for kind in TWO_STAGES), ("fsdp", "bf16_pure")]
    cases += [("gpipe_ddp", "fp8")]
    specs = {f"{kind} {name}": spec_of(kind, FORMATS[name]) for kind, name in cases}
    specs["fp32"] = spec_of("fsdp", [])
    ranks = run_world(WORLD, partial(formatted, specs=specs), tmp_path)
    assert all(found == ranks[0] for found in ranks)
    exact = ranks[0].pop("fp32")
    for name, steps in ranks[0].items():
        close = {"fp16": 1e-3, "bf16_pure": 1e-2, "fp8": 2e-2}[name.split()[1]]
        for (loss, norm), (other, other_norm) in zip(steps, exact, strict=False):
            assert loss == pytest.approx(other, rel=close), name
            assert norm == pytest.approx(other_norm, rel=10 * close), name


SETTINGS = [
    ("fsdp", []),
    ("gpipe_ddp", ["memory.activation_checkpointing=full"]),
    (
        "fsdp_tp",
        ["memory.activation_checkpointing=selective", "memory.compile=true"],
    ),  # takes no step
    ("fsdp", ["memory=offload"]),
    *some([], [("ddp", ["memory=activation_checkpointing"])]),
]


def moved(rank: int, tmp: Path, specs: list[RunSpec]) -> int:
    """State goes from each setting to the next, bit for bit; how often."""
    previous: dict[str, torch.Tensor] | None = None
    for number, spec in enumerate(specs):
        one = Training(spec)
        checkpointer = Checkpointer(tmp / "store", run="moves")
        assert checkpointer.restore(one.state) == (number or None)
        if previous is not None:
            assert_same(everything(one.state), previous)
        if not spec.memory.compile:
            next(one.steps(1))
        checkpointer.save(number + 1, one.state)
        checkpointer.close()
        previous = everything(one.state)
    return len(specs)


def test_checkpoints_go_from_each_setting_to_the_next(tmp_path: Path) -> None:
    specs = [spec_of(*each) for each in SETTINGS]
    assert run_world(WORLD, partial(moved, specs=specs), tmp_path) == [len(SETTINGS)] * WORLD


def overflowed(rank: int, tmp: Path, specs: list[RunSpec]) -> list[dict[str, float]]:
    """One good step, one that overflows on one rank, and the scale through a restart."""
    told = []
    for number, spec in enumerate(specs):
        one = Training(spec)
        scale = one.parallel_model.loss_scale
        next(one.steps(1))
        before = everything(one.state)
        hook = spoilt(one.parallel_model.module) if rank == WORLD - 1 else None
        ((_, norm),) = one.steps(1)
        if hook is not None:
            hook.remove()
        assert not math.isfinite(norm)
        assert_same(everything(one.state), before)
        told.append(scale.metrics)
        told.append(resumed(one, spec, tmp / str(number)))
    return told


def spoilt(model: nn.Module) -> RemovableHandle:
    """One cell of this rank's gradients will be infinite."""

    def spoil(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        gradient.to_local()[0, 0] = math.inf

    matrix = next(parameter for parameter in model.parameters() if parameter.dim() == 2)
    hook: RemovableHandle = matrix.register_post_accumulate_grad_hook(spoil)  # type: ignore[no-untyped-call]
    return hook


def resumed(one: Training, spec: RunSpec, store: Path) -> dict[str, float]:
    """What a restart goes on with is what is there without one."""
    tracked = one.parallel_model.loss_scale.tracked
    checkpointer = Checkpointer(store, run="fp16")
    checkpointer.save(1, {**one.state, **tracked})
    checkpointer.close()
    again = Training(spec)
    checkpointer = Checkpointer(store, run="fp16")
    checkpointer.restore({**again.state, **again.parallel_model.loss_scale.tracked})
    checkpointer.close()
    assert list(again.steps(2)) == list(one.steps(2))
    assert_same(everything(again.state), everything(one.state))
    return again.parallel_model.loss_scale.metrics


def test_an_overflow_costs_a_step_on_all_ranks_and_a_restart_remembers_it(tmp_path: Path) -> None:
    specs = [spec_of(kind, FORMATS["fp16"]) for kind in SCALED]
    ranks = run_world(WORLD, partial(overflowed, specs=specs), tmp_path)
    expected = {"loss_scale": FIRST / 2, "skipped_steps": 1}
    assert ranks == [[expected] * (2 * len(SCALED))] * WORLD


def compiled(
    rank: int, tmp: Path, specs: list[tuple[RunSpec, RunSpec]]
) -> list[tuple[list[Step], list[Step]]]:
    # or each rank starts processes that import torch, to compile for it
    torch._inductor.config.compile_threads = 1
    # to compile C++ takes 30 s of a processor; a unit test does it for one process
    usual = partial(torch.compile, backend="aot_eager")
    with mock.patch.object(torch, "compile", usual if EFFORT <= 1 else torch.compile):
        return [(list(Training(a).steps(2)), list(Training(b).steps(2))) for a, b in specs]


def test_compiled_blocks_train_to_the_same_losses(tmp_path: Path) -> None:
    two = ["launch.nodes=2"]
    levers = [*two, "memory=compiled", "memory.activation_checkpointing=selective"]
    specs = [(spec_of("fsdp_tp", two), spec_of("fsdp_tp", levers))]
    for steps, others in run_world(2, partial(compiled, specs=specs), tmp_path)[0]:
        assert others == [pytest.approx(step, rel=1e-4) for step in steps]
