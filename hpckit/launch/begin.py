"""`python -m hpckit.launch.begin RUN SUBMISSION`: the supervisor, as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpckit.elastic.verdict import REFUSED
from hpckit.launch.comeback import supervisor
from hpckit.launch.growing import grow
from hpckit.launch.supervise import supervise
from hpckit.run.directory import RunDir
from hpckit.run.events import EventLog
from hpckit.run.lock import RunHeldError
from hpckit.run.parse import SpecError


def main() -> int:
    """Its exit status is that of the run."""
    run, number = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    if "SLURM_RESTART_COUNT" in os.environ and (larger := _grown(run, number)) != number:
        command, env = supervisor(run.submission(larger), os.environ)
        os.execve(command[0], command, env)  # with the copy of the code that is its own
    try:
        return supervise(str(run.path), number)
    except RunHeldError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def _grown(run: RunDir, number: int) -> int:
    """The submission for all nodes of this job; as it was where that cannot be, aloud."""
    try:
        return grow(run, number, os.environ)
    except (RunHeldError, SpecError, OSError) as error:
        with EventLog(run.events, submission=number) as events:
            events.emit("degraded", what=f"it goes on with as many nodes as before: {error}")
        return number


if __name__ == "__main__":
    sys.exit(main())
