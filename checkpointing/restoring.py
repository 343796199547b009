"""Finding the newest whole checkpoint and reading it, the same one on every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from checkpointing.catalog import directories, is_committed, read_manifest
from checkpointing.dcp_storage import DirectoryReader
from checkpointing.errors import CheckpointError, DamagedError, FormatError, StructureError
from checkpointing.events import Events
from checkpointing.layout import step_of
from checkpointing.manifest import Manifest
from checkpointing.pruning import remove_leftover
from checkpointing.ranks import Ranks
from checkpointing.saving import describe
from checkpointing.staging import Staging
from checkpointing.state import LoadTarget
from checkpointing.structure import Wants, difference

logger = logging.getLogger("checkpointing")


@dataclass
class Restorer:
    """One attempt to restore. Its public methods are collectives."""

    steps_dir: Path
    ranks: Ranks
    staging: Staging
    events: Events
    skipped: dict[str, str] = field(default_factory=dict)  # on rank 0: damaged id -> why

    def clean_up(self) -> bool:
        """Remove what saves that never committed left behind; whether any ever committed."""
        return self.ranks.from_rank0(self._clean_up)

    def read_newest(self, target: LoadTarget) -> Manifest:
        """Read the newest whole checkpoint into the staging buffers; `target` is only looked at.

        Raises:
            CheckpointError: all are damaged.
            FormatError, StructureError: the newest whole one cannot go into this state.
        """
        wants = self.ranks.all_gather(target.wants(), self.ranks.control)
        offers = self._offers(wants)
        while True:
            manifest = self.ranks.from_rank0(lambda: next(offers))
            problem = self._read(manifest, target)
            if problem is None:
                return manifest
            if self.ranks.rank == 0:
                self._skip(self.steps_dir / manifest.header.id, problem)

    def _clean_up(self) -> bool:
        found = {directory: is_committed(directory) for directory in directories(self.steps_dir)}
        for directory, committed in found.items():
            if not committed:
                remove_leftover(directory, self.events)
        return any(found.values())

    def _committed(self) -> list[Path]:
        return [d for d in directories(self.steps_dir) if is_committed(d)]

    def _offers(self, wants: list[Wants]) -> Iterator[Manifest]:
        """Checkpoints to try, best first (on rank 0); ends with an error, never silently."""
        for _, same_step in groupby(self._committed(), key=lambda d: step_of(d.name)):
            manifests = [m for d in same_step if (m := self._manifest(d))]
            for manifest in sorted(manifests, key=lambda m: m.header.created, reverse=True):
                if text := difference(wants, manifest):
                    where = self.steps_dir / manifest.header.id
                    raise StructureError(f"the state does not match {where}:{text}")
                yield manifest
        raise CheckpointError(self._all_damaged())

    def _manifest(self, directory: Path) -> Manifest | None:
        try:
            return read_manifest(directory)
        except FileNotFoundError:
            return None  # pruned meanwhile by somebody else
        except DamagedError as error:
            self._skip(directory, str(error))
            return None
        except FormatError as error:
            raise FormatError(f"{directory}: {error}") from error

    def _read(self, manifest: Manifest, target: LoadTarget) -> str | None:
        """Read one checkpoint into staging; why not, if it is damaged anywhere for any rank."""
        names = target.wants().for_manifest(manifest).tensors
        tensors = {name: target.leaves.tensors[name] for name in names}
        reader = DirectoryReader(self.steps_dir / manifest.header.id, manifest)
        destination: dict[str, Tensor] = self.staging.buffers(tensors)
        try:
            load(
                destination,
                storage_reader=reader,
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self.ranks.control,
                no_dist=self.ranks.control is None,
            )
        except CheckpointException as error:
            if all(isinstance(e, DamagedError) for e, _ in error.failures.values()):
                return describe(error)
            raise CheckpointError(f"loading {manifest.header.id}: {describe(error)}") from error
        return None

    def _skip(self, directory: Path, reason: str) -> None:
        self.skipped[directory.name] = reason
        logger.warning("skipping damaged checkpoint %s: %s", directory, reason)
        step, path = step_of(directory.name), str(directory)
        self.events.emit("checkpoint_skipped", step=step, path=path, reason=reason)

    def _all_damaged(self) -> str:
        lines = [f"\n  {name}: {reason}" for name, reason in self.skipped.items()]
        return (
            f"no checkpoint in {self.steps_dir} is whole:{''.join(lines)}\n"
            "repair or remove them, or use another run name to start from zero"
        )
