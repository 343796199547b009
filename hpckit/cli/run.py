"""`hpckit resume` and `hpckit report`. What they need is imported when they run: it takes longer
than the help of other commands, which the same program prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.refusal import refusing
from hpckit.cli.runpath import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.run.directory import RunDir


def resume(
    run: RunPath,
    detach: Annotated[bool, typer.Option(help="Return as soon as it is started.")] = False,
) -> None:
    """Go on with a run from its newest checkpoint: same code, same config as it was submitted."""
    with refusing():
        raise typer.Exit(_resume(submitted_run(run), detach))


def report(run: RunPath, json: JsonOption = False) -> None:
    """Tell what a run has been through, what bounds its speed and what to try, and draw its curve.

    Keys of --json: run, path, verdict, steps, steps_kept, step_s, started,
    finished, lives, interruptions, stragglers (rank, host, step, z, excess),
    checkpoints, samples; time (all, steps, start, lost, restore: a part of
    lost; else), in_steps (steps, seconds, parts, tokens_per_s, mfu,
    peak_bytes, is_gpu, traced, exposed), bottleneck (input, storage,
    training, kernel, or null) and advice. Times are seconds.
    """
    with refusing():
        found = submitted_run(run)
        if json:
            _print_record(found)
        else:
            _show(found)


def _show(run: RunDir) -> None:
    from rich.console import Console

    from hpckit.launch.main import show_report

    show_report(run, Console())


def _print_record(run: RunDir) -> None:
    from hpckit.cli.ckpt.output import Out
    from hpckit.report.history import build_history
    from hpckit.report.speed import last_spec, speed_record
    from hpckit.run.durable import read_json
    from hpckit.run.events import read_events
    from hpckit.run.lock import holder

    history = build_history(read_events(run.events), alive=holder(run.lock) is not None)
    about = {"run": run.name, "path": str(run.path), "verdict": read_json(run.verdict)}
    Out(True).document({**about, **history.record(), **speed_record(history, last_spec(run))})


def _resume(run: RunDir, detach: bool) -> int:
    from hpckit.launch.main import start
    from hpckit.run.directory import lock_paths
    from hpckit.run.durable import read_json
    from hpckit.run.lock import hold_all
    from hpckit.run.parse import read_spec

    verdict = read_json(run.verdict)
    if verdict and verdict.get("kind") == "done":
        print(f"{run.name} is done; nothing to resume")
        return 0
    number = run.submission_numbers()[-1]
    spec = read_spec(run.spec(number))
    if not (run.code(number) / "hpckit").is_dir():
        raise FileNotFoundError(f"{run.code(number)} is gone, the code that was submitted")
    with hold_all(lock_paths(spec, run), "hpckit resume"):
        pass  # nobody else has it; the supervisor takes it for itself
    return start(run, spec, number, detach)
