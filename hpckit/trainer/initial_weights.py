"""The initial parameters of a new run, if they are loaded from another model.

Each rank reads its own part of one parameter at a time, whatever the sharding of the source is.
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
from checkpointing.store.sessions.session import leased
from checkpointing.store.store import StoredManifest
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import InitFromSpec, RunSpec
from hpckit.events.checkpoints_left_behind import choices
from hpckit.events.earlier_events import ids_left_behind
from hpckit.rundir.run_origin import RunOrigin, find_origin
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import build
from hpckit.trainer.models.pretrained_folder import PretrainedParameters, folder_problems
from hpckit.trainer.parallel.local_tensor import local

log = logging.getLogger(__name__)

Specs = Mapping[str, tuple[str, Shape]]
"""Dtypes and shapes of parameters by name."""
_MOST_SHOWN = 20  # differences in an error


class ParameterSource(Protocol):
    """A source of trained parameters, by their names in models of hpckit."""

    def specs(self) -> Specs: ...
    def read(self, name: str, box: Box) -> NDArray[Any]: ...


def load_initial_weights(module: nn.Module, cfg: RunSpec, start: InitFromSpec) -> dict[str, Any]:
    """Load the parameters of `module`, which is a model or this rank's part of one, and return a
    description of the source. Adapters that the source lacks stay as they are. Collective.

    Raises:
        TrainingError: the source is missing, or has the parameters of another model.
        CheckpointError: the source cannot be read.
    """
    open_source = _open_pretrained if start.kind == "huggingface" else _open_checkpoint
    with open_source(cfg, start) as (source, about):
        specs = source.specs()
        _check_parameters(_model_shapes(cfg), specs, about["path"])
        for name, parameter in module.named_parameters():
            if name in specs:
                _load_parameter(name, parameter, source, specs[name][0])
        dist.barrier()
    log.info("the run starts with the parameters of %s", about)
    return about


@contextmanager
def _open_pretrained(
    cfg: RunSpec, start: InitFromSpec
) -> Iterator[tuple[ParameterSource, dict[str, Any]]]:
    folder = Path(start.path)
    if problems := folder_problems(folder, decoder_of(cfg)):
        raise TrainingError("\n".join(f"init_from.path: {line}" for line in problems))
    with PretrainedParameters(folder, decoder_of(cfg)) as source:
        yield source, {"path": start.path}


@contextmanager
def _open_checkpoint(
    cfg: RunSpec, start: InitFromSpec
) -> Iterator[tuple[ParameterSource, dict[str, Any]]]:
    assert start.item is not None  # the spec was checked
    try:
        origin = find_origin(start.path)
        store = Store.open(origin.url)
    except (ValueError, FileNotFoundError) as error:
        raise TrainingError(f"init_from.path: {error}") from None
    with ExitStack() as stack:
        stack.callback(store.close)
        stored = _choose_checkpoint(store, origin, start)
        if dist.get_rank() == 0:
            stack.enter_context(leased(store, stored, log.warning))
        checkpoint = Checkpoint(store, stored)
        if start.item not in checkpoint.items:
            there = ", ".join(checkpoint.items)
            raise TrainingError(
                f"init_from.item: {stored.save.id} has no {start.item}, but {there}"
            )
        about = {"path": start.path, "id": stored.save.id, "item": start.item}
        yield _CheckpointItem(checkpoint, start.item, StoreCopies([store])), about


def _choose_checkpoint(store: Store, origin: RunOrigin, start: InitFromSpec) -> StoredManifest:
    """Return the newest checkpoint that its run would continue from, or the one of the requested
    step; the same on all ranks.

    Raises:
        TrainingError: there is no such checkpoint.
    """
    found: list[StoredManifest | None] = [None]
    if dist.get_rank() == 0:
        left_behind = ids_left_behind(origin.directory) if origin.directory else {}
        stored = [each.stored for each in newest_first(store, origin.run)]
        chosen = choices([one.save for one in stored], start.step, left_behind)
        found = [next((one for one in stored if one.save in chosen), None)]
    dist.broadcast_object_list(found)
    if found[0] is None:
        which = "checkpoint" if start.step is None else f"checkpoint of step {start.step}"
        raise TrainingError(f"init_from.path: no {which} of run {origin.run} in {store.url}")
    return found[0]


@dataclass(frozen=True)
class _CheckpointItem:
    """The parameters of one item of a checkpoint, such as its model or its average."""

    checkpoint: Checkpoint
    item: str
    copies: StoreCopies

    def specs(self) -> Specs:
        found = self.checkpoint.tensors([self.item])
        return {n.removeprefix(f"{self.item}/"): (s.dtype, s.shape) for n, s in found.items()}

    def read(self, name: str, box: Box) -> NDArray[Any]:
        return self.checkpoint.read(f"{self.item}/{name}", box, self.copies)


def _model_shapes(cfg: RunSpec) -> dict[str, Shape]:
    """Return the shapes of the whole model's parameters, including adapters."""
    size = decoder_of(cfg)
    model = build(size)
    if cfg.lora:
        adapt(model, size, cfg.lora)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _check_parameters(wanted: Mapping[str, Shape], there: Specs, path: str) -> None:
    if found := list(_differences(wanted, there)):
        more = [f"... and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
        lines = "".join(f"\n  {line}" for line in [*found[:_MOST_SHOWN], *more])
        raise TrainingError(f"init_from.path: {path} has other parameters than the model:{lines}")


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
def _load_parameter(name: str, parameter: Tensor, source: ParameterSource, dtype: str) -> None:
    shard, own = local_shard(name, parameter), local(parameter)
    assert shard is not None
    for box, at in shard.parts:
        elements = torch.from_numpy(source.read(name, box))
        own[at.slices].copy_(elements.view(getattr(torch, dtype)))
