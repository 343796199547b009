"""Collectives over a tree of real connections, between ranks that are threads."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointing.authenticated_channel import CHUNK
from checkpointing.errors import OtherRankError
from checkpointing.ranks import rank_network, rank_tree
from checkpointing.ranks.lagged_agreement import LaggedMax, LaggedVote
from checkpointing.ranks.rank_network import RankNetwork
from checkpointing.ranks.rank_tree import RankTree
from tests.unit.checkpointing.thread_ranks import PATIENCE_S, ThreadRanks, on_thread_ranks


def tree_of(ranks: ThreadRanks) -> RankTree:
    assert ranks.control is not None
    return ranks.control


def raised(do: Callable[[], object]) -> str:
    """The message of the OtherRankError that it raises; "" if it does not."""
    try:
        do()
    except OtherRankError as error:
        return str(error)
    return ""


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def await_failure(tree: RankTree) -> str:
    until(lambda: tree.failure is not None)
    return str(tree.failure)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(2, 14),
    fan_out=st.integers(1, 4),
    things=st.lists(st.none() | st.binary(max_size=9), min_size=14, max_size=14),
)
def test_each_rank_has_the_same_results(
    monkeypatch: pytest.MonkeyPatch, world: int, fan_out: int, things: list[bytes | None]
) -> None:
    monkeypatch.setattr(rank_tree, "FAN_OUT", fan_out)

    def one(ranks: ThreadRanks) -> list[object]:
        tree, rank = tree_of(ranks), ranks.rank
        found: list[object] = [tree.all_gather(things[rank])]
        found.append(tree.broadcast(b"of 0" if rank == 0 else None))
        found += [tree.begin_max(-number * rank).result() for number in (1, -3)]
        found.append(ranks.all_gather({"rank": rank}, ranks.structures))
        assert len(tree._channels) <= fan_out + 1
        return found

    expected = [
        things[:world],
        b"of 0",
        0,
        3 * (world - 1),
        [{"rank": rank} for rank in range(world)],
    ]
    assert on_thread_ranks(world, one) == [expected] * world


@pytest.mark.parametrize("size", [rank_tree._ROOM, rank_tree._ROOM + 1, CHUNK + 7])
def test_what_does_not_fit_into_a_frame_arrives(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_tree, "FAN_OUT", 1)

    def one(ranks: ThreadRanks) -> bool:
        tree, mine = tree_of(ranks), bytes([ranks.rank]) * size
        gathered = tree.all_gather(mine)
        sent = tree.broadcast(mine if ranks.rank == 0 else None)
        return gathered == [bytes([r]) * size for r in range(3)] and sent == bytes(size)

    assert on_thread_ranks(3, one) == [True] * 3


def test_two_ranks_send_each_other_what_they_like() -> None:
    def one(ranks: ThreadRanks) -> object:
        other = 1 - ranks.rank
        if ranks.rank == 0:
            ranks.send({"a": 1}, other)
            ranks.send_content(memoryview(b"x" * (CHUNK + 5)), other)
            return ranks.receive(other)
        into = bytearray(CHUNK + 5)
        assert ranks.receive(other) == {"a": 1}
        ranks.receive_content(memoryview(into), other)
        assert into == b"x" * (CHUNK + 5)
        ranks.send([2], other)
        return [2]

    assert on_thread_ranks(2, one) == [[2], [2]]


def test_bytes_of_another_number_are_refused() -> None:
    def one(ranks: ThreadRanks) -> str:
        if ranks.rank == 0:
            ranks.send_content(memoryview(b"four"), 1)
            return ""
        return raised(lambda: ranks.receive_content(memoryview(bytearray(3)), 0))

    assert "4 bytes came where 3 were expected" in on_thread_ranks(2, one)[1]


@pytest.mark.parametrize("dead", [0, 1, 2, 6])
def test_all_learn_between_two_calls_which_rank_has_ended(
    dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an end of the tree, an inner rank and the root."""
    monkeypatch.setattr(rank_tree, "FAN_OUT", 2)

    def one(ranks: ThreadRanks) -> list[str]:
        tree = tree_of(ranks)
        tree.all_gather(None)
        if ranks.rank == dead:
            ranks.close()
            return []
        told = await_failure(tree)
        return [told, raised(lambda: tree.all_gather(b"")), raised(lambda: ranks.receive(dead))]

    answers = on_thread_ranks(7, one)
    for told in [answer for rank, answer in enumerate(answers) if rank != dead]:
        assert f"another rank has ended: rank {dead} " in told[0]
        assert told[1:] == [told[0]] * 2


