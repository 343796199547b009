"""The training loop, parallelism and precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Degree, Fraction, Seed


@dataclass(frozen=True, config=GROUP)
class BatchRampSpec:
    """A batch that grows at the begin of a run, as by `--rampup-batch-size` of Megatron-LM."""

    start: Count
    """Samples of the first step."""
    increment: Count
    """Samples by which the batch grows at a time, at equal distances."""
    samples: Count
    """Number of samples of the run after which the batch has its full size."""


@dataclass(frozen=True, config=GROUP)
class SequenceRampSpec:
    """Sequences that grow at the begin of a run, as in DeepSpeed's curriculum learning and
    Composer's sequence length warm-up (Li et al. 2022)."""

    start: Count
    """Tokens of a sequence in the first step."""
    samples: Count
    """Number of samples of the run after which sequences have `model.seq_len` tokens."""
    increment: Count | None = None
    """Tokens by which the length grows at a time; null: it doubles."""
    method: Literal["split", "truncate"] = "split"
    """How sequences become shorter. split: each sample is divided into several sequences, so that
    the model sees all tokens; truncate: the rest of each sample is left out, so that steps are
    shorter."""


@dataclass(frozen=True, config=GROUP)
class TrainSpec:
    """The training loop."""

    steps: Annotated[int, Field(ge=1, lt=10**10)]
    """Number of optimizer steps of the run."""
    global_batch: Count
    """Samples per optimizer step over all ranks; the same on any number of nodes."""
    batch_ramp: BatchRampSpec | None
    """A batch that grows to `global_batch` samples; null: it has them from the first step on."""
    sequence_ramp: SequenceRampSpec | None
    """Sequences that grow to `model.seq_len` tokens, for hpckit's own language models; null: they
    have them from the first step on."""
    micro_batch: Count
    """Largest number of samples in one forward pass of a rank; the rest is gradient
    accumulation."""
    seed: Seed
    """Seed of the initialisation, the data order and all random numbers."""
    log_every: Count
    """Steps between two metric records."""
    validate_every: Count | None
    """Steps between two validations; the last step has one, too. null: none."""
    validate_samples: Count | None
    """Number of samples of `data.validation` that hpckit's own training function uses: the first
    ones of each shard, in proportion; null: all."""
    require_finite: bool
    """Whether a NaN or infinite value of a logged `loss` or `grad_norm`, or of a parameter to save,
    ends the attempt before anything is saved. If it recurs at the same step, the run fails
    permanently. With fp16, such steps are skipped instead."""
    trace_share: Fraction
    """Largest fraction of the time that tracing single steps may cost. The traces show the cost of
    communication and the ranks that others wait for. 0: no step is traced."""
    identity_steps: Count | None = None
    """The value of `train.steps` with which the run was started, if `hpckit resume RUN
    train.steps=N` has raised it. Only that command sets it; the run keeps its name."""


@dataclass(frozen=True, config=GROUP)
class ParallelSpec(EarlierAttributes, group="parallel"):
    """Parallelism over ranks (`conf/parallel/`). It changes results only by rounding, and a run may
    resume with another one."""

    replicate: Degree
    """Data-parallel replicas: groups of ranks that each hold a copy of the model; -1: all remaining
    ranks."""
    shard: Degree
    """Ranks over which each replica is sharded (FSDP); -1: all remaining ranks."""
    tensor: Degree
    """Tensor-parallel degree: neighbouring ranks that compute each layer together, with sequence
    parallelism between layers (Shoeybi et al. 2019, Korthikanti et al. 2022)."""
    pipeline: Degree
    """Pipeline-parallel degree: groups of ranks that each hold consecutive layers."""
    expert: Count
    """Expert-parallel degree: neighbouring data-parallel ranks over which the experts of a layer
    are divided; tokens are sent to the rank of their expert and back (Lepikhin et al. 2021). It
    must divide `replicate` x `shard`."""
    schedule: Literal["gpipe", "1f1b", "interleaved"]
    """Pipeline schedule. gpipe: all forward passes, then all backward passes (Huang et al. 2019);
    1f1b: alternating, so that fewer activations are kept (Narayanan et al. 2019); interleaved: 1f1b
    with two stages on each rank, which has a smaller bubble (Narayanan et al. 2021)."""
    zero: Literal[1, 2, 3]
    """ZeRO stage: what is sharded over `shard` ranks (Rajbhandari et al. 2020). 1: the optimizer
    state; 2: gradients as well; 3: parameters as well, which are gathered for each layer in forward
    and backward, or once a step in a pipeline."""
    no_sync: bool
    """Whether gradients are reduced over ranks only with the last micro-batch of a step, as with
    `no_sync()` of DDP: less communication, and each rank holds whole gradients until then. false:
    they are reduced with each micro-batch."""


@dataclass(frozen=True, config=GROUP)
class PrecisionSpec:
    """Number formats (`conf/precision/`)."""

    compute: Literal["fp32", "bf16", "fp16", "fp8"]
    """Format of activations and gathered parameters. fp16: with dynamic loss scaling (Micikevicius
    et al. 2018); fp8: the linear layers of blocks in fp8, all else in bf16 (Micikevicius et al.
    2022)."""
    reduce: Literal["fp32", "bf16"]
    """Format in which gradients are reduced over ranks."""
    master: Literal["fp32", "bf16"]
    """Format of the master weights and of the optimizer state."""
