"""However the model is spread, it trains to the losses of one process, and its state goes over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer
from hpckit.launch.compose import compose_spec
from hpckit.run.spec import RunSpec
from hpckit.training.gpt import GPT
from hpckit.training.language_model import train_step
from hpckit.training.optim import build_optimizer
from hpckit.training.parallel import make_mesh, spread
from hpckit.training.text import VOCAB
from tests.integration.worlds import assert_same, run_world, whole

WORLD, BATCH, MICRO, STEPS, LENGTH = 4, 16, 2, 3, 17
KINDS = ("ddp", "zero1", "zero2", "fsdp", "hsdp")


def spec_of(kind: str, precision: str = "fp32") -> RunSpec:
    spec = compose_spec(["model=gpt_nano", f"parallel={kind}", f"precision={precision}"])
    shard = 2 if kind == "hsdp" else spec.parallel.shard
    return replace(spec, parallel=replace(spec.parallel, shard=shard))


def build(spec: RunSpec) -> tuple[GPT, torch.optim.Optimizer]:
    size = spec.model
    model = GPT(vocab=VOCAB, layers=size.layers, heads=size.heads, width=size.width, seq_len=LENGTH)
    model.initialise(3)
    mesh = make_mesh("cpu", spec.parallel)
    spread(model, model.blocks, mesh, spec.parallel, spec.precision)
    return model, build_optimizer(model, spec.optim)


def batch() -> torch.Tensor:
    """Of all ranks: the same in each step, so that there is something to learn."""
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(7))


def train(
    model: GPT, optimizer: torch.optim.Optimizer, spec: RunSpec, steps: int = STEPS
) -> Iterator[tuple[float, float]]:
    """(mean loss over all ranks, gradient norm) of each step, in micro-batches of two samples."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = batch().chunk(world)[rank]
    for _ in range(steps):
        loss, norm = train_step(model, optimizer, mine.chunk(len(mine) // MICRO), spec)
        dist.all_reduce(loss)
        yield float(loss) / world, float(norm)


def losses(rank: int, tmp: Path, precision: str) -> dict[str, list[tuple[float, float]]]:
    specs = {kind: spec_of(kind, precision) for kind in KINDS}
    return {kind: list(train(*build(spec), spec)) for kind, spec in specs.items()}


def alone(rank: int, tmp: Path, precision: str) -> list[tuple[float, float]]:
    spec = spec_of("fsdp", precision)
    return list(train(*build(spec), spec))


@pytest.mark.parametrize(("precision", "close"), [("fp32", 2e-5), ("bf16", 2e-2)])
def test_all_train_to_the_losses_of_one_process(
    tmp_path: Path, precision: str, close: float
) -> None:
    (expected,) = run_world(1, partial(alone, precision=precision), tmp_path)
    ranks = run_world(WORLD, partial(losses, precision=precision), tmp_path)
    assert all(found == ranks[0] for found in ranks)
    assert expected[-1][0] < expected[0][0] - 0.01, "it learns"
    for kind, found in ranks[0].items():
        for (loss, norm), (other, other_norm) in zip(found, expected, strict=True):
            assert loss == pytest.approx(other, rel=close), kind
            assert norm == pytest.approx(other_norm, rel=10 * close), kind


def moved(rank: int, tmp: Path) -> int:
    """Each kind goes on from what the one before has saved, bit for bit; how often."""
    previous: dict[str, torch.Tensor] | None = None
    for number, kind in enumerate((*KINDS, KINDS[0])):
        spec = spec_of(kind)
        model, optimizer = build(spec)
        state = {"model": model, "optimizer": optimizer}
        checkpointer = Checkpointer(tmp / "store", run="moves")
        step = checkpointer.restore(state)
        if previous is not None:
            assert step == number
            assert_same(whole(state), previous)
        next(train(model, optimizer, spec, steps=1))
        checkpointer.save(number + 1, state)
        checkpointer.close()
        previous = whole(state)
    return number


def test_checkpoints_go_from_each_to_the_next(tmp_path: Path) -> None:
    assert run_world(WORLD, moved, tmp_path) == [len(KINDS)] * WORLD
