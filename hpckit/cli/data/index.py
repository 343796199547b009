"""`hpckit data index`: where each sample of a dataset lies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_output import CommandOutput, count, size
from hpckit.cli.common.store_options import JsonOption
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
        typer.Option(help="The manifest's file or folder; by default in the shards' folder."),
    ] = None,
    hash: Annotated[
        bool,
        typer.Option(
            "--hash",
            help="Read all bytes too, so that damage can be told; data.check=content needs it.",
        ),
    ] = False,
    tokens: Annotated[
        str | None,
        typer.Option(help="Count tokens: npy, bin:uint16 (or other type), or json:FIELD."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for each core.")
    ] = None,
    index_folder: Annotated[
        Path | None,
        typer.Option(help="For indexes that cannot lie beside their shards.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Index shards: a file beside each, and one for the dataset. Goes on where it was left.

    Example: hpckit data index '/data/train-{000000..000127}.tar'
    """
    from data.index.index_build import build_index
    from data.source.sources import Sources
    from hpckit.cli.common.progress_bar import progress_bar

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
            source=Sources(),
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
