"""The bottleneck of a run, and advice on it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from hpckit.config.spec import RunSpec
from hpckit.events.step_phases import Part
from hpckit.report.performance.measured_step_time import MeasuredStepTime


class LimitingLoop(StrEnum):
    """A loop that may limit the speed; a step waits for the slowest of them."""

    INPUT = "input"
    STORAGE = "storage"
    TRAINING = "training"
    VALIDATION = "validation"
    KERNEL = "kernel"


PARTS: dict[LimitingLoop, tuple[Part, ...]] = {
    LimitingLoop.INPUT: ("data_wait",),
    LimitingLoop.STORAGE: ("checkpoint_stall",),
    LimitingLoop.VALIDATION: ("validation",),
    LimitingLoop.TRAINING: ("host_to_device", "optimizer", "certification", "other"),
    LimitingLoop.KERNEL: ("forward", "backward", "compute"),
}
WELL = {
    LimitingLoop.INPUT: 0.05,
    LimitingLoop.STORAGE: 0.05,
    LimitingLoop.VALIDATION: 0.1,
    LimitingLoop.TRAINING: 0.25,
}
"""Shares of a step that these loops may take before they count as limiting."""
EXPOSED = 0.1
"""Share of a step in which only collectives run from which on it is reported."""

_WORDS = {
    LimitingLoop.INPUT: "of the step time is spent waiting for data",
    LimitingLoop.STORAGE: "of the step time is spent waiting for checkpoint saves",
    LimitingLoop.VALIDATION: "of the step time is spent on validation",
    LimitingLoop.TRAINING: "of the step time is outside data, saves and the model's passes",
    LimitingLoop.KERNEL: "of the step time is the model's forward and backward passes, "
    "which is normal",
}


def bottleneck(it: MeasuredStepTime) -> LimitingLoop | None:
    """Return the loop with the largest share among those above their normal share; the kernels if
    there is none. None: it is not known, because the training function does not say when the model
    computes."""
    shares = {loop: it.share(*PARTS[loop]) for loop in WELL}
    if not it.is_split:
        del shares[LimitingLoop.TRAINING]
    slow = {loop: share for loop, share in shares.items() if share > WELL[loop]}
    if slow:
        return max(slow, key=slow.__getitem__)
    return LimitingLoop.KERNEL if it.is_split else None


def describe_bottleneck(
    it: MeasuredStepTime, loop: LimitingLoop | None, spec: RunSpec | None = None
) -> str:
    """Describe the bottleneck in one line for people; if it is unknown, with what to add.

    Args:
        spec: of the run; None if it can no longer be read.
    """
    is_program = spec is not None and spec.command is not None
    if loop is None and is_program:
        return (
            "unknown: the program does not report where the time of a step goes; give its seconds "
            "to client.step, as in client.step(step, data_wait_s=..., forward_s=..., "
            "backward_s=...)"
        )
    if loop is None and not it.parts:
        return (
            "unknown: the records of its steps are of a release that did not divide their time; "
            "hpckit resume continues the run with this one"
        )
    if loop is None:
        return (
            "unknown: the training function does not record when the model computes; "
            'put `with run.timed("forward"):` and ("backward") around its passes'
        )
    return f"{loop}: {it.share(*PARTS[loop]):.0%} {_WORDS[loop]}"


def advice(it: MeasuredStepTime, loop: LimitingLoop | None, spec: RunSpec | None) -> list[str]:
    """Return advice, one line each.

    Args:
        spec: of the run; None if it can no longer be read.
    """
    match loop:
        case LimitingLoop.INPUT:
            return _INPUT if it.loader is None else [*_foreign_input(it.loader)]
        case LimitingLoop.STORAGE:
            return [*_storage(spec)]
        case LimitingLoop.VALIDATION:
            return ["increase train.validate_every", "decrease train.validate_samples"]
        case LimitingLoop.TRAINING:
            return [*_training(it, spec)]
        case LimitingLoop.KERNEL:
            return [*_kernel(it, spec)]
    return []


_INPUT = [
    "increase data.threads and data.prefetch",
    "put data.cache on the node's own disk; hpckit data warm fills it in advance",
    "hpckit data bench measures reading and decoding without a model",
]
_WORKERS = "num_workers of its DataLoader, which prepare batches in processes of their own"
_OF_LIBRARIES = {
    "torch": f"increase {_WORKERS}, and prefetch_factor; set persistent_workers=True",
    "torchdata": f"increase {_WORKERS}, and prefetch_factor; set persistent_workers=True",
    "streaming": f"increase {_WORKERS}, and predownload of the dataset; put `local` on the node's "
    "own disk",
    "litdata": f"increase {_WORKERS}, and max_pre_download of the dataset",
    "grain": "increase num_workers of grain.MultiprocessingOptions, and num_threads and "
    "prefetch_buffer_size of grain.ReadOptions",
    "megatron": "increase num_workers of its WorkerConfig",
    "webdataset": f"increase {_WORKERS}, if the pipeline is in one",
}


def _foreign_input(loader: str) -> Iterator[str]:
    """Yield advice on a loader of another library, which has no key."""
    name = loader.rpartition(".")[2]
    known = _OF_LIBRARIES.get(loader.partition(".")[0])
    yield f"{name}: " + (
        known or "have it read ahead, in threads or processes of its own; hpckit does not do it"
    )
    yield "copy what it reads to the node's own disk before the run, if it is read from afar"
    yield "iterate over it without a model to measure how many batches per second it gives"


def _storage(spec: RunSpec | None) -> Iterator[str]:
    if spec is None or spec.checkpoint.staging != "buffers":
        yield "checkpoint.staging=buffers: the state is copied while training continues"
    yield "save less often: checkpoint.every_minutes or checkpoint.every_steps"
    yield "set checkpoint.mtbf_hours: the interval is then chosen from how often the run fails"


def _training(it: MeasuredStepTime, spec: RunSpec | None) -> Iterator[str]:
    if it.share("optimizer") >= it.share("other"):
        if spec is None or spec.parallel.shard == 1:
            yield "parallel=zero1: each rank updates only its share of the parameters"
        yield "increase train.global_batch: fewer optimizer steps for the same number of samples"
        return
    yield "increase train.micro_batch: fewer and larger kernels"
    yield "do not read values from the device in each step (.item(), print): the host waits for it"
    yield "set debug=none, and increase train.log_every"


def _kernel(it: MeasuredStepTime, spec: RunSpec | None) -> Iterator[str]:
    if it.exposed is not None and it.exposed > EXPOSED:
        if spec is None or spec.parallel.zero == 3:
            yield "parallel=zero2, if memory allows: parameters are gathered once instead of twice"
        yield (
            "parallel=hsdp with parallel.shard=8, as many as a node has: most traffic stays within "
            "the node"
        )
        if spec is None or not spec.parallel.no_sync:
            yield "parallel.no_sync=true: gradients are reduced once per step"
    if it.is_gpu and (spec is None or spec.precision.compute == "fp32"):
        yield "precision=bf16: it uses the tensor cores"
    yield "increase train.micro_batch as far as memory allows"
