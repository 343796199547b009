"""A run that is broken again and again, as a schedule says; and one that nobody disturbs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname

from hpckit.drill.faults import DrillError, DrillKind, plan_drill, training_nodes
from hpckit.drill.oracle import violations
from hpckit.drill.playing import play
from hpckit.drill.schedule import Planned
from hpckit.drill.site import Site
from hpckit.drill.struck import Notes, Struck
from hpckit.elastic.verdict import Kind
from hpckit.launch.compose import compose_spec
from hpckit.launch.preflight import with_absolute_paths
from hpckit.report.overview import Overview, Queue, look
from hpckit.report.state import State
from hpckit.run.directory import RunDir
from hpckit.run.durable import read_json
from hpckit.run.events import Event, EventTail
from hpckit.run.parse import identity, read_spec

PATIENCE_S = 300.0
"""Seconds in which a run is to train again after a fault, and to begin."""
_POLL_S, _LOOK_S = 0.1, 2.0
_UNPACED = "entry=hpckit.training.language_model:main"
_NO_RESTART = (DrillKind.SLOW, DrillKind.SERVICE, DrillKind.FULL, DrillKind.DAMAGE)


class CampaignError(RuntimeError):
    """A run cannot be started; says why."""


@dataclass(frozen=True)
class Stage:
    """What all runs of a campaign that are broken have in common."""

    overrides: Sequence[str]
    reference: RunDir
    """That nobody disturbed."""
    site: Site
    tell: Callable[[str], None]
    """Of each fault, as it comes."""


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule."""

    run: RunDir
    reference: RunDir
    """That nobody disturbed."""
    struck: tuple[Struck, ...]
    problems: tuple[str, ...]
    """Nothing must be wrong, see `oracle`."""


def undisturbed(folder: Path, overrides: Sequence[str]) -> RunDir:
    """The run that the others are compared to, to its end.

    Raises:
        CampaignError: it does not get there.
    """
    run = _launch(folder / "reference", [*overrides, _UNPACED])
    _Watch(run, Site({}, Path())).until_over()
    problem = _how_it_failed(run)
    if problem:
        raise CampaignError(f"the run that nobody disturbs failed: {problem}")
    return run


def known_reference(run: RunDir, overrides: Sequence[str]) -> RunDir:
    """`run`, which nobody has disturbed in an earlier campaign.

    Raises:
        CampaignError: it has not ended well, or is of another config.
        SpecError: the config is none.
    """
    problem = _how_it_failed(run)
    if problem:
        raise CampaignError(f"--reference {problem}")
    due = with_absolute_paths(compose_spec([*overrides, _UNPACED]), Path.cwd())
    if identity(read_spec(run.spec(run.submission_numbers()[-1]))) != identity(due):
        raise CampaignError(f"--reference {run.path}: it is of another config than this campaign")
    return run


def campaign(folder: Path, schedule: Sequence[Planned], stage: Stage) -> Outcome:
    """Play a schedule on a new run in `folder`, and judge it.

    Raises:
        CampaignError: it cannot be started.
    """
    run = _launch(folder / "runs", stage.overrides)
    watch, notes = _Watch(run, stage.site), Notes(folder)
    notes.begin(run, stage.reference)
    problems: list[str] = []
    try:
        for planned in schedule:
            if (found := watch.strike(planned)) is None:
                stage.tell(f"the run is over, and no more is done. {watch.refusal}".rstrip())
                break
            notes.add(found)
            stage.tell(f"step {found.step:,}: {found.what}")
            watch.until_past(found)
        watch.until_over()
    except TimeoutError as error:
        watch.end()
        problems.append(str(error))
    except KeyboardInterrupt:
        watch.end()
        raise
    finally:
        problems += stage.site.settle()
    if schedule and not notes.faults():
        problems.append(f"not one fault was done. {watch.refusal}".rstrip())
    return _judged(run, stage.reference, notes.faults(), problems)


def judge(folder: Path) -> Outcome:
    """What came of a run that `campaign` began in `folder`, whatever ended either of them. Of a run
    that was cancelled, as far as it came.

    Raises:
        CampaignError: no run was begun there, or it goes on.
        ValueError: what was written down is damaged.
    """
    notes = Notes(folder)
    if (runs := notes.runs()) is None:
        raise CampaignError(f"{folder}: no campaign has begun a run there")
    run, reference = runs
    if look(run, Queue()).is_alive:
        raise CampaignError(f"{run.path} goes on: wait for its end, or hpckit cancel it")
    verdict = read_json(run.verdict)
    cut_short = verdict is not None and verdict.get("kind") == Kind.STOPPED
    return _judged(run, reference, notes.faults(), cut_short=cut_short)


def _judged(
    run: RunDir,
    reference: RunDir,
    struck: tuple[Struck, ...],
    problems: Sequence[str] = (),
    *,
    cut_short: bool = False,
) -> Outcome:
    harmed = {one.harmed for one in struck if one.harmed is not None}
    found = violations(run, reference, harmed, cut_short=cut_short)
    return Outcome(run, reference, struck, (*problems, *found))


