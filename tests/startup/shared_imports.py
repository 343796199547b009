"""One process that does the imports of fork servers for the whole suite.

A run under test starts a fork server on each of its nodes, and each would import torch, which takes
more processor time than all that most tests do besides. Instead, a fork server asks the process of
`SharedImports`, by a socket, for a fork of it that has all imports done. The fork gets the
variables, the files, the folder and the limits of the fork server and does its work. The fork
server waits, ends as the fork does, and if it is killed, the kernel kills the fork, too.

On a node with namespaces or cgroups of its own the fork enters those of the fork server, as root
may. A fork server of another environment does its imports by itself, as outside of the suite: where
its namespaces cannot be entered, or it is of another user, of other code, or has other variables
that are read while torch is imported. So does each one if `SHARED_IMPORTS=0` is in the environment.

The process that has the model of an evaluation takes a fork, too, which runs it as a program.

What forks share, and fork servers of several nodes do not, is the seed of Python's hashes: an order
of a set that differs between nodes is seen only where fork servers do their imports by themselves,
as in tests/cluster/test_cache_peers.py and tests/integration/project/test_demo.py.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).parents[2]
ADDRESS = "SHARED_IMPORTS"
"""Variable with the path of the socket."""
_SERVES = "SHARED_IMPORTS_ROOM"
"""Variable that only the process with the imports has; its value is room for other variables."""
_FORK_SERVER = "hpckit.trainer.torchrun.fork_server"
_PACKAGES = ("hpckit", "checkpointing", "data")
_READ_BY_IMPORTS = (
    *("TORCH", "PYTORCH", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON"),
)
"""Beginnings of the names of variables that imports, or the start of Python, may read."""
_READ_LATER = (
    *("PYTHONPATH", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"),
    *("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_ELASTIC_WORKER_IDENTICAL"),
    *("TORCHELASTIC_", "TORCH_NCCL_"),  # which torchrun sets for each rank
)
"""Beginnings of others, some of which libraries set in the processes of the tests."""
_AS_IN_RUNS = {"PYTHONSAFEPATH": "1"}
_ROOM_BYTES = 1 << 16
_FILES, _STDIN = 3, 0  # of standard input, output and error
_DESCRIPTORS = _FILES + 2  # those, the end of a pipe, and the fork server itself
_PATIENCE_S = 30.0
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_PR_SET_PDEATHSIG = 1  # prctl(2)
_ENTERED = {
    **{"ipc": 0x8000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000}
}
"""Kinds of namespaces that a fork enters, with their flags of setns(2)."""
_OF_CHILDREN = "pid_for_children"
_CGROUPS = Path("/sys/fs/cgroup")
_OUT_OF_MEMORY = Path("/proc/self/oom_score_adj")
_ENVIRONMENT = (47, 48)  # proc_pid_stat(5): fields 50 and 51, counted from that of the state
_NUMBER_BYTES = 4


# --- in the suite -------------------------------------------------------------------------------


class SharedImports:
    """The process with the imports, which ends with this object's `close` or with this process."""

    def __init__(self) -> None:
        from hpckit.agent.workers.torchrun_command import torchrun_variables

        self._folder = tempfile.TemporaryDirectory(prefix="imports-")
        address = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            own = {ADDRESS: address, _SERVES: str(listener.fileno()).ljust(_ROOM_BYTES)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", _FORK_SERVER],
                env=os.environ | torchrun_variables(1) | _AS_IN_RUNS | own,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        os.environ[ADDRESS] = address

    def close(self) -> list[str]:
        """End it. Return a line for each fork server: `shared`, or why it did its imports alone."""
        del os.environ[ADDRESS]
        self._process.kill()
        self._process.communicate()
        log = Path(self._folder.name, "log")
        lines = log.read_text().splitlines() if log.exists() else []
        self._folder.cleanup()
        return lines


# --- in a fork server ---------------------------------------------------------------------------


def take_part() -> None:
    """In a fork server, let a fork do its work, and end as that does; return if no process with the
    imports is like this one. In the process with the imports, serve, and return in its forks, which
    go on as fork servers; forks for another program run it here."""
    if _SERVES in os.environ:
        is_ready = False
        try:
            order = _serve(socket.socket(fileno=int(os.environ[_SERVES])))
            _become(order)
            is_ready = True
        finally:
            if not is_ready:  # Python would go on without what it imports at its start
                traceback.print_exc()
                os._exit(1)
        module, *arguments = order.content["program"]
        if module != _FORK_SERVER:
            _run(module, arguments)
    elif os.environ.get(ADDRESS, "0") != "0":
        with suppress(OSError):
            _wait_for_fork(os.environ[ADDRESS])


def _wait_for_fork(address: str) -> None:
    """Order a fork and end as it does; return if there is none."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        ends, ends_with_this_process = os.pipe()
        order = json.dumps(_order()).encode()
        size = len(order).to_bytes(_NUMBER_BYTES, "little")
        this = os.pidfd_open(os.getpid())
        socket.send_fds(server, [size], [*range(_FILES), ends, this])
        server.sendall(order)
        os.close(ends)
        os.close(this)
        if server.recv(1) != b"y":
            os.close(ends_with_this_process)
            return
        answer = server.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
    _end_as(int.from_bytes(answer, "little") if answer else int(signal.SIGKILL))


def _end_as(status: int) -> NoReturn:
    """End this process as the one did that has ended with this status of waitpid(2)."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def _order() -> dict[str, Any]:
    """What a fork has to have of this process."""
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    mask = os.umask(0)
    os.umask(mask)
    return {
        "likeness": _likeness(),
        "program": sys.orig_argv[sys.orig_argv.index("-m") + 1 :],
        "environment": dict(os.environ),
        "search_path": sys.path,
        "folder": os.getcwd(),  # noqa: PTH109
        "mask": mask,
        "user_groups": os.getgroups(),
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "ignored": [int(n) for n in numbers if signal.getsignal(n) == signal.SIG_IGN],
        "out_of_memory": _OUT_OF_MEMORY.read_text(),
    }


def _likeness() -> dict[str, Any]:
    """What is the same in a process and its fork, and has to be in the fork server, or what the
    fork can enter."""
    own = Path("/proc/self")
    groups = [line.split(":", 2) for line in (own / "cgroup").read_text().splitlines()]
    return {
        "python": [str(Path(sys.prefix).resolve()), list(sys.flags), sys.version],
        "user": [os.getresuid(), os.getresgid()],
        "namespaces": {path.name: str(path.readlink()) for path in (own / "ns").iterdir()},
        "cgroups": {name.removeprefix("name=") or "unified": path for _, name, path in groups},
        "processors": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_READ_BY_IMPORTS) and not name.startswith(_READ_LATER)
        },
    }


