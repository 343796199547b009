"""Worlds of ranks, as processes, that save and load a state of DTensors on request."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from benchmarks.common.machine import touch
from benchmarks.common.training_state import TrainingState
from checkpointing import Checkpointer, load


@dataclass(frozen=True)
class ReshardJob:
    """A request to all ranks of a world.

    Attributes:
        name: of the save, in the folder of its tool.
        dim: that matrices are cut along; vectors are cut along their only one.
    """

    what: Literal["save", "load", "end"]
    tool: str = ""
    name: str = ""
    dim: int = 0


class ReshardWorld:
    """Processes of one process group, which live until `close`."""

    def __init__(self, ranks: int, folder: Path, size: int, width: int) -> None:
        """
        Args:
            folder: of all saves, of this world and others.
            size, width: of the `TrainingState`.
        """
        self.ranks = ranks
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(ranks)]
        self._pipes = [here for here, _ in pipes]
        self._processes = [
            spawn.Process(target=_serve, args=(rank, ranks, folder, size, width, there))
            for rank, (_, there) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, there in pipes:
            there.close()

    def do(self, job: ReshardJob) -> float:
        """Returns the seconds that the slowest rank took.

        Raises:
            EOFError: a rank has failed; what was wrong stands on its standard error.
        """
        for pipe in self._pipes:
            pipe.send(job)
        return max(float(pipe.recv()) for pipe in self._pipes)

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if process.is_alive():
                pipe.send(ReshardJob("end"))
        for process in self._processes:
            process.join(30)
            process.kill()


def _serve(rank: int, ranks: int, folder: Path, size: int, width: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    rendezvous = f"file://{folder}/rendezvous-{ranks}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    member = _Rank(folder, size, width)
    while (job := pipe.recv()).what != "end":
        pipe.send(member.do(job))
    dist.destroy_process_group()


class _Rank:
    """One rank, with its part of the state in both layouts."""

    def __init__(self, folder: Path, size: int, width: int) -> None:
        self._folder = folder
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        arrays = TrainingState(size, width).arrays  # the same on all ranks
        whole = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._states = {
            dim: {
                # no rank need tell the others what they have
                name: distribute_tensor(t, mesh, [Shard(min(dim, t.ndim - 1))], src_data_rank=None)
                for name, t in whole.items()
            }
            for dim in (0, 1)
        }
        self._saved = {
            dim: {name: _local(t).clone() for name, t in tensors.items()}
            for dim, tensors in self._states.items()
        }

    def do(self, job: ReshardJob) -> float:
        """Returns the seconds that it took."""
        state, path = {"state": self._states[job.dim]}, self._folder / job.tool
        if job.what == "save":
            return self._save(job, path, state)
        for tensor in self._states[job.dim].values():
            _local(tensor).zero_()
        touch(2 * sum(_local(t).nbytes for t in self._states[job.dim].values()))
        dist.barrier()
        begun_s = time.perf_counter()
        if job.tool == "hpckit":
            load(state, path, run=job.name)
        else:
            dcp_load(state, storage_reader=FileSystemReader(path / job.name))
        seconds = time.perf_counter() - begun_s
        self._check(job.dim)
        return seconds

    def _save(self, job: ReshardJob, path: Path, state: dict[str, Any]) -> float:
        begun_s = time.perf_counter()
        if job.tool == "hpckit":
            ckpt = Checkpointer(path, run=job.name, compress=False)
            ckpt.save(1, state)
            ckpt.close()
        else:
            dcp_save(state, storage_writer=FileSystemWriter(path / job.name))
        return time.perf_counter() - begun_s

    def _check(self, dim: int) -> None:
        for name, tensor in self._states[dim].items():
            if not torch.equal(_local(tensor), self._saved[dim][name]):
                raise AssertionError(f"{name} is not what was saved")


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        return tensor.to_local()
