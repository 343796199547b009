"""The end of a process that others wait for."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn, TextIO

UNWRITTEN = 120
"""Exit status if output could not be written, as of the interpreter (`Py_RunMain`)."""


def end_process(status: int) -> NoReturn:
    """Ends this process with an exit status, as `sys.exit` does, but leaves its memory to the
    kernel: an interpreter that has imported torch takes itself down for 0.3 s of processor time,
    and one without torch for 0.1 s. Functions that are registered with atexit are called, `logging`
    and `multiprocessing` among them. Threads are not waited for, and files that are still open lose
    what they hold in Python's buffers.

    A status of 0 becomes `UNWRITTEN` if standard output or error cannot be written.
    """
    try:
        atexit._run_exitfuncs()
        is_output_written, is_error_written = _flush(sys.stdout), _flush(sys.stderr)
        if not (is_output_written and is_error_written):
            status = status or UNWRITTEN
    finally:
        os._exit(status)


def _flush(stream: TextIO | None) -> bool:
    """Writes what the stream holds, and returns whether nothing of it is lost."""
    if stream is None or stream.closed:
        return True
    try:
        stream.flush()
    except OSError:
        return False
    return True
