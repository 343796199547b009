"""What a rank raises when something fails on it or on another one, where the other ranks are
played."""

import errno
import gc
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from checkpointing.errors import CheckpointError, DamagedError, OtherRankError
from checkpointing.ranks.peer_address import LOOPBACK
from checkpointing.ranks.rank_group import RankGroup, first_reasons, open_tree
from checkpointing.ranks.rank_network import report_other_rank
from tests.unit.checkpointing.lonely_ranks import Lonely


def fail_by_the_system() -> None:
    raise DamagedError("pack 3") from OSError(errno.ESTALE, "Stale file handle")


def collectives_of(ranks: RankGroup) -> list[Callable[[Callable[[], None]], None]]:
    return [ranks.all_or_none, ranks.from_rank0]


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_whose_peers_have_ended_raises_its_own_error_with_its_own_cause(number: int) -> None:
    """By the cause, a retry is decided."""
    with pytest.raises(DamagedError, match="pack 3") as caught:
        collectives_of(Lonely())[number](fail_by_the_system)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ESTALE


def test_a_rank_that_did_not_fail_says_that_another_one_has_ended() -> None:
    with pytest.raises(OtherRankError, match="has ended"):
        Lonely().all_or_none(lambda: None)


class LocksError(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class TwoWordsError(Exception):
    """An error that cannot be made again of what is pickled of it."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


@pytest.mark.parametrize("error", [LocksError(), TwoWordsError("a", "b")])
def test_an_error_that_cannot_be_sent_is_described_to_the_other_ranks(error: Exception) -> None:
    sent: list[Any] = []

    class Heard(RankGroup):
        def broadcast(self, thing: Any, group: object) -> Any:
            sent.append(thing)
            return thing

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        Heard().from_rank0(fail)
    ((_, described, cause),) = sent
    assert type(described) is OtherRankError
    assert str(described) == f"rank 0: {type(error).__name__}: {error}"
    assert cause is None


def local_error() -> CheckpointError:
    class LocalError(CheckpointError):
        """An error of a class that other processes do not find."""

    return LocalError("mine")


class ThreeWordsError(DamagedError):
    """An error that is not made of a text."""

    def __init__(self, one: str, two: str, three: str) -> None:
        super().__init__(f"{one} {two} {three}")


@pytest.mark.parametrize("error", [local_error(), ThreeWordsError("a", "b", "c")])
def test_a_users_kind_of_error_is_described_to_the_other_ranks(error: CheckpointError) -> None:
    sent: list[Any] = []

    class Heard(RankGroup):
        def all_gather(self, thing: Any, group: object) -> list[Any]:
            sent.append(thing)
            return [thing]

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        Heard().all_or_none(fail)
    assert sent == [(OtherRankError, f"rank 0: {type(error).__name__}: {error}", None)]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("[/gloo/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv", "answer in time"),
        ("wait timeout after 1000ms, keys: /default_pg/0", "answer in time"),
        ("[/gloo/tcp/pair.cc:547] Connection closed by peer", "has ended"),
    ],
)
def test_a_rank_that_is_late_is_told_from_one_that_has_ended(said: str, what: str) -> None:
    with pytest.raises(OtherRankError, match=what), report_other_rank():
        raise RuntimeError(said)


def test_thousands_of_ranks_give_a_few_reasons() -> None:
    reasons = [f"rank {rank}: it is cut off" for rank in range(16_384)]
    assert first_reasons(reasons[:8]) == "; ".join(reasons[:8])
    told = first_reasons(reasons)
    assert told.endswith("rank 7: it is cut off; and 16,376 more ranks")
    assert len(told) < 300
    assert first_reasons([]) == ""


def test_alone_a_rank_has_its_own_thing() -> None:
    """A digest of it is not made."""
    ranks = RankGroup()
    assert ranks.all_gather_alike("mine", pytest.fail, None) == ["mine"]
    assert ranks.gather_distinct("mine", pytest.fail, None) == ["mine"]


def test_ranks_do_not_keep_the_store_of_a_group_that_was_destroyed() -> None:
    """Another group at the same port would find there what the ranks of the first have written."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = int(free.getsockname()[1])
    where = f"tcp://{LOOPBACK}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    try:
        tree = open_tree()
    finally:
        dist.destroy_process_group()
    try:
        gc.collect()
        socket.create_server((LOOPBACK, port)).close()  # nobody else listens there any more
        with pytest.raises(OtherRankError, match="destroyed"):
            tree._network._read_key()
    finally:
        tree.close()
