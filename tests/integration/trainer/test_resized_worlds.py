"""Whatever a model is spread by, its training goes on on fewer ranks with the losses of one process
that nothing has interrupted."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer
from hpckit.config.spec import RunSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.byte_text import VOCAB
from tests.effort import some
from tests.integration.rank_worlds import run_world
from tests.integration.trainer.test_parallel_model import (
    BATCH,
    BATCHES,
    DEEP,
    FOUR_STAGES,
    KINDS,
    LENGTH,
    SIZES,
    Step,
    Training,
)

BEFORE, AFTER = 2, 2
MANY, FEW = 4, 2
_ALWAYS: dict[str, tuple[str, ...]] = {
    "zero1": ("optim.ema_decay=0.9",),
    "hsdp": ("optim=muon",),
    "fsdp_tp": ("precision=fp16",),
    "interleaved": ("memory.activation_checkpointing=full", "precision=bf16"),
    "ep_fsdp": ("model=gpt_moe_nano",),
}
_MORE: dict[str, tuple[str, ...]] = {
    "zero2": ("memory.loss_chunks=4",),
    "fsdp": ("precision=fp16",),
    "tp": (),
    "pp": ("precision=bf16",),
    "gpipe_ddp": (),
    "3d": (),
}
GOES_ON = dict(some([*_ALWAYS.items()], [*_MORE.items()]))
"""By kinds, with levers whose state has to go on as well."""
ON_FEW = {"3d": ["parallel=tp"]}
"""Where two ranks are too few for the same."""
ROUGH = {"optim=muon": 5e-4, "precision=fp16": 5e-3, "precision=bf16": 2e-2}


def specs(world: int) -> list[RunSpec]:
    return [_spec(kind, levers, world) for kind, levers in GOES_ON.items()]


def _spec(kind: str, levers: tuple[str, ...], world: int) -> RunSpec:
    way = [] if world == 1 else ON_FEW.get(kind, KINDS[kind]) if world == FEW else KINDS[kind]
    model = [] if any(lever.startswith("model=") for lever in levers) else ["model=gpt_nano"]
    deep = DEEP if kind in FOUR_STAGES else ()
    return compose_spec([*model, *SIZES, *deep, *BATCHES, *way, f"launch.nodes={world}", *levers])


def batch_of(number: int, begun: int) -> torch.Tensor:
    """Of all ranks, another one in each step since the run began; one learns from the others, as
    only few bytes are in them."""
    drawn = torch.Generator().manual_seed(begun + number)
    return torch.randint(0, VOCAB // 16, (BATCH, LENGTH + 1), generator=drawn)


def trained(rank: int, tmp: Path, runs: list[RunSpec], steps: int) -> list[list[Step]]:
    """Each goes on from where its checkpoint stands, and leaves one."""
    found = []
    for kind, spec in zip(GOES_ON, runs, strict=True):
        training = Training(spec)
        state = {**training.state, **training.parallel_model.loss_scale.tracked}
        checkpointer = Checkpointer(tmp / kind, run=kind)
        begun = checkpointer.restore(state) or 0
        found.append([*training.steps(steps, partial(batch_of, begun=begun))])
        checkpointer.save(begun + steps, state)
        checkpointer.close()
    return found


def test_each_goes_on_on_fewer_ranks(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    alone.mkdir()
    shared.mkdir()
    expected = run_world(1, partial(trained, runs=specs(1), steps=BEFORE + AFTER), alone)
    first = run_world(MANY, partial(trained, runs=specs(MANY), steps=BEFORE), shared)
    second = run_world(FEW, partial(trained, runs=specs(FEW), steps=AFTER), shared)
    for number, (kind, levers) in enumerate(GOES_ON.items()):
        close = max([ROUGH.get(lever, 2e-5) for lever in levers], default=2e-5)
        losses = [loss for loss, _ in (*first[0][number], *second[0][number])]
        wanted = [loss for loss, _ in expected[0][number]]
        assert all(map(math.isfinite, losses)), kind
        assert losses == pytest.approx(wanted, rel=close), kind
        assert losses[-1] < losses[0], kind
