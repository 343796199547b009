"""Writing one staged snapshot to the store, in a thread of its own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from checkpointing.dcp_storage import DirectoryWriter
from checkpointing.errors import SaveError
from checkpointing.manifest import Header, Manifest
from checkpointing.ranks import Ranks
from checkpointing.values import Json

# DCP says so at every save and load; here it is the plain one-process case
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or unini")


@dataclass(frozen=True)
class Snapshot:
    """A staged state on its way to the store."""

    header: Header  # the values in it are this rank's
    directory: Path
    tensors: Mapping[str, Tensor]  # staged; nobody may write to them before the save has ended
    started_s: float  # monotonic time of the call of save()


class SaveThread:
    """One save in the background. A daemon, so that no peer's silence can keep a process alive."""

    def __init__(self, snapshot: Snapshot, write: Callable[[Snapshot], SaveError | None]) -> None:
        self.step = snapshot.header.step
        self.failure: SaveError | None = None
        self._write = write
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name=f"checkpoint-{self.step}", daemon=True
        )
        self._thread.start()

    def _run(self, snapshot: Snapshot) -> None:
        self.failure = self._write(snapshot)

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def running(self) -> bool:
        return self._thread.is_alive()


def write_snapshot(snapshot: Snapshot, ranks: Ranks) -> Manifest | None:
    """Write and commit; the manifest on rank 0, None elsewhere. A collective.

    Raises:
        SaveError: on every rank, if it failed on any; nothing was committed then.
    """
    try:
        header = _with_all_values(snapshot.header, ranks)
        writer = DirectoryWriter(snapshot.directory, ranks.rank, header)
        save(
            dict(snapshot.tensors),
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=ranks.background,
            no_dist=ranks.background is None,
        )
    except CheckpointException as error:  # a BaseException
        raise SaveError(f"saving step {snapshot.header.step}: {describe(error)}") from error
    except Exception as error:  # most often RuntimeError: a peer is gone
        raise SaveError(f"saving step {snapshot.header.step}: {error}") from error
    return writer.manifest


def describe(error: CheckpointException) -> str:
    """Which rank had which problem, on one line and without the tracebacks."""
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
