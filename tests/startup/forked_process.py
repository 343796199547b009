"""What a fork of a process with imports does to be the process that has ordered it."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import io
import json
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.startup.fork_request import (
    FILES,
    OUT_OF_MEMORY,
    PROGRAMS,
    RUNS,
    UPPER,
    end_as,
    likeness,
)
from tests.startup.shown_words import show, show_in_forks

CHECKOUT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1  # prctl(2)
_ENTERED = {
    **{"ipc": 0x8000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000}
}
"""Kinds of namespaces that a fork enters, with their flags of setns(2)."""
_UNFLUSHED = 120
"""Status of a Python program whose output cannot be written at its end."""
_OF_CHILDREN = "pid_for_children"
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ForkOrder:
    """What another process has sent, and its descriptors."""

    sender: socket.socket
    content: dict[str, Any]
    descriptors: list[int]

    @property
    def program(self) -> Sequence[str]:
        """What Python is to run: `-m` or `-c` and what follows it, or a script and its words."""
        found: Sequence[str] = self.content["program"]
        return found

    @property
    def root(self) -> Path:
        """The folder from which the other process would import the project."""
        folders = [Path(self.content["folder"], one) for one in self.content["search_path"]]
        return next((f for f in folders if (f / "hpckit/__init__.py").is_file()), CHECKOUT)

    def close(self) -> None:
        self.sender.close()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def can_enter(name: str, theirs: Any, own: Any) -> bool:
    """Whether a fork of this process can have this of another one, though this process has not."""
    if os.geteuid() != 0 or name not in ("namespaces", "cgroups"):
        return False
    others = _other(theirs, own)
    if name == "namespaces":
        is_usual = ("pid" in others) == (_OF_CHILDREN in others)
        return theirs.keys() == own.keys() and others <= {*_ENTERED, _OF_CHILDREN} and is_usual
    return all(os.access(_members(group, theirs[group]), os.W_OK) for group in others)


def become(order: ForkOrder, modules: Sequence[ModuleType]) -> None:
    """Make this fork what the process is that has ordered it, and tell it so.

    Args:
        modules: those of the project that are imported.
    """
    content = order.content
    _enter(order)
    this = os.pidfd_open(os.getpid())
    with suppress(OSError), order.sender:  # it has ended, and so will this process
        socket.send_fds(order.sender, [b"y"], [this])
    os.close(this)
    *files, end, sender = _moved_up(order.descriptors)
    os.close(sender)
    _die_at(end)
    os.set_inheritable(end, content["kind"] == PROGRAMS)  # a program that it becomes dies then, too
    os.setsid()
    numbers = [*range(FILES), *content["descriptors"]]
    for number, descriptor in zip(numbers, files, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(content["folder"])
    os.umask(content["mask"])
    if os.getgroups() != content["user_groups"]:
        os.setgroups(content["user_groups"])
    for number, soft, hard in content["limits"]:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    for number in content["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if Path(OUT_OF_MEMORY).read_text() != content["out_of_memory"]:
        Path(OUT_OF_MEMORY).write_text(content["out_of_memory"])
    os.environ.clear()
    os.environ.update(content["environment"])
    if content["kind"] == RUNS:
        # an agent would take this fork for one of an earlier generation, as it is no child of the
        # agent's parent, while the process that waits for it is
        show_in_forks(content["environment"])
    else:
        show(content["command"], content["environment"])
    sys.orig_argv[:] = content["command"]
    sys.path[:] = content["search_path"]
    _open_streams()
    _move_modules(modules, order.root)
    _forget_what_processes_have_of_their_own()
    if (own := json.loads(json.dumps(likeness(content["kind"])))) != content["likeness"]:
        raise RuntimeError(f"a fork is not as who ordered it: {own}, {content['likeness']}")
    signal.pthread_sigmask(signal.SIG_SETMASK, content["blocked"])


def _moved_up(descriptors: Sequence[int]) -> list[int]:
    """The same, above the numbers that the process has that ordered this fork."""
    least = min(UPPER, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    found = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, least) for one in descriptors]
    for one in descriptors:
        os.close(one)
    return found


def _enter(order: ForkOrder) -> None:
    """Enter the namespaces and cgroups of the other process, where they are others. Only a child of
    a process can be in another namespace of processes: this process waits for its child and ends as
    that does, and the child goes on. Only the child enters the cgroups, as Slurm waits for the end
    of all in them, and on the node it could not see the parent."""
    theirs, own = order.content["likeness"], likeness(order.content["kind"])
    others = _other(theirs["namespaces"], own["namespaces"])
    if flags := sum(flag for name, flag in _ENTERED.items() if name in others):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if libc.setns(order.descriptors[-1], flags) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        if child := os.fork():
            order.close()
            end_as(os.waitpid(child, 0)[1])
    for group in _other(theirs["cgroups"], own["cgroups"]):
        _members(group, theirs["cgroups"][group]).write_text("0")  # the one that writes


def _other(theirs: dict[str, str], own: dict[str, str]) -> set[str]:
    """Names of what differs."""
    return {name for name, value in theirs.items() if own.get(name) != value}


def _members(hierarchy: str, group: str) -> Path:
    """The file to which a process writes that enters a cgroup."""
    return _CGROUPS / hierarchy / group.lstrip("/") / "cgroup.procs"


def _die_at(end: int) -> None:
    """Have the kernel kill this process when the writing end of this pipe is closed, or when its
    parent ends, which is the process with the imports, or ends with that."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(end, 1) == b"":  # it was closed before
            os.kill(os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass


def _open_streams() -> None:
    """Open standard input, output and error as Python does at its start, for what they are now."""
    is_unbuffered = sys.orig_argv[1:2] == ["-u"] or bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "r" if number == 0 else "w"
        is_direct = is_unbuffered and mode == "w"
        file = open(number, f"{mode}b", 0 if is_direct else -1, closefd=False)  # noqa: SIM115
        new = io.TextIOWrapper(
            file,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=not is_direct and (number == 2 or os.isatty(number)),
            write_through=is_direct,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _move_modules(modules: Sequence[ModuleType], root: Path) -> None:
    """Have the packages of the project be those in `root`, which are the same, as they would be in
    another process: those of users' programs are told from them by where they are."""
    if root == CHECKOUT:
        return
    before, after = f"{CHECKOUT}/", f"{root}/"

    def moved(path: str | None) -> str:
        return str(path).replace(before, after, 1)

    for module in modules:
        spec = module.__spec__
        assert spec is not None
        for constant, value in list(vars(module).items()):
            if isinstance(value, Path) and value == CHECKOUT:
                setattr(module, constant, root.resolve())
        if module.__file__ is not None:
            module.__file__ = spec.origin = moved(module.__file__)
        if spec.submodule_search_locations is not None:
            folders = [moved(folder) for folder in spec.submodule_search_locations]
            module.__path__ = spec.submodule_search_locations = folders


def _forget_what_processes_have_of_their_own() -> None:
    import platform
    import random

    random.seed()
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    tempfile.tempdir = None
    vars(platform)["_uname_cache"] = None  # with the name of the host


def run(words: Sequence[str]) -> NoReturn:
    """Run a program as Python does with these words, to the end of this process."""
    status: object = 1
    is_interrupted = False
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.modules.pop(words[1], None) if _is_file(words[1]) else None
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            _execute(words[1], "<string>")
        else:
            sys.argv = list(words)
            path = Path(words[0]).absolute()
            _execute(path.read_bytes(), str(path), __file__=str(path))
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # noqa: BLE001  as Python shows what nothing catches
        is_interrupted = isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(status, str):
        print(status, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as at Python's end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            traceback.print_exc()
            status = _UNFLUSHED
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status if isinstance(status, int) else int(status is not None))


def _execute(code: str | bytes, path: str, **variables: str) -> None:
    main = vars(sys.modules["__main__"])
    main.update(variables)
    exec(compile(code, path, "exec", dont_inherit=True), main)


def _is_file(module: str) -> bool:
    """Whether a module is no package, so that runpy would warn if it was imported before."""
    return not hasattr(sys.modules.get(module), "__path__")
