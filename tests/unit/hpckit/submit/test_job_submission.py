"""What a job that is started on this machine inherits."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from hpckit.submit.job_submission import _signals_ignored


def interrupted_start() -> None:
    """Start a process, which ignores the Ctrl-C that comes at this moment."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with _signals_ignored((signal.SIGINT,)):
        signal.raise_signal(signal.SIGINT)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "True\n"


def test_a_ctrl_c_while_a_job_is_started_is_not_lost_and_the_job_ignores_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_start()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
