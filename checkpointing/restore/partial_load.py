"""Loads a checkpoint of any run, or parts of it, into a state, for fine-tuning or evaluation."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from checkpointing.errors import StructureError
from checkpointing.format.manifest import item_of
from checkpointing.format.values.json_values import Json
from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan
from checkpointing.ranks.node_ranks import ranks_on_node
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.node_manifest import NodeManifest
from checkpointing.restore.read_broadcast import broadcast_reads
from checkpointing.restore.store_restore import reads
from checkpointing.staging.staging_buffers import StagingBuffers
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.structure_comparison import Inventory, StateRequirements, difference
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.store import Store, StoredManifest

_MOST_NAMES = 3
"""Names of tensors of each side in the error about states that have nothing in common."""


@dataclass(frozen=True)
class LoadResult:
    """The names that were loaded, and those that were not."""

    id: str
    step: int
    # names of the state that the checkpoint does not have; left as they were
    missing: tuple[str, ...]
    # names of the checkpoint, within items of the state, that the state does not have
    unexpected: tuple[str, ...]


def load(
    state: dict[str, Any],
    root: str | os.PathLike[str],
    *,
    run: str,
    step: int | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    checkpoint_id: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> LoadResult:
    """Load what `state` names from a checkpoint, in place, whatever else the checkpoint holds.

    Under torch.distributed all ranks call it together: each reads the boxes of its shards, and what
    several ranks hold is read once. Nothing in the store is changed, and nothing in `state` before
    everything was read and checked.

        load({"model": model}, "s3://bucket/base", run="base-7b")
        load({"model": model}, base, run="base", rename={"model/encoder.": "model/"}, strict=False)

    Args:
        state: a state as for `Checkpointer`. Items of the checkpoint that it does not name are
            ignored.
        root, run, options: the store, the run in it, and options of the storage.
        step: None: the newest step.
        rename: maps prefixes of names in the state to prefixes of names in the checkpoint; the
            longest prefix that matches is used.
        checkpoint_id: the id of the checkpoint, if the step was saved more than once.
        strict: raise if the items of the state differ from those of the checkpoint; if False, load
            what both have, of which there must be a tensor if the state has any. Shapes and dtypes
            must match in any case.

    Raises:
        FileNotFoundError: there is no such store, run or step.
        StructureError: the checkpoint holds other tensors or values than the state, or, without
            `strict`, none of the state's tensors.
        CheckpointError: it is damaged, or of an unknown format.
    """
    ranks = RankGroup()
    try:
        store = ranks.all_or_none(lambda: Store.open(root, options=options))
        try:
            loader = _Loader(store, run, ranks, rename or {}, checkpoint_id)
            return loader.load(state, step, strict=strict)
        finally:
            store.close()
    finally:
        ranks.close()


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """Returns the name in the checkpoint for a name in the state."""
    fitting = [prefix for prefix in rename if name.startswith(prefix)]
    if not fitting:
        return name
    longest = max(fitting, key=len)
    return rename[longest] + name.removeprefix(longest)


class _Loader:
    def __init__(
        self,
        store: Store,
        run: str,
        ranks: RankGroup,
        rename: Mapping[str, str],
        checkpoint_id: str | None,
    ) -> None:
        self._store, self._run, self._ranks, self._rename = store, run, ranks, rename
        self._id = checkpoint_id
        self._manifests = NodeManifest(store, ranks, ranks_on_node(ranks))
        self._staging = StagingBuffers()

    def load(self, state: dict[str, Any], step: int | None, *, strict: bool) -> LoadResult:
        stored = self._ranks.from_rank0(lambda: self._find(step))
        target = LoadTarget(state)
        checkpoint = self._ranks.all_or_none(lambda: self._manifests.share(stored))
        whole = Inventory.of(checkpoint)
        inventory = self._as_named_here(target, whole)
        target.form(inventory)
        wants = target.wants()
        loaded = _compare(stored, wants, inventory)
        of_all = self._ranks.gather_distinct(wants, wants.digest, self._ranks.control)
        self._check(stored, of_all, inventory, strict)
        if not strict and (names := _without_match(of_all, inventory)):
            raise StructureError(
                f"no tensor of the state is in checkpoint {stored.save.id} of run {self._run!r} in "
                f"{self._store.url}: the state has {_first(names)}; the checkpoint has "
                f"{_first(whole.tensors)}; `rename` maps the beginnings of names"
            )
        tensors = {n: target.leaves.tensors[n] for n in wants.tensors if n in inventory.tensors}
        self._read(checkpoint, tensors)
        found = Inventory(wants.tensors, inventory.values) if not strict else inventory
        elsewhere = target.elsewhere() & tensors.keys()
        self._staging.copy_back({name: tensors.pop(name) for name in elsewhere})
        self._ranks.all_or_none(lambda: target.choose(found))
        self._staging.copy_back(tensors)
        target.finish(found)
        return loaded

    def _find(self, step: int | None) -> StoredManifest:
        found = [f.stored for f in committed(self._store, self._run)[0]]
        fitting = [s for s in found if step is None or s.save.step == step]
        fitting = [s for s in fitting if self._id is None or s.save.id == self._id]
        if not fitting:
            which = "checkpoint" if step is None else f"checkpoint of step {step}"
            which = which if self._id is None else f"checkpoint {self._id}"
            steps = sorted({s.save.step for s in found})
            there = f"its steps are {steps}" if steps else "there is no such run, or it has none"
            raise FileNotFoundError(
                f"no {which} of run {self._run!r} in {self._store.url}; {there}"
            )
        return max(fitting)

    def _as_named_here(self, target: LoadTarget, inventory: Inventory) -> Inventory:
        """Returns the inventory of the state's items only, under the names that the state uses."""
        here = target.here(inventory, lambda name: renamed(name, self._rename))
        items = {item_of(name) for name in here}
        tensors = {
            here.get(n, n): spec for n, spec in inventory.tensors.items() if item_of(n) in items
        }
        values: dict[str, Json] = {
            here.get(n, n): value for n, value in inventory.values.items() if item_of(n) in items
        }
        branches = {} if self._rename else inventory.branches
        return Inventory(tensors, values, branches)

    def _check(
        self,
        stored: StoredManifest,
        wants: list[StateRequirements],
        inventory: Inventory,
        strict: bool,
    ) -> None:
        if not strict:
            wants = [_common(one, inventory) for one in wants]
            names = {name for one in wants for name in one.tensors}
            values = {name for one in wants for name in one.values}
            inventory = Inventory(
                {n: spec for n, spec in inventory.tensors.items() if n in names},
                {n: value for n, value in inventory.values.items() if n in values},
            )
        if text := difference(wants, inventory):
            raise StructureError(
                f"the state does not match checkpoint {stored.save.id} of run {self._run!r} in "
                f"{self._store.url}:{text}"
            )

    def _read(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        held = structure(tensors, ())
        plan = GlobalPlan(
            self._ranks.all_gather_alike(held, lambda: held.digest, self._ranks.control)
        )
        groups = plan.read_groups(self._ranks.rank)
        buffers = self._staging.buffers(tensors)
        mine = [
            replace(read, tensor=renamed(read.tensor, self._rename))
            for read in reads(groups, self._ranks.rank, buffers)
        ]
        names = [read.tensor for read in mine]
        self._ranks.all_or_none(lambda: self._manifests.share_groups(checkpoint, names))
        self._ranks.all_or_none(lambda: checkpoint.read_into(mine, StoreCopies([self._store])))
        self._manifests.close()
        broadcast_reads(self._ranks, groups, buffers)
        # a rank that has all it needs must not leave while others send each other the rest
        self._ranks.all_gather(None, self._ranks.control)


def _compare(stored: StoredManifest, wants: StateRequirements, inventory: Inventory) -> LoadResult:
    wanted = {*wants.tensors, *wants.values}
    there = {*inventory.tensors, *inventory.values}
    missing, unexpected = sorted(wanted - there), sorted(there - wanted)
    return LoadResult(stored.save.id, stored.save.step, tuple(missing), tuple(unexpected))


def _without_match(wants: Sequence[StateRequirements], inventory: Inventory) -> set[str]:
    """Returns the names of the tensors of all ranks if the checkpoint has none of them."""
    names = {name for one in wants for name in one.tensors}
    return names if names.isdisjoint(inventory.tensors) else set()


def _first(names: Collection[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(sorted(names)[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _common(wants: StateRequirements, inventory: Inventory) -> StateRequirements:
    """Returns the requirements that both have in common, with the state's shapes and dtypes."""
    tensors = {n: spec for n, spec in wants.tensors.items() if n in inventory.tensors}
    return StateRequirements(tensors, wants.values & inventory.values.keys())
