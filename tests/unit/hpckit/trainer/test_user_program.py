"""Programs inside a worker: as `python` would run them, from the copy of the code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase, WorkerRequest
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import write_json
from hpckit.trainer.user_program import (
    CodePaths,
    PythonProgram,
    python_program,
    written_files,
)
from tests.unit.hpckit.specs_and_processes import CHECKOUT, line_of, python

WORKER = """
import os, sys
from hpckit.config.spec import CommandSpec, HangSpec
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.user_program import run_program
number, cwd, *arguments = sys.argv[1:]
command = CommandSpec(
    arguments=tuple(arguments), cwd=cwd, stop_signal=number, step_pattern=None
)
hang = HangSpec(step_s=None, first_step_s=None, start_s=None, validate_s=None, save_s=None)
run_program(command, hang, WorkerEnvironment.from_env())
print("ended", flush=True)
"""
SCRIPT = """
import sys, helper
if __name__ == "__main__":
    print(__file__, sys.argv, helper.NAME, open("data.txt").read(), flush=True)
"""
STOPPABLE = """
import signal, sys, time
def leave(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, leave)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
INTERRUPTIBLE = """
import signal, time, weakref
class Model: pass
def leave(*_):
    print("saved", flush=True)
    raise KeyboardInterrupt
def train():
    model = Model()
    weakref.finalize(model, print, "released", flush=True)
    signal.signal(signal.SIGUSR1, leave)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
train()
"""
DEAF = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("python train.py a", PythonProgram("train.py", False, ("a",))),
        ("python3.11 -u -m mine.train -m", PythonProgram("mine.train", True, ("-m",))),
        (f"{sys.executable} t.py", PythonProgram("t.py", False, ())),
        ("python -O t.py", None),
        ("python", None),
        ("/other/python t.py", None),
        ("bash t.sh", None),
    ],
)
def test_python_runs_inside_the_worker(line: str, found: PythonProgram | None) -> None:
    assert python_program(line.split()) == found


