"""Ranks check each other's gradients, however the model is spread: training goes on as without
checks, no check of sound ranks fails, and one that computes wrongly is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hpckit.config.spec import RunSpec
from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import CheckpointCertified, Degraded, WrongComputation
from hpckit.submit.compose import compose_spec
from hpckit.trainer.certification.computation_check import (
    ComputationCheck,
    WrongComputationError,
)
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.images import smoothed_loss
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.models.batch_norm import BatchNormMoments, own_moments
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.random_seeds import seed_step
from hpckit.trainer.rank_setup import RankContext
from tests.effort import some
from tests.integration.rank_worlds import run_world
from tests.unit.hpckit.trainer.bit_flips import flip_products

WORLD, STEPS, CHECKS = 4, 2, 2
COMMON = ("train.global_batch=8", "train.micro_batch=1", "launch.nodes=4", "cluster.device=cpu")
TEXT = ("model=gpt_nano", "model.layers=1", "model.heads=4", "model.seq_len=16", *COMMON)
IMAGES = ("experiment=images", "data.shards=/data", *COMMON, "model=resnet_nano")
KINDS = {
    "ddp": (*TEXT, "parallel=ddp"),
    "zero1": (*TEXT, "parallel=zero1", "memory.activation_checkpointing=full"),
    "fsdp": (*TEXT, "parallel=fsdp", "memory.activation_checkpointing=selective"),
    "hsdp": (*TEXT, "parallel=hsdp", "parallel.shard=2", "precision=bf16"),
    "ddp_tp": (*TEXT, "parallel=ddp", "parallel.tensor=2"),
    "fsdp_tp": (*TEXT, "parallel=fsdp_tp", "parallel.tensor=2"),
    "images": (*IMAGES, "parallel=fsdp", "model.sync_norm=true"),
}
COMPARED = some(["zero1", "hsdp", "fsdp_tp", "images"], ["ddp"])


class Training:
    """Of one spec on this rank, with a check after each step if `certify` is given."""

    def __init__(self, spec: RunSpec, events: Path, certify: bool) -> None:
        mesh, device = make_mesh("cpu", spec.parallel), torch.device("cpu")
        self.parallel_model = ParallelModel(spec, mesh, device)
        self.model = self.parallel_model.module
        self._optimizer = build_optimizer(self.model, spec.optim)
        self._is_images = spec.data.images is not None
        self._moments = BatchNormMoments(self.model)
        self._place, self._seed = coordinate_in(mesh), spec.train.seed
        self._batch = spec.train.global_batch // self._place.data_size
        loss = partial(smoothed_loss, smoothing=0.1) if self._is_images else sample_mean
        self._gradients = self.parallel_model.step_gradients(self._batch, loss)
        self.check = check_of(spec, mesh, events) if certify else None
        if self.check is not None:
            self.check.begin(0, {"model": self.model})
        if not self._is_images:  # dropout, whose numbers depend on the state of the generator
            block = self.model.get_submodule("blocks.0")
            block.register_forward_hook(lambda _, __, out: functional.dropout(out, 0.1))

    def step(self, number: int) -> None:
        seed_step(self._seed, number, self._place.data)
        given = self._given()
        self._optimizer.zero_grad()
        if self.check is not None:
            self.check.note(self._compute_alone, self._gradients.first_micro_batch(*given))
        self._gradients(*given)
        self.parallel_model.clip_gradients(1.0)
        self._optimizer.step()
        self._moments.update()
        if self.check is not None:
            self.check.note_step()

    def state(self) -> list[Tensor]:
        """All that training leaves on this rank, with random numbers that would come next."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        moments = [m for m in self._optimizer.state.values() for m in m.values()]
        held = [one for one in (*tensors, *grads, *moments) if isinstance(one, Tensor)]
        local = [getattr(one, "_local_tensor", one).detach().clone() for one in held]
        return [*local, torch.rand(2)]

    def _given(self) -> tuple[Tensor, ...]:
        if self._is_images:
            images = torch.randn(self._batch, 32, 32, 3).permute(0, 3, 1, 2)
            return images, torch.randint(0, 4, (self._batch,))
        windows = torch.randint(0, 256, (self._batch, 17))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def _compute_alone(self, *micro_batch: Tensor) -> None:
        with own_moments(self.model):
            self._gradients.compute_alone(*micro_batch)
        self._moments.forget()


def check_of(spec: RunSpec, mesh: Any, events: Path) -> ComputationCheck:
    rank = dist.get_rank()
    log = EventLog(events, rank=rank)
    at = SimpleNamespace(run=SimpleNamespace(events=events), node=rank)
    context = SimpleNamespace(
        cfg=spec,
        env=SimpleNamespace(rank=rank, at=at),
        mesh=mesh,
        device=torch.device("cpu"),
        emit_once=lambda event: log.emit(event) if rank == 0 else None,
    )
    earlier = EarlierEvents(events, is_reader=rank == 0)
    return ComputationCheck(cast("RankContext", context), earlier)