@pytest.mark.parametrize("dead", [0, 1, 5])
def test_all_learn_during_a_call_which_rank_has_ended(
    dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_tree, "FAN_OUT", 2)
    waiting = threading.Barrier(6)

    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        if ranks.rank == dead:
            waiting.wait(PATIENCE_S)
            ranks.close()
            return ""
        found = tree.begin_max(0)
        waiting.wait(PATIENCE_S)
        return raised(lambda: found.result(PATIENCE_S))

    answers = on_thread_ranks(6, one)
    assert [f"rank {dead} " in told for told in answers] == [rank != dead for rank in range(6)]


def test_a_rank_that_waits_for_another_one_learns_that_a_third_has_ended() -> None:
    def one(ranks: ThreadRanks) -> str:
        if ranks.rank == 2:
            tree_of(ranks).all_gather(None)
            ranks.close()
            return ""
        tree_of(ranks).all_gather(None)
        return raised(lambda: ranks.receive(1 - ranks.rank))

    assert ["rank 2 " in told for told in on_thread_ranks(3, one)] == [True, True, False]


def test_what_rank_0_has_sent_before_it_ended_is_received() -> None:
    closed = threading.Event()

    def one(ranks: ThreadRanks) -> bytes:
        tree = tree_of(ranks)
        if ranks.rank == 0:
            tree.broadcast(b"the last")
            ranks.close()
            closed.set()
            return b"the last"
        assert closed.wait(PATIENCE_S)
        found = tree.broadcast(None)
        assert "rank 0 " in await_failure(tree)
        return found

    assert on_thread_ranks(3, one) == [b"the last"] * 3


def test_a_rank_that_has_ended_behind_what_nobody_takes_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a vote of the step in which it was killed, which the others do not reach."""
    monkeypatch.setattr(rank_tree, "CLOSE_S", 0.0)
    come = threading.Event()

    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        if ranks.rank == 2:
            tree.begin_max(1)
            assert come.wait(PATIENCE_S)
            ranks.close()
            return ""
        if ranks.rank == 0:
            until(lambda: tree._channels[2].peek() is not None)
            come.set()
        return raised(lambda: ranks.receive(2))

    answers = on_thread_ranks(3, one)
    assert ["has ended: rank 2 " in told for told in answers] == [True, True, False]


def test_a_broadcast_that_is_not_taken_hides_the_end_of_rank_0_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_tree, "UNTAKEN_S", 0.05)

    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        if ranks.rank == 0:
            tree.broadcast(b"not taken")
            ranks.close()
            return ""
        return await_failure(tree)

    assert ["rank 0 " in told for told in on_thread_ranks(3, one)] == [False, True, True]


def test_a_tree_that_is_not_the_main_one_waits_until_all_are_told_who_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else this rank might end before, and be taken for the one that has ended first."""
    asked, waits = threading.Event(), RankNetwork.reason

    def reason(network: RankNetwork, guess: str) -> str:
        asked.set()
        return waits(network, guess)

    monkeypatch.setattr(rank_network, "_REASON_S", PATIENCE_S)
    monkeypatch.setattr(RankNetwork, "reason", reason)

    def one(ranks: ThreadRanks) -> str:
        tree = ranks.structures
        assert tree is not None
        assert ranks._network is not None
        if ranks.rank == 1:
            tree._channels[0].hang_up()
            return ""
        found = tree.begin_max(0)
        assert asked.wait(PATIENCE_S)
        assert not found.done()
        ranks._network.fail("another rank has ended: rank 5")
        return raised(lambda: found.result(PATIENCE_S))

    assert "rank 5" in on_thread_ranks(2, one)[0]


def test_a_rank_that_fails_in_a_call_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    largest = rank_tree._largest

    def without_memory(parts: list[bytes]) -> bytes:
        if len(parts) > 1:
            raise MemoryError("no room")
        return largest(parts)

    monkeypatch.setattr(rank_tree, "_largest", without_memory)

    def one(ranks: ThreadRanks) -> str:
        found = tree_of(ranks).begin_max(0)
        if ranks.rank == 0:
            with pytest.raises(MemoryError):
                found.result(PATIENCE_S)
            return ""
        return raised(lambda: found.result(PATIENCE_S))

    assert "rank 0 has left the maximum: MemoryError" in on_thread_ranks(2, one)[1]


def test_ranks_that_make_different_calls_are_told() -> None:
    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        if ranks.rank == 1:
            return raised(lambda: tree.begin_max(1).result())
        return raised(lambda: tree.all_gather(b""))

    for told in on_thread_ranks(3, one):
        assert "rank 1 makes a maximum as its call 1, and rank 0 a gather as its call 1" in told


