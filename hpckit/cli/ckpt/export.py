"""`hpckit ckpt export` and `import`, which convert checkpoints to and from other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from checkpointing.errors import DamagedError
from checkpointing.format.object_keys import MAX_STEP, SaveId, check_run
from checkpointing.store.catalog import list_checkpoints
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store
from hpckit.cli.ckpt.checkpoint_selection import checkpoint_label, choose_checkpoint
from hpckit.cli.ckpt.read_lease import read_lease
from hpckit.cli.ckpt.store_location import StoreLocation, opened
from hpckit.cli.common.byte_sizes import parse_size
from hpckit.cli.common.command_output import CommandOutput, listing, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError, guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption, StepArg


class ExportFormat(StrEnum):
    safetensors = "safetensors"
    dcp = "dcp"
    torch = "torch"
    huggingface = "huggingface"
    peft = "peft"


class ImportFormat(StrEnum):
    dcp = "dcp"
    safetensors = "safetensors"
    torch = "torch"


OnBytes = Callable[[int], None]


@guarded
def export(
    place: PlaceArg,
    step: StepArg,
    to: Annotated[
        Path,
        typer.Argument(
            metavar="TO", help="A folder to create; for torch, a file.", show_default=False
        ),
    ],
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="Format to write.", show_default=False)
    ],
    run: RunOption = None,
    item: Annotated[
        list[str] | None,
        typer.Option(
            "--item", metavar="NAME", help="Only this item, such as model; may be repeated."
        ),
    ] = None,
    max_shard: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of one safetensors file, as 5GB or 500MiB.")
    ] = "5GB",
    json: JsonOption = False,
) -> None:
    """Write a checkpoint in another format. Every byte that is read is verified.

    Example: hpckit ckpt export runs/gpt-1a2b3c4d latest exported --format huggingface

    huggingface writes a model for transformers, vLLM and others from a run of one of hpckit's own
    models; PLACE is its run directory. peft writes only the adapters of such a run with lora.
    """
    out = CommandOutput(json)
    shard_bytes = parse_size(max_shard)
    with opened(place, run) as at:
        chosen = choose_checkpoint(at, step, out.note)
        items = _items(list(chosen.found.document.items), item)
        if format_ is ExportFormat.safetensors:
            items = [name for name in items if chosen.found.document.items[name].tensors]
            out.note("values that are not tensors are left out: safetensors cannot hold them")
        if format_ in (ExportFormat.huggingface, ExportFormat.peft):
            items = [_only_item(items if item else ["model"])]
        raw = sum(chosen.found.document.items[name].raw_bytes for name in items)
        with (
            read_lease(at.store, chosen.found, out.note),
            out.progress(f"step {chosen.save.step}", raw) as on_bytes,
        ):
            checkpoint = Checkpoint(at.store, chosen.found.stored)
            try:
                paths = _export(format_, checkpoint, at, to, items, shard_bytes, on_bytes)
            except DamagedError as error:
                raise DamagedError(
                    f"nothing was exported: {error}; `hpckit ckpt verify {place} {chosen.save.id}` "
                    "lists all damage, `hpckit ckpt repair` looks for intact copies"
                ) from error
        out.line(
            f"exported {listing(items)} of step {chosen.save.step} ({chosen.save.id}) as "
            f"{format_.value}: {size(raw)} in {listing([str(p) for p in paths], 3)}"
        )
        out.document(
            {
                "run": chosen.run,
                "id": chosen.save.id,
                "items": items,
                "raw_bytes": raw,
                "format": format_.value,
                "paths": [str(path) for path in paths],
            }
        )


@guarded
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FROM", help="A DCP folder; a safetensors file or folder; a torch.save file."
        ),
    ],
    place: PlaceArg,
    format_: Annotated[
        ImportFormat, typer.Option("--format", help="Format of FROM.", show_default=False)
    ],
    step: Annotated[
        int,
        typer.Option(min=0, max=MAX_STEP, help="Step of the new checkpoint.", show_default=False),
    ],
    run: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run to add the checkpoint to; it may be new."),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Item that receives the tensors; by default model for safetensors and for a torch "
            "file that holds only tensors.",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create a store at PLACE if there is none.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Convert a DCP folder, safetensors files or a file of torch.save to a checkpoint. Nothing in
    them is executed.

    Example: hpckit ckpt import exported s3://bucket/ckpts --format safetensors --step 0 --run base
    """
    out = CommandOutput(json)
    if not source.exists():
        raise CommandUsageError(f"{source} does not exist: nothing to import")
    _require_kind(source, format_)
    with opened(place, run, create=create, may_be_new=True) as at:
        name = _target_run(at)
        for info in list_checkpoints(at.store, name, refused={}) if name in at.runs else ():
            if info.step == step:
                out.note(
                    f"run {name} has step {step} already, {checkpoint_label(info)}: both stay; the "
                    "step's number now selects the newer one, and the id selects the other"
                )
        with out.progress("importing", None) as on_bytes:
            save = _import(format_, source, at.store, name, step, item, on_bytes)
        out.line(f"imported {source} as step {save.step} ({save.id}) of run {name}, {at.store.url}")
        out.document({"store": at.store.url, "run": name, "step": save.step, "id": save.id})


