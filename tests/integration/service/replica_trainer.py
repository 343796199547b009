"""A trainer on a node of its own that replicates, as a process to be killed: does what it is told,
and says what became of it."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from blake3 import blake3
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkpointing import Checkpointer
from checkpointing.service.config import Budget
from tests.forkserver import fork_server
from tests.integration.rank_worlds import JOIN_S, seeded

WIDTH = 256


class ReplicaTrainer:
    """The other side. It is killed at the end of a `with`."""

    def __init__(
        self, store: Path, rendezvous: Path, node: str, rank: int, world_size: int, rate: float
    ) -> None:
        """
        Args:
            rate: bytes per second that the node's service may write; 0: any number.
        """
        context = fork_server()
        self.node = node
        self._pipe, theirs = context.Pipe()
        where = (os.environ["HPCKIT_RUNTIME_DIR"], node)
        self._process = context.Process(
            target=_main, args=(theirs, where, store, rendezvous, rank, world_size, rate)
        )
        self._process.start()
        theirs.close()

    def tell(self, *words: Any) -> None:
        """Have it "restore", "save" a step, "wait", or "close"."""
        self._pipe.send(words)

    def hear(self) -> Any:
        """What it answers to the last word."""
        assert self._pipe.poll(JOIN_S), f"the trainer of node {self.node} hangs"
        return self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> ReplicaTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def make() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    if dist.get_world_size() > 1:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "optimizer": optimizer, "step": -1}


def train(state: dict[str, Any], step: int) -> None:
    """To a state that depends on the step, and all steps before."""
    torch.manual_seed(step)
    model, optimizer = state["model"], state["optimizer"]
    model(torch.randn(8, WIDTH, generator=seeded(step))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    state["step"] = step


def fingerprint(state: dict[str, Any]) -> str:
    """Of every bit that this rank has."""
    hasher = blake3(str(state["step"]).encode())
    for parameter in state["model"].parameters():
        held = [parameter, *state["optimizer"].state[parameter].values()]
        for tensor in held:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            hasher.update(local.detach().contiguous().numpy().tobytes())
    digest: str = hasher.hexdigest()
    return digest


def _main(
    pipe: Connection,
    where: tuple[str, str],
    store: Path,
    rendezvous: Path,
    rank: int,
    world_size: int,
    rate: float,
) -> None:
    os.environ["HPCKIT_RUNTIME_DIR"], os.environ["HPCKIT_NODE"] = where
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    tiers: list[str] = []

    def on_event(kind: str, **fields: Any) -> None:
        if kind == "checkpoint_restored":
            tiers.append(fields["tier"])
        if kind == "replication_off":
            tiers.append(kind)

    budget = Budget(cpu=1, nice=0, bytes_per_s=rate or None)
    ckpt = Checkpointer(store, run="r", replicas=1, budget=budget, on_event=on_event)
    torch.manual_seed(0)
    state = make()
    word = ""
    while word != "close":
        word, *rest = pipe.recv()
        answer: Any = None
        if word == "restore":
            step = ckpt.restore(state)
            answer = [step, tiers, fingerprint(state) if step is not None else ""]
        elif word == "save":
            train(state, rest[0])
            answer = fingerprint(state)
            ckpt.save(rest[0], state)
            ckpt._shipper.settle()  # it is in memory when the answer comes
        elif word == "wait":
            ckpt.wait()
        else:
            ckpt.close()
        pipe.send(answer)
