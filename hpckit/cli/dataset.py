"""`hpckit data`: make shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from data import PackReport

app = typer.Typer(help="Make WebDataset shards.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make WebDataset shards."""


@app.command()
def pack(
    source: Annotated[str, typer.Argument(help="Folder of files, or `stdlib`: Python's sources.")],
    out: Annotated[Path, typer.Argument(help="Folder for the shards; it must not exist yet.")],
    suffix: Annotated[
        list[str] | None, typer.Option(help="Take only files ending so; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Names or glob patterns of files and folders to leave out."),
    ] = None,
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Samples of one tar.")] = 256,
) -> None:
    """Pack any folder of files into WebDataset tars, with their index."""
    # here, because it takes longer than the help of other commands
    from rich.console import Console
    from rich.progress import Progress

    from data import DataError, pack_folder, python_stdlib
    from hpckit.launch.main import refuse

    folder, left_out = python_stdlib() if source == "stdlib" else (Path(source), ())
    suffixes = suffix or ([".py"] if source == "stdlib" else [])
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("packing", total=None)
            report = pack_folder(
                folder,
                out,
                suffixes=suffixes,
                exclude=[*left_out, *(exclude or [])],
                samples_per_shard=samples_per_shard,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except (DataError, OSError) as error:
        raise typer.Exit(refuse([str(error)])) from None
    print(_sentence(report, out))


def _sentence(report: PackReport, out: Path) -> str:
    skipped = "".join(f"\n  skipped {n}: {why}" for why, n in sorted(report.skipped.items()))
    return (
        f"{report.samples:,} samples of {report.files:,} files, {report.bytes / 2**20:.1f} MiB, "
        f"in {len(report.shards)} shards in {out}{skipped}"
    )
