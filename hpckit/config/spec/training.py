"""The training loop, and how the model is spread and computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Degree, Fraction, Seed


@dataclass(frozen=True, config=GROUP)
class TrainSpec:
    """The training loop."""

    steps: Annotated[int, Field(ge=1, lt=10**10)]
    """Optimizer steps of the whole run."""
    global_batch: Count
    """Samples per optimizer step over all ranks; the same on any number of nodes."""
    micro_batch: Count
    """Largest number of samples that one rank takes through the model at once."""
    seed: Seed
    """Seed of initialisation, data order and every random draw."""
    log_every: Count
    """Steps between two metric records."""
    validate_every: Count | None
    """Steps between two validations; the last step has one too. null: none."""
    validate_samples: Count | None
    """Samples of `data.validation` that hpckit's own training function takes in each, the first
    ones of each shard in proportion; null: all."""
    require_finite: bool
    """Whether a logged `loss` or `grad_norm`, or a parameter that is to be saved, that is NaN or
    infinite ends the attempt, before anything of it is saved, and at the same step again the run.
    fp16 skips steps of such a loss or norm instead."""
    trace_share: Fraction
    """Share of the time that may be spent on tracing single steps, now and then, which tells what
    communication costs and which ranks the others wait for; 0: no step is traced."""


@dataclass(frozen=True, config=GROUP)
class ParallelSpec:
    """How the model is spread over ranks (`conf/parallel/`); it changes no result but rounding, and
    a run may go on with another."""

    replicate: Degree
    """Groups of ranks that hold a whole copy of the model each; -1: as many as the ranks make."""
    shard: Degree
    """Ranks that share a copy; -1: all that the other degrees leave."""
    tensor: Degree
    """Neighbouring ranks that compute each layer together, with the sequence divided between layers
    (Shoeybi et al. 2019, Korthikanti et al. 2022)."""
    pipeline: Degree
    """Groups of ranks that have consecutive layers each, and hand micro-batches on."""
    expert: Count
    """Of the ranks that have samples of their own, neighbours that share the experts of a layer:
    each has some of them, and tokens go to the rank of their expert and back (Lepikhin et al.
    2021). It must divide `replicate` x `shard`."""
    schedule: Literal["gpipe", "1f1b", "interleaved"]
    """Order of a pipeline's work. gpipe: all forward, then all backward (Huang et al. 2019); 1f1b:
    in turns, so that fewer activations wait (Narayanan et al. 2019); interleaved: the same with
    two stages on each rank, so that less time is idle (Narayanan et al. 2021)."""
    zero: Literal[1, 2, 3]
    """What those share: 1 the optimizer's state; 2 gradients as well; 3 parameters as well, which
    are gathered layer by layer, forward and backward (Rajbhandari et al. 2020); in a pipeline
    once a step."""
    reduce: Literal["last", "each"]
    """When gradients are added up over ranks. last: with the last micro-batch of a step, until when
    each rank holds them whole; each: with every one."""


@dataclass(frozen=True, config=GROUP)
class PrecisionSpec:
    """Number formats (`conf/precision/`)."""

    compute: Literal["fp32", "bf16", "fp16", "fp8"]
    """Format of activations and gathered parameters. fp16: the loss is scaled, so that gradients
    stay in its range (Micikevicius et al. 2018); fp8: bf16, except in the linear layers of blocks
    (Micikevicius et al. 2022)."""
    reduce: Literal["fp32", "bf16"]
    """Format in which gradients are reduced over ranks."""
    master: Literal["fp32", "bf16"]
    """Format of the parameters that the optimizer works on, and of its state."""
