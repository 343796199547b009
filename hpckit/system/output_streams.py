"""Standard output that takes any character, and whose end or full disk is no traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ENDED = 1
"""Exit status if the reader of the output has ended."""
_UNWRITABLE = 2
"""Exit status if the output cannot be written."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextmanager
def checked_output() -> Iterator[None]:
    """Prints a character that the terminal's encoding lacks as `?`, and ends the program with one
    line where its output cannot be written. It ends without a line if the reader has ended, as
    with `| head`. An output that is closed, as by `>&-`, takes what is printed all the same."""
    _open_closed_streams()
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and (stdout.errors == "strict" or not _is_utf8(stdout)):
        stdout.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            stdout.flush()
    except BrokenPipeError:
        discard_output()
        sys.exit(_ENDED)
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        discard_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(_UNWRITABLE)


def _open_closed_streams() -> None:
    """Sends what is printed to closed streams nowhere: `print` would send errors to standard output
    instead, and the next file that is opened would be what child processes take for theirs."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Sends the rest of standard output nowhere, so that the end of the process does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _is_utf8(stream: io.TextIOWrapper) -> bool:
    return stream.encoding.lower().replace("-", "") == "utf8"
