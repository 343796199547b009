"""`hpckit eval ls`."""

from __future__ import annotations

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run

_COLOURS = {"done": "green", "running": "cyan", "failed": "red", "left out": "yellow"}


def ls(run: RunPath, json: JsonOption = False) -> None:
    """List the evaluations of a run: what waits, runs, is done or has failed, and the logs.

    Example: hpckit eval ls gpt-1a2b3c4d

    Keys of --json: run, evaluations (of each: step, id, state (waiting, pending, running, done,
    failed, left out), metrics, error, jobs, starts, seconds, log).
    """
    from rich.text import Text

    from hpckit.cli.common.command_output import CommandOutput, clean, number, table
    from hpckit.events.event_validation import read_valid_events
    from hpckit.report.evaluation.evaluation_records import LOG, known_and_waiting
    from hpckit.report.performance.speed_report import last_spec

    with reported_errors(json):
        out, found = CommandOutput(json), submitted_run(run)
        records = known_and_waiting(found, read_valid_events(found).events, last_spec(found))
        logs = (str(found.evaluation(one.id) / LOG) for one in records)
        shown = [{**one.record(), "log": log} for one, log in zip(records, logs, strict=True)]
        out.document({"run": found.name, "evaluations": shown})
        if not records:
            out.note(f"no checkpoint of {found.name} was evaluated, and none waits for it")
            return
        rows = table("step", "state", "metrics", "starts", right=("step", "starts"))
        for one in records:
            metrics = ", ".join(f"{name} {number(value)}" for name, value in one.metrics.items())
            state = Text(str(one.state), style=_COLOURS.get(str(one.state), ""))
            rows.add_row(str(one.step), state, clean(metrics), str(len(one.attempts)))
        out.table(rows)
        for one in records:
            if one.error is not None:
                out.line(f"step {one.step}: {clean(one.error)}")
        out.dim(f"logs: {found.evaluations}/ID/{LOG}")
