"""The private parts of torch that this package uses, and nothing else of it. Requires torch.

No other file of the package names one of them. `INTERNALS` says what fails once torch has one no
more; a test looks for each of them in the installed torch. Names that are public in a newer torch
are taken from there. What takes long to import is imported by the functions that need it. Seen in
torch 2.7 to 2.15, unless a line says otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.distributed._functional_collectives import (
    AsyncCollectiveTensor,
    all_to_all_single_autograd,
)
from torch.distributed.elastic.multiprocessing import api as worker_processes
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, parse_args
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DeviceType",
    "LaunchConfig",
    "TorchDispatchMode",
    "all_to_all_single_autograd",
    "config_from_args",
    "parse_args",
    "parse_rendezvous_endpoint",
    "worker_processes",
]

INTERNALS = {
    "torch.nn.functional.grouped_mm | torch._grouped_mm": "No mixture of experts. Public since "
    "2.10; before 2.9 there is none for CPUs.",
    "torch.nn.functional.scaled_mm | torch._scaled_mm": "No training in fp8. The public function, "
    "since 2.10, has other arguments, so the private one is called.",
    "torch._foreach_lerp_": "Averages and momenta are updated one by one.",
    "torch._foreach_lerp": "Muon does not run.",
    "torch._foreach_mul_": "Gradients are clipped one by one.",
    "torch._foreach_norm": "The norm of the gradients takes a call for each of them.",
    "torch._foreach_add_": "Moments of BatchNorm are added one by one.",
    "torch._foreach_zero_": "Moments of BatchNorm are zeroed one by one.",
    "torch._fused_sdp_choice": "The kernel of attention that torch chooses is not known.",
    "torch._C._autograd.DeviceType": "Steps are not traced for their communication.",
    "torch._C": "The first use of CUDA before workers are forked is not found.",
    "torch.autograd._profiler_enabled": "A step that is profiled may be traced, too.",
    "torch.cuda._is_in_bad_fork": "A forked worker does not know that it cannot use CUDA.",
    "torch.cuda.memory._record_memory_history": "No memory snapshot. In torch's documentation.",
    "torch.cuda.memory._dump_snapshot": "No memory snapshot. In torch's documentation.",
    "torch.distributed._functional_collectives.all_to_all_single_autograd": "No expert "
    "parallelism.",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor": "Checks of computations may "
    "read a gradient before its collective has ended.",
    "torch.distributed._composable.replicate_with_fsdp.replicate": "A mesh of replicas has a "
    "second dimension of size 1. Over one dimension since 2.10.",
    "torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker": "No fake step.",
    "torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker._root_mod": "No fake step.",
    "torch.distributed._tools.mem_tracker.MemTracker": "No fake step.",
    "torch._subclasses.fake_tensor.FakeTensorMode": "No fake step.",
    "torch.testing._internal.distributed.fake_pg.FakeStore": "No fake step.",
    "torch.utils._pytree.tree_leaves": "No fake step.",
    "torch._C._DisableTorchDispatch": "No fake step.",
    "torch.distributed.tensor.debug._clear_sharding_prop_cache | "
    "torch.distributed.tensor.DTensor._op_dispatcher": "A second fake step may use a mesh of the "
    "first. The function is there since 2.11.",
    "torch.utils._python_dispatch.TorchDispatchMode": "Operations are not counted. In torch's "
    "documentation.",
    "torch.ops.aten.add_.Tensor._schema": "Bytes that an operation writes to what it was given are "
    "not counted.",
    "torch.utils._triton.has_triton": "Missing compilers are not found before a run starts.",
    "torch._inductor.cpp_builder.get_cpp_compiler": "As for has_triton.",
    "torch._inductor.exc.InvalidCxxCompiler": "As for has_triton.",
    "torch.ops.aten._scaled_mm": "Selective activation checkpointing computes it twice.",
    "torch.ops.aten._scaled_dot_product_flash_attention": "As for aten._scaled_mm.",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "As for aten._scaled_mm.",
    "torch.ops.aten._scaled_dot_product_efficient_attention": "As for aten._scaled_mm.",
    "torch.ops.aten._scaled_dot_product_cudnn_attention": "As for aten._scaled_mm.",
    "torch.distributed.run.config_from_args": "No worker is started: LaunchConfig is documented, "
    "and its command line is not.",
    "torch.distributed.run.parse_args": "As for config_from_args.",
    "torch.distributed.launcher.api.LaunchConfig": "As for config_from_args.",
    "torch.distributed.launcher.api.elastic_launch": "No worker is forked "
    "(hpckit.trainer.torchrun.forked_workers).",
    "torch.distributed.run.main": "No worker is started as a program "
    "(hpckit.trainer.torchrun.spawned_workers).",
    "torch.distributed.elastic.rendezvous.utils.parse_rendezvous_endpoint": "Agents do not find "
    "the rendezvous.",
    "torch.distributed.distributed_c10d._world": "hpckit.hangs.own_snapshot, which looks these "
    "three up among the loaded modules, knows no process groups: stacks alone are compared.",
    "torch.distributed.ProcessGroup._get_sequence_number_for_group": "As above.",
    "torch._C._distributed_c10d._dump_fr_trace_json | "
    "torch._C._distributed_c10d._dump_nccl_trace_json": "At a hang, the collectives before the "
    "present one are not compared.",
    "torch.distributed.elastic.multiprocessing.api.MultiprocessContext._is_done": "torchrun waits "
    "for a worker that has ended by os._exit(0).",
    "torch.distributed.elastic.multiprocessing.api.MultiprocessContext._return_values": "As above.",
    "torch.distributed.elastic.multiprocessing.api.MultiprocessContext._pc": "As above.",
    "torch.distributed.elastic.multiprocessing.api.signal": "Before 2.10, torchrun ends workers at "
    "signals that are for the supervisor. Later it has --signals-to-handle.",
}
"""What fails without each of them; of two names, either one serves."""

SINCE = {
    "torch.nn.functional.grouped_mm | torch._grouped_mm": (2, 8),
    "torch.distributed._composable.replicate_with_fsdp.replicate": (2, 9),
}
"""The first version that has a name, of those that the oldest one does not have."""

foreach_lerp_ = torch._foreach_lerp_
foreach_lerp = torch._foreach_lerp
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_add_ = torch._foreach_add_
foreach_zero_ = torch._foreach_zero_
scaled_mm = torch._scaled_mm
fused_attention_choice = torch._fused_sdp_choice
native_module = torch._C
record_memory_history = torch.cuda.memory._record_memory_history
dump_memory_snapshot: Callable[[str], None] = torch.cuda.memory._dump_snapshot
is_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

_aten = torch.ops.aten
SCALED_PRODUCT = _aten._scaled_mm.default
ATTENTION_OPERATORS = frozenset(
    (
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    )
)


def count_status_0_as_return() -> None:
    """Have torchrun count a worker that is a fork and has ended with status 0, as by `os._exit` or
    as another program (`os.execv`), as one that has returned. It would wait for its result for
    ever."""

    def is_done(context: Any) -> bool:
        for rank, process in enumerate(context._pc.processes):
            if process.exitcode == 0:
                context._return_values.setdefault(rank, None)
        is_whole: bool = len(context._return_values) == context.nprocs
        return is_whole

    vars(worker_processes)["MultiprocessContext"]._is_done = is_done


def is_in_bad_fork() -> bool:
    """Whether this process was forked after CUDA was used, so that torch refuses it CUDA."""
    return torch.cuda._is_in_bad_fork()


def grouped_mm(rows: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
    """Return the product of each group of rows with its matrix, as `functional.grouped_mm`.

    Raises:
        RuntimeError: this torch does not have the function.
    """
    found = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise RuntimeError(f"a mixture of experts needs torch 2.9, not {torch.__version__}")
    product: Tensor = found(rows, matrices, offs=offs)
    return product


def replicate_over_one_dimension() -> Callable[..., Any] | None:
    """Return the function by which torch replicates a model over a mesh of one dimension, which it
    has since 2.10; None if there is none."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate
    except ImportError:
        return None
    return replicate if "mesh" in inspect.signature(replicate).parameters else None


