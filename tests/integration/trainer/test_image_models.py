"""However a model of images is spread, it trains to the losses of one process, and its state goes
over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from checkpointing import Checkpointer
from hpckit.config.spec import RunSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.images import smoothed_loss
from hpckit.trainer.models.batch_norm import MOMENTUM, BatchNorm, BatchNormMoments
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.optim.ema import Ema
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.effort import some
from tests.integration.rank_worlds import assert_same, run_world, run_worlds, whole

WORLD, BATCH, STEPS, SIDE = 4, 16, 3, 32
COMMON = (
    *("experiment=images", "data.shards=/data", f"train.global_batch={BATCH}"),
    *("cluster.device=cpu", "optim.base_batch=null", "optim.scale=null"),
    "optim.lr=0.02",
)
ALONE = ("parallel=ddp",)
KINDS = {
    "ddp": ALONE,
    "zero1": ("parallel=zero1",),
    "zero2": ("parallel=zero2",),
    "fsdp": ("parallel=fsdp",),
    "hsdp": ("parallel=hsdp", "parallel.shard=2"),
}
Step = tuple[float, float]


def spec_of(*overrides: str) -> RunSpec:
    return compose_spec([*COMMON, f"launch.nodes={dist.get_world_size()}", *overrides])


class Training:
    """Of one spec, on all ranks of this world."""

    def __init__(self, spec: RunSpec) -> None:
        mesh = make_mesh("cpu", spec.parallel)
        self.parallel_model = ParallelModel(spec, mesh, torch.device("cpu"))
        self._moments = BatchNormMoments(self.parallel_model.module)
        self._optimizer = build_optimizer(self.parallel_model.module, spec.optim)
        self._ema = Ema(self.parallel_model.module, decay=0.9)
        self.state = {
            "model": self.parallel_model.module,
            "optimizer": self._optimizer,
            "ema": self._ema,
        }
        self._place = coordinate_in(mesh)
        share = BATCH // self._place.data_size
        self._gradients = self.parallel_model.step_gradients(
            share, partial(smoothed_loss, smoothing=0.1)
        )

    def steps(self, count: int = STEPS) -> Iterator[Step]:
        """(mean loss over all ranks, gradient norm) of each."""
        size, at = self._place.data_size, self._place.data
        images, labels = (whole.chunk(size)[at] for whole in batch())
        for _ in range(count):
            self._optimizer.zero_grad()
            loss = self._gradients(images, labels)
            norm = self.parallel_model.clip_gradients(None)
            self.parallel_model.loss_scale.step(self._optimizer, norm)
            self._moments.update()
            self._ema.update()
            dist.all_reduce(loss)
            yield float(loss) / dist.get_world_size(), float(norm)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks: the same in each step, so that there is something to learn."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(BATCH) % 4
    noise = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    return noise + labels[:, None, None, None], labels


def trained(
    rank: int, tmp: Path, kinds: dict[str, tuple[str, ...]], overrides: tuple[str, ...]
) -> list[tuple[list[Step], dict[str, torch.Tensor]]]:
    """Losses of each kind, and what it has then: all that is saved, on this rank."""
    found = []
    for about in kinds.values() if dist.get_world_size() > 1 else [ALONE]:
        training = Training(spec_of(*about, *overrides))
        steps = [*training.steps()]
        found.append((steps, whole(training.state)))
    return found


SOME = {name: KINDS[name] for name in ("ddp", "zero2", "hsdp")}
OTHERS = {name: KINDS[name] for name in some(["fsdp"], ["zero1"])}
COPIED = {name: KINDS[name] for name in some(["zero1"], ["fsdp"])}
MOVED = some(["hsdp", "ddp"], ["fsdp"])


@pytest.mark.parametrize(
    ("kinds", "overrides", "close"),
    [
        (SOME, ("model=resnet_nano", "train.micro_batch=4"), 2e-5),
        (COPIED, ("model=resnet_nano", "train.micro_batch=16", "model.sync_norm=true"), 2e-5),
        (
            OTHERS,
            ("model=resnet_nano", "train.micro_batch=2", "memory.activation_checkpointing=full"),
            2e-5,
        ),
        (OTHERS, ("model=resnet_nano", "train.micro_batch=4", "precision=bf16"), 3e-2),
        (COPIED, ("model=vit_nano", "optim=adamw", "optim.lr=1e-3"), 2e-5),
    ],
    ids=["resnet", "resnet-sync", "resnet-recomputed", "resnet-bf16", "vit"],
)
def test_all_train_to_the_losses_of_one_process(
    tmp_path: Path, kinds: dict[str, tuple[str, ...]], overrides: tuple[str, ...], close: float
) -> None:
    work = partial(trained, kinds=kinds, overrides=overrides)
    worlds = run_worlds([1, WORLD], work, tmp_path)
    (((expected, state),),) = worlds[1]
    first, *others = worlds[WORLD]
    for rank in others:
        for (losses, found), (same_losses, same) in zip(rank, first, strict=True):
            assert losses == same_losses
            assert_same(found, same)
    assert expected[-1][0] < expected[0][0] - 0.01, "it learns"
    for kind, (found, there) in zip(kinds, first, strict=True):
        for (loss, norm), (other, other_norm) in zip(found, expected, strict=True):
            assert loss == pytest.approx(other, rel=close), kind
            assert norm == pytest.approx(other_norm, rel=10 * close), kind
        for name in (name for name in state if "running" in name):
            torch.testing.assert_close(there[name], state[name], rtol=close, atol=close)


def moved(rank: int, tmp: Path) -> int:
    """Each kind goes on from what the one before has saved, bit for bit; how often."""
    previous: dict[str, torch.Tensor] | None = None
    number = 0
    for number, kind in enumerate((*MOVED, MOVED[0])):
        training = Training(spec_of(*KINDS[kind], "model=resnet_nano", "train.micro_batch=4"))
        checkpointer = Checkpointer(tmp / "store", run="moves")
        step = checkpointer.restore(training.state)
        if previous is not None:
            assert step == number
            assert_same(whole(training.state), previous)
        next(training.steps(1))
        checkpointer.save(number + 1, training.state)
        checkpointer.close()
        previous = whole(training.state)
    return number


def test_checkpoints_go_from_each_to_the_next(tmp_path: Path) -> None:
    assert run_world(WORLD, moved, tmp_path) == [len(MOVED)] * WORLD


def moments(rank: int, tmp: Path) -> None:
    """After one step they are those of torch's, over all micro-batches of all ranks."""
    training = Training(spec_of(*ALONE, "model=resnet_nano", "train.micro_batch=4"))
    model = training.parallel_model.module
    stem = whole(training.state)["stem.weight"]
    images, _ = batch()
    outputs = torch.conv2d(images, stem, stride=2, padding=3).chunk(BATCH // 4)
    var = torch.stack([part.var((0, 2, 3)) for part in outputs]).mean(0)
    mean = torch.stack([part.mean((0, 2, 3)) for part in outputs]).mean(0)
    next(training.steps(1))
    torch.testing.assert_close(model.get_buffer("norm.running_mean"), MOMENTUM * mean)
    torch.testing.assert_close(model.get_buffer("norm.running_var"), 1 - MOMENTUM + MOMENTUM * var)

    norm = BatchNorm(3, sync=False)
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)
    for buffer in norm.buffers():
        nn.init.ones_(buffer)
    followed = BatchNormMoments(norm)
    norm(torch.full((2, 3, 4, 4), torch.inf))
    followed.update()
    assert (norm.running_mean == 1).all(), "what overflows does not stay"
    norm(torch.full((2, 3, 4, 4), 3.0))
    followed.update()
    torch.testing.assert_close(norm.running_mean, torch.full((3,), 1 + 2 * MOMENTUM))


def test_running_moments_follow_those_of_all_micro_batches(tmp_path: Path) -> None:
    run_worlds([1, 2], moments, tmp_path)
