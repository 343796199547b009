"""System calls of running processes that fail for a while, as those on a full or a broken disk do.

By strace, which lets each such call return the error in place of being made: so neither root nor a
file system of one's own is needed, and whoever is hit sees what a kernel says. It takes strace on
the machine, and the right to trace one's own processes (kernel.yama.ptrace_scope=0).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

CALLS = {
    "ENOSPC": ("writev", "pwritev", "fallocate", "link", "linkat", "mkdir", "mkdirat"),
    "EIO": ("fsync", "fdatasync", "preadv", "preadv2"),
}
"""By which a checkpoint service uses its store (`checkpointing.storage.posix.syscalls`): those that
take
room, and those in which a kernel tells of a disk that fails."""
_OVER = (0, 124)  # all of them ended; it was time


CANNOT = 3
"""Exit status of a program on another machine: a `UnsupportedFaultError`."""


class UnsupportedFaultError(RuntimeError):
    """The machine has not what a fault takes, and never will; says what."""


def fail_syscalls(processes: Sequence[int], error: str, seconds: float) -> None:
    """Have these calls of the processes, and of their threads and children, fail; then no more.

    Who is killed meanwhile leaves nothing behind but these seconds: `timeout` ends strace, and the
    kernel lets go of the processes. Who is interrupted ends it at once.

    Args:
        error: a key of `CALLS`.

    Raises:
        CannotError: there is no strace, or it may not; they are as they were.
    """
    if not processes:
        return
    calls = ",".join(f"?{call}" for call in CALLS[error])  # ?: not all machines have all
    command = ["timeout", f"{seconds:g}", "strace", "-f", "-q", f"--output={os.devnull}"]
    command += [f"--trace={calls}", f"--inject={calls}:error={error}"]
    command += [f"--attach={process}" for process in processes]
    try:
        status, said = _run(command)
    except OSError as missing:
        raise UnsupportedFaultError(f"{error} takes timeout and strace: {missing}") from missing
    if status not in _OVER:
        raise UnsupportedFaultError(f"{error} takes strace: {' '.join(said.split())}")


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status, and what went to standard error."""
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=pipe, text=True) as done:
        try:
            _, said = done.communicate()
        except BaseException:
            done.terminate()  # which it hands on, as it would not a SIGKILL
            raise
        return done.returncode, said
