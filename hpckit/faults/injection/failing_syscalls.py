"""Makes system calls of running processes fail for a while, as on a full or broken disk.

It uses strace, which lets each such call return the error instead of making it. So neither root nor
a separate file system is needed, and the process sees what a kernel would return. It needs strace
on the machine, and the right to trace one's own processes (kernel.yama.ptrace_scope=0).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

CALLS = {
    "ENOSPC": ("writev", "pwritev", "fallocate", "link", "linkat", "mkdir", "mkdirat"),
    "EIO": ("fsync", "fdatasync", "preadv", "preadv2"),
}
"""System calls by which a checkpoint service uses its store
(`checkpointing.storage.posix.syscalls`): those that need space, and those by which a kernel reports
a broken disk."""
_OVER = (0, 124)  # all of them ended; the time was up


CANNOT = 3
"""Exit status of a program on another machine that means `UnsupportedFaultError`."""


class UnsupportedFaultError(RuntimeError):
    """The machine lacks what a fault needs; the message says what."""


def fail_syscalls(processes: Sequence[int], error: str, seconds: float) -> None:
    """Make these calls of the processes, and of their threads and children, fail for the given
    seconds.

    If this process is killed meanwhile, the failures end with these seconds: `timeout` ends strace,
    and the kernel detaches from the processes. If it is interrupted, strace ends immediately.

    Args:
        error: a key of `CALLS`.

    Raises:
        UnsupportedFaultError: strace is missing or not allowed; the processes are unchanged.
    """
    if not processes:
        return
    calls = ",".join(f"?{call}" for call in CALLS[error])  # ?: not all machines have all
    command = ["timeout", f"{seconds:g}", "strace", "-f", "-q", f"--output={os.devnull}"]
    command += [f"--trace={calls}", f"--inject={calls}:error={error}"]
    command += [f"--attach={process}" for process in processes]
    try:
        status, message = _run(command)
    except OSError as missing:
        raise UnsupportedFaultError(f"{error} requires timeout and strace: {missing}") from missing
    if status not in _OVER:
        raise UnsupportedFaultError(f"{error} requires strace: {' '.join(message.split())}")


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run it and return its exit status and its standard error."""
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=pipe, text=True) as done:
        try:
            _, stderr = done.communicate()
        except BaseException:
            done.terminate()  # passes it on, unlike a SIGKILL
            raise
        return done.returncode, stderr
