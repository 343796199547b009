"""The group of ranks that save and restore together, and their collectives."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, TypeVar, cast

import torch.distributed as dist

from checkpointing.errors import CheckpointError, OtherRankError, causes
from checkpointing.ranks.rank_network import MeetingStore, RankNetwork
from checkpointing.ranks.rank_tree import RankTree
from checkpointing.torch_internals import default_store

log = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds that one rank may be behind another in a save or a restore. A rank that dies is noticed
# within milliseconds, by its closed connections.
TIMEOUT_S = 7200.0
# The same for a save whose state has a new structure, which may be a mistake on one rank.
STRUCTURE_TIMEOUT_S = 1800.0
# Seconds after which a rank warns that it waits for ranks that may never make the same call.
WAIT_WARNING_S = 60.0
# Reasons of ranks in one message: thousands that read the same damaged file say the same.
MOST_REASONS = 8
_networks: weakref.WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = weakref.WeakKeyDictionary()
"""Numbers of the networks that this process has made in each default process group."""


def open_tree() -> RankTree:
    """Returns a tree of all ranks of the default process group, with a network of its own.
    Collective.

    Raises:
        OtherRankError: another rank has ended, or did not come in time.
    """
    network = _open_network()
    try:
        return RankTree(network, "alone", is_main=True)
    except BaseException:
        network.close()
        raise


def _open_network() -> RankNetwork:
    """Returns connections to all ranks of the default process group, which meet in its store.
    Collective; raises as `open_tree`."""
    world = dist.group.WORLD
    assert world is not None
    number = next(_networks.setdefault(world, count()))
    name = f"hpckit/ranks/{number}"
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = GroupStore(world, name)
    return RankNetwork(
        rank, world_size, store, TIMEOUT_S, name=name, is_current=store.is_of_this_group
    )


class GroupStore:
    """The store in which the ranks of the default process group have met. This object does not keep
    it: a program may destroy the group and make another one, which would meet in the same store and
    find there what the ranks of the first one have written."""

    def __init__(self, group: dist.ProcessGroup, prefix: str) -> None:
        self._group, self._prefix = weakref.ref(group), prefix

    def set(self, key: str, value: str, /) -> None:
        self._opened().set(key, value)

    def get(self, key: str, /) -> bytes:
        return self._opened().get(key)

    def check(self, keys: list[str], /) -> bool:
        return self._opened().check(keys)

    def is_of_this_group(self) -> bool:
        """Whether the group was not destroyed. If it was, ranks of a group that was made after it
        may find in the same store where the ranks of the first one listen."""
        group = self._group()
        return group is not None and group is dist.group.WORLD

    def _opened(self) -> MeetingStore:
        if not self.is_of_this_group():
            raise RuntimeError("the process group in which the ranks have met was destroyed")
        return default_store(self._prefix)


class RankGroup:
    """All ranks of the default process group, or this process alone if there is none.

    Owns a network of connections between them, so that the trainer's group is never used, and two
    trees in it: `control`, and `structures` for exchanges that must not be mixed up with others if
    only one rank starts one. The constructor is a collective. Objects are pickled and sent between
    ranks that have proved that they are of this job; nothing that was read from disk is unpickled.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.control: RankTree | None = None
        self.structures: RankTree | None = None
        self._network: RankNetwork | None = None
        self._has_processes = dist.is_available() and dist.is_initialized()
        if self._has_processes:
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size > 1:
            try:
                with self.expect_all("creating a Checkpointer"):
                    self._connect()
            except BaseException:
                self.close()
                raise

    def _connect(self) -> None:
        network = self._network = _open_network()
        self.control = RankTree(network, "control", is_main=True)
        self.structures = RankTree(network, "structures", timeout_s=STRUCTURE_TIMEOUT_S)
        self.control.all_gather(None)

    def is_outdated(self) -> bool:
        """Whether a process group was made after this object."""
        return not self._has_processes and dist.is_available() and dist.is_initialized()

    @contextmanager
    def expect_all(self, call: str) -> Iterator[None]:
        """Warns if the block, in which this rank waits for all others, takes longer than
        `WAIT_WARNING_S`: a program may make the call on some ranks only.

        Args:
            call: what the program does, such as "restoring".
        """
        if self.world_size == 1:
            yield
            return
        text = (
            f"rank {self.rank}: {call} takes longer than {WAIT_WARNING_S:g} s. It waits for all "
            "ranks, and does not end if only some of them make this call, such as after "
            "`if rank == 0`: let every rank make it"
        )
        timer = threading.Timer(WAIT_WARNING_S, log.warning, ("%s", text))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def broadcast(self, thing: T, group: RankTree | None) -> T:
        """Returns rank 0's `thing`. Raises OtherRankError."""
        if group is None or self.world_size == 1:
            return thing
        if self.rank == 0:
            group.broadcast(pickle.dumps(thing))
            return thing
        return cast(T, _loaded(group.broadcast(None)))

    def all_gather(self, thing: T, group: RankTree | None) -> list[T]:
        """Returns the `thing` of all ranks, in order of rank. Raises OtherRankError."""
        if group is None or self.world_size == 1:
            return [thing]
        found = group.all_gather(None if thing is None else pickle.dumps(thing))
        return [cast(T, None if one is None else _loaded(one)) for one in found]

    def send(self, thing: object, rank: int) -> None:
        """Send a thing to a rank, which receives it. Raises OtherRankError."""
        self._opened().send(rank, pickle.dumps(thing))

    def receive(self, rank: int) -> Any:
        """Returns what a rank sends to this one. Raises OtherRankError."""
        return _loaded(self._opened().receive(rank))

    def send_content(self, body: memoryview, rank: int) -> None:
        """Send the content of tensors to a rank, which knows its size. Raises OtherRankError."""
        self._opened().send_content(rank, body)

    def receive_content(self, into: memoryview, rank: int) -> None:
        """Fill `into` with the content that a rank sends to this one. Raises OtherRankError."""
        self._opened().receive_content(rank, into)

    def all_gather_alike(
        self, thing: T, digest: Callable[[], bytes], group: RankTree | None
    ) -> list[T]:
        """As `all_gather` of things that are equal on many ranks: each of those that differ is sent
        once, so that what a rank receives does not grow with the number of ranks.

        Args:
            digest: returns what is equal on ranks whose things are equal, and on no others.
        """
        digests, found = self._gather_alike(thing, digest, group)
        return [found[one] for one in digests]

    def gather_distinct(
        self, thing: T, digest: Callable[[], bytes], group: RankTree | None
    ) -> list[T]:
        """As `all_gather_alike`, but returns equal things once, in order of their first ranks."""
        return [*self._gather_alike(thing, digest, group)[1].values()]

    def _gather_alike(
        self, thing: T, digest: Callable[[], bytes], group: RankTree | None
    ) -> tuple[list[bytes], dict[bytes, T]]:
        """Returns the digests of all ranks, and what they stand for."""
        if self.world_size == 1:
            return [b""], {b"": thing}
        mine = digest()
        digests = self.all_gather(mine, group)
        firsts: dict[bytes, int] = {}
        for rank, one in enumerate(digests):
            firsts.setdefault(one, rank)
        sent = self.all_gather((thing,) if firsts[mine] == self.rank else None, group)
        found = {one: cast(tuple[T], sent[rank])[0] for one, rank in firsts.items()}
        return digests, found

    def from_rank0(self, produce: Callable[[], T]) -> T:
        """Returns what `produce` returns on rank 0; an exception there is raised on every rank.

        Raises:
            OtherRankError: another rank has ended; or, on others than rank 0, the exception there
                cannot be sent.
        """
        answer: tuple[T | None, Exception | None, Exception | None] = (None, None, None)
        if self.rank == 0:
            try:
                answer = (produce(), None, None)
            except Exception as error:
                sent = error if _can_be_sent(error) else _described(error, self.rank)
                with suppress(OtherRankError):  # this rank has an error of its own
                    self.broadcast((None, sent, _system_error(error)), self.control)
                raise
        result, problem, cause = self.broadcast(answer, self.control)
        if problem is not None:
            raise problem from cause  # which is not pickled with it
        return result  # type: ignore[return-value]  # None only where T may be None

    def all_or_none(self, do: Callable[[], T]) -> T:
        """Returns what `do` returns on this rank, once it has succeeded on all ranks.

        Raises:
            Exception: it failed on some rank: what it raised on this rank, or, if only others
                failed, the same kind of CheckpointError, with the ranks and reasons in its message
                and the system error that caused it, if one did.
            OtherRankError: another rank has ended, and nothing failed on this one; or others failed
                with what is no CheckpointError.
        """
        result: T | None = None
        failure: Exception | None = None
        try:
            result = do()
        except Exception as error:  # noqa: BLE001 - any error is reported to the other ranks
            failure = error
        try:
            gathered = self.all_gather(self._sendable_failure(failure), self.control)
        except OtherRankError:
            if failure is None:
                raise
            gathered = []
        if failure is not None:  # with its own cause, by which a retry is decided
            raise failure
        failures = [found for found in gathered if found]
        if failures:
            kind, _, cause = failures[0]
            raise kind(first_reasons([text for _, text, _ in failures])) from cause
        return result  # type: ignore[return-value]  # None only where T may be None

    def _sendable_failure(
        self, failure: Exception | None
    ) -> tuple[type[CheckpointError], str, Exception | None] | None:
        """Returns a failure in a form that can be sent, with the system error that caused it."""
        if failure is None:
            return None
        if isinstance(failure, CheckpointError) and _can_be_raised_elsewhere(type(failure)):
            return type(failure), f"rank {self.rank}: {failure}", _system_error(failure)
        described = _described(failure, self.rank)
        return OtherRankError, str(described), _system_error(failure)

    def close(self) -> None:
        """Close the connections."""
        for each in (self.structures, self.control, self._network):
            if each is not None:
                each.close()
        self.control = self.structures = self._network = None

    def _opened(self) -> RankNetwork:
        if self._network is None:
            raise OtherRankError("the connections to the other ranks are closed")
        return self._network


