"""Worlds of real processes over gloo, and what is compared between them."""

from __future__ import annotations

import os
import pickle
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from checkpointing.service.client import service_client
from tests.forkserver import fork_server

JOIN_S = 560  # below the limit of a test; what takes longer hangs, on a busy machine too
CLAIM_S = 60.0  # that a save waits for a service which answers slowly on such a machine

FAILED = "a-rank-failed"  # a file that `meet` looks for

Worker = Callable[[int, Path], Any]


def run_world(world_size: int, worker: Worker, tmp: Path) -> list[Any]:
    """What `worker(rank, tmp)` returned on each rank of a real process group."""
    return run_worlds([world_size], worker, tmp)[world_size]


def run_worlds(world_sizes: Sequence[int], worker: Worker, tmp: Path) -> dict[int, list[Any]]:
    """The same in several process groups at once, by their sizes."""
    context = fork_server()
    processes, pipes = [], {}
    for world_size in world_sizes:
        rendezvous = tmp / f"rendezvous-{secrets.token_hex(4)}"
        pipes[world_size] = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes += [
            context.Process(
                target=_run,
                args=(rank, world_size, rendezvous, worker, tmp, pipe, dict(os.environ)),
            )
            for rank, (_, pipe) in enumerate(pipes[world_size])
        ]
    for process in processes:
        process.start()
    try:
        deadline_s = time.monotonic() + JOIN_S
        answers = {
            size: [_answer(reader, deadline_s) for reader, _ in pipes[size]] for size in world_sizes
        }
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
    failed = [f"world of {n}: {a}" for n in answers for a in answers[n] if isinstance(a, str)]
    assert not failed, "\n".join(failed)
    assert [process.exitcode for process in processes] == [0] * sum(world_sizes)
    return {size: [answer[0] for answer in answers[size]] for size in world_sizes}


def meet(tmp: Path, name: str, world_sizes: Sequence[int]) -> None:
    """Wait until every rank of all of these worlds has come here."""
    (tmp / f"{name}-{dist.get_world_size()}-{dist.get_rank()}").touch()
    wanted = {f"{name}-{size}-{rank}" for size in world_sizes for rank in range(size)}
    deadline_s = time.monotonic() + JOIN_S / 2
    while missing := wanted - {path.name for path in tmp.iterdir()}:
        if (tmp / FAILED).exists():
            raise AssertionError("another rank has failed")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waiting in vain for {sorted(missing)}")
        time.sleep(0.05)


def _answer(reader: Any, deadline_s: float) -> Any:
    left_s = max(0.0, deadline_s - time.monotonic())
    return pickle.loads(reader.recv_bytes()) if reader.poll(left_s) else "a worker hangs"


def _run(
    rank: int,
    world: int,
    rendezvous: Path,
    worker: Worker,
    tmp: Path,
    pipe: Any,
    env: Mapping[str, str],
) -> None:
    os.environ.clear()  # of the test that has used the fork server first
    os.environ.update(env)
    torch.set_num_threads(1)
    service_client.CLAIM_S = CLAIM_S
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world
        )
        # by pickle and not pipe.send(), which would share the tensors with a process that ends
        pipe.send_bytes(pickle.dumps((worker(rank, tmp),)))
        dist.destroy_process_group()
    except BaseException:
        (tmp / FAILED).touch()
        pipe.send_bytes(pickle.dumps(f"rank {rank}: {traceback.format_exc()}"))
        raise


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the state, unsharded."""
    model, optimizer = state["model"], state["optimizer"]
    tensors = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        kept = optimizer.state.get(parameter, {})  # of a frozen one nothing
        tensors |= {f"{name}.{key}": t for key, t in kept.items()}
    if "ema" in state:
        tensors |= {f"ema.{name}": t for name, t in state["ema"].state_dict().items()}
    full = {k: t.full_tensor() if isinstance(t, DTensor) else t for k, t in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in full.items()}


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


class Recorder(list[tuple[str, dict[str, Any]]]):
    def __call__(self, kind: str, **fields: Any) -> None:
        self.append((kind, fields))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
