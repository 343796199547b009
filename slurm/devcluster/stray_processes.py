"""What is left of a node whose first process somebody has killed, perhaps with every Python."""

from __future__ import annotations

from pathlib import Path

from slurm.devcluster.processes import Process, everyone

_PROGRAMS = ("slurmd", "slurmstepd")


def strays_of(log: Path) -> list[Process]:
    """Those that write this log, which is one node's."""
    return [
        process
        for _, process in everyone()
        if process.program() in _PROGRAMS and process.has_open(log.resolve())
    ]
