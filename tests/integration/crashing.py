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
from torch import nn

from checkpointing import Checkpointer, Last
from checkpointing.copying import copy_quietly
from checkpointing.service.client import Client
from checkpointing.service.snapshots import Snapshot
from checkpointing.staging import Stager
from tests.integration.worlds import seeded

WORDS = 500_000  # 2 MB of what nothing compresses, and the same once more as numbers
START_S = 90.0


def weights(step: int) -> torch.Tensor:
    """Random bits; int32[WORDS]."""
    bits = torch.randint(-(1 << 31), 1 << 31, (WORDS,), generator=seeded(step))
    return bits.to(torch.int32)


def blank() -> dict[str, Any]:
    """A tensor that is copied at once, and a parameter that is copied beside the training."""
    model = nn.Module()
    model.v = nn.Parameter(torch.zeros(WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    w = torch.zeros(WORDS, dtype=torch.int32)
    return {"w": w, "step": -1, "model": model, "optimizer": optimizer}


def fill(state: dict[str, Any], step: int) -> None:
    bits = weights(step)
    with torch.no_grad():
        state["model"].v.copy_(bits)
    state |= {"w": bits, "step": step}


def assert_is(state: dict[str, Any], step: int) -> None:
    """All of it is of this step."""
    assert state["step"] == step
    assert torch.equal(state["w"], weights(step))
    assert torch.equal(state["model"].v, weights(step).to(torch.float32))


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


def _slowly(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """A part, a pause, and the rest."""
    half = WORDS // 2
    copy_quietly([target[:half] for target in targets], [source[:half] for source in sources])
    time.sleep(0.03)
    copy_quietly([target[half:] for target in targets], [source[half:] for source in sources])


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

    with (
        mock.patch.object(Client, "staged", told),
        mock.patch.dict(Stager.__init__.__kwdefaults__, {"copy_later": _slowly}),
    ):
        # with 2 slots, a rank that is ahead of another by a hair may give up what both have
        ckpt = Checkpointer(tmp / "store", run="r", keep=[Last(2)], slots=3, on_event=on_event)
        state = blank()
        step = ckpt.restore(state)
        if step is not None:
            assert_is(state, step)
        os.write(said, f"restored {-1 if step is None else step} {tier[0]}\n".encode())
        while True:
            step = 0 if step is None else step + 1
            state["optimizer"].step()  # waits for the copy
            fill(state, step)
            if world_size > 1:
                dist.barrier()  # as training does it
            ckpt.save(step, state)
