"""What ranks have of their own: declared, it comes back to each; undeclared, it is not lost in
silence. Real processes over gloo."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from checkpointing import Checkpointer, PerRank, SaveError, StructureError
from tests.integration.rank_worlds import run_world


class Sampler:
    """As in a training loop that draws samples by itself, by numpy."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = state["random"]

    def draw(self) -> list[int]:
        return [int(one) for one in self.random.integers(1000, size=4)]


def state_of(seed: int, other_world: Any = "error") -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": nn.Linear(2, 2),
        "sampler": PerRank(Sampler(seed), other_world),
        "own": PerRank({"seed": seed, "generator": generator.get_state()}, other_world),
    }


def save_own(rank: int, tmp: Path) -> tuple[list[int], Any]:
    state = state_of(1337 + rank)
    torch.manual_seed(0)
    ckpt = Checkpointer(tmp / "store", run="r")
    assert ckpt.restore(state) is None
    state["sampler"].held.draw()
    ckpt.save(1, state)
    ckpt.wait()
    ckpt.close()
    return state["sampler"].held.draw(), state["own"].held["generator"]


def restore_own(rank: int, tmp: Path) -> tuple[list[int], int, Any]:
    state = state_of(0)
    ckpt = Checkpointer(tmp / "store", run="r")
    assert ckpt.restore(state) == 1
    ckpt.close()
    own = state["own"].held
    return state["sampler"].held.draw(), own["seed"], own["generator"]


def restore_elsewhere(rank: int, tmp: Path) -> tuple[str, list[int], int]:
    ckpt = Checkpointer(tmp / "store", run="r")
    with pytest.raises(StructureError) as refused:
        ckpt.restore(state_of(0))
    first = state_of(0, "first")
    assert ckpt.restore(first) == 1
    last = state_of(0, lambda every, rank, world: every[1 - rank % 2])
    assert ckpt.restore(last) == 1
    ckpt.close()
    return str(refused.value), first["sampler"].held.draw(), last["own"].held["seed"]


def fail_to_choose(rank: int, tmp: Path) -> tuple[str, bool]:
    """By a function that fails on one rank of another world."""

    def choose(every: Any, rank: int, world: int) -> Any:
        if rank == 1:
            raise ValueError("no sampler for me")
        return every[0]

    state = state_of(0, choose)
    before = [tensor.detach().clone() for tensor in state["model"].parameters()]
    ckpt = Checkpointer(tmp / "store", run="r")
    with pytest.raises(Exception, match=r"no sampler for me|rank 1") as failed:
        ckpt.restore(state)
    ckpt.close()
    pairs = zip(state["model"].parameters(), before, strict=True)
    return str(failed.value), all(torch.equal(a, b) for a, b in pairs)


def test_nothing_changes_where_a_function_of_the_program_fails(tmp_path: Path) -> None:
    run_world(2, save_own, tmp_path)
    for told, is_as_before in run_world(3, fail_to_choose, tmp_path):
        assert is_as_before, told


def test_each_rank_has_its_own_again_and_another_world_is_asked_for(tmp_path: Path) -> None:
    saved = run_world(2, save_own, tmp_path)
    assert saved[0][0] != saved[1][0]
    restored = run_world(2, restore_own, tmp_path)
    for rank, ((drawn, generator), (again, seed, its)) in enumerate(
        zip(saved, restored, strict=True)
    ):
        assert (again, seed) == (drawn, 1337 + rank)
        assert torch.equal(its, generator)
    for rank, (refusal, drawn, seed) in enumerate(run_world(3, restore_elsewhere, tmp_path)):
        assert "'sampler' was saved for each of 2 ranks, but here are 3" in refusal
        assert drawn == saved[0][0]
        assert seed == 1337 + (1, 0, 1)[rank]


def differ(rank: int, tmp: Path) -> str:
    torch.manual_seed(0)
    state = {
        "model": nn.Linear(2, 2),
        "sampler": Sampler(rank),
        "same": {"step": 3},
        "noise": torch.full((4,), float(rank)),
    }
    ckpt = Checkpointer(tmp / "store", run="r")
    with pytest.raises(SaveError) as refused:
        ckpt.restore(state)
    with pytest.raises(SaveError):
        ckpt.save(1, state)
    ckpt.close()
    logging.getLogger("checkpointing").addHandler(handler := _Kept())
    ckpt = Checkpointer(tmp / "store", run="r", differing="warn")
    ckpt.save(1, state)
    ckpt.wait()
    ckpt.close()
    assert ("sampler" in handler.text) == (rank == 0)
    return str(refused.value)


class _Kept(logging.Handler):
    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()


def test_what_differs_undeclared_is_named(tmp_path: Path) -> None:
    refusals = run_world(3, differ, tmp_path)
    for text in refusals:
        assert "sampler: ranks 1, 2 have another value than rank 0" in text
        assert "noise: ranks 1, 2 have another value than rank 0" in text
        assert "same" not in text.replace("same under", "")
        assert "PerRank" in text


def moments(rank: int, tmp: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8))))
    model = nn.parallel.DistributedDataParallel(net)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        model(torch.randn(16, 8, generator=generator) * (1 + 3 * rank)).sum().backward()
    mine = {name: one.clone() for name, one in net.state_dict().items()}
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.save(1, {"model": model})
    ckpt.wait()
    for buffer in net.buffers():
        buffer.zero_()
    assert ckpt.restore({"model": model}) == 1
    ckpt.close()
    dist.barrier()
    return mine, dict(net.state_dict())


def test_buffers_of_replicas_are_those_of_the_first_rank(tmp_path: Path) -> None:
    """As the next forward pass of DistributedDataParallel would have them."""
    (first, restored), (second, other) = run_world(2, moments, tmp_path)
    moved = [name for name in first if not torch.equal(first[name], second[name])]
    assert len(moved) == 8, "means and variances"
    for name, tensor in first.items():
        assert torch.equal(restored[name], tensor), name
        assert torch.equal(other[name], tensor), name


def test_what_becomes_of_another_world_is_checked() -> None:
    with pytest.raises(
        ValueError, match=r"PerRank\(other_world=\) must be 'error', 'first' or a f"
    ):
        PerRank(3, "last")  # type: ignore[arg-type]


def test_differing_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differing must be 'error' or 'warn', not 'ignore'"):
        Checkpointer(tmp_path, run="r", differing="ignore")  # type: ignore[call-overload]
