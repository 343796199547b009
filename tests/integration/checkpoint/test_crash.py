"""Processes that die, disks that fill up: the last checkpoint stays whole.

More kills of each kind, at points that are spread over the time of a save, take minutes; a failure
tells its seed, which gives the same points and victims again:

    HPCKIT_KILLS=50 [HPCKIT_SEED=...] python -m pytest -k killed tests/integration
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpoint, Checkpointer, SaveError, Store, list_checkpoints
from checkpointing.format.object_keys import pack_key
from checkpointing.service.protocol.socket_address import address
from checkpointing.store.catalog import committed
from checkpointing.store.deletion.pack_sweep import sweep
from tests.effort import times
from tests.integration.checkpoint.forked_programs import run_forked
from tests.integration.checkpoint.killed_trainers import Pace, Trainers, weights
from tests.integration.checkpoint.single_process_saves import restore_one
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import Recorder
from tests.integration.service.service_nodes import (
    assert_nothing_held,
    end_all,
    note_memfds,
    services,
    until,
)

SAVED_S = 180.0
KILLS = times(2)  # of each kind
FULL_WORDS = 500_000  # 2 MB
A_WEEK_AGO = time.time() - 8 * 86400


class Chain:
    """Trainers that are killed one generation after another, at points that are spread evenly over
    the time that a save takes."""

    def __init__(self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.root, self.runtime = folder, folder / "store", folder / "rt"
        note_memfds()
        monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(self.runtime))
        seed = int(os.environ.get("HPCKIT_SEED") or random.SystemRandom().randrange(1 << 32))
        print(f"{kind}: HPCKIT_SEED={seed} {KILLS} kills")
        self.random = random.Random(seed)
        points = [(i + self.random.random()) / KILLS for i in range(KILLS)]
        self.points = self.random.sample(points, KILLS)
        self.pace = Pace()
        self.least = self.most = -1  # steps that the next generation may restore

    def start(self, nodes: Sequence[str] = ("a", "a")) -> Trainers:
        """A generation, which has to restore what the one before must have left."""
        trainers = Trainers(self.folder, nodes)
        try:
            self.check_restored(trainers)
        except BaseException:
            trainers.kill()
            raise
        return trainers

    def check_restored(self, trainers: Trainers) -> None:
        restored, tier = trainers.wait_for_restored()
        print(f"{restored} of {self.least}..{self.most} from {tier}")
        assert self.least <= restored <= self.most
        if not self.pace.persisting:
            trainers.wait_for_commit(restored)
            self.learn(trainers)

    def learn(self, trainers: Trainers) -> None:
        for said in trainers.said:
            self.pace.learn(said)

    def wait_for_next(self, trainers: Trainers, kind: str, rank: int = 0) -> None:
        """Until a rank says so of one of its next saves."""
        heard = getattr(trainers.said[rank], kind)
        wanted = len(heard) + self.random.randint(1, 2)
        trainers.wait_for(lambda: len(heard) >= wanted, f"save {wanted} is {kind}")

    def sleep(self, point: float, seconds: float) -> None:
        print(f"{point:.3f} of {seconds:.3f} s", end=": ")
        time.sleep(point * seconds)

    def services(self, node: str = "a") -> list[int]:
        return services(self.runtime, address(str(self.root), "r", node).name)

    def kill_services(self, node: str = "a") -> None:
        for pid in self.services(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, trainers: Trainers, *, is_memory_kept: bool) -> None:
        """They are dead: what the next ones may find."""
        self.learn(trainers)
        self.least = max(self.least, trainers.newest_committed())
        if is_memory_kept:
            self.least = max(self.least, trainers.newest_staged())
        self.most = max(self.most, trainers.newest_begun())

    def finish(self, nodes: Sequence[str] = ("a", "a")) -> None:
        """One generation more that ends as it should, and nothing is left behind."""
        with self.start(nodes) as trainers:
            trainers.wait_for(lambda: trainers.newest_begun() >= 0, "a save of their own")
            trainers.finish()
            newest = trainers.newest_begun()
        assert [step for step in check(self.root) if step >= newest] == [newest]
        assert not any(check(self.root).values())
        assert_stored(self.root, newest)
        until(lambda: not services(self.runtime), "all services have ended")
        assert list(self.runtime.iterdir()) == []
        assert_nothing_held()
        assert_nothing_but_checkpoints(self.root)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(tmp_path / "rt")


LONG = pytest.mark.timeout(0 if KILLS > 10 else 600)


@LONG
@pytest.mark.parametrize("phase", ["staging", "persisting"])
def test_a_killed_trainer(folder: Path, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all ranks had staged is not lost, for the service lives."""
    chain = Chain(folder, phase, monkeypatch)
    for point in chain.points:
        with chain.start() as trainers:
            victim = chain.random.randrange(2)
            if phase == "staging":
                chain.wait_for_next(trainers, "begun", victim)
                chain.sleep(point, chain.pace.staging_s)
            else:
                chain.wait_for_next(trainers, "staged", victim)
                chain.sleep(point, chain.pace.persisting_s)
            trainers.kill([victim])
            time.sleep(chain.random.choice([0.0, 0.05]))
            trainers.kill()  # as a launcher does
        chain.end(trainers, is_memory_kept=True)
    chain.finish()


