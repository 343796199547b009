"""What the modules that jobs are started by are called in the code snapshot of a run.

A run goes on with the code that it was submitted with, whatever release goes on with it: a snapshot
of an earlier release has these modules under other names.
"""

from __future__ import annotations

from pathlib import Path

SIGNAL_HOLD = "hpckit.submit.signal_hold"
SUPERVISOR = "hpckit.supervisor.supervisor"
SUPERVISOR_PROCESS = "hpckit.supervisor.main"
PROCESS_FAULTS = "hpckit.faults.injection.process_faults"
SHARD_CORRUPTION = "hpckit.faults.injection.shard_corruption"

_EARLIER = {
    SIGNAL_HOLD: "hpckit.launch.hold",
    SUPERVISOR: "hpckit.launch.supervise",
    SUPERVISOR_PROCESS: "hpckit.launch.begin",
    PROCESS_FAULTS: "hpckit.elastic.strike",
    SHARD_CORRUPTION: "hpckit.elastic.spoil",
}


def module_in(code: Path, module: str) -> str:
    """The name of one of these modules in a snapshot.

    Args:
        code: the folder of the snapshot.
    """
    earlier = _EARLIER[module]
    file = code.joinpath(*earlier.split(".")).with_suffix(".py")
    return earlier if file.is_file() else module
