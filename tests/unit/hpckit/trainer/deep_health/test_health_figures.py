"""Which node, rank or link is wrong or slow, by tables of measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.spec import DeepHealthSpec
from hpckit.trainer.collectives.collective_figures import ExchangeTiming, rank_label
from hpckit.trainer.deep_health.health_figures import (
    HEALTH_REPORT,
    DeepHealthReport,
    HealthMeasurement,
    HealthProblem,
    Measure,
    WrongResult,
    health_problems,
    is_judged,
    share_of,
)

LIMITS = DeepHealthSpec(
    first=True,
    after_suspicion=True,
    valid_hours=24.0,
    exclude_slow=True,
    timeout_s=600.0,
    seconds=0.5,
    slow_matrix=0.8,
    slow_memory=0.8,
    slow_transfer=0.7,
    slow_link=0.75,
    slow_disk=0.3,
    slow_store=0.2,
)


def report(nodes: int, local: int, measure: Measure, values: list[float]) -> DeepHealthReport:
    """A value for each rank, or for each node."""
    each = len(values) == nodes * local
    found = [
        HealthMeasurement(measure, n // local if each else n, n if each else None, value)
        for n, value in enumerate(values)
    ]
    names, devices = tuple(f"gpu{n}" for n in range(nodes)), ("H100",) * (nodes * local)
    return DeepHealthReport(names, local, devices, tuple(found), is_complete=True)


def slow(nodes: int, local: int, measure: Measure, values: list[float]) -> list[int | None]:
    found = health_problems(report(nodes, local, measure, values), LIMITS)
    return [one.node if one.rank is None else one.rank for one in found]


@pytest.mark.parametrize(
    ("nodes", "local", "measure", "values", "expected"),
    [
        (4, 1, "memory", [100, 100, 79, 100], [2]),
        (4, 1, "memory", [100, 100, 81, 100], []),
        (4, 1, "memory", [100, 99, 300, 101], []),  # a fast one makes no other slow
        (5, 1, "memory", [50, 50, 100, 100, 100], [0, 1]),  # two of five
        (2, 1, "memory", [100, 1], []),  # of two, none can say which one is slow
        (1, 2, "memory", [100, 1], []),
        (1, 4, "matrix", [100, 100, 100, 50], [3]),  # one node: its ranks
        (3, 2, "matrix", [100, 40, 100, 100, 100, 100], [1]),
        # a node whose ranks are all slow is compared with the other nodes
        (3, 2, "matrix", [40, 40, 100, 100, 100, 100], [0, 1]),
        (4, 2, "disk_write", [10, 1, 10, 10], [1]),  # a value for each node
        (4, 2, "disk_write", [10, 4, 10, 10], []),  # disks differ much
        (4, 1, "host_to_device", [50, 25, 50, 50], [1]),  # half the PCIe lanes
        (4, 1, "matrix", [100, 0, 100, 100], [1]),
    ],
)
def test_who_is_slow(
    nodes: int, local: int, measure: Measure, values: list[float], expected: list[int]
) -> None:
    assert slow(nodes, local, measure, values) == expected


@given(
    st.lists(st.floats(95, 105), min_size=3, max_size=40),
    st.data(),
    st.sampled_from(["matrix", "memory", "host_to_device", "disk_read", "store_read"]),
)
def test_the_slow_half_is_found_and_no_other(
    values: list[float], data: st.DataObject, measure: Measure
) -> None:
    """A median holds while fewer than half of the others are slow."""
    most = (len(values) - 1) // 2 - (len(values) % 2 == 0)
    bad = data.draw(st.sets(st.sampled_from(range(len(values))), max_size=max(0, most)))
    factor = share_of(measure, LIMITS) * 0.85
    given_ = [value * factor if n in bad else value for n, value in enumerate(values)]
    found = slow(len(values), 1, measure, given_)
    if 2 * len(bad) < len(values) - 1:
        assert found == sorted(bad)


def test_only_devices_of_one_kind_are_compared() -> None:
    it = report(6, 1, "matrix", [100, 100, 100, 40, 40, 10])
    names = tuple(f"cuda:0 {kind}" for kind in ("H100", "H100", "H100", "A100", "A100", "A100"))
    found = health_problems(replace(it, devices=names), LIMITS)
    assert [(one.rank, one.median) for one in found] == [(5, 40)]


def test_a_problem_names_node_rank_device_measure_value_and_median() -> None:
    (found,) = health_problems(report(3, 1, "memory", [2e12, 1e12, 2e12]), LIMITS)
    assert (found.node, found.rank, found.device, found.measure) == (1, 1, "H100", "memory")
    assert (found.value, found.median) == (1e12, 2e12)
    assert found.text == (
        "rank 1 (H100): memory bandwidth at 1e+03 GB/s, 50% of the median 2e+03 GB/s of the other "
        "nodes (limit 80%)"
    )


def of_links(slow_pairs: set[tuple[int, int]], nodes: int = 4) -> list[HealthProblem]:
    it = report(nodes, 2, "memory", [1.0] * 2 * nodes)
    exchanges = [
        ExchangeTiming("nodes", f"gpu{a}", f"gpu{b}", 100, 4.0 if (a, b) in slow_pairs else 1.0)
        for a in range(nodes)
        for b in range(a + 1, nodes)
    ]
    return health_problems(replace(it, exchanges=tuple(exchanges)), LIMITS)


def test_a_node_with_slow_links_is_left_out_and_a_single_slow_link_is_named() -> None:
    (node,) = of_links({(0, 2), (1, 2), (2, 3)})
    assert (node.node, node.peer, node.excludes(LIMITS)) == (2, None, True)
    (link,) = of_links({(1, 3)})
    assert (link.node, link.peer, link.excludes(LIMITS)) == (1, 3, False)
    assert "the link between gpu1 and gpu3 is slow" in link.text
    assert of_links(set()) == []


def test_a_rank_with_slow_links_within_its_node_is_named() -> None:
    it = report(2, 4, "memory", [1.0] * 8)
    pairs = [
        ExchangeTiming(
            "ranks", rank_label(name, a), rank_label(name, b), 100, 4.0 if (name, b) == bad else 1.0
        )
        for bad in [("gpu1", 3)]
        for name in it.nodes
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    (found,) = health_problems(replace(it, exchanges=tuple(pairs)), LIMITS)
    assert (found.node, found.rank, found.excludes(LIMITS)) == (1, 7, True)


def test_a_wrong_result_counts_also_where_slow_nodes_stay() -> None:
    wrong = WrongResult(1, 1, "a matrix product is not that of the CPU")
    it = replace(report(2, 1, "memory", [1.0, 1.0]), wrong=(wrong,))
    limits = replace(LIMITS, exclude_slow=False)
    (found,) = health_problems(it, limits)
    assert (found.node, found.is_wrong, found.excludes(limits)) == (1, True, True)
    (other,) = health_problems(report(3, 1, "memory", [1.0, 0.1, 1.0]), limits)
    assert not other.excludes(limits)


def test_a_report_is_written_and_read() -> None:
    it = report(3, 1, "memory", [1.0, 2.0, 3.0])
    assert HEALTH_REPORT.validate_json(HEALTH_REPORT.dump_json(it)) == it
    assert is_judged(it)
    assert not is_judged(report(2, 8, "memory", [1.0] * 16))
    assert is_judged(report(1, 8, "memory", [1.0] * 8))
