"""The end of a process that others wait for."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """Ends this process with an exit status, as `sys.exit` does, but leaves its memory to the
    kernel: an interpreter that has imported torch takes itself down for 0.3 s of processor time,
    and one without torch for 0.1 s. Functions that are registered with atexit are called; threads
    are not waited for."""
    try:
        atexit._run_exitfuncs()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(status)