# --- in the process with the imports ------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """What a fork server has sent, and its descriptors."""

    fork_server: socket.socket
    content: dict[str, Any]
    descriptors: list[int]

    def close(self) -> None:
        self.fork_server.close()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class _Fork:
    pid: int
    fork_server: socket.socket

    def report_end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        with suppress(OSError), self.fork_server as server:
            server.sendall(status.to_bytes(_NUMBER_BYTES, "little"))


def _serve(listener: socket.socket) -> _Order:
    """Make a fork for each fork server that asks for one and is like this process. Return what was
    ordered, in the forks only."""
    likeness, modules = json.loads(json.dumps(_likeness())), _modules(CHECKOUT)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(_STDIN, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if isinstance(key.data, _Fork):
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    key.data.report_end()
                elif key.fd == _STDIN:  # the suite is over
                    os._exit(0)
                elif (order := _accept(listener)) is None:
                    continue
                elif differences := _differences(order.content, likeness, modules):
                    _log(f"alone: {', '.join(differences)}")
                    order.close()
                elif pid := _fork(order):
                    order.close_descriptors()
                    fork = _Fork(pid, order.fork_server)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, fork)
                else:
                    listener.close()
                    _close_all(selector)
                    return order


def _accept(listener: socket.socket) -> _Order | None:
    """The order of the fork server that connects; None if it has ended meanwhile."""
    server, _ = listener.accept()
    server.settimeout(_PATIENCE_S)
    order = _Order(server, {}, [])
    try:
        size, descriptors, _, _ = socket.recv_fds(server, _NUMBER_BYTES, _DESCRIPTORS)
        order.descriptors.extend(descriptors)
        with server.makefile("rb") as stream:
            order.content.update(json.loads(stream.read(int.from_bytes(size, "little"))))
    except (OSError, ValueError):
        order.close()  # who reads what the fork server wrote waits for the end of the file
        return None
    if len(order.descriptors) < _DESCRIPTORS:
        order.close()
        return None
    return order


def _differences(
    content: dict[str, Any], likeness: dict[str, Any], modules: dict[str, tuple[int, float]]
) -> list[str]:
    """In what a fork server differs from this process, so that it cannot have a fork of it."""
    theirs = content["likeness"]
    found = [
        name
        for name, value in likeness.items()
        if theirs[name] != value and not _can_enter(name, theirs[name], value)
    ]
    try:
        is_same_code = _modules(_root(content)) == modules
    except OSError:  # its run is removed meanwhile
        is_same_code = False
    return found + ["code"] * (not is_same_code)


def _can_enter(name: str, theirs: Any, own: Any) -> bool:
    """Whether a fork of this process can have this of a fork server, though the process has not."""
    if os.geteuid() != 0 or name not in ("namespaces", "cgroups"):
        return False
    others = _other(theirs, own)
    if name == "namespaces":
        is_usual = ("pid" in others) == (_OF_CHILDREN in others)
        return theirs.keys() == own.keys() and others <= {*_ENTERED, _OF_CHILDREN} and is_usual
    return all(os.access(_members(group, theirs[group]), os.W_OK) for group in others)


def _other(theirs: dict[str, str], own: dict[str, str]) -> set[str]:
    """Names of what differs."""
    return {name for name, value in theirs.items() if own.get(name) != value}