def test_a_rank_that_does_not_come_is_told_from_one_that_has_ended() -> None:
    over = threading.Event()

    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        tree.timeout_s = 0.2
        if ranks.rank == 1:
            assert over.wait(PATIENCE_S)
            return await_failure(tree)
        told = raised(lambda: tree.all_gather(b""))
        over.set()
        return told

    for told in on_thread_ranks(2, one):
        assert "did not answer in time: rank 1 has not come to the gather" in told


def test_a_call_that_its_rank_has_left_is_not_completed() -> None:
    """As by one whose structure has changed alone, and which has given up waiting."""
    left = threading.Event()

    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        if ranks.rank == 1:
            tree.timeout_s = 0.2
            told = raised(lambda: tree.all_gather(b"mine"))
            left.set()
            return told
        assert left.wait(PATIENCE_S)
        return raised(lambda: tree.all_gather(b"late"))

    for told in on_thread_ranks(2, one):
        assert "rank 0 has not come to the gather" in told


def test_a_call_that_is_not_waited_for_takes_place() -> None:
    """As one that Ctrl-C has interrupted."""

    def one(ranks: ThreadRanks) -> list[bytes | None]:
        tree = tree_of(ranks)
        tree.begin_max(ranks.rank)
        return tree.all_gather(b"next")

    assert on_thread_ranks(3, one) == [[b"next"] * 3] * 3


def test_a_closed_tree_takes_no_calls() -> None:
    def one(ranks: ThreadRanks) -> str:
        tree = tree_of(ranks)
        found = tree.begin_max(7)
        ranks.close()
        ranks.close()
        assert found.result() == 7, "what was begun before is completed"
        return raised(lambda: tree.all_gather(b""))

    for told in on_thread_ranks(2, one):
        assert "closed" in told


def test_a_rank_that_closes_in_a_call_blames_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose program closes from another thread."""
    monkeypatch.setattr(rank_tree, "CLOSE_S", 0.0)
    over = threading.Event()

    def one(ranks: ThreadRanks) -> str:
        if ranks.rank == 1:
            assert over.wait(PATIENCE_S)
            return ""
        found = tree_of(ranks).begin_max(0)
        until(lambda: tree_of(ranks).calls > 0)
        ranks.close()
        told = raised(lambda: found.result(PATIENCE_S))
        over.set()
        return told

    assert "closed on this rank" in on_thread_ranks(2, one)[0]


def test_a_rank_that_cannot_take_part_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    made = os.eventfd

    def eventfd(count: int, flags: int) -> int:
        if threading.current_thread().name == "without":
            raise OSError(errno.EMFILE, "Too many open files")
        return made(count, flags)

    monkeypatch.setattr(os, "eventfd", eventfd)

    def one(ranks: ThreadRanks) -> str:
        network = ranks._network
        assert network is not None
        if ranks.rank == 1:
            threading.current_thread().name = "without"
            with pytest.raises(OSError, match="Too many"):
                RankTree(network, "more")
            return ""
        return await_failure(RankTree(network, "more"))

    assert "rank 1 cannot take part: " in on_thread_ranks(2, one)[0]


def test_a_forked_child_does_not_use_the_connections() -> None:
    def one(ranks: ThreadRanks) -> int:
        if ranks.rank == 0:
            return 0
        child = os.fork()
        if not child:
            told = raised(lambda: tree_of(ranks).all_gather(b""))
            os._exit(0 if "forked from" in told else 1)
        return os.waitpid(child, 0)[1]

    assert on_thread_ranks(2, one) == [0, 0]


def test_each_answer_is_one_call_late() -> None:
    def one(ranks: ThreadRanks) -> list[bool]:
        vote, found = LaggedVote(ranks.control), []
        for step in range(6):
            found.append(vote(ranks.rank == 1 and step in (1, 4)))
        return found

    assert on_thread_ranks(3, one) == [[False, False, True, False, False, True]] * 3


def test_a_vote_tells_that_another_rank_has_ended() -> None:
    def one(ranks: ThreadRanks) -> str:
        most = LaggedMax(tree_of(ranks))
        if ranks.rank == 1:
            ranks.close()
            return ""
        most.say(1)
        return raised(most.collect)

    assert "rank 1 " in on_thread_ranks(2, one)[0]


@contextmanager
def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(rank_network, "UNREACHABLE_S", seconds)
        yield


def test_one_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(ranks: ThreadRanks) -> str:
        tree_of(ranks).all_gather(None)
        network = ranks._network
        assert network is not None
        if ranks.rank == 0:
            network._listener.close()
            tree_of(ranks).all_gather(None)
            return ""
        tree_of(ranks).all_gather(None)
        with patience(monkeypatch, 0.0):
            return raised(partial(network.connect, 0, "more"))

    told = on_thread_ranks(2, one)[1]
    assert "rank 0 does not answer at " in told
    assert "HPCKIT_PEER_ADDRESS" in told
