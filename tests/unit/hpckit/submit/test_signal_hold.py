"""What comes for a job before its supervisor hears waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.submit import signal_hold

_LATER = """
import signal, sys
sys.stdin.readline()
for number in signal.SIGUSR2, signal.SIGTERM:
    signal.signal(number, lambda number, frame: print(signal.Signals(number).name, flush=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2, signal.SIGTERM])
"""


@pytest.mark.parametrize("number", signal_hold.HELD)
def test_a_signal_waits_until_somebody_hears(number: signal.Signals) -> None:
    """Also where a shell has ignored it before."""
    words = [
        sys.executable,
        "-IS",
        str(Path(signal_hold.__file__)),
        "-c",
        f"print(flush=True){_LATER}",
    ]
    shell = [
        "bash",
        "-c",
        f'{signal_hold.IGNORED}; kill -{number.name[3:]} $$; exec "$@"',
        "-",
        *words,
    ]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "\n"
        os.kill(job.pid, number)
        out, _ = job.communicate("go on\n", timeout=180)
    assert (job.returncode, out) == (0, f"{number.name}\n")
