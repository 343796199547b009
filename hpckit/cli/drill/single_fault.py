"""`hpckit drill RUN KIND`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, YesOption, submitted_run

if TYPE_CHECKING:
    from hpckit.faults.injection.process_faults import Slowdown

_KINDS = (
    "preempt, timeout, worker, agent, node, hang, slow, service, full, enospc, eio, cache,"
    " supervisor, worker_term, agent_term, agent_stop, service_term, service_stop, supervisor_stop"
    " or requeue"
)


def single(
    run: RunPath,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{_KINDS}.")],
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, help="Rank for worker, worker_term, hang and slow; by default the last one."
        ),
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Node for agent..., node, service..., full, enospc, eio and cache; default: last.",
        ),
    ] = None,
    by: Annotated[
        float | None,
        typer.Option(
            "--by",
            metavar="PERCENT",
            min=1,
            max=10_000,
            help="For slow: how much longer the rank computes; default: ten times as long.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1, max=86_400, help="For slow: for how long; default: 10.", show_default=False
        ),
    ] = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Cause a real fault in a run that trains, to check that it recovers.

    Example: hpckit drill gpt-1a2b3c4d worker --rank 1

    preempt and timeout send what Slurm would send (timeout moves the end of the job, too), worker,
    agent, node, service and supervisor kill, hang stops a rank permanently, slow stops it for a
    share of the time (kernels that it has launched on a GPU go on), by default for most of it, and
    prints how long steps took before and meanwhile. full keeps the checkpoint service from writing
    for a while. With enospc and eio, system calls of that service fail with this error for a while,
    by strace. What lasts for a while ends with Ctrl-C, also in a Slurm job. cache flips bits of a
    shard in data.cache. Those with _term send SIGTERM, those with _stop SIGSTOP (service and
    supervisor continue after 8 s), and requeue calls scontrol requeue.
    """
    from dataclasses import asdict

    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.events.event_log import read_events
    from hpckit.faults.fault_plan import DrillError, DrillKind, plan_drill
    from hpckit.faults.injection.process_faults import Slowdown
    from hpckit.faults.plan_execution import execute_fault_plan
    from hpckit.faults.slowdown_effect import slowdown_effect
    from hpckit.report.overview import Queue, read_overview

    with reported_errors(json):
        if kind not in list(DrillKind):
            raise CommandError(f"{kind}: unknown; a drill is {_KINDS}")
        slowdown = _slowdown(kind, by, seconds)
        out, it = CommandOutput(json), read_overview(submitted_run(run), Queue())
        try:
            plan = plan_drill(it, DrillKind(kind), rank, node, slowdown)
            out.fact("fault", plan.what)
            out.fact("expect", plan.expect)
            _confirm(out.is_asking() and not json, yes)
            done = execute_fault_plan(it, plan)
        except DrillError as error:
            raise CommandError(str(error)) from None
        effect = None
        if plan.kind is DrillKind.SLOW:
            slowdown = plan.slowdown or Slowdown()
            effect = slowdown_effect(read_events(it.run.events), slowdown.seconds)
        measured = {"step_s": asdict(effect)} if effect is not None else {}
        out.document(
            {
                "run": it.run.name,
                "kind": kind,
                "fault": plan.what,
                "expect": plan.expect,
                "done": done,
                "step": it.progress.step,
                "saved_step": it.progress.saved_step,
                **measured,
            }
        )
        out.fact("done", done)
        if plan.kind is DrillKind.SLOW:
            out.fact("steps", str(effect or "too few were recorded: give more --seconds"))
        for command in (f"hpckit logs {it.run.path} -f", f"hpckit report {it.run.path}"):
            out.dim(f"    {command}")


def _slowdown(kind: str, by: float | None, seconds: float | None) -> Slowdown | None:
    from hpckit.faults.injection.process_faults import Slowdown

    if by is None and seconds is None:
        return None
    if kind != "slow":
        raise CommandError(f"{kind}: --by and --seconds are options of `slow` only")
    usual = Slowdown()
    return Slowdown(
        usual.percent if by is None else by, usual.seconds if seconds is None else seconds
    )


def _confirm(can_ask: bool, yes: bool) -> None:
    if yes:
        return
    if not can_ask:
        raise CommandError("drill: give --yes, because there is no terminal to ask on")
    if not typer.confirm("Do it?", err=True):
        raise CommandError("nothing was done")
