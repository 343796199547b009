"""The fake step: one process simulates a step of one rank of many, to check that the step runs and
to measure its memory.

Tensors have shapes and no values (torch's fake tensors), and collectives return at once without
data (torch's fake process group), so no model is too large and no GPU is needed. Values that other
ranks would send are simulated: all stages of a pipeline know their shapes, and each expert gets the
same number of tokens.
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
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from hpckit.config.batch_size import share_of_rank
from hpckit.config.parallel_degrees import degrees, describe_layout
from hpckit.config.rules.experts import experts_of
from hpckit.config.spec import RunSpec
from hpckit.torch_internals import clear_sharding_cache, disabled_dispatch, track_all_parts
from hpckit.trainer.measurement.synthetic_batch import synthetic_batch
from hpckit.trainer.models.mixture_of_experts import Experts, MixtureOfExperts
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.data_parallel import DTYPES
from hpckit.trainer.parallel.device_mesh import make_expert_mesh, make_mesh
from hpckit.trainer.parallel.expert_parallel import TokenExchange
from hpckit.trainer.parallel.parallel_model import ParallelModel

_MIB = 2**20
_NAMES = {
    "Parameter": "Sharded Param",
    "Gradient": "Sharded Grad",
    "Optstate": "OptState",
    "Other": "Inputs",
}
"""Torch's categories of memory that is sharded, by those of memory that is not."""


def fake_step(spec: RunSpec, rank: int = 0) -> dict[str, int]:
    """Return the memory of a rank at the peak of a step, in bytes by category, with "Total" last.

    Raises:
        ValueError: the spec has experts in another dtype than bf16, or compiled blocks.
    """
    if experts_of(spec.model) is not None and DTYPES[spec.precision.compute] != torch.bfloat16:
        raise ValueError("precision.compute: a fake world has experts in bf16 alone")
    if spec.memory.compile:
        # Compiled code reads addresses, which fake tensors do not have: torch 2.13 ends with
        # SIGSEGV. Under a memory tracker torch compiles nothing, so that the memory that fusion
        # saves could not be measured.
        raise ValueError(
            "memory.compile: a fake world has no memory that compiled code could read; set it to "
            "false"
        )
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    world = spec.launch.nodes * spec.launch.nproc_per_node
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        mesh = make_mesh("cpu", spec.parallel)
        with _FloatingPointFakeMode(allow_non_fake_inputs=True), _known_stage_shapes():
            parallel_model = ParallelModel(spec, mesh, torch.device("cpu"), is_initialized=False)
            tracker = _track_step(spec, parallel_model, world)
    finally:
        dist.destroy_process_group()
        clear_sharding_cache()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return _by_name(peak)


def report(spec: RunSpec) -> str:
    """Return the result of `fake_step` as text, for one rank of each pipeline stage."""
    world = spec.launch.nodes * spec.launch.nproc_per_node
    layout = describe_layout(spec.parallel, world)
    found = []
    for rank in range(0, world, world // degrees(spec.parallel, world).pipeline):
        lines = [f"rank {rank} of {world} ({layout}), at the peak of a step:"]
        sizes = fake_step(spec, rank).items()
        lines += [f"  {name:<16} {size / _MIB:12,.1f} MiB" for name, size in sizes if size]
        found.append("\n".join(lines))
    return "\n".join(found)


def _track_step(spec: RunSpec, parallel_model: ParallelModel, world: int) -> MemTracker:
    """Return the tracker of the memory of a step in which the optimizer has its state already."""
    if spec.parallel.expert > 1:
        _balance_routers(parallel_model.module, make_expert_mesh("cpu", spec.parallel)["expert"])
    optimizer = build_optimizer(parallel_model.module, spec.optim)
    local_batch = share_of_rank(spec, world)
    inputs, targets, documents, loss_of = synthetic_batch(spec, local_batch)
    gradients = parallel_model.step_gradients(local_batch, loss_of)

    def step() -> None:
        optimizer.zero_grad()
        gradients(inputs, targets, documents)
        parallel_model.clip_gradients(spec.optim.grad_clip)
        optimizer.step()

    tracker = _tracker(parallel_model, optimizer, (inputs, targets))
    # This hook is registered before the tracker's hooks, so that it is called before them.
    with register_module_forward_pre_hook(partial(_reset_module, tracker, parallel_model.parts)):
        with tracker:
            step()  # creates the optimizer's state, and a pipeline's buffers
        optimizer.zero_grad()
        with tracker:  # resets the peak
            step()
    return tracker


def _tracker(
    parallel_model: ParallelModel, optimizer: Optimizer, given: Sequence[Tensor]
) -> MemTracker:
    """Return torch's memory tracker, which tracks the objects passed to it and all tensors that are
    made from now on."""
    if not isinstance(parallel_model.parts[0], FSDPModule):
        plain = MemTracker()
        plain.track_external(*parallel_model.parts, optimizer, *given)
        return plain
    tracker = FSDPMemTracker(parallel_model.parts[0], optimizer)
    track_all_parts(tracker, parallel_model.parts)
    tracker.track_inputs(tuple(given))
    return tracker


def _reset_module(
    tracker: MemTracker, parts: Sequence[nn.Module], called: nn.Module, _: object
) -> None:
    """Have torch's tracker treat each micro-batch as the first one of the module `called`."""
    for module in called.modules() if any(called is part for part in parts) else ():
        if module in tracker.memory_tracking:
            del tracker.memory_tracking[module]


def _by_name(peak: Mapping[Any, int]) -> dict[str, int]:
    """Return the memory by the name of its category; the keys of `peak` are enums of torch, and
    strings."""
    given = {str(getattr(key, "value", key)): size for key, size in peak.items()}
    named = {_NAMES.get(name, name): size for name, size in given.items()}
    total = named.pop("Total")
    return {**named, "Total": total}


class _BalancedExchange(TokenExchange):
    """A token exchange in which each expert gets the same number of rows from each rank."""

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """Exchange the rows as `TokenExchange` does; `counts` has a shape, but no values."""
        each = torch.full(counts.shape, len(rows) // len(counts))
        each[: len(rows) % len(counts)] += 1
        return super().__call__(experts, rows, each)

    def _exchange_counts(self, counts: Tensor) -> Tensor:
        return counts


def _balance_routers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Have all experts get the same number of tokens, because routers have no values to choose
    by."""
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            layer.exchange = _BalancedExchange(mesh)


@contextmanager
def _known_stage_shapes() -> Iterator[None]:
    """Replace the exchange in which the stages of a pipeline agree on shapes. In the fake process
    group the other stages would answer 0, which means that they do not agree."""
    name, agreed = "_warmup_backward_result", torch.ones(1, dtype=torch.int32)
    if not hasattr(PipelineStage, name):  # torch 2.9 has no such exchange
        yield
        return
    with mock.patch.object(PipelineStage, name, return_value=agreed):
        yield


class _FloatingPointFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A fake tensor mode for tensors of floating-point numbers alone, because torch reads the
    integers of a device mesh."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not (tensors and all(type(t) is Tensor and not t.is_meta for t in tensors)):
            made = super().__torch_dispatch__(func, types, args, kwargs)
            # memoized tensors cannot be swapped, as parameters are when their memory is allocated
            self.fake_tensor_converter.meta_converter.tensor_memo.clear()
            if tensors or not isinstance(made, Tensor) or made.is_floating_point():
                return made
        with disabled_dispatch():
            return func(*args, **(kwargs or {}))
