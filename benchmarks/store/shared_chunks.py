"""Counts how many copies of one training state that is kept under three names are on the disk."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.store.save_sizes import pieces
from benchmarks.store.small_training_run import SmallRun
from benchmarks.store.store_saves import StoreSaves, bytes_under
from checkpointing.store.pins_and_labels import pin, put_mark
from checkpointing.store.write.part_writer import WriteOptions


def three_names(folder: Path, run: SmallRun) -> dict[str, float]:
    """Returns bytes on the disk / bytes after the first save, by arm."""
    run.train(2)
    return {
        "hpckit, marks": _marks(folder / "marks", run),
        "hpckit, saved three times": _three_saves(folder / "saves", run),
        "torch DCP": _dcp(folder / "dcp", run),
    }


def _marks(folder: Path, run: SmallRun) -> float:
    saves = StoreSaves(folder, WriteOptions())
    saves.save(1, pieces(run.state()))
    once = bytes_under(folder)
    assert saves.last is not None
    put_mark(saves.store, saves.last, "best", "lowest loss")
    pin(saves.store, saves.last, "milestone")
    saves.close()
    return bytes_under(folder) / once


def _three_saves(folder: Path, run: SmallRun) -> float:
    """Saves the state in one store by three independent runs."""
    once = 0
    for name in ("last", "best", "milestone"):
        saves = StoreSaves(folder, WriteOptions(), run=name)
        saves.save(1, pieces(run.state()))
        saves.close()
        once = once or bytes_under(folder)
    return bytes_under(folder) / once


def _dcp(folder: Path, run: SmallRun) -> float:
    for name in ("last", "best", "milestone"):
        dcp_save(dict(run.state()), storage_writer=FileSystemWriter(folder / name), no_dist=True)
    return bytes_under(folder) / bytes_under(folder / "last")
