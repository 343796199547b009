"""The first Python of a job: holds back its signals until there is a supervisor to hear them.

    exec python -IS .../hpckit/submit/signal_hold.py ARGUMENTS

Becomes `python ARGUMENTS`, which imports for seconds, most of all from a shared file system. A
preemption in that time would end the job before it has a successor. The shell before ignores these
signals (`IGNORED`); a process that blocks them has them pending, whatever it does with them later.

It is run by its path, without site-packages: so by the standard library alone, in milliseconds.
"""

import os
import signal
import sys

HELD = (signal.SIGUSR2, signal.SIGTERM)
IGNORED = "trap '' USR2 TERM"
"""A line of shell: nothing of what comes before this program is ended by them."""


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
