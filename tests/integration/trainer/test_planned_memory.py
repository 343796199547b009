"""What a plan says of a rank's memory, beside what real ranks have, and what torch's own tracker of
memory sees in a world that only pretends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpckit.config.parallel_degrees import degrees, is_wrapped
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.planner.memory.decoder_memory import footprint, footprints
from hpckit.planner.memory.memory_footprint import MemoryFootprint, micro_batches
from hpckit.planner.model.activations import ActivationBatch, logits, of_input
from hpckit.planner.model.pipeline_stages import stages_of_rank
from hpckit.submit.compose import compose_spec
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.memory.activation_recompute import recompute
from hpckit.trainer.models.gpt import GPT
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.data_parallel import before_micro_batch, shard
from hpckit.trainer.parallel.device_mesh import data_mesh, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.effort import some
from tests.integration.rank_worlds import run_world
from tests.saved_tensors import SavedBytes

SIZES = ("model.layers=4", "cluster.device=cpu", "train.micro_batch=2")
REAL = {
    "ddp": ("parallel=ddp", "train.global_batch=8"),
    "zero2": ("parallel=zero2", "train.global_batch=4"),
    "fsdp": ("parallel=fsdp", "train.global_batch=8"),
    "lora": ("parallel=fsdp", "train.global_batch=8", "lora=default"),
    "tp": ("parallel=tp", "train.global_batch=2", "model.vocab=258"),
    "gpipe": ("parallel=pp", "parallel.schedule=gpipe", "train.global_batch=6"),
    "1f1b": ("parallel=pp", "train.global_batch=8"),
    "experts": ("parallel=fsdp", "parallel.expert=2", "train.global_batch=8"),
    "interleaved": ("parallel=pp", "parallel.schedule=interleaved", "train.global_batch=8"),
}
WORLD = 2


@cache
def real_spec(case: str) -> RunSpec:
    model = "model=gpt_moe_nano" if case == "experts" else "model=gpt_nano"
    return compose_spec([model, *SIZES, "launch.nodes=2", *REAL[case]])


def test_ranks_have_what_was_planned(tmp_path: Path) -> None:
    measured = run_world(WORLD, _measure, tmp_path)
    for case in REAL:
        spec = real_spec(case)
        for rank, planned in enumerate(footprints(spec, WORLD)):
            found, at = measured[rank][case], planned.moments["optimizer"]
            assert found["parameters"] == at.parameters, case
            assert found["optimizer"] == pytest.approx(at.optimizer, rel=0.001), case
            assert found["gradients"] == at.gradients, case
            if spec.parallel.pipeline == 1:
                assert found["accumulated"] == planned.moments["loss"].gradients, case
            close = 0.04 if spec.lora else 0.01  # what frozen layers need not keep is not told
            if case != "experts":  # what is kept is up to the choice of experts
                assert found["saved"] == pytest.approx(_kept(spec, rank, planned), rel=close), case


def _kept(spec: RunSpec, rank: int, planned: MemoryFootprint) -> int:
    """By autograd alone: without the outputs of a pipeline's stages, with the logits that the loss
    keeps."""
    found = degrees(spec.parallel, WORLD)
    count, samples = micro_batches(spec, WORLD)
    batch, total = ActivationBatch(samples, 4, found.tensor), planned.moments["loss"].activations
    model = decoder_of(spec)
    stages = stages_of_rank(model.layers, spec.parallel, found.pipeline, rank, count)
    for stage in stages:
        each = logits(model, batch) if stage.is_last else -of_input(model, batch)
        total += stage.waiting * each
    return total


def _measure(rank: int, tmp: Path) -> dict[str, dict[str, int]]:
    return {case: _measure_case(real_spec(case)) for case in REAL}


def _measure_case(spec: RunSpec) -> dict[str, int]:
    mesh = make_mesh("cpu", spec.parallel)
    parallel_model = ParallelModel(spec, mesh, torch.device("cpu"))
    optimizer = build_optimizer(parallel_model.module, spec.optim)
    count, samples = micro_batches(spec, WORLD)
    accumulated = []

    def loss_of(losses: Tensor, targets: Tensor) -> Tensor:
        accumulated.append(_gathered_gradients(parallel_model.module))
        return sample_mean(losses, targets)

    gradients = parallel_model.step_gradients(count * samples, loss_of)
    tokens = torch.randint(256, (count * samples, decoder_of(spec).seq_len))
    with SavedBytes().counting() as saved:
        gradients(tokens, tokens)
    mine = list(parallel_model.module.parameters())
    complete = sum(_bytes(p.grad) for p in mine if p.grad is not None)
    optimizer.step()
    state = [value for one in optimizer.state.values() for value in one.values()]
    return {
        "parameters": sum(map(_bytes, mine)),
        "gradients": complete,
        "accumulated": (accumulated or [0])[-1],  # no loss on most ranks of a pipeline
        "optimizer": sum(_bytes(value) for value in state if isinstance(value, torch.Tensor)),
        "saved": saved.most,
    }


def _gathered_gradients(model: nn.Module) -> int:
    """Bytes of what earlier micro-batches have left, sharded or not."""
    groups = [
        module._get_fsdp_state()._fsdp_param_group
        for module in model.modules()
        if isinstance(module, FSDPModule)
    ]
    params = [one for group in groups if group is not None for one in group.fsdp_params]
    left = [p.grad for p in model.parameters()]
    left += [one.unsharded_accumulated_grad for one in params]
    left += [one._unsharded_param.grad for one in params if hasattr(one, "_unsharded_param")]
    return sum({id(one): _bytes(one) for one in left if one is not None}.values())


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


FEW = "model.vocab=257"
ROUGH = ("few tokens", "recomputed", "selected", "chunked")
"""Where the peak is inside a block: which of its tensors are there at once is up to kernels."""
PRETENDED = {
    "ddp": ("parallel=ddp", "precision=bf16", "train.global_batch=8", "train.micro_batch=1"),
    "zero2": ("parallel=zero2", "train.global_batch=8", "train.micro_batch=2"),
    "fsdp": ("parallel=fsdp", "precision=bf16", "train.global_batch=8", "train.micro_batch=1"),
    "few tokens": ("parallel=fsdp", "train.global_batch=8", "train.micro_batch=2", FEW),
    "recomputed": (
        *("parallel=fsdp", "train.global_batch=8", "train.micro_batch=2", FEW),
        "memory.activation_checkpointing=full",
    ),
    "selected": (
        *("parallel=fsdp", "train.global_batch=8", "train.micro_batch=2", FEW),
        "memory.activation_checkpointing=selective",
    ),
    "chunked": (
        *("parallel=fsdp", "precision=bf16", "train.global_batch=8", "train.micro_batch=1"),
        "memory.loss_chunks=8",
    ),
    "hsdp": ("parallel=hsdp", "parallel.shard=2", "precision=bf16", "train.global_batch=8"),
    "alone": ("launch.nodes=1", "train.global_batch=4", "train.micro_batch=2"),
}


_ALWAYS = ("fsdp", "chunked", "hsdp", "alone", "recomputed", "selected")


@pytest.mark.parametrize("case", some(_ALWAYS, sorted(PRETENDED.keys() - {*_ALWAYS})))
def test_the_peak_of_a_step_is_what_torchs_tracker_sees(case: str) -> None:
    """Without the optimizer, whose kernels differ between CPU and CUDA."""
    words = ("model=gpt_tiny", "model.layers=3", "model.vocab=8192", "launch.nodes=4")
    spec = compose_spec([*words, "cluster.device=cpu", *PRETENDED[case]])
    world = spec.launch.nodes
    with pretended_world(world):
        seen = _tracked_peak(spec, world)
    planned = footprint(spec, world).moments
    most = max(memory.total for name, memory in planned.items() if name != "optimizer")
    assert seen == pytest.approx(most, rel=0.1 if case in ROUGH else 0.01)


@contextmanager
def pretended_world(ranks: int) -> Iterator[None]:
    """This process is the first of `ranks` that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tracked_peak(spec: RunSpec, world: int) -> int:
    """Bytes, in the second step of a model without memory of its own."""
    mesh = make_mesh("cpu", spec.parallel)
    count, samples = micro_batches(spec, world)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model: Any = GPT(decoder_of(spec))  # type: ignore[arg-type]
        recompute(model.blocks.values(), spec.memory.activation_checkpointing)
        model.unembedding.chunks = spec.memory.loss_chunks
        if is_wrapped(spec, world):
            blocks, over = model.blocks.values(), data_mesh(mesh)
            shard(model, blocks, over, spec.parallel, spec.precision, offload=False)
        optimizer = build_optimizer(model, spec.optim)
        for group in optimizer.param_groups:
            group["fused"] = group["foreach"] = False  # the tracker sees copies in a fused one
        tokens = torch.zeros(samples, decoder_of(spec).seq_len, dtype=torch.int64)
        tracker = FSDPMemTracker(model, optimizer) if is_wrapped(spec, world) else MemTracker()
        if not is_wrapped(spec, world):
            tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                for number in range(1, count + 1):
                    before_micro_batch(model, spec.parallel, is_last=number == count)
                    loss = sample_mean(model(tokens, tokens), tokens)
                    (loss / count).backward()  # type: ignore[no-untyped-call]
                    del loss
                    tracker.reset_mod_stats()
                optimizer.step()
                optimizer.zero_grad()
        peak = tracker.get_tracker_snapshot("peak")
    return int(next(kinds["Total"] for kinds in peak.values()))
