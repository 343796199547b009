"""The shapes of the checkpoint workloads of MLPerf Storage v2.0, by their published counts, and
what a checkpoint of each asks of a store. Pure.

The counts are those of the submission guidelines (MLCommons, "MLPerf Storage Benchmark Submission
Guidelines v2.0", 2.2.1, table 2): Llama 3 architectures, with weights of 2 bytes and an optimizer
of three values of 4 bytes for each parameter. With ZeRO 3 the weights are divided over all ranks;
with ZeRO 1 over the ranks of one data-parallel replica, which alone saves them. The optimizer is
divided over all ranks in both cases, as flat tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pydantic import TypeAdapter

from checkpointing.format.tiles import Box, Shape, tile_shape, tiles
from checkpointing.store.read.chunk_fetcher import BATCH
from checkpointing.store.write.packer import PACK_BYTES
from hpckit.planner import store_costs
from hpckit.planner.store_costs import CheckpointShape

GIB = 1 << 30
WEIGHT_BYTES, OPTIMIZER_BYTES, MOMENTS = 2, 4, 3
"""Bytes of a weight, bytes of each of its values in the optimizer, and number of these."""


@dataclass(frozen=True)
class ModelShape:
    """A model of the benchmark, and how it is divided over ranks."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    layers: int
    tensor: int
    pipeline: int
    data: int
    zero: int
    published_gb: float
    """Published size of the checkpoint; the guidelines write GB for 2^30 bytes."""
    vocabulary: int = 128_256

    @property
    def ranks(self) -> int:
        """Number of ranks that a closed submission has."""
        return self.tensor * self.pipeline * self.data

    @property
    def parameters(self) -> int:
        layer = sum(rows * columns for _, rows, columns in self.layer_tensors())
        return self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden

    def layer_tensors(self) -> Sequence[tuple[str, int, int]]:
        """Returns the name, rows and columns of each weight of a layer."""
        keys = self.hidden * self.kv_heads // self.heads
        return (
            ("input_norm", 1, self.hidden),
            ("attention_qkv", self.hidden + 2 * keys, self.hidden),
            ("attention_out", self.hidden, self.hidden),
            ("post_norm", 1, self.hidden),
            ("mlp_up", 2 * self.ffn, self.hidden),
            ("mlp_down", self.hidden, self.ffn),
        )

    @property
    def bytes(self) -> int:
        """Bytes of a checkpoint."""
        return self.parameters * (WEIGHT_BYTES + MOMENTS * OPTIMIZER_BYTES)

    @property
    def weight_shards(self) -> int:
        """Number of ranks over which the weights are divided."""
        return self.ranks if self.zero == 3 else self.tensor * self.pipeline


SCALES = {
    "8b": ModelShape(4096, 14336, 32, 8, 32, 1, 1, 8, 3, 105),
    "70b": ModelShape(8192, 28672, 128, 8, 80, 8, 1, 8, 3, 912),
    "405b": ModelShape(16384, 53248, 128, 8, 126, 8, 32, 2, 1, 5290),
    "1t": ModelShape(25872, 98304, 192, 32, 128, 8, 64, 2, 1, 18000),
}
"""The models by the name of their scale."""


@dataclass(frozen=True)
class RankTensor:
    """A tensor of one rank: its part of a tensor of the state."""

    name: str
    rows: int
    columns: int
    is_weight: bool

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * (WEIGHT_BYTES if self.is_weight else OPTIMIZER_BYTES)


def rank_tensors(shape: ModelShape, fraction: float = 1.0) -> list[RankTensor]:
    """Returns the tensors of a rank of the first data-parallel replica, which has the most.

    Args:
        fraction: the share of the rows of each tensor that is kept, at least one row.
    """
    layers = shape.layers / shape.pipeline
    divided = shape.weight_shards // shape.pipeline
    found = []
    for layer in range(ceil(layers)):
        # the last layer of a rank stands for the layers that the pipeline's stages do not share
        kept = fraction * min(1.0, layers - layer)
        for name, rows, columns in shape.layer_tensors():
            mine = max(1, round(kept * rows / divided))
            found.append(RankTensor(f"layers.{layer}.{name}", mine, columns, is_weight=True))
    ends = 2 * shape.vocabulary * fraction / shape.weight_shards
    found.append(RankTensor("embedding", max(1, round(ends)), shape.hidden, is_weight=True))
    flat = max(1, round(fraction * shape.parameters / shape.ranks / _FLAT))
    for number in range(MOMENTS):
        found.append(RankTensor(f"optimizer.{number}", flat, _FLAT, is_weight=False))
    return found


_FLAT = 1024
"""Columns of the optimizer's tensors, which are flat in the benchmark: rows are divided evenly."""


@dataclass(frozen=True)
class CheckpointTiming:
    """The timings of a run of `checkpoint_timing`; seconds are those of the slowest rank."""

    ranks: int
    bytes: int
    """Bytes of the state, over all ranks."""
    stall_s: tuple[float, ...]
    """Seconds that each save kept training waiting."""
    save_s: tuple[float, ...]
    """Seconds until each save was durable."""
    recover_s: tuple[float, ...]
    """Seconds until each recovery had loaded the newest checkpoint from the store."""
    is_cold: bool
    """Whether the files were dropped from the page cache before each recovery."""


TIMING = TypeAdapter(CheckpointTiming)
"""Reads and writes a report as JSON."""


def gib_per_s(size: int, seconds: Sequence[float]) -> float:
    """Returns the mean throughput in GiB/s of transfers of so many bytes."""
    return sum(size / GIB / each for each in seconds) / len(seconds)


@dataclass(frozen=True)
class WorkloadPlan:
    """What a checkpoint of a scale asks of a store, calculated."""

    rank_bytes: int
    """Bytes of a rank of the first data-parallel replica, which has the most."""
    packs: int
    manifest_bytes: int
    put: int
    """Requests of a save."""
    get: int
    """Requests of a recovery by all ranks, at most."""


def plan_of(shape: ModelShape, ranks_per_node: int = 8) -> WorkloadPlan:
    """Returns what a checkpoint of a scale asks of a store."""
    tensors = rank_tensors(shape)
    size = sum(tensor.bytes for tensor in tensors)
    chunks = sum(len(list(tiles(*_tiled(tensor, shape)))) for tensor in tensors)
    saved = CheckpointShape(
        shape.ranks, -(-shape.ranks // ranks_per_node), 1, chunks, size // chunks, PACK_BYTES, 0
    )
    restored = store_costs.restore(saved, BATCH)
    return WorkloadPlan(
        size, saved.packs, saved.manifest_bytes, store_costs.save(saved).put, restored.get
    )


def _tiled(tensor: RankTensor, shape: ModelShape) -> tuple[Box, Shape]:
    """Returns the box of a rank's tensor in that of all ranks, and the tiles of the latter."""
    ranks = shape.weight_shards if tensor.is_weight else shape.ranks
    itemsize = WEIGHT_BYTES if tensor.is_weight else OPTIMIZER_BYTES
    whole = (ranks * tensor.rows, tensor.columns)
    return Box((tensor.rows, 0), (tensor.rows, tensor.columns)), tile_shape(whole, itemsize)
