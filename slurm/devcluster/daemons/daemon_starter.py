"""A program that starts a daemon detached from its caller, and records the process.

It runs as a process of its own, with one argument of JSON: {"record": where to write it down,
"log": the file for the output, "lock": a file descriptor, kept until all this is done,
"namespaces": whether to give it namespaces of its own, of which it is the first process,
"command": its path and arguments}. The standard error says what went wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from slurm.devcluster.daemons import process_records
from slurm.devcluster.daemons.processes import Process

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    if order["namespaces"]:
        _unshare()
    os.set_inheritable(order["lock"], False)
    go, say_go = os.pipe()
    failure, fail = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(say_go)
        _become(order, go, fail)
    os.close(go)
    os.close(fail)
    process = Process.of(pid)
    if process is None:
        sys.exit(f"{order['command'][0]} was killed before it began")
    process_records.write(Path(order["record"]), process)
    os.write(say_go, b"!")
    if why := os.read(failure, 1000):  # nothing comes, and the end, once the program runs
        sys.exit(why.decode(errors="replace"))


def _become(order: dict[str, Any], go: int, fail: int) -> NoReturn:
    command = order["command"]
    try:
        _stand_alone(order["log"])
        if not os.read(go, 1):
            os._exit(1)  # the launcher was killed: nobody knows of this process
        os.execv(command[0], command)
    except OSError as error:
        os.write(fail, f"{command[0]}: {error}".encode())
        os._exit(1)


def _stand_alone(log: str) -> None:
    os.setsid()
    os.chdir("/")
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, number in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(opened, number)
    for signum in _IGNORED:  # by Python, or by the shell that runs it in the background
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NAMESPACES) != 0:
        sys.exit(f"no namespaces of its own for a node: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