class Place:
    """A project, its copy, and the environment of a worker."""

    def __init__(self, folder: Path) -> None:
        self.project, run = folder / "project", RunDir(folder / "runs" / "r-1")
        self.code = run.code(1)
        for path in (self.project, self.code):
            path.mkdir(parents=True)
        write_json(run.submission(1) / "manifest.json", {"project": str(self.project)})
        self.table, board = HeartbeatTable.create(1)
        at = NodeEnvironment(run, submission=1, generation=1, node=0, nodes=1)
        ranks = {"RANK": 0, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": 1}
        env = {name: str(value) for name, value in ranks.items()}
        env |= {"TORCHELASTIC_RESTART_COUNT": "0", "PYTHONPATH": str(CHECKOUT)}
        self.env = env | at.to_env() | worker_variables("cpu", board)

    def worker(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return python(WORKER, "SIGUSR1", str(self.project), *arguments, env=os.environ | self.env)

    @property
    def phase(self) -> WorkerPhase:
        return self.table.slots()[0].phase


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_code_is_of_the_copy_and_files_are_of_the_folder(place: Place) -> None:
    for folder, name in ((place.project, "changed"), (place.code, "copy")):
        (folder / "train.py").write_text(SCRIPT)
        (folder / "helper.py").write_text(f"NAME = {name!r}\n")
    (place.project / "data.txt").write_text("data")
    with place.worker("python", "train.py", "--lr", "1") as worker:
        script = place.code / "train.py"
        assert line_of(worker) == f"{script} ['train.py', '--lr', '1'] copy data"
        assert line_of(worker) == "ended"
    assert place.phase is WorkerPhase.DONE


def test_a_module(place: Place) -> None:
    (place.code / "mine").mkdir()
    (place.code / "mine" / "train.py").write_text(
        "import sys; print(__name__, sys.argv[1:], flush=True)"
    )
    with place.worker("python", "-m", "mine.train", "x") as worker:
        assert line_of(worker) == "__main__ ['x']"
        assert line_of(worker) == "ended"


@pytest.mark.parametrize("end", ["", "\nsys.exit(0)"])
def test_what_a_module_holds_stays_until_the_process_ends(place: Place, end: str) -> None:
    """The last reference to a DistributedDataParallel may wait forever in a running interpreter."""
    (place.code / "mine.py").write_text(
        "import sys, weakref\nclass Model: pass\nmodel = Model()\n"
        "weakref.finalize(model, print, 'released', flush=True)" + end
    )
    with place.worker("python", "-m", "mine") as worker:
        assert [line_of(worker), line_of(worker)] == ["ended", "released"]


def test_what_an_interrupted_function_holds_stays_until_the_process_ends(place: Place) -> None:
    (place.code / "train.py").write_text(INTERRUPTIBLE)
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "ready"
        place.table.ask(WorkerRequest.PREEMPT, within_s=1000)
        assert [line_of(worker) for _ in range(3)] == ["saved", "ended", "released"]
    assert place.phase is WorkerPhase.LEFT


def press_enter(worker: subprocess.Popen[str]) -> None:
    """Ends the `input()` of a program."""
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


EXITING = """
import os
if child := os.fork():
    os.waitpid(child, 0)
    print("before", flush=True)
    input()
os._exit(0)
"""


def test_a_program_that_ends_its_process_has_ended(place: Place) -> None:
    (place.code / "train.py").write_text(EXITING)
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "before"
        phase = place.phase
        assert phase is WorkerPhase.RUNNING, "a fork of it has ended"
        press_enter(worker)
        assert worker.wait(180) == 0
    assert place.phase is WorkerPhase.DONE


REPLACED = """
import os, sys
try:
    os.execv("/nosuch/program", ["program"])
except FileNotFoundError:
    print("none", flush=True)
input()
os.execvp(sys.executable, [sys.executable, "-c", "print('other', flush=True); input()"])
"""


def test_a_program_that_puts_another_one_in_its_place_is_not_over(place: Place) -> None:
    """Its process, once it has ended well, does not count as lost, and has not reported the end of
    training, as it may be asked to leave before."""
    (place.code / "train.py").write_text(REPLACED)
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "none"
        phase = place.phase
        assert phase is WorkerPhase.RUNNING, "it goes on, as there is no such program"
        press_enter(worker)
        assert line_of(worker) == "other"
        assert place.phase is WorkerPhase.REPLACED


SPAWNING = """
import multiprocessing, pickle, sys
class Item: pass
def make(_): return Item()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([type(one) is Item for one in pool.map(make, [0])], flush=True)
    print(type(__builtins__).__name__, type(__loader__).__name__, sys.orig_argv[1:], flush=True)
"""


@pytest.mark.parametrize("arguments", [("train.py",), ("-m", "train")])
def test_processes_that_are_spawned_return_objects_of_the_program(
    place: Place, arguments: tuple[str, ...]
) -> None:
    (place.code / "train.py").write_text(SPAWNING)
    with place.worker("python", *arguments, "x") as worker:
        assert line_of(worker) == "[True]"
        assert line_of(worker) == f"module SourceFileLoader {[*arguments, 'x']}"
        assert line_of(worker) == "ended"


def test_what_a_module_registers_finds_the_module_at_the_end(place: Place) -> None:
    (place.code / "mine.py").write_text(
        "import atexit, pickle\nclass Model: pass\n"
        "atexit.register(lambda: print(len(pickle.dumps(Model())) > 0, flush=True))"
    )
    with place.worker("python", "-m", "mine") as worker:
        assert [line_of(worker), line_of(worker)] == ["ended", "True"]


def test_a_rank_is_a_task_of_slurms(place: Place) -> None:
    text = "import os; print(os.environ['SLURM_PROCID'], os.environ['SLURM_NTASKS'], flush=True)"
    (place.code / "train.py").write_text(text)
    place.env |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    place.env |= {"RANK": "5", "WORLD_SIZE": "6"}
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "5 6"


FORKING = """
import atexit, os, sys
def ended(how):
    sys.stdout.flush()
    if child := os.fork():
        print(how, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        return False
    return True
if ended("status"):
    sys.exit(7)
if ended("text"):
    sys.exit("no data")
if ended("error"):
    raise ValueError("of the child")
if ended("end"):
    print("of the child")
else:
    input()
"""


def test_a_fork_of_the_program_ends_for_itself(place: Place) -> None:
    """Its end is not that of the rank, which goes on."""
    (place.code / "train.py").write_text(FORKING)
    with place.worker("python", "train.py") as worker:
        said = [line_of(worker) for _ in range(5)]
        assert said == ["status 7", "text 1", "error 1", "of the child", "end 0"]
        assert place.phase is WorkerPhase.RUNNING
        press_enter(worker)
        assert line_of(worker) == "ended"


@pytest.mark.parametrize("text", ["import sys; sys.exit(3)", "import sys; sys.exit('no data')"])
def test_an_exit_status_is_an_error(place: Place, text: str) -> None:
    (place.code / "train.py").write_text(text)
    with place.worker("python", "train.py") as worker:
        assert worker.wait() == 1
    assert place.phase is WorkerPhase.RUNNING, "the worker reports the failure"


def test_a_program_gets_its_signal_and_leaves(place: Place) -> None:
    (place.code / "train.py").write_text(STOPPABLE)
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "ready"
        place.table.ask(WorkerRequest.PREEMPT, within_s=1000)
        assert line_of(worker) == "saved"
        assert line_of(worker) == "ended"
    assert place.phase is WorkerPhase.LEFT


def test_a_program_that_handles_no_signal_is_ended(place: Place) -> None:
    (place.code / "train.py").write_text(DEAF)
    with place.worker("python", "train.py") as worker:
        assert line_of(worker) == "ready"
        place.table.ask(WorkerRequest.PREEMPT, within_s=1000)
        assert worker.wait() == 128 + signal.SIGTERM
    assert place.phase is WorkerPhase.LEFT


def test_after_a_request_no_program_starts(place: Place) -> None:
    place.table.ask(WorkerRequest.STOP, within_s=1000)
    with place.worker("python", "nosuch.py") as worker:
        assert line_of(worker) == "ended"
    assert place.phase is WorkerPhase.LEFT


def test_another_program_is_a_child(place: Place) -> None:
    text = "trap 'echo saved; exit 7' USR1; echo ready $RANK; while :; do sleep 0.05; done"
    with place.worker("bash", "-c", text) as worker:
        assert line_of(worker) == "ready 0"
        place.table.ask(WorkerRequest.PREEMPT, within_s=1000)
        assert line_of(worker) == "saved"
        assert line_of(worker) == "ended"
    assert place.phase is WorkerPhase.LEFT


def test_a_child_that_fails(place: Place) -> None:
    with place.worker("bash", "-c", "exit 4") as worker:
        assert worker.wait() == 1


def test_files_without_a_copy_are_those_of_the_project(tmp_path: Path) -> None:
    project, code = tmp_path / "p", tmp_path / "c"
    (project / "sub").mkdir(parents=True)
    (code / "sub").mkdir(parents=True)
    (code / "sub" / "a.py").touch()
    paths = CodePaths(project, code, project / "sub")
    assert paths.in_snapshot(Path("a.py")) == code / "sub" / "a.py"
    assert paths.in_snapshot(Path("big.py")) == project / "sub" / "big.py"
    assert paths.in_snapshot(Path("/usr/x.py")) == Path("/usr/x.py")


def test_data_that_was_not_copied_is_named(tmp_path: Path) -> None:
    project, code = tmp_path / "p", tmp_path / "c"
    (project / "data").mkdir(parents=True)
    code.mkdir()
    (code / "a.py").touch()
    (project / "data" / "x.bin").touch()
    paths = CodePaths(project, code, project)
    assert paths.uncopied(str(code / "data" / "x.bin")) == project / "data" / "x.bin"
    assert paths.uncopied(code / "data") == project / "data"
    for other in (code / "a.py", code / "nowhere", project / "nowhere", "nowhere", 3, None, b"x"):
        assert paths.uncopied(other) is None


def test_files_that_a_program_wrote_into_its_copy_are_found(tmp_path: Path) -> None:
    for name in ("hpckit/__init__.py", "a.py", "lib/b.py", "lib/__pycache__/b.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o444)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert written_files(tmp_path) == []
    (tmp_path / "lib" / "out.pt").touch()
    (tmp_path / "lib" / "__pycache__" / "c.pyc").touch()
    assert written_files(tmp_path) == ["lib/out.pt"]
    (tmp_path / "hpckit" / "__init__.py").chmod(0o644)  # no modes are kept there
    assert written_files(tmp_path) == []
