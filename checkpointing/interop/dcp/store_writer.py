"""A storage writer with which torch.distributed.checkpoint saves to a store. Requires torch.

    dcp.save(state, storage_writer=StoreWriter(store, run="pretrain", step=100))

The result is a checkpoint like any other, and contains no pickles.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from checkpointing.errors import SaveError
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import MAX_STEP, SaveId
from checkpointing.format.torch_dtypes import as_array, dtype_name
from checkpointing.format.values.json_values import Json
from checkpointing.interop.dcp.planner_helpers import Id, done, refuse
from checkpointing.interop.dcp.save_session import DcpSaveSession
from checkpointing.interop.list_branches import Keys, record
from checkpointing.interop.piece_import import write_groups
from checkpointing.interop.tensor_names import full_name
from checkpointing.interop.torch_save.value_bytes import encoded, refusal, value_to_save
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece


@dataclass(frozen=True)
class _Task:
    """The instructions of the coordinator to a rank. Plain data, which is sent between ranks."""

    save: SaveId
    created: float  # Unix time, seconds
    rank: int
    world_size: int
    # of `list_branches.record`, for one rank only
    containers: Mapping[str, Json] = field(default_factory=dict)


class StoreWriter(StorageWriter):
    """Saves one checkpoint: every rank writes its part, then the coordinator commits. For one
    `dcp.save` or `dcp.async_save`; must be constructed on every rank with the same arguments. All
    resources are released when that call is over, with or without success.

    Args:
        item: the item to which tensors at the top level of the state are added; None: each is an
            item of its own. Pass one for a flat state, such as torchtitan's ("model").
    """

    def __init__(self, store: Store, run: str, step: int, *, item: str | None = None) -> None:
        if not 0 <= step <= MAX_STEP:
            raise ValueError(f"a step must be a whole number from 0 to {MAX_STEP}, got {step!r}")
        self._store, self._run, self._step, self._item = store, run, step, item
        self._session: DcpSaveSession | None = None  # on the coordinator

    def reset(self, checkpoint_id: Id | None = None) -> None:
        refuse(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "StoreWriter requires dcp.save(use_collectives=True), because one rank commits"
            )
        self.close()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Announce the save, before the ranks look for chunks that are already stored."""
        found = record(self._paths(plans))
        self._session = DcpSaveSession.begin(self._store, self._run, self._step)
        save, now = self._session.save, time.time()
        tasks = [_Task(save, now, rank, len(plans)) for rank in range(len(plans))]
        tasks[0] = replace(tasks[0], containers=found)
        return [replace(plan, storage_data=t) for plan, t in zip(plans, tasks, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            self._write(plan, planner)
        except BaseException:
            self.close()
            raise
        return done([WriteResult(item.index, _size(item), None) for item in plan.items])

    def _write(self, plan: SavePlan, planner: SavePlanner) -> None:
        task = plan.storage_data
        if not isinstance(task, _Task) or task.save.step != self._step:
            raise SaveError(
                f"the plan for step {self._step} belongs to another save: plans that are cached "
                "(enable_plan_caching) cannot be used with StoreWriter"
            )
        names = {full_name(self._path(plan, item)) for item in plan.items}
        index = RunChunkIndex(self._store, self._run).index(tensors=names)
        values = {**task.containers, **dict(self._values(plan, planner))}
        pieces = self._pieces(plan, planner)
        written = write_groups(self._store, task.save, pieces, values, index)
        header = ManifestHeader(task.save, task.created, task.world_size)
        write_part(self._store, header, task.rank, written)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the checkpoint; called on the coordinator once all ranks have written."""
        session = self._session
        if session is None:
            raise SaveError("finish() was called without a save that has begun")
        try:
            commit(self._store, session.save, len(results), check=session.check)
        finally:
            self.close()

    def close(self) -> None:
        """Give up a save that was begun and not finished. The next save calls it, too."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return False  # this class is not found by a path

    def _values(self, plan: SavePlan, planner: SavePlanner) -> Iterator[tuple[str, Json]]:
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                name = full_name(self._path(plan, item))
                yield name, _value(planner, item, name)

    def _pieces(self, plan: SavePlan, planner: SavePlanner) -> Iterator[TensorPiece]:
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                continue
            tensor, about = planner.resolve_data(item), item.tensor_data
            assert isinstance(tensor, Tensor)
            assert about is not None
            shape, offsets = tuple(about.size), tuple(about.chunk.offsets)
            if tuple(tensor.shape) != tuple(about.chunk.sizes):
                raise SaveError(
                    f"{item.index.fqn!r}: the planner returned the shape {tuple(tensor.shape)}"
                )
            if tensor.numel() or 0 in shape:
                name = full_name(self._path(plan, item))
                array = as_array(tensor.detach().resolve_conj().resolve_neg().cpu())
                yield TensorPiece(name, dtype_name(tensor.dtype), shape, offsets, array)

    def _paths(self, plans: list[SavePlan]) -> list[Keys]:
        found: dict[str, Keys] = {}
        for plan in plans:
            for item in plan.items:
                if item.index.fqn not in found:
                    found[item.index.fqn] = self._path(plan, item)
        return list(found.values())

    def _path(self, plan: SavePlan, item: WriteItem) -> Keys:
        mapping = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        path: Keys = mapping.get(item.index.fqn, (item.index.fqn,))
        is_value = item.type is WriteItemType.BYTE_IO
        return path if self._item is None or is_value or len(path) > 1 else (self._item, *path)


def _value(planner: SavePlanner, item: WriteItem, name: str) -> Json:
    find = getattr(planner, "lookup_object", None)
    original = None if find is None else find(item.index)
    if isinstance(planner, DefaultSavePlanner) and _saves_state_itself(planner):
        return encoded(original, name)
    try:
        data = planner.resolve_data(item)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise refusal(name, original) from error
    assert isinstance(data, io.BytesIO)
    return value_to_save(data.getvalue(), name, original)


def _saves_state_itself(planner: DefaultSavePlanner) -> bool:
    """Whether the planner saves the content of the state itself, so that it need not be pickled to
    see it."""
    kind = type(planner)
    return (
        kind.transform_object is DefaultSavePlanner.transform_object
        and kind.resolve_data is DefaultSavePlanner.resolve_data
    )


def _size(item: WriteItem) -> int:
    return item.tensor_storage_size() or 0
