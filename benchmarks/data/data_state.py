"""How many bytes a job keeps to go on in its data: hpckit beside its peers.

    python -m benchmarks.data.data_state [--peers FOLDER] [--batches 20]

Each reader delivers some batches and is then asked for its state, as its users save it: as JSON if
that can hold it, else pickled. hpckit's is one for the whole job; the others' are one for each rank
(here of one rank, without workers and with two), so a job of 1024 ranks keeps so many times more.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.scratch import scratch
from benchmarks.data.data_peers import arm, importable
from benchmarks.data.data_sets import EXTENSION, Samples
from benchmarks.data.readers.data_arms import Reading
from benchmarks.data.readers.data_energon import loader as energon_loader
from benchmarks.data.readers.data_torchdata import loader as torchdata_loader
from data import Loader, Packing, mixed, open_dataset

State = Callable[[Reading, int], Any]


def _plain(reading: Reading, batches: int) -> Any:
    return _of(Loader(open_dataset(reading.tars), global_batch=reading.batch), batches)


def _packed(reading: Reading, batches: int) -> Any:
    dataset = open_dataset(reading.tars.parent / "tokens")
    return _of(Loader(dataset, global_batch=reading.batch, pack=Packing(4096)), batches)


def _mixed(reading: Reading, batches: int) -> Any:
    both = mixed([open_dataset(reading.tars), open_dataset(reading.tars)], [0.7, 0.3])
    return _of(Loader(both, global_batch=reading.batch), batches)


def _of(loader: Any, batches: int) -> Any:
    """The state of whoever has a `state_dict`, after so many batches."""
    iterator = iter(loader)
    for _ in islice(iterator, batches):
        pass
    return loader.state_dict()


def _torchdata(reading: Reading, batches: int) -> Any:
    return _of(torchdata_loader(reading), batches)


def _litdata(reading: Reading, batches: int) -> Any:
    module = importlib.import_module("litdata")
    dataset = module.StreamingDataset(str(reading.converted / "litdata"), shuffle=True)
    loader = module.StreamingDataLoader(
        dataset, batch_size=reading.batch, num_workers=reading.workers, collate_fn=len
    )
    return _of(loader, batches)


def _mosaicml(reading: Reading, batches: int) -> Any:
    module = importlib.import_module("streaming")
    dataset = module.StreamingDataset(
        local=str(reading.converted / "mosaicml"), shuffle=True, batch_size=reading.batch
    )
    loader = module.StreamingDataLoader(
        dataset, batch_size=reading.batch, num_workers=reading.workers, collate_fn=len
    )
    return _of(loader, batches)


def _hugging_face(reading: Reading, batches: int) -> Any:
    found = importlib.import_module("datasets").load_dataset(
        "webdataset", data_files={"train": reading.urls}, split="train", streaming=True
    )
    for sample in islice(found, batches * reading.batch):
        assert EXTENSION in sample
    return found.state_dict()


def _energon(reading: Reading, batches: int) -> Any:
    loader = energon_loader(str(reading.converted / "energon"), reading.batch, reading.workers)
    for _ in islice(loader, batches):
        pass
    return loader.save_state_rank()


STATES: dict[str, tuple[State, str | None, str | None]] = {
    "hpckit": (_plain, None, None),
    "hpckit, packed": (_packed, None, None),
    "hpckit, two mixed": (_mixed, None, None),
    "torchdata": (_torchdata, "torchdata.stateful_dataloader", "torchdata"),
    "litdata": (_litdata, "litdata", "litdata"),
    "mosaicml-streaming": (_mosaicml, "streaming", "mosaicml-streaming"),
    "hugging face": (_hugging_face, "datasets", "hugging face"),
    "energon": (_energon, "megatron.energon", "energon"),
}
"""(its state, what has to be installed, the arm that prepares its data)."""


def size_of(name: str, reading: Reading, batches: int) -> int:
    """Bytes of a state, in the process that this is called in."""
    make, _, prepared_by = STATES[name]
    if prepared_by is not None:
        arm(prepared_by).prepare(reading)
    state = make(reading, batches)
    try:
        return len(json.dumps(state))
    except (TypeError, ValueError):
        return len(pickle.dumps(state))


def _write_tokens(folder: Path) -> None:
    from data import build_index
    from data.write.shard_writer import ShardWriter

    with ShardWriter(folder / "shard-%06d.tar", max_samples=1000, manifest=False) as writer:
        for number in range(4000):
            writer.write({"__key__": f"{number:06d}", "bin": bytes(2 * (500 + number % 700))})
    build_index(folder, tokens="bin:uint16")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--only", action="append", help="a reader; may be repeated")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    with scratch(args.folder) as folder:
        reading = Reading(folder / "tars", folder / "converted", Samples(16, 400, 1000))
        reading.samples.write(reading.tars)
        _write_tokens(folder / "tokens")
        for name in args.only or STATES:
            module = STATES[name][1]
            why = module and in_fresh(importable, module, peers=args.peers)
            if why:
                print(f"left out: {name} ({why}); see benchmarks/data/data_peers.py")
                continue
            measure = partial(in_fresh, size_of, name, peers=args.peers)
            kinds = [0] if module is None or name == "hugging face" else [0, 2]
            found[name] = {
                f"{workers} workers": measure(replace(reading, workers=workers), args.batches)
                for workers in kinds
            }
    table = Table("reader", "bytes", "of", box=None, title=f"load {os.getloadavg()[0]:.1f}")
    for name, sizes in found.items():
        of = "a job" if STATES[name][1] is None else "a rank"
        told = ", ".join(f"{size:,} ({kind})" for kind, size in sizes.items())
        table.add_row(name, told if len(sizes) > 1 else f"{next(iter(sizes.values())):,}", of)
    Console(width=120).print(table)
    write_record("data_state", {"batches": args.batches, "bytes": found})


if __name__ == "__main__":
    main()
