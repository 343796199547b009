"""One process that takes itself for one rank of many, to see whether a step goes through and what
memory it takes.

Tensors have shapes and no numbers (torch's fake tensors), and collectives answer at once with
nothing (torch's fake process group), so no model is too large and no GPU is needed. Where a rank
needs an answer, there is one: stages of a pipeline all know their shapes, and experts get as many
tokens as each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, debug
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from hpckit.config.batch_size import share_of_rank
from hpckit.config.parallel_degrees import degrees, describe
from hpckit.config.rules.experts import experts_of
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.precision_and_memory import masks_attention
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.trainer.batches.token_windows import TokenWindows, next_token_batch
from hpckit.trainer.images import smoothed_loss
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.models.mixture_of_experts import Experts, MixtureOfExperts
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.data_parallel import DTYPES
from hpckit.trainer.parallel.device_mesh import make_expert_mesh, make_mesh
from hpckit.trainer.parallel.expert_parallel import TokenExchange
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.parallel.pipeline_parallel import LossOf

_MIB = 2**20
_NAMES = {
    "Parameter": "Sharded Param",
    "Gradient": "Sharded Grad",
    "Optstate": "OptState",
    "Other": "Inputs",
}
"""Torch's for what no ranks share, and those for what they do."""


def fake_step(spec: RunSpec, rank: int = 0) -> dict[str, int]:
    """Bytes of a rank at the peak of a step, by what they are; "Total" is the last.

    Raises:
        ValueError: for experts of whose product torch knows no shapes, and for compiled blocks.
    """
    if experts_of(spec.model) is not None and DTYPES[spec.precision.compute] != torch.bfloat16:
        raise ValueError("precision.compute: a fake world has experts in bf16 alone")
    if spec.memory.compile:
        # Compiled code reads addresses, and these tensors have none: torch 2.13 ends by SIGSEGV.
        # Below a tracker of memory it compiles nothing, and what it fuses nobody could count.
        raise ValueError(
            "memory.compile: a fake world has no memory that compiled code could read; take false"
        )
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    world = spec.launch.nodes * spec.launch.gpus_per_node
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        mesh = make_mesh("cpu", spec.parallel)
        with _Shapes(allow_non_fake_inputs=True), _stages_know_shapes():
            trainee = ParallelModel(spec, mesh, torch.device("cpu"), is_filled=False)
            tracker = _tracked(spec, trainee, world)
    finally:
        dist.destroy_process_group()
        _clear_sharding_cache()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return _by_name(peak)


def _clear_sharding_cache() -> None:
    """Forget what DTensor has found out on meshes whose groups are gone: another may be equal."""
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    else:  # before torch 2.11
        propagator = DTensor._op_dispatcher.sharding_propagator
        propagator.propagate_op_sharding.cache.cache_clear()


