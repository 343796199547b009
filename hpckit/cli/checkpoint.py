"""`hpckit ckpt`: look at checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from checkpointing import CheckpointError, CheckpointInfo, list_checkpoints
from hpckit.launch.main import refuse

app = typer.Typer(help="Look at checkpoints.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at checkpoints."""


@app.command("ls")
def list_them(
    path: Annotated[Path, typer.Argument(help="A run directory, a store, or a run in a store.")],
) -> None:
    """List checkpoints: what is committed, what is unfinished, what is damaged."""
    try:
        found = list_checkpoints(path)
    except (CheckpointError, OSError) as error:
        raise typer.Exit(refuse([str(error)])) from None
    console = Console()
    if not found:
        console.print(f"no checkpoints in {path}", highlight=False)
        return
    console.print(_table(found))


def _table(found: list[CheckpointInfo]) -> Table:
    runs = {info.run for info in found}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("step", "size", "ranks", "tensors"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (*(("run",) if len(runs) > 1 else ()), "committed", "state", "metrics"):
        table.add_column(name, overflow="fold")
    for info in sorted(found, key=lambda info: (info.run, info.step, info.created or 0.0)):
        table.add_row(*_row(info, with_run=len(runs) > 1))
    return table


def _row(info: CheckpointInfo, with_run: bool) -> list[str | Text]:
    committed = info.state == "committed"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created)) if committed else ""
    state = Text(info.state, "green" if committed else "red")
    if info.problem:
        state.append(f": {info.problem}")
    return [
        str(info.step),
        f"{info.bytes / 2**20:,.1f} MiB",
        str(info.world_size or ""),
        str(info.tensors or ""),
        *([info.run] if with_run else []),
        when,
        state,
        ", ".join(f"{key} {value:.4g}" for key, value in sorted(info.metrics.items())),
    ]
