"""A checkpoint manager for torchtitan that saves and resumes a Trainer with the Checkpointer.

In a config it replaces torchtitan's own:

    checkpoint=Checkpoints.Config(enable=True, interval=50, keep_latest_k=3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

try:
    from torchdata.stateful_dataloader import (  # type: ignore[import-not-found, unused-ignore]
        StatefulDataLoader,
    )
    from torchtitan.components.checkpointer import (  # type: ignore[import-not-found, unused-ignore]
        CheckpointManager,
    )
    from torchtitan.components.checkpointer.base import (  # type: ignore[import-not-found, unused-ignore]
        DATALOADER,
        MODEL,
        OPTIMIZER,
    )
except ImportError as error:
    raise ImportError(
        "checkpointing.integrations.torchtitan needs torchtitan 0.3: pip install torchtitan"
    ) from error

from torch.optim import Optimizer

from checkpointing.checkpointer import Checkpointer
from checkpointing.errors import CheckpointError
from checkpointing.integrations.final_save import wait_for_save
from checkpointing.integrations.value_item import ValueItem
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.partial_load import load
from checkpointing.retention import Last
from checkpointing.state.packed_values import pack, unpack


class Checkpoints(CheckpointManager):  # type: ignore[misc, unused-ignore]
    """A checkpoint manager of torchtitan that keeps a store of hpckit in its folder.

    torchtitan decides when to save and what to load first, by its options: `interval`, `load_step`,
    `exclude_from_loading`, `initial_load_*`, `load_only`. The differences are:

    - every save is asynchronous, and verified when it is read; `async_mode` is ignored;
    - the last save is whole, too, so that more steps may follow; `last_save_model_only` is ignored.
      `hpckit ckpt export` converts it to other formats; with `last_save_in_hf`, torchtitan's files
      for transformers are written to `<folder>-hf/step-<n>`;
    - the position of each data-parallel rank in its data is saved as plain values, so that nothing
      is unpickled.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc, unused-ignore]
        """torchtitan's options, and these of `Checkpointer`."""

        run: str = "torchtitan"
        """Name of the run in the store."""

        compress: bool = True
        """Store chunks compressed, or as differences, where that saves space and the store takes
        longer to write than that takes."""

        replicas: int = 0
        """1: the next node keeps copies of snapshots in its memory."""

        local: str = ""
        """A folder on the node's own disk for snapshots with a deadline."""

    def __init__(self, config: Config, **parts: Any) -> None:
        theirs: Any = replace(config)
        theirs.async_mode, theirs.keep_latest_k = "disabled", 0
        super().__init__(theirs, **parts)
        if not self.enable:
            return
        self._run, self._ranks = config.run, RankGroup()
        self._ckpt = Checkpointer(
            self.folder,
            run=config.run,
            keep=[Last(config.keep_latest_k)] if config.keep_latest_k else (),
            compress=config.compress and "auto",
            replicas=config.replicas,
            local=config.local or None,
        )

    def save_now(self, step: int) -> bool:
        """Save `step`, whatever the interval says, and wait until it is durable. Collective.

        Returns:
            Whether it is; the reason why not is in the log.
        """
        if not self.enable:
            return False
        self._ckpt.save(step, self._whole(ValueItem(self._gather_positions())), is_last=True)
        return wait_for_save(self._ckpt)

    def _load(self, step: int = -1) -> bool:
        """
        Raises:
            FileNotFoundError: there is no such step.
            CheckpointError: the checkpoint does not fit.
        """
        place = ValueItem()
        unstepped = [optimizer for optimizer in self.states[OPTIMIZER] if not optimizer.state]
        whole = self._whole(place)
        if unknown := [name for name in self.exclude_from_loading if name not in whole]:
            raise CheckpointError(f"exclude_from_loading: {unknown} are not among {list(whole)}")
        if step == -1 and not self.exclude_from_loading:
            found = self._ckpt.restore(whole)
        else:
            wanted = {k: held for k, held in whole.items() if k not in self.exclude_from_loading}
            found = self._loaded(wanted, step)
        if found is None:
            # torch makes the state of an optimizer by a step, which would count from here on
            for optimizer in unstepped:
                optimizer.state.clear()
            return bool(super()._load())
        if found > 0:  # a seed checkpoint is saved by one process before it has read any data
            self._restore_positions(place.value)
        return True

    def _loaded(self, wanted: dict[str, Any], step: int) -> int | None:
        try:
            return load(wanted, self.folder, run=self._run, step=None if step == -1 else step).step
        except FileNotFoundError:
            if step != -1:
                raise
            return None

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        whole = self._whole(ValueItem(self._gather_positions()))
        self._ckpt.save(curr_step, whole, is_last=last_step)
        if last_step:
            self._ckpt.wait()
            if self.last_save_in_hf:
                self._export(curr_step)
        return True

    def _maybe_wait_for_staging(self) -> None:
        """Does nothing: the optimizers' steps themselves wait for the copy."""

    def _close(self) -> None:
        if hasattr(self, "_ckpt"):
            self._ckpt.close()
            self._ranks.close()
        super()._close()

    def _whole(self, place: ValueItem) -> dict[str, Any]:
        """Returns the state in the form that a Checkpointer takes."""
        return {**self.states, OPTIMIZER: _Flat(self.states[OPTIMIZER]), DATALOADER: place}

    def _gather_positions(self) -> dict[str, Any] | None:
        """Returns the positions of all data-parallel ranks in their data. Collective."""
        loader = self.states[DATALOADER]
        if loader is None:
            return None
        mine = (loader.dp_rank, pack(StatefulDataLoader.state_dict(loader), DATALOADER))
        places = dict(self._ranks.all_gather(mine, self._ranks.control))
        return {"ranks": [places[rank] for rank in range(loader.dp_world_size)]}

    def _restore_positions(self, places: dict[str, Any] | None) -> None:
        loader = self.states[DATALOADER]
        if loader is None or places is None:
            return
        ranks = places["ranks"]
        if len(ranks) != loader.dp_world_size:
            raise CheckpointError(
                f"this was saved by {len(ranks)} data-parallel ranks, but there are "
                f"{loader.dp_world_size} now; torchtitan's loader only continues on as many: "
                f'exclude_from_loading=["{DATALOADER}"] starts the data from the beginning'
            )
        StatefulDataLoader.load_state_dict(loader, unpack(ranks[loader.dp_rank]))

    def _export(self, step: int) -> None:
        model = {
            name: tensor.to(self.export_dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.states[MODEL].state_dict().items()
        }
        folder = f"{self.folder}-hf/step-{step}"
        self.dcp_save(model, checkpoint_id=folder, async_mode=self.async_mode, to_hf=True)


class _Flat:
    """torchtitan's optimizers by the names of parameters, for any world size; not an `Optimizer`
    itself."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self.stepped_by: list[Optimizer] = list(held)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._held.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._held.load_state_dict(state_dict)
