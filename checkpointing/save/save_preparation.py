"""Prepares a save: the plan for a state and the memory for its snapshots, before anything is
copied."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from checkpointing.connections import Connections
from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.ranks.node_ranks import require_memory
from checkpointing.save.save_plan import Planner, SavePlan
from checkpointing.save.shipper import SnapshotShipper
from checkpointing.state.item_adapters import optimizers
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.per_rank import Differing, compare_ranks
from checkpointing.state.tree import Leaves


class Preparer:
    """Does, on all ranks, what is needed again when the structure of the state changes."""

    def __init__(
        self,
        connections: Connections,
        planner: Planner,
        shipper: SnapshotShipper,
        differing: Differing,
    ) -> None:
        """
        Args:
            differing: as of `CheckpointerOptions`.
        """
        self._ranks, self._here = connections.ranks, connections.here
        self._differing = differing
        self._planner, self._shipper = planner, shipper
        self.planned: SavePlan | None = None  # the plan that there is memory for

    def ready(self, leaves: Leaves, stepped: list[Optimizer]) -> SavePlan:
        """Returns the plan for this state, with memory for it. Collective if the structure has
        changed: then the contents that ranks hold under the same name are also compared.

        Raises:
            SaveError, TypeError: as `Planner.plan`, and `compare_ranks`.
            StageError: a node does not have enough memory.
        """
        planned = self._planner.plan(leaves, stepped)
        return self._take(planned, leaves, stepped, compares=True)

    def _take(
        self, planned: SavePlan, leaves: Leaves, stepped: list[Optimizer], *, compares: bool
    ) -> SavePlan:
        """Take the memory for states of this plan, see `ready`."""
        prepare = partial(self._shipper.prepare, planned, leaves.tensors, stepped)
        if planned is self.planned:
            prepare()
            return planned
        if compares:
            compare_ranks(self._ranks, leaves, self._differing)
        require_memory(
            self._ranks,
            self._here,
            self._shipper.needs(planned),
            self._shipper.slots,
            is_bucketed=self._shipper.is_bucketed,
        )
        self._ranks.all_or_none(prepare)
        self.planned = planned
        return planned

    def lend(
        self, planned: SavePlan, leaves: Leaves, stepped: list[Optimizer]
    ) -> NDArray[np.uint8] | None:
        """Take the memory for such states. Returns what of it devices copy from directly and holds
        no snapshot yet, for reads until the next save; None if there is none. Collective; raises as
        `ready`.

        Args:
            planned: the plan for this state.
        """
        self._take(planned, leaves, stepped, compares=False)
        return self._shipper.unseen

    def begin(self, planned: SavePlan, leaves: Leaves, stepped: list[Optimizer]) -> None:
        """Do beside a restore from memory what `ahead` does after it, as far as the memory that an
        earlier trainer has left is enough for states of this plan, and no device has to map it."""
        is_in_host = all(tensor.device.type == "cpu" for tensor in leaves.tensors.values())
        if not is_in_host or not self._shipper.reuses_left_arena or self._shipper.needs(planned):
            return
        with suppress(CheckpointError):  # `ahead` raises it again, on all ranks
            self._shipper.prepare(planned, leaves.tensors, stepped)
            self._shipper.begin_layout(planned)

    def ahead(
        self, state: Mapping[str, Any], restored: tuple[SavePlan, Leaves] | None = None
    ) -> None:
        """Take the memory for saves now; `begin_allocation` allocates it. Collective; raises as
        `ready`.

        Args:
            restored: the plan and the leaves of this state, if both are known from its restore.
                Their values may be those from before it.
        """
        if restored is not None and self._ranks.world_size == 1:  # no values to compare
            planned = self._take(*restored, optimizers(state), compares=False)
        else:
            # includes the optimizer state that does not exist yet
            target = LoadTarget(dict(state))
            self._ranks.all_or_none(target.expect)
            planned = self.ready(target.leaves, optimizers(state))
        with suppress(ServiceError):  # the first save raises it again, and reports it
            self._shipper.send_layout(planned)

    def begin_allocation(self) -> None:
        """Allocate the memory that `ahead` has taken from now on, so that the first save costs as
        much as later ones."""
        self._shipper.begin_allocation()
