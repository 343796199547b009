"""Trainers that save all the time, to be killed at any moment, and what they say before."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from checkpointing import Checkpointer, Last
from checkpointing.restore import memory_restore
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.config import Budget
from checkpointing.service.snapshots import RankSnapshot
from checkpointing.staging.stager import Stager
from checkpointing.staging.tensor_copy import copy_quietly
from tests.forkserver import fork_server
from tests.integration.rank_worlds import seeded

NAMES = ["a", "b", "c", "d"]
WORDS = 12_000  # 48 kB of what nothing compresses for each name, and the same as numbers
SPEED = (
    7e5  # bytes per second to the store, after half a second's worth: a save takes 0.2 s, or more
)
PARTS, PAUSE_S = 4, 0.02  # of a copy
WITHIN_S = 180.0


def weights(step: int, words: int = WORDS) -> torch.Tensor:
    """Random bits; int32[words]."""
    bits = torch.randint(-(1 << 31), 1 << 31, (words,), generator=seeded(step))
    return bits.to(torch.int32)


def blank() -> dict[str, Any]:
    """Tensors that are copied at once, before and after parameters that are copied beside the
    training: so each rank has some of both, where ranks divide what they all have."""
    model = nn.Module()
    for name in NAMES:
        model.register_parameter(name, nn.Parameter(torch.zeros(WORDS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return {
        "first": [torch.zeros(WORDS, dtype=torch.int32) for _ in range(2)],
        "others": [torch.zeros(WORDS, dtype=torch.int32) for _ in range(2)],
        "step": -1,
        "model": model,
        "optimizer": optimizer,
    }


def fill(state: dict[str, Any], step: int) -> None:
    bits = weights(step)
    with torch.no_grad():
        for number, name in enumerate(NAMES):
            state["model"].get_parameter(name).copy_(bits + number)
    state |= {"first": [bits, bits + 1], "others": [bits + 2, bits + 3], "step": step}


def assert_is(state: dict[str, Any], step: int) -> None:
    """All of it is of this step."""
    expected = blank()
    fill(expected, step)
    assert state["step"] == step
    for key in ("first", "others"):
        for got, wanted in zip(state[key], expected[key], strict=True):
            assert torch.equal(got, wanted)
    for name in NAMES:
        got, wanted = state["model"].get_parameter(name), expected["model"].get_parameter(name)
        assert torch.equal(got, wanted)


@dataclass
class Said:
    """What one rank has said, and when: monotonic seconds, by step."""

    restored: tuple[int, str] | None = None  # step and tier; -1 if there was nothing
    begun: dict[int, float] = field(default_factory=dict)  # has a slot
    staged: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)  # rank 0 alone says so
    has_closed: bool = False

    def hear(self, line: str, now_s: float) -> None:
        kind, step, *rest = line.split()
        if kind == "restored":
            self.restored = (int(step), rest[0])
        elif kind == "closed":
            self.has_closed = True
        else:
            getattr(self, kind).setdefault(int(step), now_s)


@dataclass
class Pace:
    """How long the parts of a save take, as measured so far."""

    staging: list[float] = field(default_factory=list)  # seconds
    persisting: list[float] = field(default_factory=list)  # from its being staged to its commit

    def learn(self, said: Said) -> None:
        self.staging += _spans(said.begun, said.staged)
        self.persisting += _spans(said.staged, said.committed)

    @property
    def staging_s(self) -> float:
        return median(self.staging)

    @property
    def persisting_s(self) -> float:
        return median(self.persisting)


def _spans(begins: dict[int, float], ends: dict[int, float]) -> list[float]:
    return [ends[step] - begins[step] for step in begins.keys() & ends.keys()]


@dataclass(frozen=True)
class Rank:
    """One trainer. `folder` is that of the test."""

    folder: Path
    number: int
    world_size: int
    rendezvous: Path
    node: str


class Trainers:
    """A world of them, on nodes that are all on this machine. A context manager, which kills those
    that are left.

    Args:
        nodes: of each rank; their services' sockets lie in folder/rt.
    """

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        context = fork_server()
        self._folder, self.nodes = folder, nodes
        self.said = [Said() for _ in nodes]
        self._heard: dict[Connection, int] = {}  # rank, by the end of its pipe
        self._rest: dict[int, bytes] = {}  # of a line that is not whole yet, by rank
        self.processes = []
        rendezvous = folder / f"rendezvous-{secrets.token_hex(4)}"
        for number, node in enumerate(nodes):
            reader, writer = context.Pipe(duplex=False)
            rank = Rank(folder, number, len(nodes), rendezvous, node)
            process = context.Process(target=_train, args=(rank, writer), daemon=True)
            process.start()
            writer.close()
            self._heard[reader] = number
            self.processes.append(process)

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def newest_begun(self) -> int:
        return max((step for said in self.said for step in said.begun), default=-1)

    def newest_staged(self) -> int:
        """The newest step that all ranks have handed over; -1 if there is none."""
        return max(set.intersection(*(set(said.staged) for said in self.said)), default=-1)

    def newest_committed(self) -> int:
        return max(self.said[0].committed, default=-1)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds for what they have said; they are all alive so long."""
        deadline_s = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {WITHIN_S} s: {what}: {self.said}"
            ended = {p.exitcode for p in self.processes} - {None, 0}  # said all before
            self._listen(0.2)
            assert not ended or condition(), f"ended with {ended} before {what}"

    def wait_for_restored(self) -> tuple[int, str]:
        """The step that all of them have restored, -1 if there was nothing; and its tier."""
        self.wait_for(lambda: all(said.restored for said in self.said), "all have restored")
        (step,) = {said.restored[0] for said in self.said if said.restored}
        tiers = [said.restored[1] for said in self.said if said.restored]
        return step, tiers[0]

    def wait_for_commit(self, after: int = -1) -> None:
        """Until a step after this one is committed."""
        self.wait_for(lambda: self.newest_committed() > after, f"a commit after {after}")

    def finish(self) -> None:
        """Let them close their checkpointers."""
        (self._folder / "stop").touch()
        self.wait_for(lambda: all(said.has_closed for said in self.said), "all have closed")
        for process in self.processes:
            process.join(WITHIN_S)

    def kill(self, ranks: Iterable[int] | None = None) -> None:
        """At once; what they have said until then is heard after."""
        numbers = range(len(self.nodes)) if ranks is None else list(ranks)
        for number in numbers:
            self.processes[number].kill()
        for number in numbers:
            self.processes[number].join()
        while any(number in numbers for number in self._heard.values()):
            self._listen(0.2)

    def hear(self) -> None:
        """What they have said by now."""
        self._listen(0.0)

    def _listen(self, timeout_s: float) -> None:
        for reader in wait(list(self._heard), timeout_s):
            assert isinstance(reader, Connection)
            number, now_s = self._heard[reader], time.monotonic()
            data = os.read(reader.fileno(), 1 << 16)
            if not data:
                del self._heard[reader]
                reader.close()
            *lines, self._rest[number] = (self._rest.get(number, b"") + data).split(b"\n")
            for line in lines:
                self.said[number].hear(line.decode(), now_s)


