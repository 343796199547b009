"""The initial parameters of a new run that are loaded from another model instead of initialized.

Each rank reads its own part of one parameter at a time, whatever the sharding of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from checkpointing import Checkpoint, Store
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape
from checkpointing.layout.dtensor_placement import local_shard
from checkpointing.store.catalog import newest_first
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.sessions.read_lease import leased
from checkpointing.store.store import StoredManifest
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec, StartSpec
from hpckit.rundir.run_origin import find_origin
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import build
from hpckit.trainer.models.pretrained_folder import PretrainedParameters, folder_problems
from hpckit.trainer.parallel.local_tensor import local

log = logging.getLogger(__name__)

Specs = Mapping[str, tuple[str, Shape]]
"""Dtype and shape by name."""
_SHOWN = 20  # differences; enough to see the pattern


class ParameterSource(Protocol):
    """A source of trained parameters, by the names that they have here."""

    def specs(self) -> Specs: ...
    def read(self, name: str, box: Box) -> NDArray[Any]: ...


def load_initial_weights(module: nn.Module, cfg: RunSpec, start: StartSpec) -> dict[str, Any]:
    """Load the parameters of `module`, which is a model or this rank's part of one, and return what
    they were read from. Adapters that are not there stay as they are. Collective.

    Raises:
        TrainingError: they are of another model, or not there.
        CheckpointError: they cannot be read.
    """
    opened = _pretrained if start.kind == "huggingface" else _checkpoint
    with opened(cfg, start) as (source, about):
        there = source.specs()
        _compare(_wanted(cfg), there, about["path"])
        for name, parameter in module.named_parameters():
            if name in there:
                _fill(name, parameter, source, there[name][0])
        dist.barrier()
    log.info("begun with the parameters of %s", about)
    return about


@contextmanager
def _pretrained(cfg: RunSpec, start: StartSpec) -> Iterator[tuple[ParameterSource, dict[str, Any]]]:
    folder = Path(start.path)
    if problems := folder_problems(folder, decoder_of(cfg)):
        raise TrainingError("\n".join(f"start.path: {line}" for line in problems))
    with PretrainedParameters(folder, decoder_of(cfg)) as source:
        yield source, {"path": start.path}


@contextmanager
def _checkpoint(cfg: RunSpec, start: StartSpec) -> Iterator[tuple[ParameterSource, dict[str, Any]]]:
    assert start.item is not None  # the spec was checked
    try:
        origin = find_origin(start.path)
        store = Store.open(origin.url)
    except (ValueError, FileNotFoundError) as error:
        raise TrainingError(f"start.path: {error}") from None
    with ExitStack() as stack:
        stack.callback(store.close)
        stored = _chosen(store, origin.run, start)
        if dist.get_rank() == 0:
            stack.enter_context(leased(store, stored, log.warning))
        checkpoint = Checkpoint(store, stored)
        if start.item not in checkpoint.items:
            there = ", ".join(checkpoint.items)
            raise TrainingError(f"start.item: {stored.save.id} has no {start.item}, but {there}")
        about = {"path": start.path, "id": stored.save.id, "item": start.item}
        yield _Stored(checkpoint, start.item, StoreCopies([store])), about


def _chosen(store: Store, run: str, start: StartSpec) -> StoredManifest:
    """Return the newest checkpoint, or that of the requested step; the same on all ranks."""
    found: list[StoredManifest | None] = [None]
    if dist.get_rank() == 0:
        whole = [f.stored for f in newest_first(store, run)]
        fitting = [s for s in whole if start.step is None or s.save.step == start.step]
        found = [fitting[0] if fitting else None]
    dist.broadcast_object_list(found)
    if found[0] is None:
        which = "checkpoint" if start.step is None else f"checkpoint of step {start.step}"
        raise TrainingError(f"start.path: no {which} of run {run} in {store.url}")
    return found[0]


@dataclass(frozen=True)
class _Stored:
    """The parameters in an item of a checkpoint."""

    checkpoint: Checkpoint
    item: str
    copies: StoreCopies

    def specs(self) -> Specs:
        found = self.checkpoint.tensors([self.item])
        return {n.removeprefix(f"{self.item}/"): (s.dtype, s.shape) for n, s in found.items()}

    def read(self, name: str, box: Box) -> NDArray[Any]:
        return self.checkpoint.read(f"{self.item}/{name}", box, self.copies)


def _wanted(cfg: RunSpec) -> dict[str, Shape]:
    """Return the shapes of the whole model's parameters, including adapters."""
    size = decoder_of(cfg)
    model = build(size)
    if cfg.lora:
        adapt(model, size, cfg.lora)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _compare(wanted: Mapping[str, Shape], there: Specs, path: str) -> None:
    if found := list(_differences(wanted, there)):
        more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        lines = "".join(f"\n  {line}" for line in [*found[:_SHOWN], *more])
        raise TrainingError(f"start.path: {path} has other parameters than the model:{lines}")


def _differences(wanted: Mapping[str, Shape], there: Specs) -> Iterator[str]:
    for name, shape in wanted.items():
        if name in there:
            dtype, found = there[name]
            if found != shape:
                yield f"{name} has shape {list(found)}, and {list(shape)} in the model"
            if not element(dtype).is_float or element(dtype).itemsize == 1:
                yield f"{name} is of {dtype}, which stands for numbers by scales of its own"
        elif not is_adapter(name):
            yield f"{name} is missing"
    for name in there.keys() - wanted.keys():
        hint = "; hpckit ckpt export makes one model of it" if is_adapter(name) else ""
        yield f"{name} is not in the model{hint}"


@torch.no_grad()
def _fill(name: str, parameter: Tensor, source: ParameterSource, dtype: str) -> None:
    mine, own = local_shard(name, parameter), local(parameter)
    assert mine is not None
    for box, at in mine.parts:
        cells = torch.from_numpy(source.read(name, box))
        own[at.slices].copy_(cells.view(getattr(torch, dtype)))
