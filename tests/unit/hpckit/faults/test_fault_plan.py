"""Whom a fault may hit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpckit.events.schema import event_of
from hpckit.faults.fault_plan import DrillKind, nodes_of, restarts_ranks
from hpckit.report.overview import Queue, look
from tests.unit.hpckit.report.sample_runs import submitted


def test_spares_are_no_nodes_of_the_generation() -> None:
    events = [
        event_of(1.0, "nodes_chosen", {"generation": 1, "nodes": [0, 1]}),
        event_of(2.0, "nodes_chosen", {"generation": 2, "nodes": [1, 2]}),
    ]
    assert list(nodes_of(events, 1, 2)) == [0, 1]
    assert list(nodes_of(events, 2, 2)) == [1, 2]
    assert list(nodes_of(events, 3, 2)) == [0, 1], "it was not told: all that there are"


def test_sigterm_restarts_the_ranks_of_a_slurm_job_alone(tmp_path: Path) -> None:
    here = look(submitted(tmp_path / "run"), Queue())
    assert here.spec is not None
    there = replace(here, spec=replace(here.spec, cluster=replace(here.spec.cluster, kind="slurm")))
    assert not restarts_ranks(here, DrillKind.WORKER_TERM)
    assert restarts_ranks(there, DrillKind.WORKER_TERM)
    assert restarts_ranks(here, DrillKind.WORKER)
