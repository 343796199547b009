"""Adapters: they train to the losses of weights merged by hand, however the model is spread, and a
save costs what they weigh."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer
from hpckit.config.spec import RunSpec
from hpckit.trainer.models.lora import is_adapter
from tests.effort import some
from tests.integration.rank_worlds import assert_same, run_world, run_worlds
from tests.integration.trainer.plain_training_loop import Tensors, by_hand
from tests.integration.trainer.test_parallel_model import (
    DEEP,
    Step,
    Training,
    everything,
    losses,
    moved,
    spec_of,
    specs_of,
)

LORA = ("lora=default", "lora.rank=4", "optim.lr=2e-3", "optim.warmup_steps=1")
SPREAD = some(["hsdp", "fsdp_tp", "gpipe_ddp"], ["ddp"])
AVERAGED = ("optim.ema_decay=0.9",)


def losses_here(rank: int, tmp: Path, specs: dict[int, list[RunSpec]]) -> list[list[Step]]:
    return losses(rank, tmp, specs[dist.get_world_size()])


@pytest.mark.parametrize(
    ("model", "worlds", "of_four"),
    [("gpt_nano", [1, 2, 4], SPREAD), ("llama_nano", [4], some(["gpipe_ddp"], ["3d"]))],
)
def test_all_train_to_the_losses_of_merged_weights(
    tmp_path: Path, model: str, worlds: list[int], of_four: list[str]
) -> None:
    expected = by_hand(spec_of("alone", model, *LORA))
    assert expected[-1][0] < expected[0][0] - 0.003, "it learns"
    specs = {
        world: specs_of(
            of_four if world == 4 else ["fsdp"], model, (*LORA, f"launch.nodes={world}")
        )
        for world in worlds
    }
    for world, ranks in run_worlds(worlds, partial(losses_here, specs=specs), tmp_path).items():
        assert all(found == ranks[0] for found in ranks)
        for number, found in enumerate(ranks[0]):
            for (loss, norm), (other, other_norm) in zip(found, expected, strict=True):
                assert loss == pytest.approx(other, rel=5e-5), (world, number)
                assert norm == pytest.approx(other_norm, rel=1e-3), (world, number)


def test_checkpoints_go_from_each_to_the_next(tmp_path: Path) -> None:
    kinds = some(["fsdp_tp", "interleaved"], ["fsdp"])
    work = partial(moved, specs=specs_of(kinds, "gpt_nano", (*DEEP, *LORA, *AVERAGED)))
    assert run_world(4, work, tmp_path) == [len(kinds)] * 4


def saved(rank: int, tmp: Path) -> tuple[list[int], int, int]:
    """Bytes of packs after each of two saves, and of adapters and all else. Resumed from the
    second save, a run goes on to the same bits."""
    spec = spec_of("fsdp", "gpt_nano", *LORA, *AVERAGED, "launch.nodes=2", "model.width=256")
    one, sizes = Training(spec), []
    first = parameters(one)
    checkpointer = Checkpointer(tmp / "store", run="tuned", compress=False)
    for step in (1, 2):
        next(one.steps(1))
        checkpointer.save(step, one.state)
        checkpointer.wait()
        sizes.append(sum(pack.stat().st_size for pack in (tmp / "store").rglob("*.pack")))
    checkpointer.close()
    again = Training(spec)
    checkpointer = Checkpointer(tmp / "store", run="tuned")
    assert checkpointer.restore(again.state) == 2
    checkpointer.close()
    assert list(again.steps(2)) == list(one.steps(2))
    assert_same(everything(again.state), everything(one.state))
    for name, now in parameters(one).items():
        assert torch.equal(now, first[name]) is not is_adapter(name), name
    ours = sum(p.numel() for name, p in first.items() if is_adapter(name))
    return sizes, 4 * ours, 4 * (sum(p.numel() for p in first.values()) - ours)


def parameters(one: Training) -> Tensors:
    names = dict(one.parallel_model.module.named_parameters())
    return {name: tensor for name, tensor in everything(one.state).items() if name in names}


def test_a_second_save_adds_what_adapters_their_optimizer_and_average_have(tmp_path: Path) -> None:
    ((first, second), adapters, others), _ = run_world(2, saved, tmp_path)
    kept = 4 * adapters  # two moments and an average, and themselves
    assert others > 5 * kept
    assert first == pytest.approx(others + kept, rel=0.1)
    assert second - first == pytest.approx(kept, rel=0.1)
