"""Starts runs that are only made to be measured, and waits for them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from hpckit.agent.device_assignment import visible_gpus
from hpckit.cli.common.command_errors import CommandError
from hpckit.cli.common.command_output import CommandOutput
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import Event, read_events
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.rundir.code_snapshot.snapshot import Project, find_project
from hpckit.rundir.directory import RunDir, run_directory
from hpckit.submit.compose import compose_spec
from hpckit.submit.composition.hydra_values import quoted
from hpckit.submit.launch_command import pack
from hpckit.submit.preflight.checks import preflight, with_absolute_paths
from hpckit.submit.preparation import CommandOptions, compose, prepare, request, say_once
from hpckit.submit.run_cancellation import cancel_run
from hpckit.submit.submission_start import start_silently

T = TypeVar("T")
_TICK_S = {"local": 1.0, "slurm": 3.0}  # each check takes about 20 ms, and queries Slurm
_CANCEL_S = 120.0
_DEAD_S = 30.0
"""Seconds after which a run that seems dead is dead, lest hours of measurements be given up for
nothing."""


@dataclass(frozen=True)
class MeasuringProgram(Generic[T]):
    """A program that measures the nodes of a run of its own and writes a report."""

    name: str
    """The name of the run, of its folder and of the file."""
    module: str
    report: TypeAdapter[T]
    options: Callable[[RunSpec], Sequence[str]]
    """Returns its options, beside those of every such program, for the spec of the site."""
    subject: str
    """What the figures should be of, for a note if they are of shared cores."""
    overrides: tuple[str, ...] = ()
    """Overrides of the run, which win over those of the user."""


def measure(
    program: MeasuringProgram[T], typed: Sequence[str], out: CommandOutput
) -> tuple[T, RunSpec]:
    """Carry out a program as a run, and return its report and the spec of the site.

    Args:
        typed: the user's overrides.

    Raises:
        SpecError: the run cannot start, or Slurm rejects it.
        CommandError: it did not reach its end, or its report cannot be read.
    """
    project, name, module = find_project(Path.cwd()), program.name, program.module
    site = compose([*typed, "--", "python", "-m", module], Path.cwd(), project)
    folder = Path(site.root) / time.strftime(f"{name}-%Y%m%d-%H%M%S")
    file = folder / f"{name}.json"
    command = ["python", "-m", module, "--output", str(file), "--device", site.cluster.device]
    words = [*typed, f"name={name}", f"root={quoted(str(folder))}", "launch.continuation=none"]
    words += [*program.overrides, "--", *command, *program.options(site)]
    spec = compose(words, Path.cwd(), project)
    check([spec], project, pack)
    ranks = spec.launch.nodes * spec.launch.nproc_per_node
    if cores := shared_cores(spec, ranks):
        figures = f"the figures are not those of {program.subject}"
        out.note(f"{ranks} ranks share {cores} cores, so {figures}")
    options = CommandOptions(f"hpckit {name}", is_queue_checked=False, say=out.note)
    with out.waiting("measuring"):
        carry_out(spec, words, project, options)
    try:
        return program.report.validate_json(file.read_bytes()), site
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{file} cannot be read: {error}; the folder {folder} has to be on a file system that "
            "all nodes share (root=...)"
        ) from error


def check(
    specs: Sequence[RunSpec], project: Project, pack: Callable[[PackSpec, Path], None]
) -> None:
    """Check that all of these runs can start, before any of them is started.

    Raises:
        SpecError: something is missing.
    """
    found = [
        problem
        for spec in specs
        for problem in preflight(spec, run_directory(spec, Path.cwd()), project, pack).problems
    ]
    if found:
        raise SpecError(list(dict.fromkeys(found)))


def shared_cores(spec: RunSpec, ranks: int) -> int | None:
    """Return the number of cores of this machine if that many local ranks share them without GPUs,
    so that their figures are not those of a network; else None."""
    cores = os.cpu_count() or 1
    is_on_cpus = spec.cluster.kind == "local" and not visible_gpus(os.environ)
    return cores if is_on_cpus and ranks > cores else None


def carry_out(
    spec: RunSpec, overrides: Sequence[str], project: Project, options: CommandOptions
) -> list[Event]:
    """Carry out one run to its end, and return its events. Its checkpoints are removed. Ctrl-C also
    ends the run.

    Raises:
        SpecError: Slurm rejects it.
        CommandError: it did not reach its end.
    """
    wanted = request(spec, overrides, Path.cwd(), project)
    run = wanted.run
    (number,) = prepare([wanted], options)
    try:
        if number is not None:  # None: the same run was measured before
            start_silently(run, spec, number)  # a Ctrl-C is delivered after it
        _wait(run, _TICK_S[spec.cluster.kind])
    except KeyboardInterrupt:
        cancel_run(
            read_overview(run, Queue()), saves=False, within_s=_CANCEL_S, say=lambda text: None
        )
        raise
    finally:
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return list(read_events(run.events))


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start, beside the others of one command."""

    spec: RunSpec
    overrides: Sequence[str]
    project: Project
    options: CommandOptions

    def carry_out(self) -> list[Event]:
        """Carry it out; see `carry_out`."""
        return carry_out(self.spec, self.overrides, self.project, self.options)


def prepared_runs(
    command: str, words: Sequence[Sequence[str]], out: CommandOutput
) -> list[PreparedRun]:
    """Return the runs of a command by their overrides, all of which can start.

    Args:
        command: what the user typed, without arguments.

    Raises:
        SpecError: a run cannot start.
    """
    project = find_project(Path.cwd())
    options = CommandOptions(command, is_queue_checked=False, say=say_once(out.note))
    specs = [with_absolute_paths(compose_spec(each), Path.cwd()) for each in words]
    check(specs, project, pack)
    return [
        PreparedRun(spec, each, project, options) for spec, each in zip(specs, words, strict=True)
    ]


def _wait(run: RunDir, tick_s: float) -> None:
    dead_s = 0.0
    while (it := read_overview(run, Queue())).is_alive or (_is_dead(it) and dead_s < _DEAD_S):
        dead_s = dead_s + tick_s if _is_dead(it) else 0.0
        time.sleep(tick_s)
    if it.word != "done":
        raise CommandError(f"{run.name}: {it.word}: {_reason(it)}\n    hpckit why {run.path}")


def _reason(it: Overview) -> str:
    """Return why a run has not reached its end."""
    reason = (it.verdict or {}).get("reason") or it.progress.failure or it.problem
    return str(reason or "its supervisor has ended without a verdict")


def _is_dead(it: Overview) -> bool:
    return it.state is RunState.DEAD
