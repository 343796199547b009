"""Starts runs that are only made to be measured, and waits for them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.agent.device_assignment import visible_gpus
from hpckit.cli.common.command_errors import CommandError
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import Event, read_events
from hpckit.report.overview import Queue, look
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir, run_directory
from hpckit.submit.preflight.checks import preflight
from hpckit.submit.preparation import CommandOptions, prepare, request
from hpckit.submit.run_cancellation import cancel_run
from hpckit.submit.submission_start import start_silently

_TICK_S = {"local": 1.0, "slurm": 3.0}  # each check takes about 20 ms, and queries Slurm
_CANCEL_S = 120.0


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
    if number is not None:  # None: the same run was measured before
        start_silently(run, spec, number)
    try:
        _wait(run, _TICK_S[spec.cluster.kind])
    except KeyboardInterrupt:
        cancel_run(look(run, Queue()), saves=False, within_s=_CANCEL_S, say=lambda text: None)
        raise
    finally:
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return list(read_events(run.events))


def _wait(run: RunDir, tick_s: float) -> None:
    while (it := look(run, Queue())).is_alive:
        time.sleep(tick_s)
    if it.word != "done":
        reason = (it.verdict or {}).get("reason", it.problem or "")
        raise CommandError(f"{run.name}: {it.word}: {reason}\n    hpckit why {run.path}")
