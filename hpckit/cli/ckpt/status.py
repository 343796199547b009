"""`hpckit ckpt status`, which shows the checkpoint services of this user on this node."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from checkpointing.errors import ServiceError
from checkpointing.service.client.service_lookup import status as ask
from checkpointing.service.protocol.socket_address import all_sockets
from hpckit.cli.ckpt import replica_status
from hpckit.cli.common.command_output import CommandOutput, clean, count, listing, size, table, when
from hpckit.cli.common.exit_status import FOUND, OUT_OF_REACH
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import guarded
from hpckit.text.quantities import ago, span

UNWELL = FOUND  # an error, or more lag than --max-lag
_NUMBERS = ("pid", "lag", "rate")

RunArg = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Only services of this run.", show_default=False),
]


@dataclass(frozen=True)
class ServiceStatus:
    """A socket, and the status of its service."""

    socket: Path
    status: dict[str, Any] | None  # None: no answer
    why: str = ""  # why there is no answer

    def is_of(self, run: str | None) -> bool:
        """Returns whether the service is of this run; if it does not answer, by the name of its
        socket."""
        if run is None:
            return True
        if self.status is not None:
            return bool(self.status["run"] == run)
        return self.socket.stem.rpartition("-")[0] == run[:24]


@guarded
def status(
    run: RunArg = None,
    max_lag: Annotated[
        float | None,
        typer.Option(
            "--max-lag",
            min=0,
            metavar="SECONDS",
            help="Exit with 1 if a snapshot has waited longer to become durable.",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show the checkpoint services of your runs on this node: what they save, and how far they lag.

    Example: hpckit ckpt status --max-lag 600

    Exit status: 0 no problem; 1 a service reports an error, or lags by more than --max-lag; 3 no
    service of the named run answers.
    """
    out = CommandOutput(json)
    found = [one for one in map(_ask, all_sockets()) if one.is_of(run)]
    there = [one.status for one in found if one.status is not None]
    _print(out, found, there, run)
    unwell = [problem for one in there if (problem := _problem(one, max_lag))]
    for problem in unwell:
        out.note(problem)
    silent = [{"socket": str(one.socket), "why": one.why} for one in found if not one.status]
    out.document({"services": there, "silent": silent})
    if unwell:
        return UNWELL
    return OUT_OF_REACH if run is not None and not there else 0


def _ask(socket: Path) -> ServiceStatus:
    try:
        answer = ask(socket)
    except ServiceError as error:
        return ServiceStatus(socket, None, str(error))
    if answer is None:
        return ServiceStatus(
            socket, None, "it was killed: the next trainer of the run starts another one"
        )
    return ServiceStatus(socket, answer)


def _print(
    out: CommandOutput, found: list[ServiceStatus], there: list[dict[str, Any]], run: str | None
) -> None:
    if there:
        out.table(_table(there))
    for one in there:
        out.line(f"run {one['run']} in {one['url']}: {_summary(one)}")
    for silent in (one for one in found if one.status is None):
        out.note(f"no answer at {silent.socket}: {silent.why}")
    if not found:
        whose = f"of run {run} " if run is not None else ""
        out.line(f"no checkpoint service {whose}on this node, for user {os.getuid()}")


def _table(there: list[dict[str, Any]]) -> Table:
    columns = ("run", "pid", "ranks", "writing", "waiting", "lag", "rate", "durable")
    rows = table(*columns, right=_NUMBERS, folded=("run", "waiting"))
    for one in there:
        cells = _cells(one)
        rows.add_row(*(cells[name] for name in columns))
    return rows


def _cells(one: dict[str, Any]) -> dict[str, str | Text]:
    alive = sum(rank["alive"] for rank in one["ranks"])
    last, rate = one["last"], one["write_bytes_per_s"]
    ranks = f"{alive} of {len(one['ranks'])}" if one["ranks"] else "none"
    return {
        "run": clean(one["run"]),
        "pid": str(one["pid"]),
        "ranks": Text(ranks, "" if alive == len(one["ranks"]) else "yellow"),
        "writing": _writing(one),
        "waiting": listing([str(step) for step in one["waiting"]], most=4),
        "lag": span(one["lag_s"]) if one["lag_s"] else "",
        "rate": f"{size(rate)}/s" if rate else "",
        "durable": f"{last['step']}, {ago(last['committed'], time.time())}" if last else "none yet",
    }


def _writing(one: dict[str, Any]) -> str:
    """Format the step, and how much of it this node has written."""
    if one["writing"] is None:
        return ""
    total, left = one["writing_bytes"], one["to_write_bytes"]
    return f"{one['writing']} {100 * (total - left) // total}%" if total else str(one["writing"])


def _summary(one: dict[str, Any]) -> str:
    """Summarize in a line what has happened since the service was started."""
    counts = ", ".join(
        f"{one[name]} {name}" for name in ("failed", "dropped", "skipped") if one[name]
    )
    saves = f"{count(one['committed'], 'save')} since {when(one['started'])}"
    ends = "ending" if one["draining"] else ""
    others = replica_status.replica_summary(one["replication"])
    return ", ".join(part for part in (saves, counts, _local(one), others, ends) if part)


def _local(one: dict[str, Any]) -> str:
    """Describe the use of the node's own disk, and what was chosen for the last deadline."""
    parts = [
        f"{one[name]} {text}"
        for name, text in (
            ("spooled", "on the local disk"),
            ("recovered", "recovered from the local disk"),
            ("spool_failed", "without a local copy"),
        )
        if one[name]
    ]
    if choice := one["choice"]:
        way = f"{choice['tier']}, {choice['codec']}"
        parts.append(f"step {choice['step']} by {way}: {choice['outcome'] or 'under way'}")
    return ", ".join(parts)


def _problem(one: dict[str, Any], max_lag: float | None) -> str | None:
    """Return what is wrong with a service."""
    if one["error"]:
        return f"error: run {one['run']}: {one['error']}"
    if one["spool_error"]:
        return f"error: run {one['run']}: no local copy: {one['spool_error']}"
    if why := replica_status.problem(one["replication"]):
        return f"error: run {one['run']}: {why}"
    if max_lag is not None and one["lag_s"] > max_lag:
        lag = span(one["lag_s"])
        return f"error: run {one['run']}: a snapshot has been waiting for {lag}"
    return None
