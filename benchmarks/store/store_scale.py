"""What a checkpoint of 16,384 ranks asks of its store, on paper; and what its manifest costs.

    python -m benchmarks.store.store_scale [--layers 8] [--fsdp 128]

The state is that of Llama 3 405B in float32 with both moments of AdamW (4,860 GB). Each weight is
split over 8 ranks by tensor parallelism (TP), each part over 128 ranks by FSDP, and the layers over
16 pipeline stages. With `--fsdp 781`, there are 99,968 ranks on paper. The requests are those of
`hpckit.planner.store_costs`, which a test compares with real saves. A manifest of all ranks would
not fit into this machine's memory, so the parts of the ranks of one TP rank and stage are made,
merged, encoded and decoded, each with all the layers that a rank has; every number is per chunk.
"""

from __future__ import annotations

import argparse
import gc
import random
import secrets
import time
from collections.abc import Callable
from itertools import product
from math import ceil
from typing import TypeVar

from rich.console import Console
from rich.table import Table as Shown

from benchmarks.common.number_arguments import positive_int
from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.format.document_container import DocumentContainer
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import (
    MANIFEST,
    PART,
    ManifestContent,
    ManifestDocument,
    ManifestHeader,
    assemble,
    build_manifest,
    build_part,
    summarise,
)
from checkpointing.format.object_keys import SaveId, new_pack, parse_part
from checkpointing.format.tiles import Box, tile_shape, tiles
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store.read.chunk_fetcher import BATCH
from checkpointing.store.write.packer import PACK_BYTES
from hpckit.planner import store_costs
from hpckit.planner.store_costs import CheckpointShape

T = TypeVar("T")

WIDE, HIDDEN, KEYS = 16384, 53248, 1024
WEIGHTS = {  # shape, and the dimension that TP cuts
    "wq": ((WIDE, WIDE), 0),
    "wk": ((KEYS, WIDE), 0),
    "wv": ((KEYS, WIDE), 0),
    "wo": ((WIDE, WIDE), 1),
    "w1": ((HIDDEN, WIDE), 0),
    "w3": ((HIDDEN, WIDE), 0),
    "w2": ((WIDE, HIDDEN), 1),
}
TP, FSDP, STAGES, LAYERS = 8, 128, 16, 126
STATE = 4_860 * 10**9
COPIES = 3  # of each weight: itself and two moments
SAVE = SaveId("run", 1, "aaaaaaaa")