def _members(hierarchy: str, group: str) -> Path:
    """The file to which a process writes that enters a cgroup."""
    return _CGROUPS / hierarchy / group.lstrip("/") / "cgroup.procs"


def _fork(order: _Order) -> int:
    """Do the imports if they are not done, and fork. Return as os.fork does."""
    import hpckit.trainer.torchrun.forked_workers  # noqa: F401

    _log("shared")
    with suppress(OSError):  # it has ended, and so will the fork
        order.fork_server.sendall(b"y")
    return os.fork()


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close what this fork has of others."""
    for key in list(selector.get_map().values()):
        if isinstance(key.data, _Fork):
            key.data.fork_server.close()
            os.close(key.fd)


def _log(line: str) -> None:
    with Path(os.environ[ADDRESS]).with_name("log").open("a") as file:
        file.write(line + "\n")


def _root(content: dict[str, Any]) -> Path:
    """The folder from which the fork server would import the project."""
    folders = map(Path, content["search_path"])  # not the working folder, for PYTHONSAFEPATH
    return next((f for f in folders if (f / "hpckit/__init__.py").is_file()), CHECKOUT)


def _modules(root: Path) -> dict[str, tuple[int, float]]:
    """Size and time of change of each module of the project in this folder."""
    files = (file for package in _PACKAGES for file in (root / package).rglob("*.py"))
    stats = ((str(file.relative_to(root)), file.stat()) for file in files)
    return {name: (stat.st_size, stat.st_mtime) for name, stat in stats}


# --- in a fork ----------------------------------------------------------------------------------


def _become(order: _Order) -> None:
    """Make this fork what the fork server is that has ordered it."""
    *files, end, server = order.descriptors
    content = order.content
    order.fork_server.close()
    _enter(order)
    os.close(server)
    _die_at(end)
    os.setsid()
    for number, descriptor in enumerate(files):
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
    _OUT_OF_MEMORY.write_text(content["out_of_memory"])
    _replace_environment(content["environment"])
    sys.path[:] = content["search_path"]
    _move_modules(_root(content))
    _forget_what_processes_have_of_their_own()
    if (own := json.loads(json.dumps(_likeness()))) != content["likeness"]:
        raise RuntimeError(f"a fork is not as its fork server: {own}, {content['likeness']}")


def _enter(order: _Order) -> None:
    """Enter the namespaces and cgroups of the fork server, where they are others. Only a child of a
    process can be in another namespace of processes: this process waits for its child and ends as
    that does, and the child goes on. Only the child enters the cgroups, as Slurm waits for the end
    of all in them, and on the node it could not see the parent."""
    likeness, own = order.content["likeness"], _likeness()
    others = _other(likeness["namespaces"], own["namespaces"])
    if flags := sum(flag for name, flag in _ENTERED.items() if name in others):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if libc.setns(order.descriptors[-1], flags) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        if child := os.fork():
            order.close_descriptors()
            _end_as(os.waitpid(child, 0)[1])
    for group in _other(likeness["cgroups"], own["cgroups"]):
        _members(group, likeness["cgroups"][group]).write_text("0")  # the one that writes


def _run(module: str, arguments: list[str]) -> NoReturn:
    """Run a module as Python does with `-m`, to the end of this process."""
    status: object = 1
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001  as Python shows what nothing catches
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _die_at(end: int) -> None:
    """Have the kernel kill this process when the writing end of this pipe is closed, or when its
    parent ends, which is the process with the imports, or ends with that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(end, 1) == b"":  # it was closed before
            os.kill(os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass


def _replace_environment(variables: dict[str, str]) -> None:
    """Set the variables of this process, and in its forks those that others find in
    /proc/PID/environ, which the kernel reads from where they were as the process started. This
    process itself is not to be found by them: an agent would take it for one of an earlier
    generation, as it is no child of the agent's parent."""
    os.environ.clear()
    found = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    begin, end = (int(fields[number]) for number in _ENVIRONMENT)
    ctypes.memset(begin, 0, end - begin)
    size = min(len(found), end - begin - 1)
    os.register_at_fork(after_in_child=lambda: ctypes.memmove(begin, found, size))
    os.environ.update(variables)


def _move_modules(root: Path) -> None:
    """Have the packages of the project be those in `root`, which are the same, as they would be in
    the fork server: those of users' programs are told from them by where they are."""

    def moved(path: str | None) -> str:
        return str(path).replace(f"{CHECKOUT}/", f"{root}/", 1)

    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is None or name.partition(".")[0] not in _PACKAGES:
            continue
        for constant, value in list(vars(module).items()):
            if isinstance(value, Path) and value == CHECKOUT:
                setattr(module, constant, root.resolve())
        if spec.submodule_search_locations is not None:
            folders = [moved(folder) for folder in spec.submodule_search_locations]
            module.__path__ = spec.submodule_search_locations = folders
            module.__file__ = spec.origin = moved(module.__file__)


def _forget_what_processes_have_of_their_own() -> None:
    import platform
    import random

    import numpy as np

    random.seed()
    np.random.seed()
    tempfile.tempdir = None
    vars(platform)["_uname_cache"] = None  # with the name of the host
