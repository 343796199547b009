"""`python -m hpckit.supervisor.main RUN SUBMISSION`: the supervisor, as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpckit.agent.verdict_record import REFUSED
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunHeldError
from hpckit.rundir.requeue_link import supervisor_command
from hpckit.supervisor.continuation.resize import enlarge_submission
from hpckit.supervisor.supervisor import supervise


def main() -> int:
    """Its exit status is that of the run."""
    run, number = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    if "SLURM_RESTART_COUNT" in os.environ and (larger := _grown(run, number)) != number:
        command, env = supervisor_command(run.submission(larger), os.environ)
        os.execve(command[0], command, env)  # with the copy of the code that is its own
    try:
        return supervise(str(run.path), number)
    except RunHeldError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def _grown(run: RunDir, number: int) -> int:
    """The submission for all nodes of this job; as it was where that cannot be, aloud."""
    try:
        return enlarge_submission(run, number, os.environ)
    except (RunHeldError, SpecError, OSError) as error:
        with EventLog(run.events, submission=number) as events:
            events.emit("degraded", what=f"it goes on with as many nodes as before: {error}")
        return number


if __name__ == "__main__":
    sys.exit(main())
