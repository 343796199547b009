"""Child processes that the kernel kills with their parent, and the search for processes that an
earlier generation has left."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import psutil

from hpckit.system.open_files import restore_soft_limit

Process: TypeAlias = "subprocess.Popen[bytes]"

_STOPPED_S = 5.0
"""Seconds within which a process stops at SIGSTOP, unless it waits in the kernel."""
_STOPPED_TICK_S = 0.002
_NOT_RUNNING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


class Child(Protocol):
    """The common interface of a `Process` and of other processes that end with this one."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LIBC = ctypes.CDLL(None, use_errno=True)
_PIPE_BYTES = 1 << 20
"""Bytes of the largest pipe of an unprivileged user (/proc/sys/fs/pipe-max-size)."""
AGENT_NAME = "hpckit agent"
"""Name of an agent's process, set by `name_process`."""


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when `parent`, its parent, ends (prctl(2)).

    The end of a supervisor therefore ends its agents, the end of an agent its torchrun, and the end
    of a torchrun its workers, so that no process of an ended generation can write anything.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def enlarge_pipe(descriptor: int) -> None:
    """Makes a pipe as large as it can be, so that long messages fit into it. It keeps its size
    where the kernel refuses: all pipes of an unprivileged user together may have 64 MiB
    (/proc/sys/fs/pipe-user-pages-soft)."""
    with suppress(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def redirect_output(path: Path) -> None:
    """Appends the output of this process, including that of C code, to the file at `path`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.close(handle)


def name_process(name: str) -> None:
    """Sets the name that `ps -o comm`, top and similar tools show: at most 15 bytes."""
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15])


def rank_name(rank: int) -> str:
    """Returns the name of the process of this rank."""
    return f"rank {rank}"


def rank_named(name: str) -> int | None:
    """Returns the rank whose process has this name, or None if the name is not one of a rank."""
    word, _, rank = name.partition(" ")
    return int(rank) if word == "rank" and rank.isdigit() else None


def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    output: Path,
    ignore: Collection[signal.Signals] = (),
) -> Process:
    """Starts `command`, which is killed when this process ends, and appends its output to the file
    `output`.

    The child gets a session of its own, so that a terminal's Ctrl-C does not reach it. It and its
    children ignore the signals in `ignore` unless they handle them.
    """
    with open(output, "ab") as sink:
        return _popen(command, env, stdout=sink, stderr=sink, ignore=ignore)


def spawn_piped(
    command: Sequence[str], env: Mapping[str, str], errors: Path, *, is_written_to: bool = False
) -> Process:
    """Starts `command` as `spawn` does, but with a pipe for standard output and, if
    `is_written_to`, for standard input; only standard error goes to a file.

    The pipes keep their default size: enlarged, those of 32 children would be all that a user may
    have on a machine.
    """
    stdin = subprocess.PIPE if is_written_to else subprocess.DEVNULL
    with open(errors, "ab") as sink:
        return _popen(command, env, stdin=stdin, stdout=subprocess.PIPE, stderr=sink)


def spawn_with_stdin(
    command: Sequence[str],
    env: Mapping[str, str],
    stdin: int,
    ignore: Collection[signal.Signals] = (),
) -> Process:
    """Starts `command` as `spawn` does, with the descriptor `stdin` as its standard input. Its
    output goes to the standard error of this process."""
    errors = sys.stderr
    return _popen(command, env, stdin=stdin, stdout=errors, stderr=errors, ignore=ignore)


def _popen(
    command: Sequence[str],
    env: Mapping[str, str],
    stdout: int | IO[Any],
    stderr: IO[Any],
    stdin: int = subprocess.DEVNULL,
    ignore: Collection[signal.Signals] = (),
) -> Process:
    parent = os.getpid()

    def set_up_child() -> None:
        die_with_parent(parent)
        restore_soft_limit()
        for number in ignore:
            signal.signal(number, signal.SIG_IGN)

    return subprocess.Popen(
        command,
        env=dict(env),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # callers have no other threads than a `HeartbeatThread`, which holds no lock needed here
        preexec_fn=set_up_child,
    )


def has_ended_child() -> bool:
    """Returns whether a child of this process has ended and was not waited for. One call of the
    kernel says so of thousands of children, of which usually none has."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # there is no child
        return False


def kill_all(processes: Iterable[Child]) -> None:
    """Sends SIGKILL to processes and reaps them."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.kill()
    for process in alive:
        process.wait()


def kill_tree(process: psutil.Process) -> None:
    """Sends SIGKILL to a process and to all that it has started. It is stopped first, as otherwise
    it could start another one after those that it has started were listed."""
    with suppress(psutil.NoSuchProcess):
        process.suspend()
        deadline = time.monotonic() + _STOPPED_S
        while process.status() not in _NOT_RUNNING and time.monotonic() < deadline:
            time.sleep(_STOPPED_TICK_S)
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def strays(
    run: Path, node: int | None = None, spared: Collection[int] = ()
) -> list[psutil.Process]:
    """Returns this user's processes on this host that have `run` in their environment, except this
    process, its ancestors, and checkpoint services, which outlive generations.

    Args:
        node: only processes of this node are returned, if one host simulates several.
        spared: pids of processes that are left out.
    """
    me = psutil.Process()
    mine = {me.pid, *spared, *(parent.pid for parent in me.parents())}
    found = []
    for process in psutil.process_iter():
        try:
            mine_to_kill = process.pid not in mine and process.uids().real == os.getuid()
            env = process.environ() if mine_to_kill else {}
            is_there = node is None or env.get("HPCKIT_NODE") == str(node)
            if env.get("HPCKIT_RUN") == str(run) and is_there and "HPCKIT_SERVICE" not in env:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def kill_strays(
    run: Path, node: int | None = None, spared: Collection[int] = (), within_s: float = 10.0
) -> list[int]:
    """Kills the processes of `run` that an earlier generation left on this host, and returns their
    pids.

    Args:
        node, spared: as in `strays`.

    Raises:
        TimeoutError: a process did not end within `within_s` seconds, as when it waits in the
            kernel.
    """
    left = strays(run, node, spared)
    for process in left:
        log.warning("killing process %d, left by an earlier generation of %s", process.pid, run)
        with suppress(psutil.NoSuchProcess):  # it has ended, as with its parent
            process.kill()
    deadline = time.monotonic() + within_s
    while alive := [process for process in left if _runs(process)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[p.pid for p in alive]} of {run} do not end")
        time.sleep(0.05)
    return [process.pid for process in left]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
