"""Folders of torch.distributed.checkpoint (DCP). torch is imported when one is read or written.

`StoreWriter` and `StoreReader` are the storage by which DCP itself, and so torchtitan, writes and
reads a store.
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
    """StoreReader and StoreWriter need torch: imported when first asked for."""
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
        items: to export; None: all.
        on_bytes: told how many raw bytes were written.

    Raises:
        FileExistsError: the folder has a checkpoint already.
        KeyError: there is no such item.
        FormatError: two things would have the same name.
        DamagedError: the checkpoint cannot be read as it was written.
        OSError: not written; nothing is left behind.
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
    """A new checkpoint of what DCP saved on any number of ranks, bit for bit.

    Nothing in the folder is executed: its metadata, a pickle, are read as data, and the rest by
    `torch.load(weights_only=True)`. One of DCP's chunks at a time is in memory, and a few tiles.

    Args:
        item: what tensors of the state's top level become part of: "layers.0.weight" is
            "model/layers.0.weight" with "model". None: each is an item of its own, as it was.
        on_bytes: told how many raw bytes were written.

    Raises:
        FileNotFoundError: no DCP checkpoint there, or one of its files is missing.
        FormatError: it holds something that cannot be read without running code, or that is
            neither a dense tensor nor a plain value.
        DamagedError: a file is not whole.
        SaveError, StoreError: not committed.
    """
    from checkpointing.interop.dcp import folder_import

    if item is not None:
        check_item(item)
    return folder_import.import_dcp(Path(folder), store, run, step, item, on_bytes)
