"""Training programs as people have them, launched by hpckit on two ranks, disturbed, and compared
with what a program does that nothing disturbs."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from tests.integration.examples import recorded_program
from tests.integration.examples.example_programs import ForkedProgram
from tests.integration.run.runs import REPO, Started, complete, kill, started

EXAMPLES = REPO / "examples"
PROGRAMS = Path(__file__).parent / "programs"
RECORDER = Path(recorded_program.__file__)
KEYS = ("name=t", "launch.threads_per_worker=1", "cluster.device=cpu")
STEP_S = 0.15
# a line may follow a progress bar
_STEP = re.compile(r"rank (\d+) step (\d+) (loss \S+ parameters (\S+))$", re.MULTILINE)
_BEGIN = re.compile(r"rank \d+ begins with (\S+)$", re.MULTILINE)

Recorded = list[dict[int, set[str]]]
"""By rank and step, the losses and parameters that were recorded, to the last bit. A repeated step
has been recorded again."""


@dataclass(frozen=True)
class Trained:
    """What a run has left behind."""

    run: RunDir
    steps: Recorded
    ends: list[str]
    """How its generations ended."""
    times_at_end: int
    """How often the programs of all ranks have come to their end."""


def undisturbed(folder: Path, program: Path, *arguments: str, imports: Sequence[str]) -> Recorded:
    """A program on two ranks without hpckit, as torchrun would start it.

    Args:
        imports: modules that it imports, and which take long.
    """
    folder.mkdir()
    words = ["0", str(program), "--out", str(folder / "out"), *arguments]
    with closing(ForkedProgram(recorded_program.__name__, *imports)) as forks:
        return recorded(forks.read(words, folder, ranks=2).output)


def project_with(folder: Path, program: Path) -> Path:
    """A project of somebody, with the program and what records it."""
    folder.mkdir(parents=True)
    for file in (program, RECORDER):
        shutil.copy(file, folder)
    return folder


def launch_line(folder: Path, program: Path, *words: str, keys: Sequence[str]) -> list[str]:
    """What launches a program of the project in `folder`."""
    launch = [sys.executable, str(REPO / "launch.py"), *KEYS, f"root={folder / 'runs'}", *keys]
    out = str(folder / "out")
    return [*launch, "--", "python", RECORDER.name, str(STEP_S), program.name, "--out", out, *words]


def disturbed(folder: Path, program: Path, *arguments: str, kill_at: int | None = 24) -> Trained:
    """Run a program; a rank is killed once step `kill_at` is finished, and the run is preempted
    some steps later."""
    project = project_with(folder / "project", program)
    line = launch_line(folder, program, *arguments, keys=["launch.nproc_per_node=2"])
    with started(folder / "runs", line, cwd=project) as it:
        _disturb(it, kill_at)
        status, output = it.finish()
    assert status == 0, output
    found = trained(folder)
    assert found.ends == ["preempted", "done"]
    return found


def shrunk(folder: Path, program: Path, *arguments: str, is_disturbed: bool) -> tuple[Trained, int]:
    """Run a program on two ranks, stop it, and continue it on one. The step after which it was
    stopped comes second.

    Args:
        is_disturbed: whether a rank is killed and the run preempted before.
    """
    project = project_with(folder / "project", program)
    line = launch_line(folder, program, *arguments, keys=["launch.nproc_per_node=2"])
    with started(folder / "runs", line, cwd=project) as it:
        left_at = _disturb(it, kill_at=24) if is_disturbed else 24
        it.wait_for_step(left_at + 4)
        _ask_to_leave(it, lambda: it.process.send_signal(signal.SIGINT))
        status, output = it.finish()
        assert status == 130, output
    stopped_at = int(read_json(it.run.verdict)["saved_step"])
    line = launch_line(folder, program, *arguments, keys=["launch.nproc_per_node=1"])
    status, output = complete(folder / "runs", line, cwd=project)
    assert status == 0, output
    found = trained(folder)
    run = found.run
    assert found.ends == [*(["preempted"] if is_disturbed else []), "stopped", "done"]
    last = len(found.ends) - 1
    assert parameters_at_begin(run, last + 1) == parameters_after(run, last, stopped_at)
    for rank in (0, 1):
        assert list(found.steps[rank])[:stopped_at] == list(range(1, stopped_at + 1))
    assert max(found.steps[1]) <= stopped_at + 1, "Lightning begins a step that does not count"
    assert found.times_at_end == 1
    return found, stopped_at


def _disturb(it: Started, kill_at: int | None) -> int:
    """Kill a rank and preempt the run; the step that it has resumed from."""
    preempt_at = 8
    if kill_at is not None:
        it.wait_for_step(kill_at)
        assert kill(it.wait_for("worker_started", rank=1)["pid"])
        it.wait_for("worker_started", count=2, rank=1)
        preempt_at += kill_at
    it.wait_for_step(preempt_at)
    supervisor = it.wait_for("run_started")["pid"]
    _ask_to_leave(it, lambda: kill(supervisor, signal.SIGUSR2))
    ended = it.wait_for("generation_ended")
    it.wait_for("training_started", generation=2)
    return int(ended["step"])


def _ask_to_leave(it: Started, send: Callable[[], object]) -> None:
    """Send a signal at which the ranks are asked to leave, which make no step until then: a quick
    program might end before."""
    before = sum(event.kind == "asked" for event in it.events())
    with it.paused():
        send()
        it.wait_for("asked", before + 1)


def trained(folder: Path) -> Trained:
    (path,) = (folder / "runs").glob("t-*")
    run = RunDir(path)
    assert read_json(run.verdict)["kind"] == "done"
    assert strays(path) == []
    events = read_events(run.events)
    ends = [event["verdict"] for event in events if event.kind == "generation_ended"]
    text = "".join(logs_of(run))
    return Trained(run, recorded(text), ends, text.count(recorded_program.END))


def logs_of(run: RunDir) -> list[str]:
    """What the ranks have printed, generation after generation."""
    return [log.read_text() for log in sorted(run.logs.glob("g*/n*/rank*.log"))]


def recorded(text: str) -> Recorded:
    found: Recorded = [{}, {}]
    for rank, step, what, _ in _STEP.findall(text):
        found[int(rank)].setdefault(int(step), set()).add(what)
    return found


def parameters_at_begin(run: RunDir, generation: int) -> str:
    """The hash of the parameters with which the first rank of a generation began to train."""
    return str(_BEGIN.findall(run.rank_log(generation, 0, 0).read_text())[0])


def parameters_after(run: RunDir, generation: int, step: int) -> str:
    """Their hash after a step of a generation."""
    steps = _STEP.findall(run.rank_log(generation, 0, 0).read_text())
    return next(str(digest) for _, number, _, digest in steps if int(number) == step)
