"""A storage reader with which torch.distributed.checkpoint loads from a store. Requires torch.

dcp.load(state, storage_reader=StoreReader(store, run="pretrain", step=100))
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from checkpointing.errors import CheckpointError, DamagedError
from checkpointing.format.chunks import Chunk
from checkpointing.format.tiles import Box
from checkpointing.format.torch_dtypes import copy_bits
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.format.values.json_values import decode
from checkpointing.interop import list_branches
from checkpointing.interop.dcp.folder_export import state_dict_metadata
from checkpointing.interop.dcp.planner_helpers import Id, done, refuse
from checkpointing.interop.tensor_names import dotted
from checkpointing.interop.torch_save.value_bytes import saved, to_tensor
from checkpointing.storage import Buffer
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import ChunkFetcher, ChunkRequest
from checkpointing.store.store import Store


class StoreReader(StorageReader):
    """Loads one checkpoint, of which each rank reads what it needs. Bytes are copied to a tensor
    only after they have matched their hash. For one `dcp.load`; must be constructed on every rank
    with the same arguments.

    Args:
        step: the step to load; None: the newest.
        item: the item whose name is left out in the names of tensors and values that DCP uses, as
            given to `StoreWriter`.

    Raises:
        FileNotFoundError: there is no such checkpoint.
    """

    def __init__(
        self, store: Store, run: str, step: int | None = None, *, item: str | None = None
    ) -> None:
        found = newest_first(store, run)
        fitting = [f for f in found if step is None or f.stored.save.step == step]
        if not fitting:
            steps = ", ".join(str(f.stored.save.step) for f in found) or "none"
            raise FileNotFoundError(
                f"run {run!r} in {store.url} has no readable checkpoint of step {step}; it has "
                f"steps {steps}"
            )
        self._checkpoint = Checkpoint(store, fitting[0].stored)
        self._items = () if item is None else (item,)
        self._names: dict[str, str] = {}  # DCP's name -> full name

    def reset(self, checkpoint_id: Id | None = None) -> None:
        refuse(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors, values = self._checkpoint.tensors(), self._checkpoint.values()
        values.pop(RECORD, None)
        places = list_branches.lists_of(self._checkpoint)
        names = dotted([*tensors, *values], without=self._items)
        self._names = {text: name for name, text in names.items()}
        return Metadata(
            state_dict_metadata(
                tensors, {n: list(self._placed(n)) for n in tensors}, values, names
            ),
            planner_data={
                t: list_branches.keys(name, places, self._items) for name, t in names.items()
            },
            storage_meta=StorageMeta(),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return [replace(plan, storage_data=self._checkpoint.id) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if plan.storage_data != self._checkpoint.id:
            raise CheckpointError(
                f"this rank found checkpoint {self._checkpoint.id}, but the coordinator found "
                f"{plan.storage_data}: another process is saving the run; load again"
            )
        tensors = [item for item in plan.items if item.type is LoadItemType.TENSOR]
        targets = [(item, planner.resolve_tensor(item).detach()) for item in tensors]
        self._fetch(targets)
        for item, target in targets:
            planner.commit_tensor(item, target)
        values = self._checkpoint.values()
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                value = decode(values[self._names[item.storage_index.fqn]])
                planner.load_bytes(item, io.BytesIO(saved(value)))
        return done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return False

    def _fetch(self, targets: list[tuple[ReadItem, Tensor]]) -> None:
        store = self._checkpoint.store
        wanted: dict[tuple[str, Box], list[tuple[ReadItem, Tensor]]] = {}
        offsets: dict[str, Mapping[tuple[int, ...], Box]] = {}
        for item, target in targets:
            name = self._names[item.storage_index.fqn]
            if name not in offsets:
                offsets[name] = {box.offsets: box for box in self._placed(name)}
            box = offsets[name][tuple(item.storage_index.offset or ())]
            wanted.setdefault((name, box), []).append((item, target))
        wants = [self._want(name, box, items) for (name, box), items in wanted.items()]
        damaged = ChunkFetcher(store.storage, StoreCopies([store])).fetch(wants)
        if damaged:
            raise DamagedError(f"{self._checkpoint.id}: {damaged[0]}")

    def _want(self, name: str, box: Box, items: list[tuple[ReadItem, Tensor]]) -> ChunkRequest:
        dtype = self._checkpoint.table_with(name).tensors[name].dtype

        def use(raw: Buffer) -> None:
            source = to_tensor(dtype, box.sizes, raw)
            for item, target in items:
                part = Box(tuple(item.storage_offsets), tuple(item.lengths))
                _copy(target, source[part.slices])

        return ChunkRequest(self._placed(name)[box], dtype, name, use)

    def _placed(self, name: str) -> Mapping[Box, Chunk]:
        return self._checkpoint.table_with(name).chunks[name]


def _copy(target: Tensor, source: Tensor) -> None:
    """Copy bit for bit if both have the same dtype, else convert, as DCP does."""
    if target.dtype == source.dtype:
        copy_bits(target, source)
    else:
        with torch.no_grad():
            target.copy_(source)
