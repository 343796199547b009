"""The first Python program of a job, which blocks the job's signals until a supervisor handles
them.

    exec python -IS .../hpckit/submit/signal_hold.py ARGUMENTS

It becomes `python ARGUMENTS`, whose imports take seconds, in particular from a shared file system.
A preemption during that time would end the job before it has a successor. The shell before it
ignores these signals (`IGNORED`); blocked signals stay pending for the process that this one
becomes.

It is run by its path and without site-packages, so it uses only the standard library and
takes milliseconds.
"""

import os
import signal
import sys

HELD = (signal.SIGUSR2, signal.SIGTERM)
IGNORED = "trap '' USR2 TERM"
"""A shell line with which these signals do not end what runs before this program."""


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
