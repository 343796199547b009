"""The checkpoints of a run that still exist."""

from __future__ import annotations

from checkpointing import CheckpointInfo, list_checkpoints
from hpckit.report.history import History
from hpckit.rundir.directory import RunDir
from hpckit.system.store_timeouts import interactive_store_options


def left_checkpoints(run: RunDir, history: History) -> list[CheckpointInfo]:
    """Return the checkpoints that the run has committed and that were not removed, including
    damaged ones.

    They are known by their ids, so that they are found where the run was moved to.

    Raises:
        CheckpointError, FileNotFoundError: their store cannot be looked at, or is gone.
    """
    ids = {event.id for event in history.committed}
    here = (run.checkpoints / "hpckit.json").is_file()
    stores = (
        {str(run.checkpoints)}
        if here
        else {event.store for event in history.committed if event.store}
    )
    found = [
        info
        for url in stores
        for info in list_checkpoints(url, options=interactive_store_options())
    ]
    return [info for info in found if info.id in ids]
