"""Asks a process of `shared_imports` for a fork that has the imports of this process done, and ends
as that does. Some two thousand processes of a suite import this as they start, and little besides:
it does with what is built into Python, as `json`, `signal` and `socket` would take most of the time
until a fork is there.
"""

from __future__ import annotations

import _json
import _signal  # type: ignore[import-not-found]
import _socket
import os
import resource
import sys

TYPE_CHECKING = False  # as in `typing`, which it does without, too
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

ADDRESS = "SHARED_IMPORTS"
"""Variable with the folder of the sockets."""
FOR = "SHARED_IMPORTS_FOR"
"""Variable of a process that takes part for this reason, and has no such variable from then on."""
IN_JOBS = "SHARED_IMPORTS_IN_JOBS"
"""Variable with which the programs of a job of Slurm take part, too."""
SERVES = "SHARED_IMPORTS_ROOM"
"""Variable that only processes with the imports have; its value is room for other variables."""
WITH = "SHARED_IMPORTS_WITH"
"""Variable with one of the frameworks, which the ranks of a run then have imported, too."""
RUNS, TESTS, WORKERS = "runs", "tests", "workers"
FRAMEWORKS = {
    f"{RUNS}-lightning": "lightning",
    f"{RUNS}-transformers": "transformers.trainer",
    f"{RUNS}-torchdata": "torchdata.stateful_dataloader",
    f"{RUNS}-torchtitan": "torchtitan.components.optimizer",
    f"{RUNS}-accelerate": "accelerate",
}
"""Kinds that are as RUNS, and what these import besides."""
SERVICES, PROGRAMS = "services", "programs"  # which do not import torch
FORK_SERVER = "hpckit.trainer.torchrun.fork_server"

FILES = 3  # standard input, output and error
DESCRIPTORS = FILES + 2  # those, the end of a pipe, and the process itself
UPPER = 512  # above all descriptors that a process has
NUMBER_BYTES = 4
_INT_BYTES = 4  # of a descriptor
OUT_OF_MEMORY = "/proc/self/oom_score_adj"
_AREAS = range(45, 49)  # proc_pid_stat(5): fields 48 to 51, counted from that of the state
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_FORWARDED = (
    *(_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM),
    *(_signal.SIGUSR1, _signal.SIGUSR2),
)