def _loaded(body: bytes) -> Any:
    """Returns what another rank has sent, which has proved that it is of this job."""
    return pickle.loads(body)  # noqa: S301 - of a program that runs as this one does


def first_reasons(reasons: Sequence[str]) -> str:
    """Returns the first `MOST_REASONS` of the reasons of several ranks, and how many there are
    more."""
    more = len(reasons) - MOST_REASONS
    told = "; ".join(reasons[:MOST_REASONS])
    return f"{told}; and {more:,} more rank{'s' if more > 1 else ''}" if more > 0 else told


def _can_be_sent(error: Exception) -> bool:
    """Whether an error can be pickled, and made again of what was pickled. If not, the ranks that
    wait for it would wait in vain."""
    try:
        pickle.dumps(error)
        copy.copy(error)
    except Exception:  # noqa: BLE001 - of the code of any class
        return False
    return True


def _can_be_raised_elsewhere(kind: type[CheckpointError]) -> bool:
    """Whether other ranks can make an error of this kind from a text. The class may be a user's."""
    try:
        pickle.dumps(kind)
        kind("")
    except Exception:  # noqa: BLE001 - of the code of any class
        return False
    return True


def _described(failure: Exception, rank: int) -> OtherRankError:
    """Returns what the other ranks raise for a failure of a rank."""
    return OtherRankError(f"rank {rank}: {type(failure).__name__}: {failure}")


def _system_error(failure: BaseException) -> Exception | None:
    """Returns the error of the operating system among a failure and its causes, without what may
    not be pickled: it says that a retry may help."""
    for one in causes(failure):
        if isinstance(one, OSError):
            return OSError(one.errno, one.strerror) if one.errno else OSError(str(one))
        if isinstance(one, MemoryError):
            return MemoryError(str(one))
    return None
