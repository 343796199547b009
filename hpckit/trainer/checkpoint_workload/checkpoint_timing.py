"""The program that times saves and recoveries: `hpckit bench mlperf-checkpoint` runs it on all
ranks.

    python -m hpckit.trainer.checkpoint_workload.checkpoint_timing --output FILE --scale 8b

Each rank holds its share of a workload of MLPerf Storage, as a shard of tensors that all ranks
hold together, and saves it through a `Checkpointer` and the service of its node. The content of
each save is new, so that nothing of an earlier one is referred to, and the store has no run of this
name yet. A recovery loads the newest checkpoint from the store, and is compared with what was
saved. Rank 0 writes a `CheckpointTiming` as JSON.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from checkpointing import Checkpointer, list_run, load
from checkpointing.service.client.service_stop import end_services
from checkpointing.store_url import local_folder
from hpckit.system.atomic_files import write_text
from hpckit.trainer.checkpoint_workload.checkpoint_shapes import (
    GIB,
    SCALES,
    TIMING,
    CheckpointTiming,
    RankTensor,
    rank_tensors,
)
from hpckit.trainer.parallel.collectives import reduced
from hpckit.trainer.parallel.process_group import join_process_group

RUN = "mlperf-checkpoint"
_TIMEOUT_S = 3600.0
_END_S = 60.0
"""Seconds for the service of a node to end, which has nothing left to write."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Time everything, and write the report on rank 0. Collective."""
    options = _parse(arguments)
    is_cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    local_rank = int(os.environ["LOCAL_RANK"])
    join_process_group("cuda" if is_cuda else "cpu", local_rank, _TIMEOUT_S)
    mesh = init_device_mesh("cuda" if is_cuda else "cpu", (dist.get_world_size(),))
    folder = local_folder(options.store)
    state = new_state(rank_tensors(SCALES[options.scale], options.fraction), mesh)
    size = sum(tensor.nbytes for tensor in state.values())
    if dist.get_rank() == 0:
        check_store(options.store, size * options.times)
    dist.barrier()
    stalls, saves = _save(state, options.store, options.times)
    recoveries, is_cold = _recover(state, options.store, options.times)
    if dist.get_rank() == 0:
        report = CheckpointTiming(
            dist.get_world_size(), size, stalls, saves, recoveries, is_cold=is_cold
        )
        write_text(options.output, TIMING.dump_json(report, indent=2).decode() + "\n")
    dist.barrier()
    if local_rank == 0:
        end_services(options.store, RUN, _END_S)
    dist.barrier()
    if dist.get_rank() == 0 and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)  # the command reports a folder that is left
    dist.destroy_process_group()


def check_store(store: str, size: int) -> None:
    """Check that a store is new and, if it is a folder, has room for so many bytes.

    Raises:
        RuntimeError: it is not, or has not.
    """
    folder = local_folder(store)
    if folder is None:
        if list_run(store, RUN):
            raise RuntimeError(f"{store} has a run {RUN} already: remove it, or name a new store")
        return
    if folder.exists():
        raise RuntimeError(f"{folder} exists already: name a folder that does not")
    there = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise RuntimeError(
            f"all saves have {size / GIB:,.1f} GiB, and {there} has {free / GIB:,.1f} GiB free: "
            "measure a smaller --fraction, or fewer --times"
        )


def new_state(tensors: Sequence[RankTensor], mesh: DeviceMesh) -> dict[str, DTensor]:
    """Return the state, of which each rank holds these tensors as shards along the first
    dimension."""
    state = {}
    for tensor in tensors:
        dtype = torch.float16 if tensor.is_weight else torch.float32
        own = torch.empty(tensor.rows, tensor.columns, dtype=dtype, device=mesh.device_type)
        state[tensor.name] = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
    return state


def fill(state: Mapping[str, DTensor], seed: int) -> None:
    """Fill the shards of this rank with random content of a seed, which cannot be compressed."""
    for number, tensor in enumerate(state.values()):
        own = local(tensor)
        chance = torch.Generator(device=own.device)
        chance.manual_seed(hash((seed, dist.get_rank(), number)) & (1 << 62) - 1)
        bits = own.view(torch.int16 if own.dtype == torch.float16 else torch.int32)
        bits.random_(generator=chance)


def local(tensor: DTensor) -> Tensor:
    own: Tensor = tensor.to_local()
    return own


def _save(
    state: Mapping[str, DTensor], store: str, times: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of the stall of each save, and until it was durable."""
    stalls, durable = [], []
    ckpt = Checkpointer(store, run=RUN, overlap=False)
    for step in range(1, times + 1):
        fill(state, step)
        dist.barrier()
        begun_s = time.perf_counter()
        ckpt.save(step, {"state": dict(state)})
        stalls.append(time.perf_counter() - begun_s)
        ckpt.wait()
        durable.append(time.perf_counter() - begun_s)
    ckpt.close()
    return _slowest(stalls), _slowest(durable)


def _recover(
    state: Mapping[str, DTensor], store: str, times: int
) -> tuple[tuple[float, ...], bool]:
    """Return the seconds of each recovery, and whether it read files that were not cached."""
    seconds, is_cold = [], False
    expected = {name: local(tensor).clone() for name, tensor in state.items()}
    for _ in range(times):
        for tensor in state.values():
            local(tensor).zero_()
        dist.barrier()
        is_cold = drop_cached(store)
        dist.barrier()
        begun_s = time.perf_counter()
        load({"state": dict(state)}, store, run=RUN)
        seconds.append(time.perf_counter() - begun_s)
    for name, tensor in state.items():
        if not _is_equal(local(tensor), expected[name]):
            raise RuntimeError(f"{name} was not recovered as it was saved")
    return _slowest(seconds), is_cold


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether both have the same bits; random bits may be no numbers."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def drop_cached(store: str) -> bool:
    """Drop the files of a store in a folder from the page cache of this machine; return whether the
    store is a folder."""
    folder = local_folder(store)
    if folder is None:
        return False
    for file in (folder / "packs").rglob("*.pack"):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return True


def _slowest(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(reduced(seconds, dist.ReduceOp.MAX))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--scale", choices=tuple(SCALES), required=True)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--store", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