@LONG
def test_a_killed_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers go on, and what was staged becomes durable."""
    chain = Chain(folder, "service", monkeypatch)
    with chain.start() as trainers:
        for point in chain.points:
            trainers.wait_for_commit(trainers.newest_committed())
            chain.wait_for_next(trainers, "begun")
            chain.sleep(point, chain.pace.staging_s + chain.pace.persisting_s)
            chain.kill_services()
            trainers.hear()
            begun = trainers.newest_begun()
            assert not any(check(chain.root).values())
            trainers.wait_for_commit(begun)  # by the next service, which has heard of all
        trainers.kill()
    chain.end(trainers, is_memory_kept=True)
    chain.finish()


@LONG
def test_a_killed_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are on it; it is the only one."""
    chain = Chain(folder, "node", monkeypatch)
    for point in chain.points:
        with chain.start() as trainers:
            chain.wait_for_next(trainers, "begun")
            chain.sleep(point, chain.pace.staging_s + chain.pace.persisting_s)
            kills: list[Callable[[], None]] = [chain.kill_services, trainers.kill]
            chain.random.shuffle(kills)
            for kill in kills:
                kill()
        chain.kill_services()  # one that a trainer has started again in its last moments
        chain.end(trainers, is_memory_kept=False)
        assert not any(check(chain.root).values())
    chain.finish()


