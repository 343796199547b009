"""However the model is spread, it trains to the losses of one process, and its state goes over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer
from hpckit.config.spec import RunSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.byte_text import VOCAB
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.optim import build_ema, build_optimizer
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.effort import some
from tests.integration.rank_worlds import assert_same, run_world, whole

WORLD, BATCH, STEPS, LENGTH = 4, 16, 3, 16
SIZES = ("model.layers=2", "model.heads=4", f"model.seq_len={LENGTH}", "launch.nodes=4")
DEEP = ("model.layers=4",)
"""For kinds with four stages; the time of a rank is spent by collectives, of which each layer has
as many."""
BATCHES = (f"train.global_batch={BATCH}", "train.micro_batch=2")
ON_DATA = {
    "ddp": ["parallel=ddp"],
    "zero1": ["parallel=zero1"],
    "zero2": ["parallel=zero2"],
    "fsdp": ["parallel=fsdp"],
    "hsdp": ["parallel=hsdp", "parallel.shard=2"],
}
DIVIDED = {
    "tp": ["parallel=tp", "train.micro_batch=8"],
    "fsdp_tp": ["parallel=fsdp_tp", "parallel.tensor=2", "train.micro_batch=4"],
    "ddp_tp": ["parallel=ddp", "parallel.tensor=2", "train.micro_batch=4"],
    "pp": ["parallel=pp", "train.micro_batch=4"],
    "gpipe_ddp": ["parallel=ddp", "parallel.pipeline=2", "parallel.schedule=gpipe"],
    "interleaved": ["parallel=zero1", "parallel.pipeline=2", "parallel.schedule=interleaved"],
    "3d": ["parallel=3d", "parallel.tensor=2", "train.micro_batch=4"],
}
"""Where fewer ranks share a batch, larger micro-batches make it as many as elsewhere."""
FOUR_STAGES = ("pp", "interleaved")
WITH_EXPERTS = {
    "ep_ddp": ["parallel=ddp", "parallel.expert=2"],
    "ep_zero1": ["parallel=zero1", "parallel.expert=4"],
    "ep_zero2": ["parallel=zero2", "parallel.expert=2"],
    "ep_fsdp": ["parallel=fsdp", "parallel.expert=2"],
    "ep_hsdp": ["parallel=hsdp", "parallel.shard=2", "parallel.expert=2"],
}
KINDS = {**ON_DATA, **DIVIDED, **WITH_EXPERTS}
MOVED = some(
    ["zero1", "fsdp_tp", "fsdp", "gpipe_ddp", "zero2", "tp", "hsdp"], ["ddp", "ddp_tp", "3d"]
)
"""Each of them after another kind of spreading: by data, by tensors, by stages."""
Step = tuple[float, float]


PARTED = some(["tp", "fsdp_tp", "gpipe_ddp", "3d"], ["ddp_tp"])
"""Each layer that is divided by tensors costs a rank as much as a model that is not."""
SOME = some(["fsdp", "interleaved"], ["ddp", "3d"])
FEW = some(["fsdp_tp"], ["ddp", "interleaved", "fsdp"])
MUON = ("optim=muon", "optim.ema_decay=0.9")
EXPERTS = ("model.experts.balance_rate=0.02", "memory.activation_checkpointing=full")


@cache
def spec_of(kind: str, model: str = "gpt_nano", *overrides: str) -> RunSpec:
    groups = ["model.heads=8", "model.kv_heads=4"] if model.startswith("llama") else []
    about = [f"model={model}", *SIZES, *groups, *BATCHES]
    if kind == "alone":
        return compose_spec([*about, *overrides, "launch.nodes=1"])
    return compose_spec([*about, *KINDS[kind], *overrides])


def specs_of(kinds: Iterable[str], model: str, overrides: Iterable[str] = ()) -> list[RunSpec]:
    """Composed once, and not by each rank."""
    return [spec_of(kind, model, *overrides) for kind in kinds]


class Training:
    """Of one spec, on all ranks of this world."""

    def __init__(self, spec: RunSpec) -> None:
        mesh = make_mesh("cpu", spec.parallel)
        self.parallel_model = ParallelModel(spec, mesh, torch.device("cpu"))
        self.optimizer = build_optimizer(self.parallel_model.module, spec.optim)
        self._ema = build_ema(self.parallel_model.module, spec.optim.ema_decay)
        self._place, self._clip = coordinate_in(mesh), spec.optim.grad_clip
        share = BATCH // self._place.data_size
        self._gradients = self.parallel_model.step_gradients(share, sample_mean)

    @property
    def state(self) -> dict[str, object]:
        state = {"model": self.parallel_model.module, "optimizer": self.optimizer}
        return {**state, "ema": self._ema} if self._ema else state

    def steps(
        self, count: int = STEPS, batch_of: Callable[[int], torch.Tensor] | None = None
    ) -> Iterator[Step]:
        """(mean loss over all ranks, gradient norm) of each, in micro-batches of two samples.

        Args:
            batch_of: the step's of all ranks, by its number from 0; `batch` if it is not given.
        """
        for number in range(count):
            given = batch() if batch_of is None else batch_of(number)
            mine = given.chunk(self._place.data_size)[self._place.data]
            self.optimizer.zero_grad()
            loss = self._gradients(*shifted(mine), samples=len(mine))
            norm = self.parallel_model.clip_gradients(self._clip)
            self.parallel_model.loss_scale.step(self.optimizer, norm)
            self.parallel_model.balance_experts()
            if self._ema:
                self._ema.update()
            dist.all_reduce(loss)
            yield float(loss) / dist.get_world_size(), float(norm)


def batch() -> torch.Tensor:
    """Of all ranks: the same in each step, so that there is something to learn."""
    return torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(7))


def losses(rank: int, tmp: Path, specs: list[RunSpec]) -> list[list[Step]]:
    return [list(Training(spec).steps()) for spec in specs]


def losses_of_a_ramp(rank: int, tmp: Path, specs: list[RunSpec]) -> list[list[Step]]:
    """Of a batch that has its full size after two steps, and once half of it again."""
    sizes = (BATCH // 2, BATCH // 2, BATCH, BATCH // 2)
    return [
        list(Training(spec).steps(4, lambda number: batch()[: sizes[number]])) for spec in specs
    ]


@pytest.mark.parametrize(
    ("kinds", "model", "overrides", "close"),
    [
        ([*ON_DATA], "gpt_nano", (), 2e-5),
        (PARTED, "gpt_nano", (), 2e-5),
        ([*FOUR_STAGES], "gpt_nano", DEEP, 2e-5),
        (SOME, "gpt_nano", (*DEEP, "precision=bf16"), 2e-2),
        (some(["3d"], ["fsdp_tp", "pp", "interleaved"]), "llama_nano", DEEP, 2e-5),
        (FEW, "gpt_nano", (*DEEP, *MUON), 5e-4),  # which orthogonalises in bf16
        (
            some(["ep_zero1", "ep_hsdp"], ["fsdp", "ep_zero2"]),
            *("gpt_moe_nano", EXPERTS, 2e-5),
        ),
        (["ep_fsdp"], "gpt_moe_nano", (*EXPERTS, *MUON), 5e-4),
    ],
    ids=[
        *("gpt", "gpt-divided", "gpt-four-stages", "gpt-bf16", "llama", "gpt-muon"),
        *("experts", "experts-muon"),
    ],
)
def test_all_train_to_the_losses_of_one_process(
    tmp_path: Path, kinds: list[str], model: str, overrides: tuple[str, ...], close: float
) -> None:
    alone, specs = (specs_of(each, model, overrides) for each in (["alone"], kinds))
    ((expected,),) = run_world(1, partial(losses, specs=alone), tmp_path)
    ranks = run_world(WORLD, partial(losses, specs=specs), tmp_path)
    assert expected[-1][0] < expected[0][0] - 0.01, "it learns"
    assert_close(ranks, kinds, expected, close)


def test_a_batch_that_grows_is_divided_as_each_of_its_sizes(tmp_path: Path) -> None:
    kinds = ["fsdp", "interleaved"]
    alone, specs = (specs_of(each, "gpt_nano", DEEP) for each in (["alone"], kinds))
    ((expected,),) = run_world(1, partial(losses_of_a_ramp, specs=alone), tmp_path)
    ranks = run_world(WORLD, partial(losses_of_a_ramp, specs=specs), tmp_path)
    assert_close(ranks, kinds, expected, 2e-5)


@pytest.mark.parametrize(
    ("kinds", "overrides", "close"),
    [
        (["ep_ddp"], (), 2e-5),
        (["ep_fsdp"], ("precision=bf16",), 2e-2),
        (["fsdp"], ("memory.activation_checkpointing=selective",), 2e-5),
    ],
    ids=["shared", "shared-bf16", "selective"],
)
def test_experts_on_two_ranks(
    tmp_path: Path, kinds: list[str], overrides: tuple[str, ...], close: float
) -> None:
    words = ("launch.nodes=2", *overrides)
    alone, specs = (specs_of(each, "gpt_moe_nano", words) for each in (["alone"], kinds))
    ((expected,),) = run_world(1, partial(losses, specs=alone), tmp_path)
    assert_close(run_world(2, partial(losses, specs=specs), tmp_path), kinds, expected, close)


def assert_close(
    ranks: list[list[list[Step]]], kinds: list[str], expected: list[Step], close: float
) -> None:
    assert all(found == ranks[0] for found in ranks)
    for kind, found in zip(kinds, ranks[0], strict=True):
        for (loss, norm), (other, other_norm) in zip(found, expected, strict=True):
            assert loss == pytest.approx(other, rel=close), kind
            assert norm == pytest.approx(other_norm, rel=10 * close), kind


def moved(rank: int, tmp: Path, specs: list[RunSpec]) -> int:
    """Each goes on from what the one before has saved, bit for bit; how often."""
    previous: dict[str, torch.Tensor] | None = None
    for number, spec in enumerate((*specs, specs[0])):
        training = Training(spec)
        checkpointer = Checkpointer(tmp / "store", run="moves")
        step = checkpointer.restore(training.state)
        if previous is not None:
            assert step == number
            assert_same(everything(training.state), previous)
        next(training.steps(1))
        checkpointer.save(number + 1, training.state)
        checkpointer.close()
        previous = everything(training.state)
    return number


def everything(state: dict[str, object]) -> dict[str, torch.Tensor]:
    """All tensors, whole: of a pipeline, those of all its ranks."""
    mine = whole(state)
    names: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(names, [*mine])
    if all(part == names[0] for part in names):
        return mine  # tensors one by one would take longer than all else here
    parts: list[dict[str, torch.Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {name: tensor for part in parts for name, tensor in part.items()}


@pytest.mark.parametrize(
    ("kinds", "model", "overrides"),
    [
        (MOVED, "gpt_nano", ()),
        (some(["pp", "interleaved"], ["fsdp"]), "gpt_nano", DEEP),
        (some(["ddp", "3d"], ["fsdp_tp", "interleaved"]), "llama_nano", some([], DEEP)),
        (some(["fsdp_tp", "ddp"], ["interleaved"]), "gpt_nano", (*some([], DEEP), *MUON)),
        (
            some(["ep_fsdp", "ep_zero1"], ["ddp", "ep_hsdp"]),
            "gpt_moe_nano",
            ("optim.ema_decay=0.9",),
        ),
    ],
    ids=["gpt", "gpt-four-stages", "llama", "gpt-muon", "experts"],
)
def test_checkpoints_go_from_each_to_the_next(
    tmp_path: Path, kinds: list[str], model: str, overrides: tuple[str, ...]
) -> None:
    work = partial(moved, specs=specs_of(kinds, model, overrides))
    assert run_world(WORLD, work, tmp_path) == [len(kinds)] * WORLD
