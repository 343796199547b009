"""A program of the user, which a worker runs in place of a training function.

Python runs inside the worker, so that an error is reported with its traceback and torch is imported
already; any other program is a child process of it. Files of the project are those of the code
snapshot, and the working directory is that of the launch.
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import runpy
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from types import CodeType, ModuleType
from typing import Any, NoReturn

from checkpointing import event_file
from hpckit.config.entry_points import is_python
from hpckit.config.spec import CommandSpec, HangSpec
from hpckit.events.schema import DegradedSubject
from hpckit.ipc.heartbeat_table import HeartbeatWriter, WorkerPhase, WorkerRequest
from hpckit.ipc.own_packages import program_packages
from hpckit.ipc.process_environment import ATTEMPT, WorkerEnvironment, task_variables
from hpckit.ipc.program_follower import ProgramFollower
from hpckit.ipc.program_scalars import ScalarFiles
from hpckit.ipc.program_watch import ProgramWatch
from hpckit.ipc.rank_events import report_degraded
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import die_with_parent
from hpckit.system.process_end import forks_ended, write_open_files
from hpckit.text.quantities import listing
from hpckit.trainer.errors import TrainingError

SILENT_START_S = 600.0
"""Seconds after which a program that reports no steps counts as having started. Its error may then
not occur again."""
_POLL_S = 0.1

_left_by_program: list[BaseException] = []
"""The exception that has ended the program. What it refers to stays until the process ends: the
last reference to a DistributedDataParallel waits, with the lock of the interpreter, for the thread
of gloo, which may wait for that lock (https://github.com/pytorch/pytorch/issues/56297)."""


class ProgramError(RuntimeError):
    """Raised if a program ends with an exit status other than 0."""


@dataclass(frozen=True)
class PythonProgram:
    """A script or a module, and its arguments."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]


def run_program(command: CommandSpec, hang: HangSpec, env: WorkerEnvironment) -> None:
    """Runs the program to its end, and reports that end in the heartbeat table.

    Args:
        hang: when it counts as hung, if its steps are observed.

    Raises:
        TrainingError: there is no such program.
        ProgramError: it ended with an exit status other than 0.
        Exception: the error of a Python program.
    """
    heartbeats = env.attach_heartbeats()
    if heartbeats.request() is not WorkerRequest.NONE:
        heartbeats.report(WorkerPhase.LEFT, heartbeats.last_step())
        return
    if env.local_rank == 0:
        os.environ[ATTEMPT] = str(heartbeats.count_attempt())
        os.environ |= _event_variables(env)
    os.environ |= task_variables(env, os.environ)
    heartbeats.report_deadline(0.0)  # the row may be that of the attempt before
    heartbeats.report(WorkerPhase.RUNNING, 0)
    cwd = Path(command.cwd or Path.cwd())
    os.chdir(cwd)
    at = env.at
    manifest = read_json(at.run.submission(at.submission) / "manifest.json") or {}
    code = CodePaths(
        Path(str(manifest.get("project", cwd))), at.run.project_code(at.submission), cwd
    )
    number = signal.Signals[command.stop_signal]
    python = python_program(command.arguments)
    if at.generation > 1 or env.attempt > 0:
        _report_written_files(code.snapshot, env)
    with ExitStack() as observing:
        observing.enter_context(_observed(command, hang, env))

        def end() -> None:
            observing.close()
            _report_written_files(code.snapshot, env)
            _report_end(heartbeats)

        if python is None:
            _run_child(command.arguments, heartbeats, number)
        else:
            with _end_reported(end, heartbeats):
                _run_python(python, code, heartbeats, number)
        end()


def _report_written_files(snapshot: Path, env: WorkerEnvironment) -> None:
    """Reports on rank 0 what the program has written into the copy of its code, where a module has
    its `__file__`: a later submission of the run has another copy."""
    if env.rank != 0 or not (written := written_files(snapshot)):
        return
    what = (
        f"the program wrote {listing(written, 1)} into the copy of its code, {snapshot}, where a "
        "later submission does not find it: write to a path that is relative to the working "
        "directory, and not to the __file__ of a module"
    )
    report_degraded(env, DegradedSubject.WRITTEN_CODE, what)


def written_files(snapshot: Path) -> list[str]:
    """Returns the files of a code snapshot that are no copies, relative to it. Copies are
    read-only; returns none on a file system that does not keep that."""
    found: list[str] = []
    if _is_writable(snapshot / "hpckit" / "__init__.py"):
        return found
    for folder, folders, files in os.walk(snapshot):
        folders[:] = [one for one in folders if one != "__pycache__"]
        paths = (Path(folder, name) for name in files)
        found += [str(path.relative_to(snapshot)) for path in paths if _is_writable(path)]
    return sorted(found)


def _is_writable(file: Path) -> bool:
    """Returns whether this is a regular file whose owner may write to it."""
    try:
        mode = file.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IWUSR)


def _event_variables(env: WorkerEnvironment) -> dict[str, str]:
    """Returns the variables with which a Checkpointer of the program writes its events to those of
    the run."""
    fields = {"generation": env.at.generation, "attempt": int(os.environ[ATTEMPT]), "rank": 0}
    return {event_file.FILE: str(env.at.run.events), event_file.FIELDS: json.dumps(fields)}


@contextmanager
def _observed(command: CommandSpec, hang: HangSpec, env: WorkerEnvironment) -> Iterator[None]:
    """Records the steps in what rank 0 writes during the block, if the spec says where they are.
    The working directory is that of the program."""
    if not command.has_observed_steps or env.rank != 0:
        yield
        return
    follower = ProgramFollower(
        env.at.run.rank_log(env.at.generation, env.at.node, 0),
        command.step_pattern,
        _scalar_files(command, env),
        ProgramWatch(hang.output_s, hang.validate_s),
    )
    follower.start()
    try:
        yield
    finally:
        write_open_files()
        follower.close()


def _scalar_files(command: CommandSpec, env: WorkerEnvironment) -> ScalarFiles | None:
    if command.tensorboard_dir is None:
        return None
    try:
        return ScalarFiles(Path.cwd() / command.tensorboard_dir)
    except ImportError as error:
        what = f"command.tensorboard_dir: the event files cannot be read: {error}"
        report_degraded(env, DegradedSubject.TENSORBOARD, what)
        return None


def is_late_failure(env: WorkerEnvironment, started_s: float) -> bool:
    """Returns whether a worker without reported steps, as a program may be, ran for so long that it
    had started training.

    Args:
        started_s: when the worker started, in CLOCK_MONOTONIC seconds.
    """
    heartbeats = env.attach_heartbeats()
    is_silent = heartbeats.phase() is WorkerPhase.RUNNING and heartbeats.last_step() == 0
    return is_silent and time.monotonic() - started_s > SILENT_START_S


def python_program(arguments: Sequence[str]) -> PythonProgram | None:
    """Returns the script or module that these arguments run with this interpreter, or None if they
    are another program, or need options of Python other than -u and -m."""
    if not (is_python(arguments[0]) or arguments[0] == sys.executable):
        return None
    rest = list(arguments[1:])
    while rest[:1] == ["-u"]:
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        return PythonProgram(rest[1], True, tuple(rest[2:]))
    if not rest or rest[0].startswith("-"):
        return None
    return PythonProgram(rest[0], False, tuple(rest[1:]))


@dataclass(frozen=True)
class CodePaths:
    """Where the code of the project is."""

    project: Path
    snapshot: Path
    cwd: Path

    def in_snapshot(self, path: Path) -> Path:
        """Returns the copy of a file or folder of the project, or `path` itself if there is no
        copy."""
        whole = Path(os.path.normpath(self.cwd / path))
        for project in (self.project, self.project.resolve()):
            if whole.is_relative_to(project):
                copy = self.snapshot / whole.relative_to(project)
                return copy if copy.exists() else whole
        return whole

    def uncopied(self, path: object) -> Path | None:
        """Returns the file or folder of the project that a path into the copy stands for, if it was
        not copied; else None."""
        if not isinstance(path, str | os.PathLike):
            return None
        missing = Path(os.path.normpath(self.cwd / path))
        if not missing.is_relative_to(self.snapshot) or missing.exists():
            return None
        place = self.project / missing.relative_to(self.snapshot)
        return place if place.exists() else None


def _run_python(
    program: PythonProgram, code: CodePaths, heartbeats: HeartbeatWriter, number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    def ask() -> None:
        """Sends the signal if the program handles it; else ends the process, as there is nothing
        that it could save."""
        if signal.getsignal(number) not in (before, signal.SIG_DFL, signal.SIG_IGN, None):
            os.kill(os.getpid(), number)
            return
        _leave(heartbeats)

    def is_cooperative() -> bool:
        return "hpckit.client" in sys.modules

    _RequestWatch(heartbeats, ask, is_cooperative).start()
    sys.argv = [program.target, *program.arguments]
    sys.orig_argv = [sys.executable, *(["-m"] if program.is_module else []), *sys.argv]
    try:
        if program.is_module:
            folders = list(dict.fromkeys(map(str, (code.in_snapshot(code.cwd), code.cwd))))
            sys.path[:0] = folders
            with program_packages(folders):
                _run_module(program.target)
        else:
            _run_script(code.in_snapshot(Path(program.target)))
    except SystemExit as end:
        _left_by_program.append(end)
        _check_exit(end, heartbeats)
    except KeyboardInterrupt as end:
        _left_by_program.append(end)
        if heartbeats.request() is WorkerRequest.NONE:
            raise
    except FileNotFoundError as error:
        if (place := code.uncopied(error.filename)) is not None:
            error.add_note(
                f"{place} is not in the copy of the code, in which the program runs: give a path "
                "that is relative to the working directory, and not to __file__"
            )
        raise


@contextmanager
def _end_reported(report: Callable[[], None], heartbeats: HeartbeatWriter) -> Iterator[None]:
    """Has what ends this program without an exception reported first: `os._exit(0)`, by which some
    scripts end, and `os.execv` and `os.execve`, which put another program in its place. If they
    fail, the report is taken back, as the program continues."""
    process, exit_now = os.getpid(), os._exit

    def end(status: int) -> NoReturn:
        try:
            if status == 0 and os.getpid() == process:  # not in a fork of the program
                report()
        finally:
            exit_now(status)

    def replacing(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def replace_program(*args: Any, **options: Any) -> NoReturn:
            if os.getpid() != process:
                replace(*args, **options)
            before, step = heartbeats.phase(), heartbeats.last_step()
            heartbeats.report(WorkerPhase.REPLACED, step)
            try:
                replace(*args, **options)
            except BaseException:
                heartbeats.report(before, step)
                raise

        return replace_program

    usual = {"_exit": exit_now, "execv": os.execv, "execve": os.execve}
    vars(os).update(_exit=end, execv=replacing(os.execv), execve=replacing(os.execve))
    try:
        yield
    finally:
        vars(os).update(usual)


def _run_script(path: Path) -> None:
    """Runs a script as the module `__main__`, as `python PATH` does."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise TrainingError(f"command.arguments: {path} cannot be read: {error.strerror}") from None
    sys.path.insert(0, str(path.parent))
    with program_packages([str(path.parent)]):
        code = compile(source, str(path), "exec", dont_inherit=True)
        _run_as_main(code, __file__=str(path), __loader__=SourceFileLoader("__main__", str(path)))


def _run_module(name: str) -> None:
    """Runs a module as the module `__main__`, as `python -m NAME` does.

    Raises:
        ImportError: there is no such module.
    """
    name, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin
    _run_as_main(
        code,
        __file__=spec.origin,
        __loader__=spec.loader,
        __package__=spec.parent,
        __cached__=spec.cached,
        __spec__=spec,
    )


def _run_as_main(code: CodeType, **attributes: object) -> None:
    """Runs code in a new module `__main__`, which stays, as threads and functions of atexit may
    need it later. Processes that are spawned send its objects as those of `__mp_main__`."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **attributes)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    with forks_ended():
        exec(code, main.__dict__)  # noqa: S102


def _check_exit(end: SystemExit, heartbeats: HeartbeatWriter) -> None:
    """Returns if the program has exited well, or because it was asked to."""
    if end.code in (None, 0) or heartbeats.request() is not WorkerRequest.NONE:
        return
    what = f"status {end.code}" if isinstance(end.code, int) else str(end.code)
    raise ProgramError(f"the program exited with {what}") from end


def _run_child(
    arguments: Sequence[str], heartbeats: HeartbeatWriter, number: signal.Signals
) -> None:
    """Runs a program as a child process."""
    parent = os.getpid()
    # a script finds the modules beside it, which the processes of hpckit do without
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    try:
        child = subprocess.Popen(arguments, env=env, preexec_fn=lambda: die_with_parent(parent))
    except OSError as error:
        raise TrainingError(
            f"command.arguments: {arguments[0]} cannot be started: {error.strerror}"
        ) from None

    def is_cooperative() -> bool:
        return heartbeats.phase() is not WorkerPhase.RUNNING

    _RequestWatch(heartbeats, lambda: child.send_signal(number), is_cooperative).start()
    returncode = child.wait()
    if returncode == 0 or heartbeats.request() is not WorkerRequest.NONE:
        return
    name = PurePath(arguments[0]).name
    if returncode < 0:
        raise ProgramError(f"{name} was ended by {signal.Signals(-returncode).name}")
    raise ProgramError(f"{name} exited with status {returncode}")


class _RequestWatch(threading.Thread):
    """Waits for a request to leave, and passes it on to a program that does not ask for it."""

    def __init__(
        self,
        heartbeats: HeartbeatWriter,
        ask: Callable[[], None],
        is_cooperative: Callable[[], bool],
    ) -> None:
        super().__init__(name="request watch", daemon=True)
        self._heartbeats, self._ask, self._is_cooperative = heartbeats, ask, is_cooperative

    def run(self) -> None:
        while self._heartbeats.request() is WorkerRequest.NONE:
            time.sleep(_POLL_S)
        if not self._is_cooperative():
            self._ask()


def _report_end(heartbeats: HeartbeatWriter) -> None:
    is_asked = heartbeats.request() is not WorkerRequest.NONE
    phase = WorkerPhase.LEFT if is_asked else WorkerPhase.DONE
    heartbeats.report(phase, heartbeats.last_step())


def _leave(heartbeats: HeartbeatWriter) -> None:
    """Ends this process, whatever its main thread does. torchrun starts the worker again, which
    finds the request and leaves."""
    heartbeats.report(WorkerPhase.LEFT, heartbeats.last_step())
    atexit._run_exitfuncs()
    write_open_files()
    os._exit(128 + signal.SIGTERM)
