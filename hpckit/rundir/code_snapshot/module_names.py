"""Names, in a run's code snapshot, of the modules that start its jobs.

A run continues with the code that it was submitted with, whatever release resumes it: in a snapshot
of an earlier release, these modules have other names.
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
    """Returns the name of one of these modules in a snapshot.

    Args:
        code: the folder of the snapshot.
    """
    earlier = _EARLIER[module]
    file = code.joinpath(*earlier.split(".")).with_suffix(".py")
    return earlier if file.is_file() else module