def _export(
    format_: ExportFormat,
    checkpoint: Checkpoint,
    at: StoreLocation,
    to: Path,
    items: Sequence[str],
    shard_bytes: int,
    on_bytes: OnBytes,
) -> Sequence[Path]:
    if format_ is ExportFormat.huggingface:
        from hpckit.cli.model_export.huggingface_export import export_huggingface

        return export_huggingface(checkpoint, at.text, to, items[0], shard_bytes, on_bytes)
    if format_ is ExportFormat.peft:
        from hpckit.cli.model_export.peft_export import export_peft

        return export_peft(checkpoint, at.text, to, items[0], on_bytes)
    if format_ is ExportFormat.safetensors:
        from checkpointing.interop.safetensors.model_files import export_safetensors

        return export_safetensors(
            checkpoint, to, items=items, max_shard_bytes=shard_bytes, on_bytes=on_bytes
        )
    if format_ is ExportFormat.dcp:
        from checkpointing.interop.dcp import export_dcp

        export_dcp(checkpoint, to, items=items, on_bytes=on_bytes)
    else:
        from checkpointing.interop.torch_save.file_export import export_torch

        export_torch(checkpoint, to, items=items, on_bytes=on_bytes)
    return [to]


def _import(
    format_: ImportFormat,
    source: Path,
    store: Store,
    run: str,
    step: int,
    item: str | None,
    on_bytes: OnBytes,
) -> SaveId:
    try:
        if format_ is ImportFormat.dcp:
            from checkpointing.interop.dcp import import_dcp

            return import_dcp(source, store, run, step, item=item, on_bytes=on_bytes)
        if format_ is ImportFormat.torch:
            from checkpointing.interop.torch_save.file_import import import_torch

            return import_torch(source, store, run, step, item=item, on_bytes=on_bytes)
        from checkpointing.interop.safetensors.model_files import import_safetensors

        return import_safetensors(
            source, store, run, step, item="model" if item is None else item, on_bytes=on_bytes
        )
    except ValueError as error:
        raise CommandUsageError(f"{source} cannot be imported: {error}") from error


def _require_kind(source: Path, format_: ImportFormat) -> None:
    """Raise CommandUsageError if `source` is a file and the format a folder, or the reverse."""
    if format_ is ImportFormat.torch and source.is_dir():
        raise CommandUsageError(
            f"{source} is a folder, and torch.save writes a file; --format dcp imports a folder of "
            "torch.distributed.checkpoint, --format safetensors one of safetensors files"
        )
    if format_ is ImportFormat.dcp and not source.is_dir():
        raise CommandUsageError(
            f"{source} is a file, and torch.distributed.checkpoint writes a folder; --format torch "
            "imports a file of torch.save, --format safetensors one of safetensors"
        )


def _items(there: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    for name in asked or ():
        if name not in there:
            raise CommandUsageError(f"the checkpoint has no item {name!r}; it has {listing(there)}")
    return [name for name in there if asked is None or name in asked]


def _only_item(items: Sequence[str]) -> str:
    if len(items) != 1:
        raise CommandUsageError(
            "only one model can be exported at a time: choose one with "
            f"--item, from {listing(items)}"
        )
    return items[0]


def _target_run(at: StoreLocation) -> str:
    run = at.run or (at.runs[0] if len(at.runs) == 1 else None)
    if run is None:
        there = f"; there are: {listing(at.runs)}" if at.runs else ""
        raise CommandUsageError(f"give with --run the run to add the checkpoint to{there}")
    try:
        return check_run(run)
    except ValueError as error:
        raise CommandUsageError(str(error)) from None
