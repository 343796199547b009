"""Muon's steps are the same however its matrices are spread; averages are loaded as a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from checkpointing import Checkpointer, StructureError, load
from hpckit.trainer.optim import build_ema
from hpckit.trainer.optim.ema import with_narrow_averages
from hpckit.trainer.optim.muon import Muon
from tests.integration.rank_worlds import run_world, seeded

WORLD = 4
SHAPES = [(8, 6), (7, 5), (3, 9), (12, 4), (2, 5, 4)]  # not all divide, some ranks have nothing
SPREAD: dict[tuple[int, ...], list[list[Any]]] = {
    (4,): [[Shard(0)], [Shard(1)], [Replicate()]],
    (2, 2): [
        [Replicate(), Shard(0)],
        [Shard(0), Shard(1)],
        [Shard(1), Replicate()],
    ],
}


def weights(seed: int) -> list[Tensor]:
    return [torch.randn(shape, generator=seeded(seed)) for shape in SHAPES]


def stepped(parameters: Sequence[nn.Parameter], gradients: Sequence[Sequence[Tensor]]) -> Muon:
    optimizer = Muon([{"params": [*parameters], "momentum": 0.9, "weight_decay": 0.1}], lr=0.02)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return optimizer


def differing(rank: int, tmp: Path) -> list[str]:
    """Matrices that did not come out bit for bit as those of one process."""
    alone = [nn.Parameter(tensor) for tensor in weights(0)]
    stepped(alone, [weights(1), weights(2)])
    found = []
    for sizes, ways in SPREAD.items():
        mesh = init_device_mesh("cpu", sizes)
        for placements in ways:
            spread = [
                [distribute_tensor(tensor, mesh, placements) for tensor in weights(seed)]
                for seed in range(3)
            ]
            parameters = [nn.Parameter(tensor) for tensor in spread[0]]
            stepped(parameters, spread[1:])
            for parameter, expected in zip(parameters, alone, strict=True):
                assert isinstance(parameter, DTensor)
                if not torch.equal(parameter.full_tensor(), expected):
                    found.append(f"{placements} {tuple(expected.shape)}")
    dist.barrier()
    return found


def test_spread_in_any_way_it_steps_as_on_one_process(tmp_path: Path) -> None:
    assert run_world(WORLD, differing, tmp_path) == [[]] * WORLD


def loaded(rank: int, tmp: Path) -> bool:
    """Whether a model comes back from a checkpoint as the average of another."""
    model, other = nn.Linear(3, 4), nn.Linear(3, 4)
    ema = build_ema(model, 0.5)
    assert ema is not None
    with torch.no_grad():
        model.weight.add_(1.0)
    ema.update()
    checkpointer = Checkpointer(tmp / "store", run="averaged")
    checkpointer.save(1, {"model": model, "ema": ema})
    checkpointer.close()
    load({"model": other}, tmp / "store", run="averaged", rename={"model/": "ema/"})
    return torch.equal(other.weight, ema.state_dict()["weight"]) and not torch.equal(
        other.weight, model.weight
    )


def older(rank: int, tmp: Path) -> bool:
    """Whether an average that was saved in the type of its parameters goes on in fp32, and one of
    other parameters is refused as before."""
    model = nn.Linear(3, 4, dtype=torch.bfloat16)
    saved = {name: p.detach() + 1 for name, p in model.named_parameters()}
    checkpointer = Checkpointer(tmp / "store", run="older")
    checkpointer.save(1, {"ema": saved})
    checkpointer.close()
    ema, other = build_ema(model, 0.5), build_ema(nn.Linear(3, 5, dtype=torch.bfloat16), 0.5)
    assert ema is not None
    assert other is not None
    checkpointer = Checkpointer(tmp / "store", run="older")
    with pytest.raises(StructureError, match=r"float32\[5, 3\] in the state"):
        with_narrow_averages(checkpointer.restore, {"ema": other})
    step = with_narrow_averages(checkpointer.restore, {"ema": ema})
    found = ema.state_dict()
    checkpointer.save(2, {"ema": ema})
    checkpointer.close()
    return step == 1 and all(torch.equal(found[n], t.float()) for n, t in saved.items())


def test_an_average_of_the_parameters_type_goes_on_in_fp32(tmp_path: Path) -> None:
    assert run_world(1, older, tmp_path) == [True]


def test_an_average_is_loaded_as_a_model(tmp_path: Path) -> None:
    assert run_world(1, loaded, tmp_path) == [True]
