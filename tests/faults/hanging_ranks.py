"""Ranks that hang in many ways, as workers of one node: what they do, and which of them is to
blame. A rank is a fork of a process that has imported torch, so that a kind costs a second of a
processor."""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from checkpointing.ranks.rank_group import RankGroup
from hpckit.hangs.culprit_search import HangCause
from hpckit.hangs.own_snapshot import describe_worker
from hpckit.ipc.heartbeat_table import HeartbeatTable, HeartbeatWriter, WorkerPhase
from hpckit.ipc.snapshot_exchange import SnapshotResponder
from hpckit.system.child_processes import die_with_parent, name_process, rank_name, spawn_piped
from hpckit.trainer.worker import _print_stacks_on_signal

WORLD = 3
STEPS = 4
"""Steps before the ranks hang."""
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Rank:
    """A rank of a drill."""

    rank: int
    culprit: int
    tmp: Path
    groups: tuple[Any, Any]

    @property
    def is_culprit(self) -> bool:
        return self.rank == self.culprit

    def say(self, name: str) -> None:
        """Leave a mark for the driver: the next thing that happens is the hang."""
        (self.tmp / f"{name}.{self.rank}").touch()


def loader(it: Rank) -> None:
    """The thread that loads waits for a lock that nobody gives back."""
    batches: queue.Queue[int] = queue.Queue()
    lock = threading.Lock()
    lock.acquire()

    def load() -> None:
        with lock:
            batches.put(1)

    threading.Thread(target=load, daemon=True).start()
    it.say("hangs")
    batches.get()


def skipped(it: Rank) -> None:
    """The rank does not take part in one all_reduce, and enters the next collective."""


def shapes(it: Rank) -> None:
    """The rank's tensor is empty, so that it sends nothing, and the others wait for it."""


def kernel_io(it: Rank) -> None:
    """The process waits in the kernel, and handles no signal (state D): for a child of vfork, which
    opens a pipe that nobody writes to."""
    os.mkfifo(it.tmp / "never")
    it.say("hangs")
    opened = (os.POSIX_SPAWN_OPEN, 0, str(it.tmp / "never"), os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opened])


def read_io(it: Rank) -> None:
    """A read does not return."""
    reader, _ = os.pipe()
    it.say("hangs")
    os.read(reader, 1)


def stopped(it: Rank) -> None:
    """SIGSTOP."""
    it.say("hangs")
    os.kill(os.getpid(), signal.SIGSTOP)


def lock(it: Rank) -> None:
    """The main thread waits for a lock that it holds."""
    held = threading.Lock()
    held.acquire()
    it.say("hangs")
    held.acquire()


def slow(it: Rank) -> None:
    """The step takes longer than the limit, and then ends: no hang."""
    it.say("hangs")
    while not (it.tmp / "go").exists():
        time.sleep(0.05)


def garbage(it: Rank) -> None:
    """Garbage is collected again and again."""
    kept = [[n] for n in range(400_000)]
    it.say("hangs")
    while kept:
        gc.collect()


def endless(it: Rank) -> None:
    """A loop does not end."""
    it.say("hangs")
    n = 0
    while True:
        n += 1


def native(it: Rank) -> None:
    """Native code computes for ever, and does not give the interpreter back."""
    it.say("hangs")
    re.match("(a+)+$", "a" * 60 + "b")


def order(it: Rank) -> None:
    """Two groups, entered in another order by one rank."""
    first, second = it.groups if not it.is_culprit else it.groups[::-1]
    it.say("hangs")
    dist.all_reduce(torch.ones(4), group=first)
    dist.all_reduce(torch.ones(4), group=second)


def early(it: Rank) -> None:
    """The rank leaves its loop a step earlier, and waits for a thread at its end."""
    thread = threading.Thread(target=time.sleep, args=(10_000,), daemon=True)
    thread.start()
    it.say("hangs")
    thread.join()


def child(it: Rank) -> None:
    """The process that makes batches is stopped."""
    process = spawn_piped(["sleep", "10000"], os.environ, Path(os.devnull))
    process.send_signal(signal.SIGSTOP)
    assert process.stdout is not None
    it.say("hangs")
    process.stdout.read(1)


def store(it: Rank) -> None:
    """The rank waits for a key that nobody sets."""
    it.say("hangs")
    dist.distributed_c10d._get_default_store().get("never")


def exchange(it: Rank) -> None:
    """The rank does not come to an exchange of hpckit itself, as in a restore."""
    read_io(it)


def pair(it: Rank) -> None:
    """The rank does not send what another one of its node waits for, as in a restore."""
    read_io(it)


def talk(kind: str, it: Rank, ranks: RankGroup) -> None:
    """Exchange as a restore does."""
    if kind == "exchange":
        ranks.all_gather(it.rank, ranks.control)
    elif it.is_culprit:
        for rank in {*range(WORLD)} - {it.rank}:
            ranks.send("manifest", rank)
    else:
        ranks.receive(it.culprit)


def cut(it: Rank) -> None:
    """The network between the ranks is cut."""


def healthy(it: Rank) -> None:
    """Nothing."""