_READ_BY_IMPORTS: tuple[str, ...] = ("LD_", "PYTHON", "LC_", "LANG", "TZ")
"""Beginnings of the names of variables that imports, or the start of Python, may read."""
_READ_BY_TORCH: tuple[str, ...] = (
    *("TORCH", "PYTORCH", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON"),
)
_READ_LATER: tuple[str, ...] = (
    *("PYTHONPATH", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"),
    *("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_ELASTIC_WORKER_IDENTICAL"),
    *("TORCHELASTIC_", "TORCH_NCCL_"),  # which torchrun sets for each rank
)
"""Beginnings of others, some of which libraries set in the processes of the tests."""
_OF_RUNS = ("PYTHONSAFEPATH", "PYTHONUNBUFFERED")
"""Variables that a fork obeys though the process with the imports has others."""


def take_fork(kind: str, program: Sequence[str]) -> None:
    """Let a fork do the work of this process, and end as that does; return if no process with the
    imports is like this one. Signals that this process gets meanwhile are the fork's, unless this
    is a fork server of a run, which has its own.

    Args:
        kind: which process is asked.
        program: what Python runs, as `Order.program` has it.
    """
    place = f"{os.environ[ADDRESS]}/{kind}"
    kind = RUNS if kind in FRAMEWORKS else kind
    try:
        for number in range(FILES):
            os.fstat(number)
        given = _inherited()
        order = encoded(_order(kind, program, given)).encode()
    except OSError:  # a file is closed, or its folder is gone: that is for the program to meet
        return
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect(place)
    except OSError:  # there is nobody, or not any more
        server.close()
        return
    blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, _FORWARDED)
    ends, ends_with_this_process = os.pipe()
    this = os.pidfd_open(os.getpid())
    try:
        _send(server, order, [*range(FILES), *given, ends, this])
        fork = _answer(server)
    except OSError:  # the suite has ended
        fork = None
    os.close(ends)
    os.close(this)
    if fork is None:
        os.close(ends_with_this_process)
        server.close()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
        return
    for descriptor in given:
        os.close(descriptor)  # of pipes and sockets, whose ends others wait for
    if kind == RUNS:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
    else:
        _forget_environment()  # or an agent would take it for one of an earlier generation
        _forward_signals(fork)
    status = server.recv(NUMBER_BYTES, _socket.MSG_WAITALL)
    end_as(int.from_bytes(status, "little") if status else int(_signal.SIGKILL))


def _send(server: _socket.socket, order: bytes, descriptors: Sequence[int]) -> None:
    """Send an order and descriptors. Raises OSError."""
    numbers = b"".join(number.to_bytes(_INT_BYTES, sys.byteorder) for number in descriptors)
    size = len(order).to_bytes(NUMBER_BYTES, "little")
    server.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    server.sendall(order)


def _answer(server: _socket.socket) -> int | None:
    """A descriptor of the fork; None if there is none. Raises OSError."""
    answer, ancillary, _, _ = server.recvmsg(1, _socket.CMSG_SPACE(_INT_BYTES))
    if answer != b"y":
        return None
    (_, _, number), *_ = ancillary
    os.set_inheritable(fork := int.from_bytes(number[:_INT_BYTES], sys.byteorder), False)
    return fork


def encoded(value: Any) -> str:
    """A value as JSON."""
    if isinstance(value, str):
        return str(_json.encode_basestring_ascii(value))
    if isinstance(value, dict):
        pairs = (f"{encoded(str(key))}:{encoded(one)}" for key, one in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(encoded, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(int(value))


def _inherited() -> list[int]:
    """Descriptors that this process has been given, besides its three files."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        try:
            if FILES <= number < UPPER and os.get_inheritable(number):
                found.append(number)
        except OSError:  # the folder that was listed
            continue
    return found


def _forward_signals(fork: int) -> None:
    """Have the fork with this descriptor get the signals that this process gets."""

    def forward(number: int, frame: object) -> None:
        try:
            _signal.pidfd_send_signal(fork, number)
        except ProcessLookupError:  # it has ended, and soon this process does
            return

    for number in _FORWARDED:
        _signal.signal(number, forward)  # what is ignored now the fork may heed later
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _FORWARDED)  # the fork has the mask


def _forget_environment() -> None:
    begin, end = areas()[1]
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    os.pwrite(memory, bytes(end - begin), begin)
    os.close(memory)


def areas() -> tuple[tuple[int, int], tuple[int, int]]:
    """From where to where the kernel reads the command line and the environment of this process,
    in its memory."""
    fields = _content("/proc/self/stat").rpartition(") ")[2].split()
    words, word_end, variables, end = (int(fields[number]) for number in _AREAS)
    return (words, word_end), (variables, end)


def end_as(status: int) -> NoReturn:
    """End this process as the one did that has ended with this status of waitpid(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != _signal.SIGKILL:  # which has no handler
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {number})
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # it is the first process of a namespace, which its signals spare
    os._exit(os.WEXITSTATUS(status))


def _order(kind: str, program: Sequence[str], descriptors: list[int]) -> dict[str, Any]:
    """What a fork has to have of this process."""
    numbers = _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}
    mask = os.umask(0)
    os.umask(mask)
    return {
        "kind": kind,
        "likeness": likeness(kind),
        "command": sys.orig_argv,
        "program": list(program),
        "environment": dict(os.environ),
        "search_path": _search_path(program),
        "folder": os.getcwd(),  # noqa: PTH109
        "descriptors": descriptors,
        "mask": mask,
        "user_groups": os.getgroups(),
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "ignored": [int(n) for n in numbers if _signal.getsignal(n) == _signal.SIG_IGN],
        "blocked": [int(n) for n in _signal.pthread_sigmask(_signal.SIG_BLOCK, ())],
        "out_of_memory": _content(OUT_OF_MEMORY),
    }


def _search_path(program: Sequence[str]) -> list[str]:
    """That of this process when its program begins."""
    if sys.flags.safe_path:
        return sys.path
    match program[0]:
        case "-m":
            first = os.getcwd()  # noqa: PTH109
        case "-c":
            first = ""
        case script:
            first = os.path.dirname(os.path.realpath(script))  # noqa: PTH120
    return [first, *sys.path]


def likeness(kind: str) -> dict[str, Any]:
    """What is the same in a process and its fork, and has to be in the process that asks for it, or
    what the fork can enter."""
    groups = [line.split(":", 2) for line in _content("/proc/self/cgroup").splitlines()]
    flags = dict(zip(sys.flags.__match_args__, sys.flags, strict=True))
    read = _READ_BY_IMPORTS if kind in (SERVICES, PROGRAMS) else _READ_BY_TORCH
    ignored = _READ_LATER
    if kind != RUNS:
        ignored += _OF_RUNS
        del flags["safe_path"]
    spaces = os.listdir("/proc/self/ns")  # noqa: PTH208
    options = [sys.warnoptions, sys._xoptions]
    return {
        "python": [os.path.realpath(sys.prefix), flags, options, sys.version],
        "user": [os.getresuid(), os.getresgid()],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in spaces},  # noqa: PTH115
        "cgroups": {name.removeprefix("name=") or "unified": path for _, name, path in groups},
        "processors": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(read) and not name.startswith(ignored)
        },
    }


def _content(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
