"""`python -m hpckit.supervisor.main RUN SUBMISSION` runs the supervisor of a job as its own
process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpckit.agent.verdict_record import REFUSED
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunHeldError
from hpckit.rundir.requeue_link import supervisor_command
from hpckit.supervisor.supervisor import supervise


def main() -> int:
    """Runs the supervisor and returns the exit status of the run."""
    run, number = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    if "SLURM_RESTART_COUNT" in os.environ and (resized := _resized(run, number)) != number:
        command, env = supervisor_command(run.submission(resized), os.environ)
        os.execve(command[0], command, env)  # in the submission's own code snapshot
    try:
        return supervise(str(run.path), number)
    except RunHeldError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def _resized(run: RunDir, number: int) -> int:
    """Returns the submission for all nodes of this job, or `number` with a `degraded` event if the
    run cannot be resized."""
    # it composes a spec, whose imports take as long as all others here and which few jobs need
    from hpckit.supervisor.continuation.resize import enlarge_submission

    try:
        return enlarge_submission(run, number, os.environ)
    except (RunHeldError, SpecError, OSError) as error:
        with EventLog(run.events, submission=number) as events:
            events.emit(
                Degraded(
                    subject=DegradedSubject.RESIZE,
                    what=f"the run continues with as many nodes as before: {error}",
                )
            )
        return number


if __name__ == "__main__":
    sys.exit(main())