class _Watch:
    """Follows a run by its events, and breaks it."""

    def __init__(self, run: RunDir, site: Site) -> None:
        self._run, self._tail = run, EventTail(run.events)
        self._site = site
        self._events: list[Event] = []
        self.refusal = ""
        """Why the newest fault that could not be done at once could not."""

    def strike(self, planned: Planned) -> Struck | None:
        """Do it, once the run has come there and trains; None: it is over before."""
        self.refusal = ""
        if not self._wait(lambda: self._step() >= planned.step, f"step {planned.step}"):
            return None
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            it = look(self._run, Queue())
            if not it.is_alive:
                return None
            try:
                struck = self._strike(it, planned)
                break
            except DrillError as error:  # it is on its way from one generation to the next
                self.refusal = f"{planned.kind} at step {planned.step}: {error}"
                if time.monotonic() > deadline_s:
                    raise TimeoutError(self.refusal) from None
                time.sleep(_POLL_S)
        if planned.kind == DrillKind.SUPERVISOR and not it.is_slurm:
            self._resume()
        return struck

    def _strike(self, it: Overview, planned: Planned) -> Struck:
        """Raises DrillError: it cannot be done now."""
        rank, node = _victim(it, planned)
        if planned.kind in self._site.faults:
            hosts = it.progress.hosts if it.is_slurm else [gethostname()] * it.progress.nodes
            if it.state is not State.RUNNING or node >= len(hosts):
                raise DrillError(f"{it.run.name} is {it.word}: it takes a run that trains")
            host = hosts[node]
            struck = Struck(
                time.time(), planned.kind, self._new_step(), f"{planned.kind} of {host}"
            )
            self._site.play(planned.kind, host, node, it.progress.job)
            return struck
        plan = plan_drill(it, DrillKind(planned.kind), rank, node)
        harmed = plan.path.name if plan.path is not None else None
        struck = Struck(time.time(), planned.kind, self._new_step(), plan.what, harmed)
        play(it, plan)
        return struck

    def until_past(self, struck: Struck) -> None:
        """Until a step was finished that was not before, by ranks that were started since if the
        fault takes those that there were."""

        def is_past() -> bool:
            later = [event for event in self._events if event.time > struck.time]
            if self._restarts(struck.kind):
                started = [i for i, e in enumerate(later) if e.kind == "training_started"]
                later = later[started[0] :] if started else []
            return any(e.kind == "step" and e["step"] > struck.step for e in later)

        self._wait(is_past, f"a new step after this: {struck.what}")

    def until_over(self) -> None:
        """Until nothing of it is there, or comes by itself."""
        while self._wait(partial(self._is_past, self._step()), "its end, or another step"):
            pass

    def end(self) -> None:
        """It is given up."""
        _hpckit("cancel", str(self._run.path))

    def _resume(self) -> None:
        while look(self._run, Queue()).is_alive:  # its agents end when they find it gone
            time.sleep(_POLL_S)
        done = _hpckit("resume", str(self._run.path), "--detach")
        if done.returncode:
            raise TimeoutError(f"hpckit resume: {done.stderr.strip()}")

    def _wait(self, holds: Callable[[], bool], what: str) -> bool:
        """False: the run is over before. Raises TimeoutError if neither comes in time."""
        deadline_s = time.monotonic() + PATIENCE_S
        look_s = 0.0
        while True:
            self._events += self._tail.read()
            if holds():
                return True
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise TimeoutError(f"not in {PATIENCE_S:g} s: {what}")
            if now_s > look_s:
                if not look(self._run, Queue()).is_alive:
                    return False
                look_s = now_s + _LOOK_S
            time.sleep(_POLL_S)

    def _restarts(self, kind: str) -> bool:
        if kind in self._site.faults:
            return self._site.faults[kind].restarts
        return kind not in _NO_RESTART

    def _new_step(self) -> int:
        self._events += self._tail.read()
        return self._step()

    def _is_past(self, step: int) -> bool:
        return self._step() > step

    def _step(self) -> int:
        return max((e["step"] for e in self._events if e.kind == "step"), default=0)


def _victim(it: Overview, planned: Planned) -> tuple[int, int]:
    """(rank, node)."""
    nodes = training_nodes(it)
    return planned.number(max(1, it.progress.ranks)), nodes[planned.number(len(nodes))]


def _how_it_failed(run: RunDir) -> str | None:
    verdict = read_json(run.verdict)
    if verdict is not None and verdict.get("kind") == "done":
        return None
    return f"{run.path}: {'no verdict' if verdict is None else verdict.get('reason')}"


def _launch(folder: Path, overrides: Sequence[str]) -> RunDir:
    """Start a run, and do not wait for it."""
    folder.mkdir(parents=True)
    words = [f"root={folder}", *overrides, "--detach"]
    done = _python("import sys; from hpckit.launch.main import main; sys.exit(main())", *words)
    found = sorted(folder.glob("*/events.jsonl")) or sorted(folder.glob("*/submissions"))
    if done.returncode or not found:
        said = done.stderr.strip().removeprefix("error: ")
        raise CampaignError(f"launch.py: {said or f'exit status {done.returncode}'}")
    return RunDir(found[0].parent)


def _hpckit(*words: str) -> subprocess.CompletedProcess[str]:
    return _python("from hpckit.cli.main import app; app()", *words)


def _python(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
