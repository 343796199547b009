"""All node-hours have a cause, and the right one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.schema import Event, event_of
from hpckit.report.cost.cost_summary import CostRates, Prices, RunCost, cost_of, sum_of
from hpckit.report.cost.energy import parse_energy
from hpckit.report.cost.node_hours import (
    UNREPORTED,
    HeldNodes,
    held_nodes,
    node_seconds,
    queued_seconds,
)
from hpckit.report.history import build_history
from tests.unit.hpckit.specs_and_processes import make_spec


class Told:
    """Events that are told one after the other."""

    def __init__(self) -> None:
        self.now, self.events = 1000.0, list[Event]()
        self._of: dict[str, Any] = {}

    def tell(self, kind: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append(event_of(self.now, kind, {**fields}))

    def start(self, job: str, hosts: int) -> None:
        names = [f"n{number}" for number in range(hosts)]
        self.tell("run_started", steps=100, job=job, hosts=names)

    def generation(self, number: int, nodes: int, step: int, after: float) -> None:
        self._of = {"generation": number, "attempt": 0}
        self.tell("generation_started", generation=number, nodes=nodes, from_step=step)
        place = {"step": step, "world_size": nodes, "samples": 50, "restore_s": 1.0}
        self.tell("training_started", after, **self._of, **place)

    def step(self, step: int, seconds: float, **parts: float) -> None:
        self.tell("step", seconds, **self._of, step=step, step_s=seconds, other_s=0.0, **parts)

    def end(self, verdict: str, after: float, step: int, saved: int, *, final: bool) -> None:
        fields = {"verdict": verdict, "reason": "", "final": final, "step": step}
        self.tell("generation_ended", after, **self._of, **fields, saved_step=saved)


def preempted_run() -> Told:
    """Two jobs of three nodes, of which one is a spare. Of four steps of the first one, two are
    lost; it waits 500 s for the second one."""
    it = Told()
    it.start("1", 3)
    it.generation(1, 2, 0, 100.0)
    for step in range(1, 5):
        it.step(step, 10.0, checkpoint_stall_s=1.0, data_wait_s=2.0)
    it.end("preempted", 20.0, 4, 2, final=False)
    it.tell("run_ended", verdict="preempted", status=0)
    it.now += 500.0
    it.start("2", 3)
    it.generation(2, 2, 2, 50.0)
    for step in range(3, 7):
        it.step(step, 10.0)
    it.end("done", 5.0, 6, 6, final=True)
    it.tell("run_ended", verdict="done", status=0)
    return it


def seconds_of(it: Told) -> dict[str, float]:
    held = held_nodes(it.events, 1, it.now)
    return node_seconds(build_history(it.events), it.events, held)


def test_time_of_jobs_is_that_of_their_nodes() -> None:
    held = held_nodes(preempted_run().events, 1, 0.0)
    assert held == [HeldNodes(1000.0, 1160.0, 3), HeldNodes(1660.0, 1755.0, 3)]
    assert queued_seconds(held) == 500.0


def test_each_cause_has_its_node_seconds() -> None:
    assert seconds_of(preempted_run()) == pytest.approx(
        {
            "start-up": 3 * 100.0,
            "trained": 2 * (2 * 7.0 + 4 * 10.0),
            "checkpoint stall": 2 * 2 * 1.0,
            "waiting for data": 2 * 2 * 2.0,
            # the steps 3 and 4, the end of the first job, and the start of the second one
            "lost: preempted": 2 * 20.0 + 3 * 20.0 + 3 * 50.0,
            "end: last save and exit": 3 * 5.0,
            "idle nodes": 40.0 + 40.0,
        }
    )


def test_a_spike_is_what_a_rollback_is_for() -> None:
    it = Told()
    it.start("1", 1)
    it.generation(1, 1, 0, 10.0)
    it.step(1, 10.0)
    it.step(2, 10.0)
    position = {"first_position": 4, "end_position": 8, "is_left_out": True}
    it.tell("spike", first_step=2, step=2, what="", **position)
    it.tell("training_started", 30.0, generation=1, attempt=1, step=1, world_size=1, samples=9)
    it.tell("step", 10.0, generation=1, attempt=1, step=2, step_s=10.0)
    it.tell("run_ended", verdict="done", status=0)
    found = seconds_of(it)
    assert found["lost: spike"] == 10.0 + 30.0
    assert found["trained"] == 20.0


def test_a_program_that_reports_no_steps_is_no_start_up() -> None:
    it = Told()
    it.start("1", 2)
    it.tell("worker_started", 10.0, rank=0, generation=1)
    it.tell("run_ended", 90.0, verdict="done", status=0)
    unknown = {"start-up": 20.0, UNREPORTED: 180.0}
    for spec, due in (
        (make_spec(command="program"), unknown),
        (make_spec(), {"start-up": 200.0}),
    ):
        cost = cost_of("t", build_history(it.events), it.events, spec, it.now)
        found = {cause: 3600 * hours for cause, hours in cost.node_hours.items()}
        assert found == pytest.approx(due)
        assert cost.ettr == (None if due is unknown else 0.0)


def test_a_step_without_an_update_is_not_trained() -> None:
    it = Told()
    it.start("1", 1)
    it.generation(1, 1, 0, 10.0)
    it.tell("update_skipped", step=2, what="", is_skipped=True)
    it.tell("step", 40.0, generation=1, attempt=0, step=4, step_s=10.0)  # of four steps
    it.tell("run_ended", verdict="done", status=0)
    assert seconds_of(it)["skipped updates"] == pytest.approx(10.0)


def test_checks_of_computations_are_no_stall() -> None:
    it = Told()
    it.start("1", 1)
    it.generation(1, 1, 0, 10.0)
    it.step(1, 10.0, checkpoint_stall_s=1.0, certification_s=3.0)
    it.tell("run_ended", verdict="done", status=0)
    found = seconds_of(it)
    assert (found["checkpoint stall"], found["checks of computations"]) == (1.0, 3.0)
    assert found["trained"] == 6.0


def test_stragglers_cost_what_all_others_waited() -> None:
    it = Told()
    it.start("1", 1)
    it.generation(1, 1, 0, 10.0)
    it.tell("straggler", rank=3, host="n0", step=1, z=9.0, excess=0.25)
    it.step(1, 10.0)
    it.tell("straggler_over", rank=3)
    it.step(2, 10.0)
    it.tell("run_ended", verdict="done", status=0)
    found = seconds_of(it)
    assert found["stragglers"] == pytest.approx(2.0)
    assert found["trained"] == pytest.approx(18.0)


def test_a_window_of_traced_steps_measures_what_is_estimated_elsewhere() -> None:
    it = Told()
    it.start("1", 1)
    it.generation(1, 1, 0, 10.0)
    it.tell("straggler", rank=3, host="n0", step=1, z=9.0, excess=0.25)
    it.step(1, 10.0)
    for step, share in ((2, 0.4), (3, 0.0)):
        it.step(step, 10.0)
        named: dict[str, Any] = {
            name: [] for name in ("nodes", "ranks", "hosts", "excesses", "phases")
        }
        shares: dict[str, Any] = {
            "share": share,
            "spread": 0.5,
            "collectives": 0.1,
            "traces": 12,
            "step_s": 1.0,
        }
        it.tell("straggler_cost", step=step, seconds=5.0 * step - 5.0, **shares, **named)
    it.step(4, 10.0)
    it.tell("run_ended", verdict="done", status=0)
    found = seconds_of(it)
    assert found["stragglers"] == pytest.approx(10 * (0.2 + 0.4))


def test_a_killed_supervisor_counts_up_to_its_last_event_and_a_live_one_up_to_now() -> None:
    it = Told()
    it.start("1", 2)
    it.tell("generation_started", 10.0, generation=1, nodes=2, from_step=0)
    it.now += 100.0
    it.start("2", 2)
    held = held_nodes(it.events, 1, it.now + 7.0)
    assert [one.seconds for one in held] == [10.0, 7.0]


def test_a_run_that_never_trained_has_only_started() -> None:
    it = Told()
    it.start("1", 2)
    it.tell("run_failed", 30.0, error="x")
    assert seconds_of(it) == {"start-up": 60.0}
    assert seconds_of(Told()) == {}


KINDS = st.sampled_from(["step", "lose", "end", "kill", "start", "wait", "back"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 40)), max_size=30), st.integers(1, 4))
def test_all_the_time_of_jobs_is_divided(what: list[tuple[str, int]], hosts: int) -> None:
    it, step, generation = Told(), 0, 0
    it.start("0", hosts)
    for kind, number in what:
        match kind:
            case "step":
                step += 1
                it.tell("step", number, generation=generation, step=step, step_s=float(number))
            case "lose":
                step = max(0, step - number)
                generation += 1
                it.generation(generation, 1 + number % hosts, step, 3.0)
            case "end":
                it.end("crash", number, step, step, final=False)
                it.tell("run_ended", verdict="crash", status=1)
            case "start":
                it.start(str(number), hosts)
            case "wait":
                it.now += number
            case "back":  # the clock of another node is behind
                it.now -= number / 10
    events = sorted(it.events, key=lambda event: event.time)
    held = held_nodes(events, 1, it.now)
    found = node_seconds(build_history(events), events, held)
    assert sum(found.values()) == pytest.approx(sum(one.seconds * one.nodes for one in held))
    assert all(seconds > 0 for seconds in found.values())


def test_money_and_energy_are_of_all_nodes() -> None:
    it = preempted_run()
    spec = make_spec({"cluster.device": "cuda", "launch.nproc_per_node": 8})
    history, joules = build_history(it.events), {"1": 3.6e6, "2": 7.2e6}
    cost = cost_of("t", history, it.events, spec, it.now, CostRates(Prices(gpu=2.0), joules))
    hours = 3 * 255 / 3600
    assert cost.total_hours == pytest.approx(hours)
    assert cost.gpu_hours == pytest.approx(8 * hours)
    assert cost.money == pytest.approx(16 * hours)
    assert cost.energy_kwh == pytest.approx(3.0)
    assert cost.queued_hours == pytest.approx(500 / 3600)
    assert cost.ettr == pytest.approx(60 / 755)
    other = cost_of("u", history, it.events, spec, it.now, CostRates(Prices(node=3.0), {"1": 1.0}))
    assert other.energy_kwh is None, "it is not known of all jobs"
    whole = sum_of([cost, other])
    assert whole.names == ("t", "u")
    assert whole.money == pytest.approx(16 * hours + 3 * hours)
    assert whole.node_hours["trained"] == pytest.approx(2 * cost.node_hours["trained"])


def test_a_run_without_gpus_has_no_price_of_a_gpu() -> None:
    events = preempted_run().events
    for device in ("cpu", "auto"):
        spec = make_spec({"cluster.device": device})
        cost = cost_of("t", build_history(events), events, spec, 0.0, CostRates(Prices(gpu=2.0)))
        assert (cost.gpu_hours, cost.money) == (None, None)
    assert isinstance(cost, RunCost)


def test_energy_that_was_not_measured_is_left_out() -> None:
    text = "12|3600\n13|0\n14|\n15|18446744073709551614\n16_1|55\nslurm says: no\n"
    assert parse_energy(text) == {"12": 3600.0, "16_1": 55.0}
