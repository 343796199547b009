"""Who is named at a hang, from what the ranks were doing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpckit.hangs.culprit_search import HangCause, find_culprits
from hpckit.hangs.hang_snapshot import (
    CollectiveCall,
    HangSnapshot,
    ProcessState,
    RecordedCall,
    StackFrame,
    load_snapshot,
)
from hpckit.hangs.hang_words import describe_finding
from tests.unit.hpckit.hangs.snapshots import C10D, LOADING, STEP, elsewhere, group, waiting

ALL = range(4)
BACKWARD = (
    StackFrame("/venv/lib/python3.12/site-packages/torch/autograd/graph.py", 824, "_engine"),
    STEP,
)
IN_TORCH = (StackFrame(C10D, 1700, "all_reduce"), STEP)
OTHER = (StackFrame("/home/u/other.py", 5, "save"), STEP)


def world(*changed: HangSnapshot, size: int = 4) -> list[HangSnapshot]:
    """Ranks that wait in collective 7, but for these."""
    known = {one.rank: one for one in changed}
    return [known.get(rank) or waiting(rank, group(range(size), 7)) for rank in range(size)]


def recorded(*calls: tuple[int, str, str]) -> tuple[RecordedCall, ...]:
    return tuple(RecordedCall(*call) for call in calls)


CASES: dict[str, tuple[list[HangSnapshot], HangCause, tuple[int, ...], str]] = {
    "a loader": (
        world(elsewhere(2, group(ALL, 6))),
        HangCause.STUCK,
        (2,),
        "3 ranks (0, 1, 3) wait in all_reduce #7 of group default_pg (float32[4]) at train.py:31; "
        "rank 2 on n0 has not entered it: it is in next, data.py:88 (Queue.get, queue.py:171)",
    ),
    "a stopped process": (
        world(elsewhere(1, frames=(), state=ProcessState.STOPPED)),
        HangCause.STUCK,
        (1,),
        "rank 1 on n0 has not entered it: it is stopped by a signal or a debugger",
    ),
    "a node that does not answer": (
        world()[:3],
        HangCause.STUCK,
        (3,),
        "rank 3 has not entered it: it is on a node that has not answered",
    ),
    "a rank that answers nothing and has no stack": (
        world(elsewhere(1, frames=())),
        HangCause.STUCK,
        (1,),
        "rank 1 on n0 has not entered it: it is at an unknown place",
    ),
    "stopped and late are the stopped": (
        world(elsewhere(1, state=ProcessState.STOPPED), elsewhere(2, group(ALL, 6))),
        HangCause.STUCK,
        (1,),
        "stopped by a signal",
    ),
    "one is late, and one still moves": (
        world(elsewhere(1, group(ALL, 6)), elsewhere(2, group(ALL, 6), is_moving=True)),
        HangCause.STUCK,
        (1,),
        "rank 1 on n0",
    ),
    "three wait for a file, one waits for them": (
        [waiting(0, group(ALL, 7)), *(elsewhere(rank, group(ALL, 6)) for rank in (1, 2, 3))],
        HangCause.STUCK,
        (1, 2, 3),
        "rank 0 waits in all_reduce #7 of group default_pg (float32[4]) at train.py:31; 3 ranks "
        "(1-3) on n0 have not entered it: they are in next, data.py:88",
    ),
    "gradients are computed, the collective is native": (
        [
            *(elsewhere(rank, group(ALL, 7), frames=BACKWARD) for rank in (0, 1, 3)),
            elsewhere(2, group(ALL, 6)),
        ],
        HangCause.STUCK,
        (2,),
        "rank 2 on n0 is in next, data.py:88",
    ),
    "the collective is waited for elsewhere": (
        [
            replace(
                elsewhere(0, group((0, 1), 7), frames=(STEP,)),
                pending=CollectiveCall("all_reduce", "0", "int32[1]"),
            ),
            elsewhere(1, frames=(), state=ProcessState.STOPPED),
        ],
        HangCause.STUCK,
        (1,),
        "rank 0 waits in main, train.py:31 for all_reduce #7 of group default_pg (int32[1]); rank "
        "1 on n0 has not entered it: it is stopped by a signal or a debugger",
    ),
    "stuck with a collective that has not ended": (
        world(
            replace(elsewhere(2, group(ALL, 6)), pending=CollectiveCall("all_reduce", "0", "x[1]"))
        ),
        HangCause.STUCK,
        (2,),
        "rank 2 on n0 has not entered it: it is in next, data.py:88",
    ),
    "through two groups": (
        # 0 waits for 1 in tp0, 1 for 3 in dp1, 2 for 3 in tp1
        [
            waiting(0, group((0, 1), 5, "tp0"), group((0, 2), 3, "dp0")),
            waiting(1, group((1, 3), 4, "dp1"), group((0, 1), 4, "tp0")),
            waiting(2, group((2, 3), 5, "tp1"), group((0, 2), 3, "dp0")),
            elsewhere(3, group((2, 3), 4, "tp1"), group((1, 3), 3, "dp1")),
        ],
        HangCause.STUCK,
        (3,),
        "rank 3 on n0 has not entered it",
    ),
    "a pipeline: one receives from one that is stuck": (
        [
            elsewhere(0, group((0, 1), 2)),
            waiting(1, group((0, 1), 2), operation="recv", peer=0),
        ],
        HangCause.STUCK,
        (0,),
        "rank 1 waits in recv with rank 0 of group default_pg",
    ),
    "one skipped a collective": (
        world(waiting(3, group(ALL, 7), operation="barrier", size=None, line=40)),
        HangCause.MISMATCH,
        (3,),
        "ranks disagree on collective #7 of group default_pg: ranks 0-2 have entered all_reduce "
        "(float32[4]) at train.py:31; rank 3 on n0 has entered barrier at train.py:40",
    ),
    "another shape": (
        world(waiting(0, group(ALL, 7), size="float32[5]")),
        HangCause.MISMATCH,
        (0,),
        "rank 0 on n0 has entered all_reduce (float32[5])",
    ),
    "one of two skipped: nobody is named": (
        [
            waiting(0, group((0, 1), 7)),
            waiting(1, group((0, 1), 7), operation="barrier", size=None),
        ],
        HangCause.MISMATCH,
        (),
        "no majority shows which of them is wrong",
    ),
    "one of two skipped, and is a step ahead": (
        [
            waiting(0, group((0, 1), 7)),
            waiting(1, group((0, 1), 7), operation="barrier", size=None, step=10),
        ],
        HangCause.MISMATCH,
        (1,),
        "rank 1 on n0 has entered barrier",
    ),
    "skipped before, by torch's record": (
        # 1 was done with the broadcast, and waits in the next
        [
            waiting(
                0,
                group(range(3), 4, records=recorded((4, "broadcast", "float32[4]"))),
                operation="broadcast",
            ),
            waiting(
                1,
                group(
                    range(3),
                    5,
                    records=recorded(
                        (4, "broadcast", "float32[4]"), (5, "all_reduce", "float32[7]")
                    ),
                ),
                size="float32[7]",
            ),
            waiting(
                2,
                group(range(3), 4, records=recorded((4, "all_reduce", "float32[7]"))),
                size="float32[7]",
            ),
        ],
        HangCause.MISMATCH,
        (2,),
        "collective #4",
    ),
    "all_to_all may have other sizes": (
        world(
            *(waiting(r, group(ALL, 7), operation="all_to_all_single", size=f"x[{r}]") for r in ALL)
        ),
        HangCause.TRANSFER,
        (),
        "all ranks have entered all_to_all_single #7",
    ),
    "the network": (
        world(),
        HangCause.TRANSFER,
        (),
        "all ranks have entered all_reduce #7 of group default_pg (float32[4]) at train.py:31, and "
        "it does not end",
    ),
    "two groups in another order, one alone": (
        [
            *(waiting(r, group(range(3), 2, "a"), group(range(3), 1, "b")) for r in (0, 1)),
            waiting(2, group(range(3), 2, "b"), group(range(3), 1, "a")),
        ],
        HangCause.CYCLE,
        (2,),
        "ranks wait for each other, in another order than most: rank 2 on n0: 2 ranks (0, 1) wait "
        "in all_reduce #2 of group a",
    ),
    "two groups in another order, of two": (
        [
            waiting(0, group((0, 1), 2, "a"), group((0, 1), 1, "b")),
            waiting(1, group((0, 1), 2, "b"), group((0, 1), 1, "a")),
        ],
        HangCause.CYCLE,
        (),
        "the order of no majority is known",
    ),
    "stacks alone, as of a child process": (
        [
            *(elsewhere(rank, frames=IN_TORCH) for rank in (0, 1, 3)),
            elsewhere(2),
        ],
        HangCause.STUCK,
        (2,),
        "rank 2 on n0 is in next, data.py:88",
    ),
    "one whose groups are unknown waits, too": (
        world(elsewhere(1, frames=IN_TORCH)),
        HangCause.UNKNOWN,
        (),
        "the rank that the others wait for is unknown",
    ),
    "nothing is known": (
        [elsewhere(rank, frames=()) for rank in ALL],
        HangCause.UNKNOWN,
        (),
        "4 ranks (0-3) on n0 are at an unknown place",
    ),
    "all are stuck at one place": (
        [elsewhere(rank, group(ALL, 6)) for rank in ALL],
        HangCause.STUCK,
        (0, 1, 2, 3),
        "4 ranks (0-3) on n0 are in next, data.py:88",
    ),
    "nobody waits, and places differ": (
        [
            elsewhere(0, group(ALL, 6), frames=OTHER),
            *(elsewhere(r, group(ALL, 6)) for r in (1, 2, 3)),
        ],
        HangCause.UNKNOWN,
        (),
        "unknown: 3 ranks (1-3) on n0 are in next, data.py:88",
    ),
    "one rank alone": (
        [elsewhere(0)],
        HangCause.STUCK,
        (0,),
        "rank 0 on n0 is in next, data.py:88",
    ),
    "a slow rank": (
        [
            *(replace(one, has_advanced=True) for one in world()[:2]),
            replace(elsewhere(2, group(ALL, 6)), has_advanced=True),
            world()[3],
        ],
        HangCause.SLOW,
        (2,),
        "no rank hangs: ranks have advanced since the limit was exceeded; the others waited for "
        "rank 2 on n0, which was in next, data.py:88",
    ),
    "one advances, and another is stuck": (
        [replace(world()[0], has_advanced=True), *world(elsewhere(2, group(ALL, 6)))[1:]],
        HangCause.STUCK,
        (2,),
        "rank 2 on n0 has not entered it",
    ),
}


def found_for(ranks: Sequence[HangSnapshot], size: int) -> tuple[HangCause, tuple[int, ...], str]:
    """What is found from the ranks, as they come over the wire."""
    wire = [load_snapshot(json.loads(json.dumps(one.record()))) for one in ranks]
    finding = find_culprits(wire, size)
    return finding.cause, finding.culprits, describe_finding(finding)


@pytest.mark.parametrize("case", CASES)
def test_who_is_named(case: str) -> None:
    ranks, cause, culprits, text = CASES[case]
    size = 4 if case == "a node that does not answer" else len(ranks)
    found = found_for(ranks, size)
    assert found[:2] == (cause, culprits), found[2]
    assert text in found[2]


def test_a_thousand_ranks_are_compared_within_a_moment() -> None:
    """Rank 613 hangs; 1,024 ranks in groups of tensor, pipeline and data parallelism of 8 each
    wait directly or indirectly for it."""
    size, bad = 1024, 613
    ranks = []
    for rank in range(size):
        tp = range(rank // 8 * 8, rank // 8 * 8 + 8)
        pp = range(rank // 64 * 64 + rank % 8, rank // 64 * 64 + 64, 8)
        dp = range(rank % 64, size, 64)
        in_tp, in_pp, in_dp = bad in tp, bad in pp, bad in dp
        groups = (
            group(tp, 6 if rank == bad else 7, f"tp{tp.start}"),
            group(dp, 2 if rank == bad else 3 if in_dp else 2, f"dp{dp.start}"),
            group(pp, 4 if rank == bad else 5 if in_pp else 4, f"pp{pp.start}"),
            group(range(size), 1, "0"),
        )
        if rank == bad:
            ranks.append(elsewhere(rank, *groups))
            continue
        # a rank waits in the group of the one that hangs, or in its tensor parallel group
        first = 0 if in_tp else 1 if in_dp else 2 if in_pp else 0
        ranks.append(waiting(rank, groups[first], *(g for g in groups if g is not groups[first])))
    begun_s = time.process_time()
    cause, culprits, text = found_for(ranks, size)
    spent_s = time.process_time() - begun_s
    assert (cause, culprits) == (HangCause.STUCK, (bad,)), text
    assert "rank 613 on n76 has not entered it: it is in next, data.py:88" in text
    assert len(text) < 2000
    assert max(len(json.dumps(one.record())) for one in ranks) < 2000
    assert spent_s < 60, "it is 0.2 s, and not quadratic"


def test_the_frames_of_a_loader_are_the_programs() -> None:
    assert LOADING[1].file.endswith("data.py")
    call = CollectiveCall("all_reduce", "9")
    assert replace(waiting(0, group(ALL, 7)), call=call).group_of_call is None