@LONG
def test_a_killed_node_of_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service and its trainers; those of the other one end, and their service lives, or not."""
    chain, nodes = Chain(folder, "node of two", monkeypatch), ("a", "a", "b")
    for point in chain.points:
        victims = chain.random.choice(["a", "b", "ab"])
        with chain.start(nodes) as trainers:
            chain.wait_for_next(trainers, "begun")
            chain.sleep(point, chain.pace.staging_s + chain.pace.persisting_s)
            for node in victims:
                chain.kill_services(node)
            trainers.kill(rank for rank, node in enumerate(nodes) if node in victims)
            time.sleep(chain.random.choice([0.0, 0.05]))
            trainers.kill()
        for node in victims:
            chain.kill_services(node)
        chain.end(trainers, is_memory_kept=False)
    chain.finish(nodes)


def assert_stored(root: Path, step: int) -> None:
    """The newest checkpoint is this one, with the content that was saved."""
    store = Store.open(root)
    newest = max(committed(store)[0], key=lambda found: found.stored.save.step)
    checkpoint = Checkpoint(store, newest.stored)
    stored = torch.from_numpy(checkpoint.read("first/0").copy()).view(torch.int32)
    assert checkpoint.header.save.step == step
    assert torch.equal(stored, weights(step))
    store.close()


def assert_nothing_but_checkpoints(root: Path) -> None:
    """A week later, after which no mark of ended sessions and saves is needed any more, a sweep
    leaves the store's own objects, manifests, and packs that one refers to; and no other file."""
    store = Store.open(root)
    for _ in range(3):  # packs are condemned, then deleted
        for path in root.rglob("*"):
            if path.is_file():
                os.utime(path, (A_WEEK_AGO, A_WEEK_AGO))
        sweep(store, grace_s=0)
    found, damaged = committed(store)
    assert not damaged
    live = {pack_key(pack) for one in found for pack in one.document.packs()}
    live |= {one.stored.key for one in found} | {"hpckit.json"}
    store.close()
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert live <= files
    assert {key for key in files - live if "/owners/" not in key} == set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_costs_one_save_and_nothing_else(small_disk: Path) -> None:
    events = Recorder()
    ckpt = Checkpointer(small_disk, run="r", on_event=events)
    state = {"w": weights(1, FULL_WORDS)}
    ckpt.save(1, state)
    ckpt.wait()
    blocker = small_disk / "somebody-else"
    blocker.write_bytes(bytes(2 << 20))
    state["w"].copy_(weights(2, FULL_WORDS))
    ckpt.save(2, state)
    state["w"].copy_(weights(3, FULL_WORDS))  # training goes on
    with pytest.raises(SaveError, match="No space left on device"):
        ckpt.wait()
    assert {f["step"] for kind, f in events if kind == "checkpoint_failed"} == {2}
    assert check(small_disk) == {1: []}
    blocker.unlink()
    wait_for_commit(events, 2)  # the service has not forgotten
    ckpt.close()
    restored = {"w": torch.zeros(FULL_WORDS, dtype=torch.int32)}
    assert restore_one(small_disk, restored) == 2
    assert torch.equal(restored["w"], weights(2, FULL_WORDS))


def wait_for_commit(events: Recorder, step: int) -> None:
    deadline_s = time.monotonic() + SAVED_S
    while not any(k == "checkpoint_committed" and f["step"] == step for k, f in list(events)):
        assert time.monotonic() < deadline_s, events.kinds()
        time.sleep(0.05)


# Begins a save whose copy is slow, and ends without close() while it is under way
EXIT_PROGRAM = """
from checkpointing.staging import stager
from checkpointing.staging.tensor_copy import copy_quietly

def slow(targets, sources):
    time.sleep(1.0)
    copy_quietly(targets, sources)

how, = arguments
stager.Stager.__init__.__kwdefaults__["copy_later"] = slow
model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
ckpt = Checkpointer(tmp / how, run="r")
torch.nn.init.constant_(model.weight, 2.0)
ckpt.save(2, {"model": model, "optimizer": optimizer})
if how == "raise":
    raise SystemExit("an error")
if how == "block":
    with ckpt:
        raise SystemExit("an error")
if how == "fork" and os.fork() == 0:
    sys.exit(0)  # a child that leaves first
if how == "drop":
    del ckpt
"""


def test_exit_without_close_loses_nothing(tmp_path: Path) -> None:
    ways = ["end", "raise", "block", "fork", "drop"]
    assert run_forked(tmp_path, EXIT_PROGRAM, *([how] for how in ways)) == [0, 1, 1, 0, 0]
    for how in ways:
        model, events = torch.nn.Linear(3, 1, bias=False), Recorder()
        state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.0)}
        assert restore_one(tmp_path / how, state, on_event=events) == 2
        restored = dict(events)["checkpoint_restored"]
        assert restored["tier"] == "memory"
        assert torch.equal(model.weight, torch.full((1, 3), 2.0))
        assert check(tmp_path / how) == {2: []}


LONELY_PROGRAM = """
rank, = map(int, arguments)
dist.init_process_group("gloo", init_method=f"file://{tmp}/rendezvous", rank=rank, world_size=2)
ckpt = Checkpointer(tmp / "store", run="r")
state = {"w": torch.ones(3)}
ckpt.restore(state)
if rank == 0:
    ckpt.save(1, state)  # rank 1 never takes part
    sys.exit(5)
while not (tmp / "ended-0").exists():
    time.sleep(0.05)
"""


