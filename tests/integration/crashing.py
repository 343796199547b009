"""Trainers that save all the time, to be killed at any moment, and what they say before."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from checkpointing import Checkpointer, Last
from checkpointing.service.client import Client
from checkpointing.service.snapshots import Snapshot
from tests.integration.worlds import seeded

WORDS = 500_000  # 2 MB of what nothing compresses
START_S = 90.0


def weights(step: int) -> torch.Tensor:
    """Random bits; int32[WORDS]."""
    bits = torch.randint(-(1 << 31), 1 << 31, (WORDS,), generator=seeded(step))
    return bits.to(torch.int32)


@dataclass
class Said:
    """What one rank has said."""

    restored: tuple[int, str] | None = None  # step and tier; -1 if there was nothing
    staged: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()  # rank 0 alone says so

    @classmethod
    def by(cls, path: Path) -> Said:
        said = cls()
        lines = path.read_text().splitlines() if path.exists() else []
        for kind, step, *rest in (line.split() for line in lines):
            if kind == "restored":
                said.restored = (int(step), rest[0])
            elif kind == "staged":
                said.staged |= {int(step)}
            else:
                said.committed |= {int(step)}
        return said


class Trainers:
    """A world of them, all on this node. A context manager, which kills those that are left."""

    def __init__(self, tmp: Path, world_size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.fsdp", "checkpointing.checkpointer"])
        self._logs = [tmp / f"said-{secrets.token_hex(4)}" for _ in range(world_size)]
        rendezvous = tmp / f"rendezvous-{secrets.token_hex(4)}"
        self.processes = [
            context.Process(target=_train, args=(tmp, rank, world_size, rendezvous, log))
            for rank, log in enumerate(self._logs)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def said(self) -> Sequence[Said]:
        """By rank, as of now."""
        return [Said.by(log) for log in self._logs]

    def newest_staged(self) -> int:
        """The newest step that all ranks have handed over; -1 if there is none."""
        return max(frozenset.intersection(*(said.staged for said in self.said)), default=-1)

    def newest_committed(self) -> int:
        return max(self.said[0].committed, default=-1)

    def wait_for_commit(self, after: int = -1) -> None:
        """Until a step after this one is committed."""
        deadline_s = time.monotonic() + START_S
        while self.newest_committed() <= after:
            assert time.monotonic() < deadline_s, "nothing is committed"
            assert all(process.exitcode is None for process in self.processes)
            time.sleep(0.02)

    def kill(self) -> None:
        """At once."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _train(tmp: Path, rank: int, world_size: int, rendezvous: Path, log: Path) -> None:
    torch.set_num_threads(1)
    if world_size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
        )
    said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    tier = ["none"]

    def on_event(kind: str, **fields: Any) -> None:
        if kind == "checkpoint_restored":
            tier[0] = fields["tier"]
        if kind == "checkpoint_committed":
            os.write(said, f"committed {fields['step']}\n".encode())

    staged = Client.staged

    def told(client: Client, snapshot: Snapshot) -> None:
        staged(client, snapshot)
        os.write(said, f"staged {snapshot.step}\n".encode())

    with mock.patch.object(Client, "staged", told):
        ckpt = Checkpointer(tmp / "store", run="r", keep=[Last(2)], on_event=on_event)
        state: dict[str, Any] = {"w": torch.zeros(WORDS, dtype=torch.int32), "step": -1}
        step = ckpt.restore(state)
        if step is not None:
            assert state["step"] == step
            assert torch.equal(state["w"], weights(step))
        os.write(said, f"restored {-1 if step is None else step} {tier[0]}\n".encode())
        while True:
            step = 0 if step is None else step + 1
            state |= {"w": weights(step), "step": step}
            if world_size > 1:
                dist.barrier()  # as training does it
            ckpt.save(step, state)
