"""Processes that do the imports of others for the whole suite.

A run under test starts a fork server on each of its nodes, and each would import torch, which takes
more processor time than all that most tests do besides. Instead, a fork server asks a process of
`SharedImports`, by a socket, for a fork of it that has all imports done. The fork gets the
variables, the descriptors, the folder and the limits of the fork server and does its work. The fork
server waits, ends as the fork does, and if it is killed, the kernel kills the fork, too.

There is a process, with a socket, for each kind of those that ask:

- `RUNS`: fork servers of runs under test, and the process that has the model of an evaluation;
- `FRAMEWORKS`: fork servers of runs whose programs use one, as a test says by `WITH`;
- `TESTS`: fork servers of the tests themselves, which import more than torch;
- `WORKERS`: the workers of xdist: it has imported the modules of all tests that are asked for;
- `SERVICES`: checkpoint services, of which the suite starts hundreds, and which do without torch:
  five sixths of the processor time until one is ready are imports;
- `PROGRAMS`: what else of a run does without torch: `launch.py`, `hpckit`, the supervisor, and the
  watchdog of each node.

Most are forks of another one (`_FORK_OF`), with what they import besides. Each imports when it is
first asked. `sitecustomize` decides by its program which kind a process is; one of the tests is of
the kind that `SHARED_IMPORTS_FOR` in its environment names. A fork server of a run goes on in its
fork where it began to import; all others are run as programs of their own. These have the command
line, the environment and the streams that they would have, and get the signals of the process that
waits for them; what is theirs no more is that one's number and parent.

On a node with namespaces or cgroups of its own the fork enters those of the process that asks, as
root may. A process of another environment does its imports by itself, as outside of the suite:
where its namespaces cannot be entered, or it is of another user, of other code, or has other
variables that are read by imports. So does each one if `SHARED_IMPORTS=0` is in the environment,
and in a job of Slurm each one of `PROGRAMS`, unless `SHARED_IMPORTS_IN_JOBS` is there. Where the
kernel does not let a process replace its command line, only `RUNS` are served.

What forks share, and fork servers of several nodes do not, is the seed of Python's hashes: an order
of a set that differs between nodes is seen only where fork servers do their imports by themselves,
as in tests/cluster/test_cache_peers.py and tests/integration/project/test_demo.py.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.startup.fork_request import (
    ADDRESS,
    DESCRIPTORS,
    FORK_SERVER,
    FRAMEWORKS,
    NUMBER_BYTES,
    PROGRAMS,
    RUNS,
    SERVES,
    SERVICES,
    TESTS,
    WORKERS,
    likeness,
)
from tests.startup.forked_process import (
    CHECKOUT,
    PR_SET_PDEATHSIG,
    ForkOrder,
    become,
    can_enter,
    run,
)
from tests.startup.shown_words import is_replaceable

_IMPORTS: dict[str, tuple[str, str | None]] = {
    RUNS: ("hpckit.trainer.torchrun.forked_workers", None),
    TESTS: ("tests.forkserver", "import_all"),
    WORKERS: ("tests.startup.worker_imports", "import_all"),
    SERVICES: ("checkpointing.service.process", None),
    PROGRAMS: ("tests.startup.program_imports", "import_all"),
    **{kind: (module, None) for kind, module in FRAMEWORKS.items()},
}
"""What each process imports: a module, and a function of it that imports more."""
_FORK_OF = {TESTS: RUNS, WORKERS: TESTS, PROGRAMS: SERVICES, **dict.fromkeys(FRAMEWORKS, RUNS)}
"""Which process each is a fork of; the suite starts the others itself."""
_PACKAGES = ("hpckit", "checkpointing", "data")
_AS_IN_RUNS = {"PYTHONSAFEPATH": "1"}
_ROOM_BYTES = 1 << 16  # for others' variables, and for their command lines
_MORE_DESCRIPTORS = 64  # that a process may have besides
_STDIN = 0
_PATIENCE_S = 30.0
_ARGUMENTS = "arguments"


# --- in the suite -------------------------------------------------------------------------------


class SharedImports:
    """The processes with the imports, which end with this object's `close` or with this process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """
        Args:
            arguments: those of pytest that say which tests there are.
        """
        from hpckit.agent.workers.torchrun_command import torchrun_variables

        self._folder = tempfile.TemporaryDirectory(prefix="imports-")
        folder = Path(self._folder.name)
        (folder / _ARGUMENTS).write_text(json.dumps(list(arguments)))
        of_runs = torchrun_variables(1) | _AS_IN_RUNS
        if is_replaceable():
            self._processes = [
                _start(folder, (RUNS, *FRAMEWORKS, TESTS, WORKERS), of_runs),
                _start(folder, (SERVICES, PROGRAMS), {}),
            ]
        else:
            self._processes = [_start(folder, (RUNS,), of_runs)]
        os.environ[ADDRESS] = str(folder)

    def close(self) -> list[str]:
        """End them. Return a line for each process that asked: `shared`, or why it did its imports
        alone."""
        del os.environ[ADDRESS]
        for process in self._processes:
            process.kill()
            process.wait()  # before its input ends
            assert process.stdin is not None
            process.stdin.close()
        log = Path(self._folder.name, "log")
        lines = log.read_text().splitlines() if log.exists() else []
        self._folder.cleanup()
        return lines


def _start(
    folder: Path, kinds: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the first of the processes that are forks of each other."""
    with ExitStack() as stack:
        descriptors = {
            kind: stack.enter_context(_listener(folder / kind)).fileno() for kind in kinds
        }
        own = {ADDRESS: str(folder), SERVES: json.dumps(descriptors).ljust(_ROOM_BYTES)}
        return subprocess.Popen(
            [sys.executable, "-m", FORK_SERVER, " " * _ROOM_BYTES],
            env={**os.environ, **variables, **own},
            stdin=subprocess.PIPE,
            pass_fds=list(descriptors.values()),
            start_new_session=True,
        )


