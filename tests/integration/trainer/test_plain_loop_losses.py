"""hpckit trains to the losses and gradient norms of a plain loop over whole batches, in
micro-batches of any size, on any number of ranks; these add up their gradients once a step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from hpckit.config.spec import RunSpec
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.parallel import parallel_model as trainees
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.effort import some
from tests.integration.rank_worlds import run_world, run_worlds
from tests.integration.trainer.plain_training_loop import by_hand
from tests.integration.trainer.test_parallel_model import BATCH, DEEP, batch, losses, spec_of

Case = tuple[str, int]
"""A way of spreading, and samples of a micro-batch."""
ALONE: list[Case] = [("alone", size) for size in (1, 4, 16)]
CASES: dict[str, dict[int, list[Case]]] = {
    "gpt_nano": {
        1: ALONE,
        2: [("fsdp", 4)],
        4: some([("ddp", 1), ("zero2", 2), ("fsdp", 4)], [("zero1", 4), ("hsdp", 1)]),
    },
    "llama_nano": {1: [("alone", 2)], 4: [("fsdp_tp", 4), ("interleaved", 1)]},
}
OPTIMIZERS = {"adamw": (), "sgd": ("optim=sgd", "optim.grad_clip=0.5")}


def cases(model: str, optimizer: str, world: int) -> list[RunSpec]:
    more = (*OPTIMIZERS[optimizer], *(DEEP if model == "llama_nano" else ()))
    if world not in (1, 4):
        more = (*more, f"launch.nodes={world}")
    return [
        spec_of(kind, model, *more, f"train.micro_batch={size}")
        for kind, size in CASES[model][world]
    ]


def losses_here(rank: int, tmp: Path, specs: dict[int, list[RunSpec]]) -> object:
    return losses(rank, tmp, specs[torch.distributed.get_world_size()])


@pytest.mark.parametrize(
    ("model", "optimizer"),
    some(
        [("gpt_nano", "adamw"), ("llama_nano", "sgd")],
        [("gpt_nano", "sgd"), ("llama_nano", "adamw")],
    ),
)
def test_losses_and_norms_are_those_of_a_plain_loop(
    tmp_path: Path, model: str, optimizer: str
) -> None:
    worlds = list(CASES[model])
    specs = {world: cases(model, optimizer, world) for world in worlds}
    expected = by_hand(specs[1][0])
    assert expected[-1][0] < expected[0][0] - 0.01, "it learns"
    limit = specs[1][0].optim.grad_clip
    assert limit
    assert any(norm > limit for _, norm in expected), "it is clipped"
    for world, ranks in run_worlds(worlds, partial(losses_here, specs=specs), tmp_path).items():
        assert all(found == ranks[0] for found in ranks)
        for case, found in zip(CASES[model][world], ranks[0], strict=True):
            for (loss, norm), (other, other_norm) in zip(found, expected, strict=True):
                assert loss == pytest.approx(other, rel=2e-5), (world, case)
                assert norm == pytest.approx(other_norm, rel=2e-4), (world, case)


class Counting(TorchDispatchMode):
    """How many collectives of this thread reduce something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reductions = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.reductions += func.namespace == "c10d" and "reduce" in str(func)
        return func(*args, **(kwargs or {}))


def reductions(rank: int, tmp: Path, specs: list[RunSpec]) -> list[int]:
    """Collectives that add up the gradients of a step, of each spec."""
    return [_reductions(spec) for spec in specs]


def _reductions(spec: RunSpec) -> int:
    mesh = make_mesh("cpu", spec.parallel)
    parallel_model, place = ParallelModel(spec, mesh, torch.device("cpu")), coordinate_in(mesh)
    gradients = parallel_model.step_gradients(BATCH // place.data_size, sample_mean)
    mine = batch().chunk(place.data_size)[place.data]
    seen = Counting()
    with seen:
        gradients(*shifted(mine))
    return seen.reductions


def test_gradients_are_added_up_after_the_last_micro_batch_alone(tmp_path: Path) -> None:
    kinds = some(["zero1", "hsdp", "zero2"], ["ddp", "fsdp"])
    sizes = (4, 2, 1)  # of the four samples of a rank
    specs = [
        spec_of(kind, "gpt_nano", f"train.micro_batch={size}") for kind in kinds for size in sizes
    ]
    found, *others = run_world(4, partial(reductions, specs=specs), tmp_path)
    assert others == [found] * 3
    for number, kind in enumerate(kinds):
        once, twice, often = found[3 * number : 3 * number + 3]
        assert once > 0
        # zero2 has its shard of the gradients alone, and adds up each micro-batch's
        factors = (2, 4) if kind == "zero2" else (1, 1)
        assert (twice, often) == (factors[0] * once, factors[1] * once), kind


Steps = list[list[tuple[float, float]]]


def wrapped_or_not(rank: int, tmp: Path, specs: list[RunSpec]) -> list[tuple[bool, Steps, Steps]]:
    """Of each spec: whether FSDP2 has the model, the steps, and those where it has it anyhow."""
    found = []
    for spec in specs:
        module = ParallelModel(spec, make_mesh("cpu", spec.parallel), torch.device("cpu")).module
        steps = losses(rank, tmp, [spec])
        with mock.patch.object(trainees, "is_wrapped", return_value=True):
            found.append((isinstance(module, FSDPModule), steps, losses(rank, tmp, [spec])))
    return found


def test_one_rank_does_without_fsdp_to_the_same_bits_where_all_is_fp32(tmp_path: Path) -> None:
    specs = [
        spec_of("alone", "gpt_nano", f"train.micro_batch={size}", *more)
        for size, more in (
            (4, ()),
            (16, ("memory.activation_checkpointing=full",)),
            (16, ("precision=bf16",)),
        )
    ]
    (found,) = run_world(1, partial(wrapped_or_not, specs=specs), tmp_path)
    assert [by_fsdp for by_fsdp, _, _ in found] == [False, False, True]
    assert all(steps == as_by_fsdp for _, steps, as_by_fsdp in found)
