"""Writing one staged snapshot to the store."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from checkpointing.dcp_storage import DirectoryWriter
from checkpointing.errors import SaveError
from checkpointing.events import Events
from checkpointing.manifest import Header, Manifest
from checkpointing.pruning import Pruner, remove_leftover
from checkpointing.ranks import Ranks
from checkpointing.values import Json

logger = logging.getLogger("checkpointing")

# DCP says so at every save and load; here it is the plain one-process case
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or unini")


@dataclass(frozen=True)
class Snapshot:
    """A staged state on its way to the store."""

    header: Header  # the values in it are this rank's
    directory: Path
    tensors: Mapping[str, Tensor]  # staged; nobody may write to them before the save has ended
    started_s: float  # monotonic time of the call of save()


class Saver:
    """Writes snapshots, tells how it went, and prunes."""

    def __init__(self, ranks: Ranks, events: Events, pruner: Pruner) -> None:
        self._ranks, self._events, self._pruner = ranks, events, pruner

    def save(self, snapshot: Snapshot) -> SaveError | None:
        """Write and commit one snapshot; why not, if it failed. A collective."""
        step, path = snapshot.header.step, str(snapshot.directory)
        try:
            manifest = write_snapshot(snapshot, self._ranks)
        except SaveError as error:
            logger.error("%s; training goes on, earlier checkpoints are untouched", error)
            self._events.emit("checkpoint_failed", step=step, error=str(error))
            if self._ranks.rank == 0:
                remove_leftover(snapshot.directory, self._events)
            return error
        if manifest is not None:
            size, seconds = manifest.bytes, time.monotonic() - snapshot.started_s
            self._events.emit(
                "checkpoint_committed", step=step, path=path, bytes=size, seconds=seconds
            )
            self._pruner.prune(newest=snapshot.header.id)
        return None


def write_snapshot(snapshot: Snapshot, ranks: Ranks) -> Manifest | None:
    """Write and commit; the manifest on rank 0, None elsewhere. A collective.

    Raises:
        SaveError: on every rank, if it failed on any; nothing was committed then.
    """
    step = snapshot.header.step
    try:
        header = _with_all_values(snapshot.header, ranks)
    except RuntimeError as error:  # a peer is gone
        raise SaveError(f"saving step {step}: {error}") from error
    writer = DirectoryWriter(snapshot.directory, ranks.rank, header)
    try:
        save(
            dict(snapshot.tensors),
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=ranks.background,
            no_dist=ranks.background is None,
        )
    except (Exception, CheckpointException) as error:  # the latter is a BaseException
        if writer.manifest is None:
            raise SaveError(f"saving step {step}: {describe(error)}") from error
        # committed is committed, even if a peer was gone before it could be told
        logger.warning("step %s is committed, but not every rank knows: %s", step, error)
    return writer.manifest


def describe(error: BaseException) -> str:
    """Which rank had which problem, on one line and without the tracebacks."""
    if not isinstance(error, CheckpointException):
        return f"{type(error).__name__}: {error}"
    failures = sorted(error.failures.items())
    return "; ".join(f"rank {rank}: {type(e).__name__}: {e}" for rank, (e, _) in failures)


def _with_all_values(header: Header, ranks: Ranks) -> Header:
    """Rank 0's values, and what only others have (under pipeline parallelism).

    Only names travel from rank 0, and only what it lacks travels to it.
    """
    group = ranks.background
    step, known = ranks.broadcast((header.step, frozenset(header.values)), group)
    extra = {name: value for name, value in header.values.items() if name not in known}
    steps_and_extras = ranks.all_gather((header.step, extra), group)
    if any(s != step for s, _ in steps_and_extras):
        raise SaveError(f"ranks save different steps: {[s for s, _ in steps_and_extras]}")
    values: dict[str, Json] = dict(header.values)
    for _, others in steps_and_extras:
        values = {**others, **values}
    return replace(header, values=values)
