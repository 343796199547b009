"""Reads and writes folders of torch.distributed.checkpoint (DCP). torch is imported when one is
read or written.

With `StoreWriter` and `StoreReader` DCP itself, and so torchtitan, writes and reads a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing.format.object_keys import SaveId
from checkpointing.interop.tensor_names import check_item
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store

if TYPE_CHECKING:
    from checkpointing.interop.dcp.store_reader import StoreReader
    from checkpointing.interop.dcp.store_writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter", "export_dcp", "import_dcp"]


def __getattr__(name: str) -> Any:
    """Imports StoreReader and StoreWriter, which need torch, on first use."""
    if name == "StoreReader":
        from checkpointing.interop.dcp.store_reader import StoreReader

        return StoreReader
    if name == "StoreWriter":
        from checkpointing.interop.dcp.store_writer import StoreWriter

        return StoreWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def export_dcp(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    items: Sequence[str] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Write a folder that `torch.distributed.checkpoint` loads, on any number of ranks.

    "model/layers.0.weight" becomes what DCP calls "model.layers.0.weight", the entry
    "layers.0.weight" of a state's dict "model". A few chunks are in memory at a time.

    Args:
        items: the items to export; None: all.
        on_bytes: called with the number of raw bytes written.

    Raises:
        FileExistsError: the folder already has a checkpoint.
        KeyError: there is no such item.
        FormatError: two tensors or values would have the same name.
        DamagedError: the checkpoint cannot be read as it was written.
        OSError: writing failed; nothing is left behind.
    """
    from checkpointing.interop.dcp import folder_export

    folder_export.export_dcp(checkpoint, Path(folder), items, on_bytes)


def import_dcp(
    folder: Path,
    store: Store,
    run: str,
    step: int,
    *,
    item: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> SaveId:
    """Import a checkpoint that DCP saved on any number of ranks, bit for bit.

    Nothing in the folder is executed: its metadata, a pickle, is read as data, and the rest by
    `torch.load(weights_only=True)`. One of DCP's chunks at a time is in memory, and a few tiles.

    Args:
        item: the item to which tensors at the top level of the state are added: with "model",
            "layers.0.weight" becomes "model/layers.0.weight". None: each is an item of its own.
        on_bytes: called with the number of raw bytes written.

    Raises:
        FileNotFoundError: there is no DCP checkpoint, or one of its files is missing.
        FormatError: it contains something that cannot be read without running code, or that is
            neither a dense tensor nor a plain value.
        DamagedError: a file is damaged.
        SaveError, StoreError: the checkpoint was not committed.
    """
    from checkpointing.interop.dcp import folder_import

    if item is not None:
        check_item(item)
    return folder_import.import_dcp(Path(folder), store, run, step, item, on_bytes)
