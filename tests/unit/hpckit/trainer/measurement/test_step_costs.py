"""What operations and layers cost, and below which roofline they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpckit.submit.compose import compose_spec
from hpckit.torch_internals import DeviceType, foreach_add_
from hpckit.trainer.measurement.activation_memory import ActivationMemory
from hpckit.trainer.measurement.cost_report import (
    COSTS,
    MachinePeaks,
    OperationCost,
    costs_file,
    roofline_point,
    share_of_limit,
)
from hpckit.trainer.measurement.machine_peaks import measure_peaks
from hpckit.trainer.measurement.operation_counter import OperationCount, OperationCounter
from hpckit.trainer.measurement.operation_times import operation_costs
from hpckit.trainer.measurement.step_costs import StepCostMeter

PEAKS = MachinePeaks("float32", flops_per_s=100.0, bytes_per_s=10.0)
CPU = torch.device("cpu")


def test_operations_count_what_they_compute_and_move() -> None:
    left, right = torch.ones(4, 5), torch.ones(5, 6)
    with OperationCounter() as counter:
        product = left @ right
        product.t()
        product.add_(1.0)
    product_count, view, added = (counter.counts[f"aten::{name}"] for name in ("mm", "t", "add_"))
    assert (product_count.flops, product_count.bytes) == (2 * 4 * 5 * 6, 4 * (20 + 30 + 24))
    assert (view.calls, view.bytes) == (1, 0)
    assert (added.flops, added.bytes) == (0, 4 * (24 + 24))


def test_what_is_only_written_or_only_allocated_is_not_read() -> None:
    left, right = torch.ones(8), torch.ones(8)
    with OperationCounter() as counter:
        left.copy_(right)
        torch.empty_like(left).fill_(2.0)
        left.zero_()
        torch.zeros_like(left)
        torch.add(left, right, out=torch.empty(8))
        foreach_add_([left, right], [right, left])
    moved = {name.removeprefix("aten::"): count.bytes for name, count in counter.counts.items()}
    size = 8 * 4
    assert (moved["copy_"], moved["fill_"], moved["zero_"]) == (2 * size, size, size)
    assert {moved[name] for name in ("empty_like", "empty")} == {0}
    assert moved["zeros_like"] == size
    assert (moved["add"], moved["_foreach_add_"]) == (3 * size, 2 * 3 * size)


def test_the_backward_pass_and_attention_count_too() -> None:
    query = torch.ones(1, 2, 8, 4, requires_grad=True)
    with OperationCounter() as counter:
        functional.scaled_dot_product_attention(query, query, query).sum().backward()  # type: ignore[no-untyped-call]
    flops = {name: count.flops for name, count in counter.counts.items() if count.flops}
    assert len(flops) == 2
    forward, backward = flops.values()
    assert forward == 2 * 2 * (2 * 8 * 8 * 4)
    assert backward > forward


def test_an_expanded_tensor_moves_its_own_memory() -> None:
    with OperationCounter() as counter:
        torch.ones(1).expand(1000).sum()
    assert counter.counts["aten::sum"].bytes == 4 + 4


def event(name: str, cpu_us: float, children: tuple[Any, ...] = (), **fields: Any) -> Any:
    """An event of torch's profiler."""
    inner = sum(child.cpu_time_total for child in children)
    made = SimpleNamespace(
        name=name,
        cpu_time_total=cpu_us,
        self_cpu_time_total=cpu_us - inner,
        cpu_children=[*children],
        cpu_parent=None,
        kernels=[SimpleNamespace(name=n, duration=us) for n, us in fields.get("kernels", ())],
        device_type=DeviceType.CPU,
    )
    for child in children:
        child.cpu_parent = made
    return made


def with_descendants(*roots: Any) -> list[Any]:
    return [found for root in roots for found in (root, *with_descendants(*root.cpu_children))]


def test_times_belong_to_the_outermost_operation_that_was_counted() -> None:
    inner = event("aten::mkldnn_convolution", 90.0, kernels=[("sgemm", 300.0), ("copy", 10.0)])
    convolution = event("aten::convolution", 100.0, (inner,))
    backward = event("autograd::engine::evaluate_function", 50.0, (event("aten::sum", 40.0),))
    step = event("ProfilerStep#1", 500.0, (event("aten::conv2d", 110.0, (convolution,)), backward))
    counts = {"aten::convolution": OperationCount(1, 64.0, 16.0)}
    first, second = operation_costs(with_descendants(step), 2, counts)
    assert (first.name, first.kernel, first.calls) == ("aten::convolution", "sgemm", 0.5)
    assert [first.cpu_s, first.device_s] == pytest.approx([50e-6, 155e-6])
    assert (first.flops, first.bytes, first.seconds) == (64.0, 16.0, first.device_s)
    assert (second.name, second.flops, second.kernel) == ("aten::sum", None, "aten::sum")
    assert second.cpu_s == pytest.approx(20e-6)
    assert second.device_s == second.seconds == 0  # no time of the GPU, though it took the CPU's


