"""The record of each daemon: a JSON file that is written before the daemon runs."""

from __future__ import annotations

import json
from pathlib import Path

from slurm.devcluster.daemons.processes import Process
from slurm.devcluster.errors import DevclusterError


def write(path: Path, process: Process) -> None:
    new = path.with_suffix(".new")
    new.write_text(
        json.dumps({"pid": process.pid, "started": process.started, "boot": _boot()}) + "\n"
    )
    new.replace(path)


def read(path: Path) -> Process | None:
    """Returns the process; None if there is no record or the process has ended.

    Raises:
        DevclusterError: the file is not a record.
    """
    try:
        found = json.loads(path.read_text())
        process = Process(int(found["pid"]), int(found["started"]))
        boot = found["boot"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DevclusterError(
            f"{path} is not a record of a process ({error}): look for it with ps, end it, and "
            "remove the file"
        ) from error
    return process if boot == _boot() and process.is_alive() else None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