LEFT_PROGRAM = """
from checkpointing import OtherRankError

rank, = map(int, arguments)
dist.init_process_group("gloo", init_method=f"file://{tmp}/rendezvous", rank=rank, world_size=2)
ckpt = Checkpointer(tmp / "store", run="r")
if rank == 1:
    os._exit(4)
try:
    ckpt.restore({"w": torch.ones(3)})
except OtherRankError as error:
    assert "another rank has ended: " in str(error)
    os._exit(3)
"""


def test_a_restore_says_that_another_rank_has_ended(tmp_path: Path) -> None:
    assert run_forked(tmp_path, LEFT_PROGRAM, [0], [1]) == [3, 4]


OTHER_PROGRAM = """
import errno
from checkpointing import DamagedError, OtherRankError
from checkpointing.ranks.rank_group import RankGroup

rank, = map(int, arguments)
dist.init_process_group("gloo", init_method=f"file://{tmp}/rendezvous", rank=rank, world_size=2)
ranks = RankGroup()


def fail(with_what, cause):
    def failing():
        if rank == 0:
            raise with_what from cause
    return failing


def caught(collective, with_what, cause=None):
    try:
        collective(fail(with_what, cause))
    except Exception as error:
        return error


stale = OSError(errno.ESTALE, "Stale file handle")
found = caught(ranks.all_or_none, DamagedError("pack 3"), stale)
assert type(found) is DamagedError and found.__cause__.errno == errno.ESTALE
assert str(found) == ("pack 3" if rank == 0 else "rank 0: pack 3")
found = caught(ranks.all_or_none, DamagedError("pack 3"))
assert type(found) is DamagedError and found.__cause__ is None
found = caught(ranks.all_or_none, KeyError("x"))
assert type(found) is (KeyError if rank == 0 else OtherRankError)
found = caught(ranks.from_rank0, DamagedError("pack 3"), stale)
assert type(found) is DamagedError and found.__cause__.errno == errno.ESTALE
os._exit(3)
"""


def test_a_rank_is_told_of_what_fails_on_another_and_of_its_cause(tmp_path: Path) -> None:
    """By the cause and the class, it decides whether a retry may help."""
    assert run_forked(tmp_path, OTHER_PROGRAM, [0], [1]) == [3, 3]


def test_a_rank_can_exit_while_its_peer_is_silent(tmp_path: Path) -> None:
    assert run_forked(tmp_path, LONELY_PROGRAM, [0], [1]) == [5, 0]
    assert not [i for i in list_checkpoints(tmp_path / "store") if i.state == "committed"]


BEREFT_PROGRAM = """
from checkpointing.service.client.service_client import ServiceClient

rank, victim = int(arguments[0]), arguments[1]
rendezvous = f"file://{tmp}/rendezvous-{victim}"
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
ckpt = Checkpointer(tmp / victim, run="r")
ckpt.save(1, {"w": torch.ones(3)})
ckpt.wait()
if rank == 1:
    setattr(ServiceClient, victim, lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL))
ckpt.save(2, {"w": torch.full((3,), 2.0)})
try:
    ckpt.wait()
except SaveError as error:
    (tmp / f"said-{victim}").write_text(str(error))
    os._exit(7)
"""


def test_a_peer_that_dies_in_a_save_is_noticed_at_once(tmp_path: Path) -> None:
    functions = ["begin_claim", "staged"]
    arguments = [[rank, function] for function in functions for rank in (0, 1)]
    assert run_forked(tmp_path, BEREFT_PROGRAM, *arguments) == [7, -9, 7, -9]
    for function in functions:
        said = (tmp_path / f"said-{function}").read_text()
        assert said.startswith("saving step 2: another rank has ended: ")
        assert check(tmp_path / function) == {1: []}