def compare(rank: int, tmp: Path, specs: Sequence[RunSpec]) -> list[tuple[bool, list[str]]]:
    """For each spec, whether training with checks is that without, and what the checks returned."""
    found = []
    for number, spec in enumerate(specs):
        states, answers = [], []
        for certify in (False, True):
            training = Training(spec, tmp / f"events{number}.jsonl", certify)
            for step in range(1, STEPS + 1):
                training.step(step)
                if training.check is not None:
                    answers.append(training.check.certify(step))
            states.append(training.state())
        for step in range(STEPS + 1, STEPS + CHECKS):
            assert training.check is not None
            answers.append(training.check.certify(step))
        same = len(states[0]) == len(states[1]) and all(map(torch.equal, *states))
        found.append((same, answers))
    return found


def test_training_with_checks_is_that_without_and_none_fails(tmp_path: Path) -> None:
    specs = [compose_spec([*KINDS[kind], "checkpoint.certify=1"]) for kind in COMPARED]
    found = run_world(WORLD, partial(compare, specs=specs), tmp_path)
    for rank, of_rank in enumerate(found):
        for kind, (is_same, answers) in zip(COMPARED, of_rank, strict=True):
            assert is_same, (kind, rank)
            assert answers == ["bits"] * (STEPS + CHECKS - 1), (kind, rank)
    for number in range(len(COMPARED)):
        events = read_events(tmp_path / f"events{number}.jsonl")
        checks = [one for one in events if isinstance(one, CheckpointCertified)]
        assert [one.step for one in checks] == [*range(1, STEPS + CHECKS)]
        assert all(one.tensors > 10 and one.next_step == one.step + 1 for one in checks)


def fail(
    rank: int, tmp: Path, cases: Sequence[tuple[RunSpec, int, Sequence[int]]]
) -> list[str | None]:
    """For each case, the class of the error of the check, after the given computations of the
    faulty rank were wrong; none given: all are."""
    found: list[str | None] = []
    for number, (spec, faulty, calls) in enumerate(cases):
        training = Training(spec, tmp / f"events{number}.jsonl", certify=True)
        training.step(1)
        assert training.check is not None
        assert training.check.certify(1) == "bits"
        training.step(2)
        if rank == faulty:
            flip_products(training.model, calls)
        try:
            found.append(training.check.certify(2))
        except (WrongComputationError, TrainingError) as error:
            found.append(type(error).__name__)
    return found


ALWAYS: tuple[int, ...] = ()


def test_a_rank_that_computes_wrongly_is_named(tmp_path: Path) -> None:
    kinds = [("fsdp", 0, (1,)), ("hsdp", 2, ALWAYS), ("ddp_tp", 1, (0,))]
    kinds += some([], [("ddp", 2, ALWAYS), ("images", 1, ALWAYS)])
    cases = [
        (compose_spec([*KINDS[kind], "checkpoint.certify=1"]), faulty, calls)
        for kind, faulty, calls in kinds
    ]
    errors = run_world(WORLD, partial(fail, cases=cases), tmp_path)
    assert all(of_rank == errors[0] for of_rank in errors)
    for number, (kind, faulty, calls) in enumerate(kinds):
        (event,) = (
            one
            for one in read_events(tmp_path / f"events{number}.jsonl")
            if isinstance(one, WrongComputation)
        )
        assert event.is_persistent == (not calls), event.what
        assert (event.good_step, event.step) == (1, 2)
        assert event.tensors, event.what
        is_divided = kind == "ddp_tp"  # their shards depend on each other's products
        assert event.ranks == ([0, 1] if is_divided else [faulty]), event.what
        assert event.is_excluded == (event.is_persistent), event.what
        assert errors[0][number] == ("WrongComputationError" if calls else "FaultyNodeError")


def compute(model: nn.Module, given: Tensor) -> None:
    model(given).square().sum().backward()


def noisy(rank: int, tmp: Path) -> list[str]:
    """What checks return where each computation gives slightly different gradients."""
    spec = compose_spec([*KINDS["ddp"], "launch.nodes=3", "train.global_batch=9"])
    spec = replace(spec, checkpoint=replace(spec.checkpoint, certify=1))
    check = check_of(spec, make_mesh("cpu", spec.parallel), tmp / "events.jsonl")
    model, noise = nn.Linear(8, 8), torch.Generator().manual_seed(rank)
    nn.init.constant_(model.weight, 0.5)
    check.begin(0, {"model": model})
    made = [check.certify(0)]  # as after a validation before the first step

    def compute_noisily(given: Tensor) -> None:
        out = model(given)
        (out + 1e-6 * torch.randn(out.shape, generator=noise)).square().sum().backward()

    check.note(compute_noisily, (torch.rand(4, 8),))
    check.note_step()
    reports = list[int]()
    made.append(check.certify(1, lambda: reports.append(1)))
    assert len(reports) == 5, "once for each computation, of which each may take as long as a step"
    made += [check.certify(step) for step in range(2, 6)]
    if rank == 1:
        flip_products(model)
    for step in range(6, 9):
        try:
            check.certify(step)
        except (WrongComputationError, TrainingError) as error:
            made.append(f"{type(error).__name__}: {error}")
        check = check_of(spec, make_mesh("cpu", spec.parallel), tmp / "events.jsonl")
        check.begin(5, {"model": model})
        check.note(compute_noisily, (torch.rand(4, 8),))
    return made


