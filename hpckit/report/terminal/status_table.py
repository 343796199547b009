"""`hpckit status` on the terminal: a table of all runs, or one run in detail."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from hpckit.config.parallel_degrees import describe_layout
from hpckit.report.evaluation.evaluation_lines import state_words
from hpckit.report.overview import Overview
from hpckit.report.present_problems import present_problems
from hpckit.report.remaining_time import remaining_s
from hpckit.report.run_state import RunState
from hpckit.report.source_progress import describe_source
from hpckit.report.terminal.fitting_columns import fitting_columns
from hpckit.slurm.pending_reasons import explain
from hpckit.slurm.squeue import SlurmJob
from hpckit.text.quantities import ago, clean, count, moment, rate, span

_COLOURS = {
    "running": "green",
    "done": "green",
    "starting": "cyan",
    "queued": "yellow",
    "waiting": "yellow",
    "stopped": "yellow",
    "unknown": "magenta",
}
_COLUMNS = ("step", "rate", "last", "saved", "gen", "jobs")
"""The columns after name and state, from left to right."""
_IMPORTANCE = ("step", "last", "saved", "rate", "gen", "jobs")
"""The same, the most important one first."""
_LEGEND = {
    "last": "last: age of the last step",
    "saved": "saved: newest checkpoint",
    "gen": "gen: generation",
    "jobs": "12?: job 12 is pending",
}
_GAP = 2
_NAMES = 0.3
"""Share of a line that names of runs take before columns are left out for them."""


@dataclass(frozen=True)
class StatusTable:
    """All runs as a table, and a line that explains its columns."""

    table: Table
    legend: str


def table_of(runs: Sequence[Overview], now: float, width: int) -> StatusTable:
    """Return a table with one line per run in `width` columns of the terminal. Columns that do not
    fit are left out in the order "jobs", "gen", "rate", "saved", "last"; long names are folded, as
    a name that is cut cannot be typed."""
    cells = {it.run.path: _cells(it, now) for it in runs}
    wide = {
        name: max([len(name), *(len(row[name]) for row in cells.values())]) for name in _IMPORTANCE
    }
    names = max([3, *(len(clean(it.run.name)) for it in runs)])
    states = max([5, *(len(it.word) for it in runs)])
    room = width - min(names, int(_NAMES * width)) - _GAP - states
    fitting = {"step", *fitting_columns(wide, room, _GAP)}
    shown = [name for name in _COLUMNS if name in fitting]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True, min_width=states)
    for name in shown:
        justify: JustifyMethod = "left" if name == "jobs" else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=wide[name])
    for it in runs:
        values = [Text(cells[it.run.path][name]) for name in shown]
        table.add_row(Text(clean(it.run.name)), word_of(it), *values)
    return StatusTable(table, _legend(shown))


def _legend(shown: Sequence[str]) -> str:
    parts = [meaning for name, meaning in _LEGEND.items() if name in shown]
    if left_out := [name for name in _COLUMNS if name not in shown]:
        parts.append(f"without {', '.join(left_out)}, for which this terminal is too narrow")
    return "; ".join(parts)


def word_of(it: Overview) -> Text:
    return Text(it.word, style=_COLOURS.get(it.word, "red"))


def _cells(it: Overview, now: float) -> dict[str, str]:
    p = it.progress
    is_going = it.state is RunState.RUNNING
    return {
        "step": f"{p.step:,}/{p.steps:,}" if p.steps else f"{p.step:,}" if p.step else "",
        "rate": rate(p.step_s) if is_going else "",
        "last": span(now - p.step_time) if p.step_time is not None else "",
        "saved": f"{p.saved_step:,}" if p.saved_step else "",
        "gen": str(p.generation or ""),
        "jobs": " ".join(f"{job.number}{_mark(job)}" for job in it.current_jobs),
    }


def _mark(job: SlurmJob) -> str:
    return "" if job.is_active else "?"


def page_of(it: Overview, now: float) -> Iterator[tuple[str, str | Text]]:
    """Return name and text of each line."""
    p = it.progress
    yield "state", word_of(it)
    yield "directory", str(it.run.path)
    if it.fork is not None:
        yield "forked from", str(it.fork)
    if it.spec is not None:
        yield "layout", _layout(it)
    if p.hosts:
        yield "nodes", " ".join(p.hosts)
    if it.owner is not None:
        yield "supervisor", f"process {it.owner.pid} on {it.owner.host}"
    if p.begun is not None:
        yield "step", step_words(it, now)
    if p.loss is not None:
        yield "loss", f"{p.loss:.4f}"
    for name, fields in p.sources.items():
        yield "source", describe_source(name, fields)
    if p.validated is not None:
        yield "validated", p.validated
    if (evaluated := state_words(it.evaluations)) is not None:
        yield "evaluated", evaluated
    yield "saved", saved_words(it, now)
    if p.generation:
        yield "generation", str(p.generation)
    if p.interruptions:
        found = ", ".join(f"{n} {kind}" for kind, n in p.interruptions.items())
        yield "restarts", found
    for job in (*it.current_jobs, *([it.ended_job] if it.ended_job else ())):
        yield "job", _job(job, it, now)
    if it.verdict is not None:
        yield (
            "last verdict" if it.is_alive else "verdict",
            f"{it.verdict.get('kind')}: {it.verdict.get('reason')}",
        )
    if p.failure is not None and it.state is RunState.FAILED:
        yield "failure", p.failure
    if it.no_successor is not None:
        yield "successor", f"none is queued: {it.no_successor}"
    elif it.blocked is not None and it.waiting_job is not None:
        yield "blocked", f"job {it.waiting_job.number} cannot start: {'; '.join(it.blocked)}"
    if p.degraded is not None and it.is_alive and p.degraded != it.no_successor:
        yield "degraded", p.degraded
    yield from present_problems(it, now)


def _layout(it: Overview) -> str:
    assert it.spec is not None
    launch, p = it.spec.launch, it.progress
    requested = f"{count(launch.nodes, 'node')} x {count(launch.nproc_per_node, 'worker')}"
    now = f", now {count(p.nodes, 'node')}, {count(p.ranks, 'rank')}"
    is_other = p.nodes and it.is_alive and p.nodes != launch.nodes
    if it.spec.command is not None:
        return f"{requested}{now if is_other else ''}; {shlex.join(it.spec.command.arguments)}"
    world = launch.nodes * launch.nproc_per_node
    model = f"{describe_layout(it.spec.parallel, world)}, {it.spec.precision.compute}"
    return (
        f"{requested}{now if is_other else ''}; {model}; global batch {it.spec.train.global_batch}"
    )


def step_words(it: Overview, now: float) -> str:
    """Return how far the run is and, while it trains, how fast and for how long still."""
    p = it.progress
    if it.is_silent:
        return "none reported by the program"
    parts = [f"{p.step:,} of {p.steps:,}" if p.steps else f"{p.step:,}"]
    if p.step_time is not None:
        parts.append(ago(p.step_time, now))
    if it.state is RunState.RUNNING and p.step_s:
        parts.append(", ".join(filter(None, (rate(p.step_s), speed(it)))))
        if (left_s := remaining_s(it)) is not None:
            parts.append(f"{span(left_s)} to go")
    return ", ".join(parts)


def speed(it: Overview) -> str:
    """Return the tokens or, without any, the samples per second; empty if neither is known."""
    p = it.progress
    if p.tokens_per_s:
        return f"{p.tokens_per_s:,.0f} tok/s"
    return f"{p.samples_per_s:,.0f} samples/s" if p.samples_per_s else ""


def saved_words(it: Overview, now: float) -> str:
    """Return the newest checkpoint and how far it is behind."""
    p = it.progress
    if not p.saved_step:
        return "none reported by the program" if it.is_program else "no checkpoint yet"
    behind = p.step - p.saved_step
    lag = f", {count(behind, 'step')} behind" if behind > 0 else ""
    certified = "" if p.certified_step is None else f"; certified: step {p.certified_step:,}"
    return f"step {p.saved_step:,}, {ago(p.saved_time, now)}{lag}{certified}"


def _job(job: SlurmJob, it: Overview, now: float) -> str:
    head = f"{job.number} {job.state.lower()}"
    if job.is_waiting:
        role = ", continues this run" if job.number == it.progress.successor else ""
        begins = f"; expected to start {moment(job.start, now)}" if job.start is not None else ""
        return f"{head}{role} ({job.reason}: {explain(job.reason).meaning}){begins}"
    if job.is_active:
        left = f", {span(job.end - now)} of its time limit left" if job.end is not None else ""
        return f"{head} on {job.hosts or count(job.nodes, 'node')} ({job.partition}){left}"
    return head + (f" at {time.strftime('%H:%M:%S', time.localtime(job.end))}" if job.end else "")
