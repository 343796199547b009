"""Runs the function `main` of a Python module as a program in a fork of this process, which has
done some of its imports.

A new interpreter would import again what both need: of a spec and its parser that takes 0.2 s of
processor time.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from hpckit.system.child_processes import die_with_parent
from hpckit.system.open_files import restore_soft_limit
from hpckit.system.process_end import end_process, exit_status

_READ_AT_START = (
    *("PYTHON", "HOME", "LD_", "GLIBC_", "MALLOC_", "GCONV_", "LOCPATH", "LC_", "LANG", "TZ"),
    *("OPENSSL_", "SSL_", "ASAN_", "TSAN_", "UBSAN_", "LSAN_"),
)
"""Beginnings of the names of variables that an interpreter, its libraries or the loader may read
before they run a program."""


class ForkedProgram:
    """A child of this process with the methods of `subprocess.Popen` that its owner uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status as subprocess does, or None while the program runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Waits for the end of the program and returns its exit status."""
        returncode = self._reap(0)
        assert returncode is not None  # waitpid blocks until there is one
        return returncode

    def kill(self) -> None:
        """Sends SIGKILL to the program, unless it was waited for: its number may be reused."""
        if self._returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self._returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode


def is_forkable(env: Mapping[str, str]) -> bool:
    """Returns whether a fork of this process, whose environment is unchanged since its start, is as
    good as a new interpreter with the environment `env`."""
    return is_like_new(env, os.environ) and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def is_like_new(env: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Returns whether an interpreter finds in `env` what one finds in `own` before it runs a
    program. Pure."""
    return _read_at_start(env) == _read_at_start(own)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def fork_program(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    stdin: int,
    release: Callable[[], None],
    ignore: Sequence[signal.Signals] = (),
) -> ForkedProgram:
    """Starts `python -m MODULE ARGUMENTS` as `hpckit.system.child_processes.spawn_with_stdin` does,
    but in a fork of this process, which has no other threads. It ends with this process.

    Args:
        env: the whole environment, for which `is_forkable`.
        release: closes in the fork what it must not hold, above all ends of pipes.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return ForkedProgram(pid)
    try:
        os.setsid()
        die_with_parent(parent)
        restore_soft_limit()
        for number in ignore:
            signal.signal(number, signal.SIG_IGN)
        os.dup2(stdin, sys.stdin.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        release()
        _run(module, arguments, env)
    except SystemExit as error:
        end_process(exit_status(error))
    except BaseException:  # noqa: BLE001 - whatever it is: it is printed, as by an interpreter
        traceback.print_exc()
    finally:
        os._exit(1)  # nothing of this process's own program may run in the fork


def _run(module: str, arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", module, *arguments]
    program = importlib.import_module(module)
    sys.modules["__main__"] = program  # what children of `multiprocessing` import, too
    program.main()
    end_process(0)