def test_compiled_code_counts_as_one_operation() -> None:
    product = event("aten::mm", 30.0)
    call = event("## Call CompiledFxGraph abc ##", 100.0, (product,))
    found = operation_costs(with_descendants(event("CompiledFunction", 120.0, (call,))), 1, {})
    assert [one.name for one in found] == ["compiled blocks", "aten::mm"]
    assert [one.seconds for one in found] == pytest.approx([70e-6, 30e-6])
    assert {one.device_s for one in found} == {None}


@pytest.mark.parametrize(
    ("flops", "moved", "bound", "limit"),
    [(50.0, 10.0, "memory", 50.0), (500.0, 10.0, "compute", 100.0)],
)
def test_the_roofline_says_what_bounds_an_operation(
    flops: float, moved: float, bound: str, limit: float
) -> None:
    found = roofline_point(flops, moved, 10.0, PEAKS)
    assert found is not None
    assert (found.bound, found.limit, found.reached) == (bound, limit, flops / 10)
    cost = OperationCost("a", 1, 10.0, None, "b", flops, moved)
    assert share_of_limit(cost, PEAKS) == pytest.approx(max(flops / 100, moved / 10) / 10)
    assert roofline_point(None, None, 1.0, PEAKS) is None
    assert share_of_limit(replace(cost, flops=None), PEAKS) is None


class Two(nn.Module):
    """Two layers, of which the second one is deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleDict({"0": nn.Sequential(nn.ReLU(), nn.Linear(16, 4))})

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.blocks["0"](self.first(given))
        return found


def test_layers_keep_what_the_backward_pass_needs_and_no_parameters() -> None:
    model, memory = Two(), ActivationMemory({})
    memory = ActivationMemory({"model": model})
    given = torch.ones(2, 8)
    with memory.measure():
        for _ in range(2):  # micro-batches, of which only the first one counts
            model(given).sum().backward()
    found = [(layer.name, layer.kind, layer.bytes) for layer in memory.layers]
    # the input of the first layer; the output of the ReLU, which the second layer keeps, too
    assert found == [("first", "Linear", 2 * 8 * 4), ("blocks.0", "Sequential", 2 * 16 * 4)]


def test_rates_of_a_device_are_measured() -> None:
    peaks = measure_peaks(CPU, torch.float32, budget_s=0.0)
    assert peaks.dtype == "float32"
    assert peaks.flops_per_s > 1e8
    assert peaks.bytes_per_s > 1e7
    assert peaks.ridge == peaks.flops_per_s / peaks.bytes_per_s


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_file_has_the_costs_of_the_steps_that_were_asked_for(
    tmp_path: Path, is_compiled: bool
) -> None:
    words = ["model=gpt_nano", "debug.profile.start=3", "debug.profile.steps=2"]
    words += ["debug.profile.costs=true", f"memory.compile={is_compiled}"]
    spec, model = compose_spec(words), Two()
    meter = StepCostMeter(spec, CPU, {"model": model, "step": 1}, tmp_path / "new", "g001-rank0")
    for step in range(1, 7):
        meter.begin_step(step)
        model(torch.ones(2, 8)).sum().backward()
    meter.close()
    file = costs_file(tmp_path / "new")
    assert file is not None
    found = COSTS.validate_json(file.read_bytes())
    assert (found.first_step, found.steps, found.device) == (3, 2, "cpu")
    assert (found.is_compiled, found.is_gpu) == (is_compiled, False)
    by_name = {one.name: one for one in found.operations}
    assert by_name["aten::linear" if is_compiled else "aten::addmm"].calls == 2
    assert all(one.seconds > 0 for one in found.operations)
    counted = [one.flops for one in found.operations if one.flops]
    assert bool(counted) is bool(found.layers) is not is_compiled


def test_what_ends_early_writes_no_costs(tmp_path: Path) -> None:
    spec = compose_spec(["model=gpt_nano", "debug.profile.start=3", "debug.profile.costs=true"])
    meter = StepCostMeter(spec, CPU, {}, tmp_path, "g001-rank0")
    for step in range(1, 5):
        meter.begin_step(step)
    meter.close()
    assert costs_file(tmp_path) is None


@pytest.mark.parametrize("resumed", [4, 6, 7])
def test_an_attempt_that_begins_after_the_first_of_the_steps_measures_nothing(
    resumed: int, tmp_path: Path
) -> None:
    spec = compose_spec(["model=gpt_nano", "debug.profile.start=3", "debug.profile.costs=true"])
    meter = StepCostMeter(spec, CPU, {}, tmp_path, "g002-rank0")
    for step in range(resumed, 10):
        meter.begin_step(step)
    meter.close()
    assert costs_file(tmp_path) is None


def test_costs_need_a_first_step() -> None:
    with pytest.raises(ValueError, match=r"debug.profile.costs: give the first step"):
        compose_spec(["debug.profile.costs=true"])
    words = ["debug.profile.costs=true", "debug.profile.start=8", "train.steps=10"]
    with pytest.raises(ValueError, match="steps 8 to 11 are not all within the 10"):
        compose_spec(words)