def awaited(tensor: Tensor) -> Tensor:
    """Return the result of the collective that `tensor` stands for, or `tensor` itself."""
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.wait()
    return tensor


def has_triton() -> bool:
    """Whether there is a Triton for this machine's GPU."""
    from torch.utils import _triton

    return _triton.has_triton()


def has_cpp_compiler() -> bool:
    """Whether torch finds a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # takes seconds
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


def written_arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return those of the arguments that an operator of torch writes to."""
    found = []
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[number] if number < len(args) else kwargs.get(argument.name))
    return found


def clear_sharding_cache() -> None:
    """Clear the cache in which DTensor keeps meshes whose process groups are gone, because a later
    mesh may be equal to one of them."""
    from torch.distributed.tensor import debug  # imports torch's inductor, which takes a second

    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    else:  # before torch 2.11
        propagator = DTensor._op_dispatcher.sharding_propagator
        propagator.propagate_op_sharding.cache.cache_clear()


def disabled_dispatch() -> Any:
    """Return the context in which operators do not call `__torch_dispatch__`."""
    return torch._C._DisableTorchDispatch()


def track_all_parts(tracker: Any, parts: Sequence[nn.Module]) -> None:
    """Have an FSDPMemTracker follow all parts of a model, of which it takes only one."""
    tracker._root_mod = nn.ModuleList(parts)