@dataclass(frozen=True)
class Kind:
    """A kind of hang, and what is right to say of it."""

    act: Callable[[Rank], None]
    cause: HangCause = HangCause.STUCK
    says: tuple[str, ...] = ("hanging_ranks.py:",)
    """Parts of the sentence."""

    @property
    def name(self) -> str:
        return self.act.__name__


KINDS = {
    kind.name: kind
    for kind in (
        Kind(loader, says=("loader, hanging_ranks.py:", "(Queue.get, in it Condition.wait")),
        Kind(skipped, HangCause.MISMATCH, ("entered barrier", "entered all_reduce (float32[64])")),
        Kind(shapes, HangCause.MISMATCH, ("all_reduce (float32[64])", "all_reduce (float32[0])")),
        Kind(kernel_io, says=("state D", "kernel_io, hanging_ranks.py:")),
        Kind(read_io, says=("read_io, hanging_ranks.py:",)),
        Kind(stopped, says=("stopped by a signal",)),
        Kind(lock, says=("lock, hanging_ranks.py:",)),
        Kind(slow, HangCause.SLOW, ("no rank hangs", "slow, hanging_ranks.py:")),
        Kind(cut, HangCause.TRANSFER, ("all ranks have entered all_reduce",)),
        Kind(garbage, says=("garbage, hanging_ranks.py:",)),
        Kind(endless, says=("endless, hanging_ranks.py:",)),
        Kind(native, says=("native, hanging_ranks.py:", "hold the GIL")),
        Kind(order, HangCause.CYCLE, ("wait for each other",)),
        Kind(early, says=("early, hanging_ranks.py:", "Thread.join")),
        Kind(child, says=("its child process", "is stopped")),
        Kind(store, says=("store, hanging_ranks.py:",)),
        Kind(exchange, says=("read_io, hanging_ranks.py:", "wait in all_gather #")),
        Kind(pair, says=("read_io, hanging_ranks.py:", "recv with rank")),
    )
}


def run_rank(rank: int, kind: str, culprit: int, tmp: Path, table: str, exchange: str) -> None:
    """A rank, from its start to its hang; the process is killed in the end."""
    die_with_parent(os.getppid())
    name_process(rank_name(rank))
    _print_stacks_on_signal(tmp / f"rank{rank}.stacks")
    writer = HeartbeatWriter(HeartbeatTable.attach(table, WORLD), rank, 0)
    writer.report(WorkerPhase.STARTING, 0)
    SnapshotResponder(exchange, rank, describe_worker).start()
    if kind == "cut":
        _enter_network(rank, tmp)
    torch.set_num_threads(1)
    rendezvous = f"file://{tmp}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    groups = (dist.new_group(list(range(WORLD))), dist.new_group(list(range(WORLD))))
    it = Rank(rank, culprit, tmp, groups)
    ranks = RankGroup() if kind in ("exchange", "pair") else None
    act = KINDS[kind].act if kind in KINDS else healthy
    for step in range(1, 1_000_000):
        if step > STEPS and kind == "cut":
            it.say("steps")
            time.sleep(0.02)
        elif (step == STEPS and kind == "order") or (step == STEPS and it.is_culprit):
            act(it)
        elif step == STEPS:
            it.say("waits")
        if ranks is not None:
            talk(kind, it, ranks)
        is_odd = step == STEPS and it.is_culprit
        if not (is_odd and kind == "skipped"):
            dist.all_reduce(torch.ones(0 if is_odd and kind == "shapes" else 64))
        dist.barrier()
        writer.report(WorkerPhase.TRAINING, step)
        if step > STEPS and kind == "slow":
            time.sleep(0.2)
    dist.destroy_process_group()


def _enter_network(rank: int, tmp: Path) -> None:
    """Puts this process into the network namespace of rank 0, with a loopback of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = tmp / "network"
    if rank == 0:
        if _LIBC.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        (tmp / "network.new").write_text(str(os.getpid()))
        (tmp / "network.new").rename(place)
        return
    while not place.exists():
        time.sleep(0.02)
    handle = os.open(f"/proc/{place.read_text()}/ns/net", os.O_RDONLY)
    if _LIBC.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(handle)


def can_cut() -> bool:
    """Whether this user may make a network and cut it."""
    words = "unshare -n nft add table inet hpckit_test"
    try:
        return subprocess.run(words.split(), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def cut_network(tmp: Path) -> None:
    """Drops whatever goes from rank to rank."""
    rules = (
        "add table inet cut; add chain inet cut packets { type filter hook input priority 0; }; "
        "add rule inet cut packets drop"
    )
    pid = (tmp / "network").read_text()
    subprocess.run(["nsenter", "-t", pid, "-n", "nft", rules], check=True)


@contextmanager
def killed_at_end(processes: list[Any], tmp: Path) -> Iterator[None]:
    """The processes are dead and reaped after the block, and the one that opens a pipe ends."""
    try:
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
        for process in processes:
            process.join()
        if (tmp / "never").exists():
            with suppress(OSError):  # nobody reads
                os.close(os.open(tmp / "never", os.O_WRONLY | os.O_NONBLOCK))