def report(spec: RunSpec) -> str:
    """What `fake_step` finds, for a person: of a pipeline, for a rank of each group of layers."""
    world = spec.launch.nodes * spec.launch.gpus_per_node
    way = describe(spec.parallel, world)
    found = []
    for rank in range(0, world, world // degrees(spec.parallel, world).pipeline):
        lines = [f"rank {rank} of {world} ({way}), at the peak of a step:"]
        sizes = fake_step(spec, rank).items()
        lines += [f"  {name:<16} {size / _MIB:12,.1f} MiB" for name, size in sizes if size]
        found.append("\n".join(lines))
    return "\n".join(found)


def _tracked(spec: RunSpec, trainee: ParallelModel, world: int) -> MemTracker:
    """Of a step for which the optimizer has its state."""
    if spec.parallel.expert > 1:
        _even_out(trainee.module, make_expert_mesh("cpu", spec.parallel)["expert"])
    optimizer = build_optimizer(trainee.module, spec.optim)
    share = share_of_rank(spec, world)
    inputs, targets, documents, loss_of = _batch(spec, share)
    gradients = trainee.gradients(share, loss_of)

    def step() -> None:
        optimizer.zero_grad()
        gradients(inputs, targets, documents)
        trainee.clip(spec.optim.grad_clip)
        optimizer.step()

    tracker = _tracker(trainee, optimizer, (inputs, targets))
    # asked for before the tracker asks, so that it is called before
    with register_module_forward_pre_hook(partial(_forget, tracker, trainee.parts)):
        with tracker:
            step()  # leaves the optimizer's state, and a pipeline's room for what is handed on
        optimizer.zero_grad()
        with tracker:  # forgets the peak of before
            step()
    return tracker


def _tracker(trainee: ParallelModel, optimizer: Optimizer, given: Sequence[Tensor]) -> MemTracker:
    """Torch's, which sees what is made from now on, and what it is told of."""
    if not isinstance(trainee.parts[0], FSDPModule):
        plain = MemTracker()
        plain.track_external(*trainee.parts, optimizer, *given)
        return plain
    tracker = FSDPMemTracker(trainee.parts[0], optimizer)
    every: Any = nn.ModuleList(trainee.parts)
    tracker._root_mod = every  # it would take one of several
    tracker.track_inputs(tuple(given))
    return tracker


def _forget(tracker: MemTracker, parts: Sequence[nn.Module], called: nn.Module, _: object) -> None:
    """To torch's tracker each micro-batch is to be the first one of a part."""
    for module in called.modules() if any(called is part for part in parts) else ():
        if module in tracker.memory_tracking:
            del tracker.memory_tracking[module]


def _batch(spec: RunSpec, share: int) -> tuple[Tensor, Tensor, Tensor | None, LossOf]:
    """So many samples of zeros, as of `Gradients`, and the loss of a micro-batch."""
    if isinstance(spec.model, ImageSpec):
        images = torch.zeros(share, 3, spec.model.image_size, spec.model.image_size)
        smoothing = spec.data.images.label_smoothing if spec.data.images else 0.0
        labels = torch.zeros(share, dtype=torch.int64)
        return images, labels, None, partial(smoothed_loss, smoothing=smoothing)
    tokens = torch.zeros(share, decoder_of(spec).seq_len + 1, dtype=torch.int64)
    windows = TokenWindows(tokens, tokens if masks_attention(spec) else None)
    return *next_token_batch(windows), sample_mean


def _by_name(peak: Mapping[Any, int]) -> dict[str, int]:
    """The keys are torch's own, and strings."""
    given = {str(getattr(key, "value", key)): size for key, size in peak.items()}
    named = {_NAMES.get(name, name): size for name, size in given.items()}
    total = named.pop("Total")
    return {**named, "Total": total}


class _EvenExchange(TokenExchange):
    """Each expert gets as many rows as any other, of each rank."""

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """As of `TokenExchange`; `counts` has no numbers."""
        each = torch.full(counts.shape, len(rows) // len(counts))
        each[: len(rows) % len(counts)] += 1
        return super().__call__(experts, rows, each)

    def _asked(self, counts: Tensor) -> Tensor:
        return counts


def _even_out(model: nn.Module, mesh: DeviceMesh) -> None:
    """Have no expert be asked more often than others: nobody knows what a router would choose."""
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            layer.across = _EvenExchange(mesh)


@contextmanager
def _stages_know_shapes() -> Iterator[None]:
    """Stages of a pipeline ask each other whether all of them know what they hand on, and those
    that are not there would answer 0, no."""
    name, yes = "_warmup_backward_result", torch.ones(1, dtype=torch.int32)
    if not hasattr(PipelineStage, name):  # torch 2.9, whose stages do not ask
        yield
        return
    with mock.patch.object(PipelineStage, name, return_value=yes):
        yield


class _Shapes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Only what has fractions is fake: torch looks into the integers of a mesh."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not (tensors and all(type(t) is Tensor and not t.is_meta for t in tensors)):
            made = super().__torch_dispatch__(func, types, args, kwargs)
            # what is remembered cannot be swapped, as parameters are that get their memory
            self.fake_tensor_converter.meta_converter.tensor_memo.clear()
            if tensors or not isinstance(made, Tensor) or made.is_floating_point():
                return made
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))