def _listener(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(64)
    return found


def asked_arguments() -> list[str]:
    """The arguments of pytest that say which tests there are."""
    found: list[str] = json.loads(Path(os.environ[ADDRESS], _ARGUMENTS).read_text())
    return found


# --- in a process with the imports --------------------------------------------------------------


def serve() -> None:
    """Serve, and return in forks that go on as fork servers of runs; forks for another program run
    it here."""
    folder = os.environ[ADDRESS]
    try:
        # a fork has the signals that come before it has its mask
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _allow_open_files()
        numbers = json.loads(os.environ[SERVES])
        order = _serve({kind: socket.socket(fileno=number) for kind, number in numbers.items()})
        become(order, _own)
        if order.program[:2] != ["-m", FORK_SERVER]:
            run(order.program)
    except BaseException as error:  # noqa: BLE001  Python would go on as a fork server
        traceback.print_exc()
        _log(f"failed: {error!r}", folder)
        os._exit(1)
    sys.argv[1:] = order.program[2:]


def _allow_open_files() -> None:
    """Have room for many forks at a time, and for descriptors above those that they are given. Each
    fork has the limit of the process that has ordered it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass(frozen=True)
class _Fork:
    pid: int
    sender: socket.socket

    def report_end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        with suppress(OSError), self.sender as server:
            server.sendall(status.to_bytes(NUMBER_BYTES, "little"))


def _serve(listeners: dict[str, socket.socket]) -> ForkOrder:
    """Make a fork for each process that asks for one and is like this process, which is the first
    of those that `listeners` names. Return what was ordered, in the forks only. Fork a process with
    more imports when it is first asked for."""
    kind, *others = listeners
    listener = listeners[kind]
    basis = RUNS if kind in FRAMEWORKS else kind
    own, modules = json.loads(json.dumps(likeness(basis))), _modules(CHECKOUT)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(_STDIN, selectors.EVENT_READ)
        for other in others:
            selector.register(listeners[other], selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if isinstance(key.data, _Fork):
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    key.data.report_end()
                elif key.fd == _STDIN:
                    if kind not in _FORK_OF:  # it would have been killed, had the suite ended well
                        shutil.rmtree(os.environ[ADDRESS], ignore_errors=True)
                    os._exit(0)
                elif key.fileobj is not listener:
                    asked = next(other for other in others if listeners[other] is key.fileobj)
                    branch = _branch(kind, others, asked)
                    if _fork_process_with_more(kind) == 0:
                        for name in {*listeners} - {*branch}:
                            listeners[name].close()
                        _close_all(selector)
                        return _serve({name: listeners[name] for name in branch})
                    for other in branch:
                        selector.unregister(listeners[other])
                        listeners.pop(other).close()
                        others.remove(other)
                    break  # those that follow may be of sockets that are closed
                elif (order := _accept(listener)) is None:
                    continue
                elif differences := _differences(order, own, modules):
                    _log(f"alone: {', '.join(differences)}")
                    order.close()
                elif (pid := _fork(kind)) is None:
                    order.close()
                elif pid:
                    order.close_descriptors()
                    fork = _Fork(pid, order.sender)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, fork)
                else:
                    for one in listeners.values():
                        one.close()
                    _close_all(selector)
                    return order


def _branch(kind: str, others: Sequence[str], asked: str) -> list[str]:
    """The process that is a fork of this one and is or forks the one that is asked for, and all
    that it forks, the first one first."""
    while _FORK_OF[asked] != kind:
        asked = _FORK_OF[asked]
    found = [asked]
    found += [other for other in others if _FORK_OF[other] in found]
    return found


def _fork_process_with_more(kind: str) -> int:
    """Do the imports of this process, and fork the one that imports more. Return as os.fork()."""
    _import(kind)
    parent = os.getpid()
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    return 0


_imported: set[str] = set()
_own: list[ModuleType] = []
"""The modules of the project that this process has imported."""


def _import(kind: str) -> None:
    """Do the imports of a process, if they are not done."""
    if kind in _imported:
        return
    _imported.add(kind)
    name, function = _IMPORTS[kind]
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))  # where the modules of the tests are
    gc.disable()  # nothing of it is garbage
    module = importlib.import_module(name)
    if function is not None:
        getattr(module, function)()
    gc.freeze()  # so that a collection in a fork does not write to pages that all forks share
    gc.enable()
    if kind == PROGRAMS:  # they may have tests of their own
        for one in [one for one in sys.modules if one.partition(".")[0] == "tests"]:
            del sys.modules[one]
    _own[:] = _own_modules()


def _own_modules() -> list[ModuleType]:
    found = [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]
    return [module for module in found if getattr(module, "__spec__", None) is not None]


def _accept(listener: socket.socket) -> ForkOrder | None:
    """The order of the process that connects; None if it has ended meanwhile."""
    sender, _ = listener.accept()
    sender.settimeout(_PATIENCE_S)
    order = ForkOrder(sender, {}, [])
    try:
        most = DESCRIPTORS + _MORE_DESCRIPTORS
        size, descriptors, _, _ = socket.recv_fds(sender, NUMBER_BYTES, most)
        order.descriptors.extend(descriptors)
        with sender.makefile("rb") as stream:
            order.content.update(json.loads(stream.read(int.from_bytes(size, "little"))))
    except (OSError, ValueError):
        order.close()  # who reads what the sender wrote waits for the end of the file
        return None
    if len(order.descriptors) != DESCRIPTORS + len(order.content["descriptors"]):
        order.close()
        return None
    return order


def _differences(
    order: ForkOrder, own: dict[str, Any], modules: dict[str, tuple[int, float]]
) -> list[str]:
    """In what a process differs from this one, so that it cannot have a fork of it."""
    theirs = order.content["likeness"]
    found = [
        f"variables ({_differing(theirs[name], value)})" if name == "variables" else name
        for name, value in own.items()
        if theirs[name] != value and not can_enter(name, theirs[name], value)
    ]
    return found + ["code"] * (not _is_same_code(order.root, modules))


def _differing(theirs: dict[str, str], own: dict[str, str]) -> str:
    """The names of the variables that have different values, or that one of the two has not."""
    return " ".join(sorted({name for name, _ in theirs.items() ^ own.items()}))


_same: set[tuple[str, int]] = set()
"""Code snapshots, which nothing changes, with the code of this process: path and inode."""


def _is_same_code(root: Path, modules: dict[str, tuple[int, float]]) -> bool:
    """Whether the modules in a folder are those of this process, `modules`. To look at them takes
    longer than to fork."""
    if root == CHECKOUT:
        return True
    try:
        place = str(root), root.stat().st_ino
        if place not in _same and _modules(root) == modules:
            _same.add(place)
    except OSError:  # its run is removed meanwhile
        return False
    return place in _same


def _fork(kind: str) -> int | None:
    """Do the imports if they are not done, and fork. Return as os.fork does; None if there is no
    room for another process, as this one must not end with its forks for that."""
    _import(kind)
    try:
        pid = os.fork()
    except OSError as error:
        _log(f"alone: {error.strerror}")
        return None
    if pid:
        _log("shared")
    return pid


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close what this fork has of others, and the selector, which it has in common with them."""
    for key in list(selector.get_map().values()):
        if isinstance(key.data, _Fork):
            key.data.sender.close()
            os.close(key.fd)
    selector.close()


def _log(line: str, folder: str | None = None) -> None:
    with suppress(OSError), Path(folder or os.environ[ADDRESS], "log").open("a") as file:
        file.write(line + "\n")


def _modules(root: Path) -> dict[str, tuple[int, float]]:
    """Size and time of change of each module of the project in this folder."""
    found = dict[str, tuple[int, float]]()
    folders = [f"{root}/{package}" for package in _PACKAGES]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    stat = entry.stat()
                    found[entry.path.removeprefix(f"{root}/")] = (stat.st_size, stat.st_mtime)
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return found
