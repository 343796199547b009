"""Figures of collectives, and what is called slow among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.collectives.collective_figures import (
    OPERATIONS,
    REPORT,
    CollectiveReport,
    CollectiveTiming,
    ExchangeTiming,
    GroupKind,
    bus_factor,
    findings,
    is_wrong,
    middle_group,
    round_robin,
)

NODES = tuple(f"n{number}" for number in range(6))
USUAL_S = 0.01


def exchanges(
    members: tuple[str, ...],
    slow: dict[str, float],
    links: dict[tuple[str, str], float],
    kind: Literal["nodes", "ranks"] = "nodes",
) -> Iterator[ExchangeTiming]:
    """All pairs, which take longer by these factors."""
    for one, other in combinations(members, 2):
        factor = max(slow.get(one, 1.0), slow.get(other, 1.0), links.get((one, other), 1.0))
        yield ExchangeTiming(kind, one, other, 10**8, USUAL_S * factor)


def collective(group: GroupKind = "world", slowest_s: float = USUAL_S) -> CollectiveTiming:
    return CollectiveTiming("all_reduce", group, 8, 1 << 24, USUAL_S, "n2", slowest_s)


def report(
    *collectives: CollectiveTiming,
    slow: dict[str, float] | None = None,
    links: dict[tuple[str, str], float] | None = None,
    members: tuple[str, ...] = NODES,
    kind: Literal["nodes", "ranks"] = "nodes",
) -> CollectiveReport:
    pairs = tuple(exchanges(members, slow or {}, links or {}, kind))
    return CollectiveReport(members, 8, "nccl", "2.13.0", "H100", collectives, pairs)


@pytest.mark.parametrize("kind", ["nodes", "ranks"])
def test_healthy_links_are_not_named(kind: Literal["nodes", "ranks"]) -> None:
    assert findings(report(collective(), slow={"n3": 1.2}, kind=kind)) == []


@pytest.mark.parametrize("kind", ["nodes", "ranks"])
def test_a_slow_member_is_named_once_and_not_each_of_its_links(
    kind: Literal["nodes", "ranks"],
) -> None:
    (line,) = findings(report(slow={"n3": 2.0}, kind=kind))
    assert line == "n3 is slow: it exchanges 5 GB/s with its partners, 50% of the usual 10 GB/s"


def test_a_slow_link_between_healthy_nodes_is_named() -> None:
    (line,) = findings(report(links={("n1", "n4"): 4.0}))
    assert line.startswith("the link between n1 and n4 is slow: 2.5 GB/s, 25% of the usual")


def test_the_slowest_of_several_comes_first() -> None:
    first, second = findings(report(slow={"n0": 2.0, "n5": 3.0}))
    assert first.startswith("n5 is slow")
    assert second.startswith("n0 is slow")


def test_of_two_nodes_neither_can_be_told() -> None:
    assert findings(report(slow={"n0": 9.0}, members=NODES[:2])) == []


@given(st.integers(3, 20), st.data())
def test_up_to_a_third_of_slow_members_are_all_named_and_no_other(
    count: int, data: st.DataObject
) -> None:
    members = tuple(f"m{number}" for number in range(count))
    chosen = data.draw(st.sets(st.sampled_from(members), max_size=count // 3))
    factors = {name: data.draw(st.floats(1.5, 50.0)) for name in sorted(chosen)}
    found = findings(report(slow=factors, members=members))
    assert {line.partition(" is slow")[0] for line in found} == chosen


def test_a_group_that_is_slow_together_is_named() -> None:
    (line,) = findings(report(collective(), collective("node", 2 * USUAL_S)))
    assert line == (
        "the ranks of n2 are slow together: their collectives take 2.0 times as long as those of "
        "the other groups"
    )
    assert findings(report(collective("node", 1.2 * USUAL_S))) == []


def test_a_wrong_result_is_named_with_its_ranks() -> None:
    wrong = replace(collective(), wrong_ranks=tuple(range(20)))
    found = report(collective(), wrong)
    assert is_wrong(found)
    assert not is_wrong(report(collective()))
    (line,) = findings(found)
    assert line == (
        "all_reduce of 16,777,216 bytes over each world gave a WRONG result on rank "
        "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more"
    )


@given(st.integers(1, 40))
def test_each_meets_each_other_once(count: int) -> None:
    met: list[tuple[int, int]] = []
    for partners in round_robin(count):
        assert len(partners) == count
        assert partners.count(None) == count % 2
        for one, other in enumerate(partners):
            if other is not None:
                assert partners[other] == one != other
                met.append((one, other))
    assert sorted(met) == [(a, b) for a in range(count) for b in range(count) if a != b]


def test_bus_bandwidth_does_not_depend_on_the_number_of_ranks() -> None:
    """Of links of 1 byte per second, by the bytes that each algorithm sends over its links."""
    for ranks in (2, 8, 1000):
        sent = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}
        for operation in OPERATIONS:
            seconds = sent.get(operation, (ranks - 1) / ranks)
            timing = CollectiveTiming(operation, "world", ranks, 100, 100 * seconds, "", 0.0)
            assert timing.bandwidth == pytest.approx(1.0)
            assert bus_factor(operation, ranks) == pytest.approx(seconds)


def test_the_group_in_the_middle_stands_for_all() -> None:
    assert middle_group({"a": 1.0, "b": 9.0, "c": 2.0}) == (2.0, "b", 9.0)


def test_a_report_is_read_as_it_was_written() -> None:
    found = report(collective(), replace(collective("rail"), wrong_ranks=(3,)), slow={"n1": 2.0})
    assert REPORT.validate_json(REPORT.dump_json(found)) == found
    with pytest.raises(ValueError, match="all_reduse"):
        REPORT.validate_json(REPORT.dump_json(found).replace(b"all_reduce", b"all_reduse"))
