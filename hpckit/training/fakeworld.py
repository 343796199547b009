"""One process that takes itself for the first rank of many, to see whether a step goes through and
what memory it takes.

Tensors have shapes and no numbers (torch's fake tensors), and collectives answer at once with
nothing (torch's fake process group), so no model is too large and no GPU is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from hpckit.run.batch import share_of_rank
from hpckit.run.degrees import describe
from hpckit.run.expertcheck import experts_of
from hpckit.run.levercheck import masks_attention
from hpckit.run.modelcheck import decoder_of
from hpckit.run.parts import Part
from hpckit.run.spec import ImageSpec, RunSpec
from hpckit.training.images import smoothed_loss
from hpckit.training.language_model import sample_mean
from hpckit.training.optim import build_optimizer
from hpckit.training.parallel.mesh import has, make_mesh
from hpckit.training.parallel.pipeline import LossOf
from hpckit.training.parallel.sharding import DTYPES
from hpckit.training.parallel.trainee import Trainee
from hpckit.training.windows import Windows, task

_MIB = 2**20


def fake_step(spec: RunSpec) -> dict[str, int]:
    """Bytes of the first rank at the peak of a step, by what they are; "Total" is the last.

    Raises:
        ValueError: for a pipeline, whose ranks ask each other for shapes, and for experts that
            ranks share, who ask each other for counts, or of which torch knows no shapes; for
            compiled blocks.
    """
    if experts_of(spec.model) is not None and DTYPES[spec.precision.compute] != torch.bfloat16:
        raise ValueError("precision.compute: a fake world has experts in bf16 alone")
    if spec.memory.compile:  # torch's compiler falls over tensors without numbers
        raise ValueError("memory.compile: a fake world has nothing to compile; take false")
    world = spec.launch.nodes * spec.launch.gpus_per_node
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        mesh = make_mesh("cpu", spec.parallel)
        if has(mesh, "pipeline"):
            raise ValueError("parallel.pipeline: a fake world has no ranks to hand layers on to")
        if spec.parallel.expert > 1:
            raise ValueError("parallel.expert: a fake world has no ranks to hand tokens on to")
        with _Shapes(allow_non_fake_inputs=True):
            tracker = _tracked(spec, Trainee(spec, mesh, torch.device("cpu")), world)
    finally:
        dist.destroy_process_group()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return _by_name(peak)


def report(spec: RunSpec) -> str:
    """What `fake_step` finds, for a person."""
    world = spec.launch.nodes * spec.launch.gpus_per_node
    found = fake_step(spec)
    lines = [f"  {name:<16} {size / _MIB:12,.1f} MiB" for name, size in found.items() if size]
    about = f"rank 0 of {world} ({describe(spec.parallel, world)}), at the peak of a step:"
    return "\n".join([about, *lines])


def _tracked(spec: RunSpec, trainee: Trainee, world: int) -> FSDPMemTracker:
    """Of a step for which the optimizer has its state."""
    optimizer = build_optimizer(trainee.module, spec.optim)
    share = share_of_rank(spec, world)
    inputs, targets, documents, loss_of = _batch(spec, share)
    trackers: list[FSDPMemTracker] = []

    def timed(part: Part) -> AbstractContextManager[object]:
        """To torch's tracker each micro-batch is to be the first one."""
        for each in trackers if part == "forward" else []:
            each.reset_mod_stats()
        return nullcontext()

    gradients = trainee.gradients(share, loss_of, timed)

    def step() -> None:
        optimizer.zero_grad()
        gradients(inputs, targets, documents)
        trainee.clip(spec.optim.grad_clip)
        optimizer.step()

    step()
    optimizer.zero_grad()
    tracker = FSDPMemTracker(trainee.module, optimizer)
    tracker.track_inputs((inputs, targets))
    trackers.append(tracker)
    with tracker:
        step()
    return tracker


def _batch(spec: RunSpec, share: int) -> tuple[Tensor, Tensor, Tensor | None, LossOf]:
    """So many samples of zeros, as of `Gradients`, and the loss of a micro-batch."""
    if isinstance(spec.model, ImageSpec):
        images = torch.zeros(share, 3, spec.model.image_size, spec.model.image_size)
        smoothing = spec.data.images.label_smoothing if spec.data.images else 0.0
        labels = torch.zeros(share, dtype=torch.int64)
        return images, labels, None, partial(smoothed_loss, smoothing=smoothing)
    tokens = torch.zeros(share, decoder_of(spec).seq_len + 1, dtype=torch.int64)
    windows = Windows(tokens, tokens if masks_attention(spec) else None)
    return *task(windows), sample_mean


def _by_name(peak: Mapping[Any, int]) -> dict[str, int]:
    """The keys are torch's own, and strings."""
    named = {str(getattr(key, "value", key)): size for key, size in peak.items()}
    total = named.pop("Total")
    return {**named, "Total": total}


class _Shapes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Only what has fractions is fake: torch looks into the integers of a mesh."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not (tensors and all(type(t) is Tensor and not t.is_meta for t in tensors)):
            made = super().__torch_dispatch__(func, types, args, kwargs)
            if tensors or not isinstance(made, Tensor) or made.is_floating_point():
                return made
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))
