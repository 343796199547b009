"""What is computed and what is communicated is told apart, and seldom enough."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._autograd import DeviceType

from hpckit.trainer.timing.step_trace import (
    StepTracer,
    computation_and_collectives,
    is_trace_due,
    length,
    merged,
    outside,
)

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def moments(some: list[tuple[int, int]]) -> set[int]:
    return {moment for begin, end in some for moment in range(begin, end)}


@given(spans, spans)
def test_time_is_counted_as_one_would_on_fingers(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    assert moments(merged(some)) == moments(some)
    assert length(some) == len(moments(some))
    assert outside(some, others) == len(moments(some) - moments(others))


@dataclass(frozen=True)
class Happened:
    """An event as the profiler tells of it."""

    named: str
    begin: int
    end: int
    thread: int = 1
    device: DeviceType = DeviceType.CPU
    annotation: bool = False

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.begin

    def end_ns(self) -> int:
        return self.end

    def start_thread_id(self) -> int:
        return self.thread

    def device_type(self) -> DeviceType:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation


def test_on_a_gpu_kernels_count_and_no_annotations() -> None:
    gpu = DeviceType.CUDA
    busy, communicating = computation_and_collectives(
        [
            Happened("cudaLaunchKernel", 0, 3),
            Happened("sm90_xmma_gemm_bf16bf16", 5, 9, 7, gpu),
            Happened("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", 8, 20, 13, gpu),
            Happened("nccl:_all_gather_base", 8, 20, 13, gpu, annotation=True),
            Happened("FSDP::all_gather", 2, 30, 7, gpu, annotation=True),
            Happened("Memcpy DtoD (Device -> Device)", 21, 22, 7, gpu),
        ]
    )
    assert (busy, communicating) == ([(5, 9), (21, 22)], [(8, 20)])


def test_on_the_cpu_what_gloos_threads_add_up_is_communication() -> None:
    busy, communicating = computation_and_collectives(
        [
            Happened("aten::mm", 0, 5),
            Happened("gloo:all_reduce", 3, 9, thread=2, annotation=True),
            Happened("aten::add_", 6, 7, thread=2),
            Happened("FSDP::pre_forward", 0, 30, annotation=True),
            Happened("aten::mul", 8, 12, thread=4),
        ]
    )
    assert (busy, communicating) == ([(0, 5), (8, 12)], [(3, 9)])


@pytest.mark.parametrize(
    ("cost_s", "since_s", "share", "due"),
    [
        (0.2, 99.0, 0.002, False),
        (0.2, 101.0, 0.002, True),
        (0.2, 1e9, 0.0, False),
        (0.0, 0.0, 0.0, False),
    ],
)
def test_traces_take_no_more_than_their_share(
    cost_s: float, since_s: float, share: float, due: bool
) -> None:
    assert is_trace_due(cost_s, since_s, share) is due


def test_a_step_is_traced_when_planned_and_not_beside_another_profiler() -> None:
    tracer = StepTracer(torch.device("cpu"), 1.0)

    def step() -> bool:
        tracer.begin()
        torch.ones(8).sum()
        tracer.end()
        return tracer.is_taken

    assert not step()
    tracer.plan(0.0, 1.0)
    assert step()
    traced = tracer.take()
    assert traced is not None
    assert (traced.communication_s, traced.exposed_s) == (0.0, 0.0)
    assert traced.own_s == traced.step_s > 0
    assert tracer.take() is None
    tracer.plan(0.0, 1.0)
    assert not step(), "one at a time"
    tracer.plan(0.0, 1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert step(), "all ranks go on to gather"
    assert tracer.take() is None