def test_a_band_is_measured_where_kernels_are_not_deterministic(tmp_path: Path) -> None:
    for first, *passed, error, again, last in run_world(3, noisy, tmp_path):
        assert first == ""
        assert passed == ["band"] * 5
        assert error.startswith("FaultyNodeError: rank 1 ")
        assert again.startswith("FaultyNodeError: rank 1 ")
        assert last.startswith("TrainingError: rank 1 "), "the third one ends the run"


class Scaled(nn.Module):
    """A layer whose gradients depend on a buffer that each rank updates by its own samples."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, given: Tensor) -> Tensor:
        self.scale += given.mean(0)
        out: Tensor = self.linear(given) * self.scale
        return out


def replicated(rank: int, tmp: Path) -> list[str]:
    """What a check returns with DDP, which sends the buffers of rank 0 at each step; and whether it
    does so at the next one."""
    spec = compose_spec([*KINDS["ddp"], "checkpoint.certify=auto"])
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Scaled())
    check = check_of(spec, make_mesh("cpu", spec.parallel), tmp / "replicated.jsonl")
    check.begin(0, {"model": nn.Sequential(model)})  # as within the wrapper of torch.compile
    given = torch.rand(4, 8, generator=torch.Generator().manual_seed(rank))
    check.note(partial(compute, model), (given,))
    compute(model, given)
    scale = model.module.scale.clone()
    gradients = [parameter.grad for parameter in model.parameters()]
    answer = check.certify(1)
    assert torch.equal(model.module.scale, scale)
    assert [parameter.grad for parameter in model.parameters()] == gradients
    return [answer, str(model.require_forward_param_sync)]


def unlike(rank: int, tmp: Path) -> list[str]:
    """What checks return where ranks have modules of different names, or of a kind that only one of
    them cannot check."""
    spec, made = compose_spec([*KINDS["ddp"], "checkpoint.certify=1"]), list[str]()
    layers: dict[str, nn.Module] = {("first", "second")[rank]: nn.Linear(8, 8)}
    norms: dict[str, nn.Module] = {"norm": nn.SyncBatchNorm(8) if rank else nn.BatchNorm1d(8)}
    for modules in (layers, norms):
        (module,) = modules.values()
        check = check_of(spec, make_mesh("cpu", spec.parallel), tmp / f"unlike{rank}.jsonl")
        check.begin(0, modules)
        check.note(partial(compute, module), (torch.rand(4, 8),))
        made.append(check.certify(1))
    return made


def alone(rank: int, tmp: Path) -> list[str]:
    spec = compose_spec([*KINDS["ddp"], "checkpoint.certify=auto"])
    made = list[str]()
    for calls in ([0], ALWAYS, None):
        events = tmp / f"events{len(made)}.jsonl"
        check = check_of(spec, make_mesh("cpu", spec.parallel), events)
        model = nn.Linear(8, 8)
        nn.init.constant_(model.weight, 0.5)
        check.begin(0, {"model": model})
        if calls is not None:
            check.note(partial(compute, model), (torch.rand(4, 8),))
        if rank == 1 and calls is not None:
            flip_products(model, calls)
        check.note_step()
        try:
            made.append(check.certify(1))
        except (WrongComputationError, TrainingError) as error:
            made.append(type(error).__name__)
    return [*made, *replicated(rank, tmp), *unlike(rank, tmp)]


def test_two_ranks_cannot_tell_which_of_them_is_wrong_again_and_again(tmp_path: Path) -> None:
    found = run_world(2, alone, tmp_path)
    assert found[0] == found[1]
    assert found[0][:3] == ["WrongComputationError", "WrongComputationError", ""]
    assert found[0][3:] == ["bits", "True", "", ""]
    texts = []
    for number in range(3):
        events = read_events(tmp_path / f"events{number}.jsonl")
        texts += [one.what for one in events if isinstance(one, WrongComputation | Degraded)]
    assert "rank 1 " in texts[0]
    assert "transient" in texts[0]
    assert "one of ranks 0, 1 " in texts[1]
    assert "persistent" in texts[1]
    assert "names no computation" in texts[2]