def own(name: str, rank: int, fsdp: int = FSDP) -> tuple[TensorSpec, Box]:
    """Returns the part of a weight that a rank of a stage with TP rank 0 holds; as FSDP divides
    rows, the last ranks may have none."""
    shape, cut = WEIGHTS[name]
    rows, columns = (extent // TP if dim == cut else extent for dim, extent in enumerate(shape))
    each = ceil(rows / fsdp)
    start = min(each * rank, rows)
    return TensorSpec("float32", shape, tile_shape(shape, 4)), Box(
        (start, 0), (min(each, rows - start), columns)
    )


def chunks_per_rank(fsdp: int) -> int:
    """Returns the mean number of chunks of a rank."""
    parts = (own(name, rank, fsdp) for name, rank in product(WEIGHTS, range(fsdp)))
    layer = sum(len(list(tiles(box, spec.tile))) for spec, box in parts if box.count)
    return round(layer * COPIES * LAYERS / STAGES / fsdp)


def part(rank: int, layers: int) -> ManifestContent:
    """Returns the part of a rank with these layers; its weights are as narrow as those of one TP
    rank, so that the parts cover them."""
    table, pack, at = ItemTable(), new_pack(SAVE.session), 8
    for layer, name in product(range(layers), WEIGHTS):
        spec, box = own(name, rank)
        whole = (box.sizes[0] * FSDP, box.sizes[1])
        for copy in range(COPIES):
            placed = {}
            for cut in tiles(box, spec.tile):
                size = 4 * cut.count
                check = random.getrandbits(64)
                id_ = secrets.token_bytes(32)
                placed[cut] = Chunk(id_, pack, at, size, size, Codec.RAW, check)
                at += size
            its = TensorSpec(spec.dtype, whole, spec.tile)
            table.place(f"model/layers.{layer}.{name}.{copy}", its, placed)
    return ManifestContent(ManifestHeader(SAVE, 0.0, FSDP), {"model": table}, {pack: at})


def opened(data: bytes, kind: str) -> ManifestDocument:
    return ManifestDocument(
        DocumentContainer(lambda at, n: data[at : at + n], len(data), (kind,), "there")
    )


def timed(found: dict[str, float], name: str, call: Callable[[], T]) -> T:
    """Returns what `call` returns, and notes the least seconds of processor time of three calls:
    other processes on the machine do not add to it, but they slow the caches down."""
    spent = []
    for _ in range(3):
        begun_s = time.process_time()
        result = call()
        spent.append(time.process_time() - begun_s)
    found[name] = min(spent)
    return result


def listing(ranks: int) -> float:
    """Returns the seconds to list and parse the keys of so many parts in memory."""
    storage = MemoryStorage(f"memory://{secrets.token_hex(4)}")
    for rank in range(ranks):
        storage.put(SAVE.part(rank), [b""])
    begun_s = time.process_time()
    assert len([parse_part(entry.key) for entry in storage.list("runs/run/parts/")]) == ranks
    return time.process_time() - begun_s


def measured(layers: int) -> tuple[dict[str, float], int, int]:
    """Returns the seconds of each operation on a manifest, its chunks and its bytes."""
    spent: dict[str, float] = {}
    parts = [part(rank, layers) for rank in range(FSDP)]
    gc.freeze()  # a leader has no chunks as objects, which the collector would look through
    raw = timed(spent, "encode parts", lambda: [build_part(c, r) for r, c in enumerate(parts)])
    back = timed(spent, "decode parts", lambda: [opened(data, PART).content() for data in raw])
    merged = timed(spent, "merge", lambda: assemble(back))
    data = timed(spent, "encode manifest", lambda: build_manifest(merged))
    timed(spent, "decode manifest", lambda: opened(data, MANIFEST).content())
    return spent, summarise(merged.items["model"]).chunks, len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--layers", type=positive_int, default=8, help="of a stage, that are measured"
    )
    parser.add_argument("--fsdp", type=positive_int, default=FSDP, help="ranks of FSDP, on paper")
    asked = parser.parse_args()
    chunks, ranks = chunks_per_rank(asked.fsdp), TP * asked.fsdp * STAGES
    _tell_requests(
        CheckpointShape(ranks, ranks // 8, 2, chunks, STATE // ranks // chunks, PACK_BYTES, 3)
    )
    found, made, size = measured(asked.layers)
    head = ("processor time", f"{made:,} chunks", "each", f"{ranks * chunks:,} chunks")
    shown = Shown(*head)
    for name, spent in found.items():
        each_s = spent / made
        all_s = each_s * ranks * chunks
        shown.add_row(name, f"{spent:.2f} s", f"{1e6 * each_s:.2f} µs", f"{all_s:,.0f} s")
    Console(width=110).print(shown)
    print(f"{size / made:.1f} bytes of manifest for each chunk")
    print(f"{listing(ranks):.2f} s to list {ranks:,} parts")


def _tell_requests(saved: CheckpointShape) -> None:
    print(f"{saved.ranks:,} ranks, {saved.chunks:,} chunks of {saved.chunk_bytes:,} bytes for each")
    print(
        f"{saved.packs:,} packs; a part of {saved.part_bytes:,} bytes for each rank; a manifest of"
    )
    print(f"{saved.manifest_bytes / 1e6:,.0f} MB, {saved.table_bytes / 1e9:.2f} GB decompressed")
    shown = Shown("requests", "PUT", "GET", "LIST", "DELETE", "total")
    for name, found in {
        "a save": store_costs.save(saved),
        "its looks at parts, at worst": store_costs.StoreRequests(
            list=store_costs.worst_looks(saved)
        ),
        "one look of all waiting nodes": store_costs.waiting(saved) * (saved.nodes - 1),
        "the first save besides": store_costs.index(saved),
        "a restore, at most": store_costs.restore(saved, BATCH),
        "verify, quick": store_costs.verify(saved),
        "a prune of one": store_costs.prune(saved),
    }.items():
        cells = (found.put, found.get, found.list, found.delete, found.total)
        shown.add_row(name, *(f"{cell:,}" for cell in cells))
    Console(width=110).print(shown)


if __name__ == "__main__":
    main()
