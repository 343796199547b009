"""Processes of the suite that share imports are the same processes in all that counts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpckit.agent.workers import forkserver_client
from hpckit.agent.workers.forkserver_client import ForkedTorchrun, ForkServerClient, start_server
from hpckit.agent.workers.torchrun_command import SERVER, torchrun_variables
from hpckit.slurm.environment import environment_for
from hpckit.system.child_processes import kill_all, strays
from tests.forkserver import WITH_IMPORTS
from tests.startup import shared_imports
from tests.startup.fork_request import (
    ADDRESS,
    FOR,
    FRAMEWORKS,
    PROGRAMS,
    RUNS,
    SERVICES,
    TESTS,
    WORKERS,
    encoded,
    likeness,
)
from tests.startup.forked_process import CHECKOUT, ForkOrder
from tests.unit.hpckit.specs_and_processes import is_gone, until

NAMESPACES = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child")
FOREVER = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "x.py"]
"""A torchrun that meets nobody: it tries for a minute."""


class Server:
    """A fork server in the environment of a run, and an agent's connection to it."""

    def __init__(self, run: Path, **variables: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        of_step = environment_for("step", os.environ)  # as an agent has it
        self.env = of_step | {"PYTHONSAFEPATH": "1", "HPCKIT_RUN": str(run)} | variables
        self.process = start_server(self.env, theirs, (signal.SIGTERM,), threads=1, at_once=True)
        theirs.close()
        self.agent = ForkServerClient(self._control, (signal.SIGTERM,))

    def begin(self, arguments: list[str], output: Path) -> ForkedTorchrun:
        env = self.env | torchrun_variables(1)
        torchrun = self.agent.begin(arguments, env, output)
        assert isinstance(torchrun, ForkedTorchrun)
        return torchrun

    def disconnect(self) -> None:
        self.agent.end()
        self._control.close()


def is_served(kind: str) -> bool:
    """Whether processes of this kind share their imports: there may be no process with them."""
    return Path(os.environ[ADDRESS], kind).is_socket()


def needs_namespaces() -> None:
    if subprocess.run([*NAMESPACES, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine lets root make no namespaces, as in most containers")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    it = Server(tmp_path)
    yield it
    kill_all([it.process])


def test_it_serves_and_ends_as_its_fork_does(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "log"
    torchrun = server.begin(["--help"], output)
    assert torchrun.wait() == 0
    assert output.read_text().startswith("usage: ")
    assert (torchrun._server_pid != server.process.pid) == is_served(RUNS)
    server.disconnect()
    assert server.process.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces; run the tests as root")
def test_it_serves_in_namespaces_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fork server is the first process."""
    needs_namespaces()
    inside = (*NAMESPACES, "--mount", "--uts", "--ipc", "--net", *SERVER)
    monkeypatch.setattr(forkserver_client, "SERVER", inside)
    server = Server(tmp_path)
    try:
        torchrun = server.begin(["--help"], tmp_path / "log")
        assert torchrun.wait() == 0
        assert (torchrun._server_pid != 1) == is_served(RUNS)
        server.disconnect()
        assert server.process.wait() == 0
    finally:
        kill_all([server.process])


def test_nothing_of_one_that_is_killed_is_left(server: Server, tmp_path: Path) -> None:
    server.begin(FOREVER, tmp_path / "log")
    spared = [server.process.pid]
    until(lambda: len(strays(tmp_path, spared=spared)) == 1)
    (torchrun,) = strays(tmp_path, spared=spared)
    fork = torchrun.parent()
    kill_all([server.process])
    until(lambda: not torchrun.is_running() and (fork is None or not fork.is_running()))


def test_a_fork_server_of_another_environment_or_code_gets_no_fork(tmp_path: Path) -> None:
    own, modules = likeness(RUNS), shared_imports._modules(CHECKOUT)
    place = {"folder": "/", "search_path": [str(tmp_path), str(CHECKOUT)]}

    def differences(**others: object) -> list[str]:
        with socket.socket(socket.AF_UNIX) as sender:
            order = ForkOrder(sender, place | {"likeness": own | others}, [])
            return shared_imports._differences(order, own, modules)

    assert differences() == []
    variables = own["variables"]
    more = {**variables, "TORCH_LOGS": "+all", "LD_PRELOAD": "x.so"}
    assert differences(variables=more) == ["variables (LD_PRELOAD TORCH_LOGS)"]
    assert differences(variables={}) == [f"variables ({' '.join(sorted(variables))})"]
    others = {**own["namespaces"], "user": "user:[1]"}
    assert differences(namespaces=others, cgroups={"memory": "/nowhere"}) == [
        "namespaces",
        "cgroups",
    ]
    (tmp_path / "hpckit").mkdir()
    (tmp_path / "hpckit/__init__.py").touch()
    assert differences() == ["code"]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -3, 2**63, "", 'ä "\\ \n', "\udcff"),
        *([], [1, [None, "a"]], {}, {"a": {"b": [True]}, "1": None}),
    ],
)
def test_an_order_is_written_as_others_write_it(value: object) -> None:
    assert json.loads(encoded(value)) == value


def test_a_process_with_more_imports_has_the_sockets_of_all_that_it_forks() -> None:
    others = [*FRAMEWORKS, TESTS, WORKERS]
    assert shared_imports._branch(RUNS, others, TESTS) == [TESTS, WORKERS]
    assert shared_imports._branch(RUNS, others, WORKERS) == [TESTS, WORKERS]
    assert shared_imports._branch(TESTS, [WORKERS], WORKERS) == [WORKERS]
    for kind in FRAMEWORKS:
        assert shared_imports._branch(RUNS, others, kind) == [kind]


def test_variables_of_torch_are_of_no_account_for_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_LOGS", "+all")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("LD_PRELOAD", "")
    names = {kind: likeness(kind)["variables"].keys() for kind in (RUNS, TESTS, SERVICES)}
    assert {"TORCH_LOGS", "PYTHONSAFEPATH", "LD_PRELOAD"} <= names[RUNS]
    assert names[RUNS] - names[TESTS] <= {"PYTHONSAFEPATH", "PYTHONUNBUFFERED"}
    assert "TORCH_LOGS" in names[TESTS] - names[SERVICES]
    assert "LD_PRELOAD" in names[SERVICES]


PROGRAM = f"""
import atexit, os, sys, threading
were_there = "torch._dynamo" in sys.modules
assert {FOR!r} not in os.environ
number, status = int(sys.argv[1]), int(sys.argv[2])
word = sys.stdin.readline().strip()
atexit.register(lambda: os.write(number, b" and ends"))
later = threading.Timer(0.1, lambda: os.write(number, b", waits"))
os.write(number, f"{{word}} in {{os.getcwd()}} {{were_there}}".encode())
later.start()
sys.exit(status)
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_of_the_tests_has_imports_done_and_is_like_others(
    tmp_path: Path, status: int
) -> None:
    """It has the files, descriptors and arguments of the process that was started, waits for its
    threads, does what was registered for its end, and ends with its own status."""
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(theirs), str(status)],
        env=os.environ | WITH_IMPORTS,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        pass_fds=[theirs],
        text=True,
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write("reads\n")
        process.stdin.flush()
        with os.fdopen(ours) as pipe:
            said = pipe.read()  # to the end: nobody else holds the pipe
        assert process.wait() == status
    assert said == f"reads in {tmp_path} {is_served(TESTS)}, waits and ends"


def test_a_fork_of_the_tests_ends_with_the_process_that_was_started() -> None:
    ours, theirs = os.pipe()
    program = "import os, signal, sys; os.write(int(sys.argv[1]), b'is here'); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(theirs)],
        env=os.environ | WITH_IMPORTS,
        pass_fds=[theirs],
    ) as process:
        os.close(theirs)
        assert os.read(ours, 100) == b"is here"
        process.kill()
        assert os.read(ours, 1) == b"", "it has closed the pipe, as it has ended"
    os.close(ours)


FACTS = """
import json, os, signal, sys
from pathlib import Path

import hpckit

status = Path("/proc/self/status").read_text()
print(json.dumps({
    "module": hpckit.__file__,
    "words": [sys.argv, sys.orig_argv, Path("/proc/self/cmdline").read_bytes().decode()],
    "variables": [dict(os.environ), Path("/proc/self/environ").read_bytes().decode()],
    "folders": [os.getcwd(), sys.path, __name__, __file__],
    "streams": [sys.stdin.read(), sys.stdout.encoding, sys.stderr.line_buffering],
    "mask": [os.umask(0), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))],
    "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
    "limits": Path("/proc/self/limits").read_text(),
}))
sys.exit(3)
"""


def launched(
    folder: Path, text: str, within: Sequence[str] = (), **options: Any
) -> subprocess.Popen[str]:
    """A program of that name whose environment says that it may share imports."""
    (folder / "launch.py").write_text(text)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [*within, sys.executable, "launch.py", "a=b c", "--flag"]
    return subprocess.Popen(command, cwd=folder, text=True, **(pipes | options))


def test_a_program_finds_what_it_would_find_without_a_fork(tmp_path: Path) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    found = []
    for address in (os.environ[ADDRESS], "0"):
        env = os.environ | {ADDRESS: address, "OWN": "ä = b"}
        with launched(tmp_path, FACTS, env=env, umask=0o27, preexec_fn=block) as process:
            output, _ = process.communicate("typed")
        assert process.returncode == 3
        found.append(json.loads(output))
    shared, alone = found
    both = shared["variables"], alone["variables"]
    assert [variables.pop(ADDRESS) for variables, _ in both] == [os.environ[ADDRESS], "0"]
    for one in both:
        one[1] = [line for line in one[1].split("\0") if not line.startswith(f"{ADDRESS}=")]
    assert shared == alone


WAITS = """
import signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.1)  # a longer one may begin between a signal and its handler
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_a_program_gets_the_signals_of_the_one_that_waits(tmp_path: Path, number: int) -> None:
    with launched(tmp_path, WAITS, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)


HEEDS_LATER = """
import os, signal, sys

signal.signal(signal.SIGUSR2, lambda *_: print("told", flush=True))
print(os.getpid(), flush=True)
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
"""


def test_a_signal_waits_for_a_program_that_was_started_to_ignore_it(tmp_path: Path) -> None:
    """As supervisors are by a batch script."""

    def ignore() -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    with launched(tmp_path, HEEDS_LATER, preexec_fn=ignore) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.send_signal(signal.SIGUSR2)
        until(lambda: is_pending(program, signal.SIGUSR2))
        output, _ = process.communicate("\n")
    assert output == "told\n"


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal waits for a process to unblock it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return bool(int(found["ShdPnd"], 16) & 1 << number - 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces; run the tests as root")
def test_a_program_in_a_namespace_of_processes_gets_signals(tmp_path: Path) -> None:
    """Where who waits does not see the process of which the program is a fork."""
    needs_namespaces()
    with launched(tmp_path, WAITS, NAMESPACES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (waiting,) = psutil.Process(process.pid).children()
        waiting.terminate()
        assert process.stdout.readline() == "told\n"
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces; run the tests as root")
def test_the_first_process_of_a_namespace_tells_that_its_fork_was_killed(tmp_path: Path) -> None:
    needs_namespaces()
    with launched(tmp_path, "import os; os.kill(os.getpid(), 9)", NAMESPACES) as process:
        assert process.wait() == (128 + signal.SIGKILL if is_served(PROGRAMS) else 0)


def test_nothing_is_left_of_a_suite_that_is_killed() -> None:
    program = (
        "from tests.startup.shared_imports import SharedImports\n"
        "shared = SharedImports([])\n"
        "pids = [one.pid for one in shared._processes]\n"
        "print(shared._folder.name, *pids, sep='|', flush=True)\n"
        "input()\n"
    )
    env, pipe = os.environ | {ADDRESS: "0"}, subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=env, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split("|")
        assert Path(folder).is_dir()
        process.kill()
    until(lambda: not Path(folder).exists() and all(is_gone(int(pid)) for pid in pids))


SAYS = "import os; print(os.getpid(), flush=True); input()"
BECOMES = f"import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', {SAYS!r}])"


@pytest.mark.parametrize("text", [SAYS, BECOMES], ids=["itself", "another"])
def test_nothing_is_left_of_a_program_whose_waiting_process_is_killed(
    tmp_path: Path, text: str
) -> None:
    """Nor of what it has become."""
    with launched(tmp_path, text) as process:
        assert process.stdout is not None
        fork = psutil.Process(int(process.stdout.readline()))
        assert (fork.pid != process.pid) == is_served(PROGRAMS)
        process.kill()
        until(lambda: is_gone(fork.pid))


def test_a_program_that_cannot_write_at_its_end_ends_as_another_does(tmp_path: Path) -> None:
    """And goes on as nothing else."""
    found = []
    for address in (os.environ[ADDRESS], "0"):
        env = os.environ | {ADDRESS: address, "PYTHONUNBUFFERED": ""}
        with (
            open("/dev/full", "w") as full,
            launched(tmp_path, "print(1)", env=env, stdout=full, stderr=subprocess.PIPE) as process,
        ):
            _, errors = process.communicate()
        assert "No space left on device" in errors
        found.append(process.returncode)
    assert found == [120, 120]


@pytest.mark.parametrize("number", range(3))
def test_a_program_whose_file_is_closed_does_its_imports_alone(tmp_path: Path, number: int) -> None:
    ours, theirs = os.pipe()
    says = f"import os, sys; os.write({theirs}, str(os.getpid()).encode()); sys.exit(3)"
    options: dict[str, Any] = {"preexec_fn": partial(os.close, number), "pass_fds": [theirs]}
    with launched(tmp_path, says, **options) as process:
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            assert int(pipe.read()) == process.pid
    assert process.returncode == 3