def _slowly(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """In parts, with pauses."""
    size = WORDS // PARTS
    for start in range(0, WORDS, size):
        part = slice(start, start + size)
        copy_quietly([target[part] for target in targets], [source[part] for source in sources])
        time.sleep(PAUSE_S)


def _train(rank: Rank, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"HPCKIT_NODE": rank.node, "HPCKIT_RUNTIME_DIR": str(rank.folder / "rt")}
    if rank.world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rank.rendezvous}",
            rank=rank.number,
            world_size=rank.world_size,
        )
    begin_claim, staged = ServiceClient.begin_claim, ServiceClient.staged
    tier = ["none"]

    def say(*words: object) -> None:
        os.write(pipe.fileno(), (" ".join(map(str, words)) + "\n").encode())

    def on_event(kind: str, **fields: Any) -> None:
        if kind == "checkpoint_restored":
            tier[0] = fields["tier"]
        if kind == "checkpoint_committed":
            say("committed", fields["step"])

    def claiming(client: ServiceClient, step: int) -> Callable[[], int | None]:
        claimed = begin_claim(client, step)

        def finish() -> int | None:
            slot = claimed()
            if slot is not None:
                say("begun", step)
            return slot

        return finish

    def told(client: ServiceClient, snapshot: RankSnapshot) -> None:
        staged(client, snapshot)
        say("staged", snapshot.step)

    with (
        mock.patch.object(ServiceClient, "begin_claim", claiming),
        mock.patch.object(ServiceClient, "staged", told),
        mock.patch.object(memory_restore, "UNSEEN_S", 1.0),  # a node that was killed holds no parts
        mock.patch.dict(Stager.__init__.__kwdefaults__, {"copy_later": _slowly}),
    ):
        # with 2 or 3 slots, a rank that is ahead of another by a hair may give up what both have
        ckpt = Checkpointer(
            rank.folder / "store",
            run="r",
            keep=[Last(2)],
            slots=4,
            on_event=on_event,
            budget=Budget(cpu=1, nice=0, bytes_per_s=SPEED),
        )
        state = blank()
        step = ckpt.restore(state)
        if step is not None:
            assert_is(state, step)
        say("restored", -1 if step is None else step, tier[0])
        _save_all_the_time(rank, ckpt, state, -1 if step is None else step)
        ckpt.close()
        say("closed", "-")


def _save_all_the_time(rank: Rank, ckpt: Checkpointer, state: dict[str, Any], step: int) -> None:
    while not _is_to_stop(rank):
        step += 1
        state["optimizer"].step()  # waits for the copy
        fill(state, step)
        time.sleep(0.01)
        ckpt.save(step, state)


def _is_to_stop(rank: Rank) -> bool:
    """The same on all ranks, which wait for each other here, as training does it."""
    flag = torch.tensor([int((rank.folder / "stop").exists())])
    if rank.world_size > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())
