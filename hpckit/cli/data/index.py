"""`hpckit data index`, which indexes the samples of a dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_output import CommandOutput, count, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.data.dataset_errors import guarded

if TYPE_CHECKING:
    from data.index.manifest import Manifest


@guarded
def index(
    shards: Annotated[
        list[str],
        typer.Argument(
            help="Tars, folders, globs, or patterns such as train-{000000..000099}.tar.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder of the index; by default the folder of the shards."),
    ] = None,
    hash: Annotated[
        bool,
        typer.Option(
            "--hash",
            help="Store checksums of all bytes, which data.check=content needs.",
        ),
    ] = False,
    tokens: Annotated[
        str | None,
        typer.Option(help="Count tokens: npy, bin:uint16 (or other type), or json:FIELD."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; by default one per core.")
    ] = None,
    index_folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the index files of read-only shards.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Index shards: one file beside each, and one for the dataset. It continues an interrupted run.

    Example: hpckit data index '/data/train-{000000..000127}.tar'
    """
    from data.index.index_build import build_index
    from hpckit.cli.common.progress_bar import progress_bar
    from hpckit.system.store_timeouts import interactive_sources

    screen = CommandOutput(json)
    started_s = time.monotonic()
    with progress_bar("indexing") as progress:
        manifest = build_index(
            shards,
            out,
            workers=workers,
            progress=progress,
            hash=hash,
            tokens=tokens,
            source=interactive_sources(),
            index_folder=index_folder,
        )
    _print(screen, manifest, time.monotonic() - started_s)
    screen.document(facts(manifest))


def facts(manifest: Manifest) -> dict[str, Any]:
    """Describe a dataset for programs."""
    return {
        "manifest": str(manifest.place),
        "fingerprint": manifest.fingerprint,
        "shards": len(manifest),
        "samples": manifest.total_samples,
        "bytes": int(manifest.bytes.sum()),
        "tokens": None if manifest.n_tokens is None else int(manifest.n_tokens.sum()),
    }


def sentence(manifest: Manifest) -> str:
    """Describe a dataset for people."""
    tokens = "" if manifest.n_tokens is None else f", {int(manifest.n_tokens.sum()):,} tokens"
    total = size(int(manifest.bytes.sum()))
    samples = count(manifest.total_samples, "sample")
    return f"{samples} in {count(len(manifest), 'shard')}, {total}{tokens}"


def _print(screen: CommandOutput, manifest: Manifest, seconds: float) -> None:
    screen.line(f"{sentence(manifest)}, in {seconds:.1f} s")
    screen.fact("manifest", str(manifest.place))
    screen.fact("fingerprint", manifest.fingerprint)
