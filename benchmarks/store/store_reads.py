"""Bytes read to restore, over the bytes needed: exact counts, no timing.

    python -m benchmarks.store.store_reads [--folder /tmp]

Matrices and vectors of a GPT-2 are saved as DTensors on gloo processes and loaded in the same and
in other layouts: by hpckit's Checkpointer in a store, compressed and raw, and by torch DCP in
folders. The bytes needed are the sum of all ranks' shards. The bytes read are all reads of all
ranks, manifests and metadata included. A request is a call of the storage; for DCP, a read of a
file below Python's buffer. Every load is checked bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.multiprocessing.spawn import start_processes

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.scratch import scratch
from benchmarks.store.read_counts import SHAPES, WAYS, ReadCount, ShardingLayout, load, save, total

S0, S1 = 0, 1
PLAN = (  # (name, saved as, loaded as, tensors: all if none)
    ("same layout: 4 ranks", ShardingLayout(4, S0), ShardingLayout(4, S0), ()),
    ("2 to 4 ranks", ShardingLayout(2, S0), ShardingLayout(4, S0), ()),
    ("4 to 2 ranks", ShardingLayout(4, S0), ShardingLayout(2, S0), ()),
    ("Shard(0) to Shard(1)", ShardingLayout(4, S0), ShardingLayout(4, S1), ()),
    ("one tensor of all", ShardingLayout(4, S0), ShardingLayout(1, S0), ("blocks.0.mlp_in",)),
)
JOBS = ((2, ("save",)), (4, ("save", "load")), (2, ("load",)), (1, ("load",)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    with scratch(settings.folder) as folder:
        for ranks, jobs in JOBS:
            _on_ranks(ranks, jobs, folder)
        _report(json.loads((folder / "counts.json").read_text()))


def _on_ranks(ranks: int, jobs: tuple[str, ...], folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_processes(_rank, (ranks, port, jobs, folder), ranks, start_method="spawn")  # type: ignore[no-untyped-call]


def _rank(rank: int, ranks: int, port: int, jobs: tuple[str, ...], folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    try:
        if "save" in jobs:
            for layout in dict.fromkeys(saved for _, saved, _, _ in PLAN if saved.ranks == ranks):
                save(layout, folder)
        if "load" in jobs:
            _load_all(rank, ranks, folder)
    finally:
        dist.destroy_process_group()


def _load_all(rank: int, ranks: int, folder: Path) -> None:
    for name, saved, loaded, tensors in PLAN:
        if loaded.ranks != ranks:
            continue
        counts = {way: total(load(way, saved, loaded, tensors, folder)) for way in WAYS}
        if rank == 0:
            _record(folder, name, counts)


def _record(folder: Path, name: str, counts: dict[str, ReadCount]) -> None:
    path = folder / "counts.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = {way: asdict(count) for way, count in counts.items()}
    path.write_text(json.dumps(known))


def _report(counts: dict[str, dict[str, dict[str, int]]]) -> None:
    table = Table(
        title="bytes read / bytes needed (requests)",
        box=None,
        header_style="bold",
        title_justify="left",
    )
    for column in ("layouts", *WAYS, "needed, MB"):
        table.add_column(column, justify="left" if column == "layouts" else "right", no_wrap=True)
    for name, *_ in PLAN:
        found = {way: ReadCount(**count) for way, count in counts[name].items()}
        needed = next(iter(found.values())).needed
        table.add_row(
            name,
            *(f"{c.read / c.needed:.3f} {f'({c.requests})':>6}" for c in found.values()),
            f"{needed / 1e6:.1f}",
        )
    Console().print(table)
    shapes = {name: list(shape) for name, shape in SHAPES.items()}
    write_record("store_reads", {"counts": counts, "shapes": shapes})


if __name__ == "__main__":
    main()
