"""The training function `hpckit.training.language_model:main`, which trains a decoder on text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from data import Batch, Loader, Packing
from hpckit.config.batch_size import sequence_length
from hpckit.config.entry_points import LANGUAGE_MODEL
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.token_files import text_columns
from hpckit.config.spec import InitFromSpec, RunSpec
from hpckit.config.spec_parser import require_usable
from hpckit.events.schema import AttentionChosen, ParametersRead
from hpckit.planner.model.flops import per_token
from hpckit.trainer.batches.byte_text import PADDING, ByteWindow
from hpckit.trainer.batches.loaders import build_validation, open_loader
from hpckit.trainer.batches.token_windows import (
    count_of,
    cut,
    next_token_batch,
    shorter,
    stack,
    stack_contiguous,
    stack_offsets,
    stack_separated,
    stack_with_sources,
)
from hpckit.trainer.metrics.source_losses import SourceLosses, source_of_targets
from hpckit.trainer.optim import Ema, build_ema, build_optimizer, set_lr
from hpckit.trainer.parallel.parallel_model import ParallelModel, StepGradients
from hpckit.trainer.run_loop import TrainingRun, training_run
from hpckit.trainer.validation import Validate

PACKED_BLOCKS = 8
"""Number of blocks of a mixture whose documents are packed together."""


def main(cfg: RunSpec) -> None:
    """Train the model that `cfg` describes, from the run's current step to its last one.

    Raises:
        SpecError: another training function calls this one, with a spec that cannot be used here.
    """
    require_usable(cfg, LANGUAGE_MODEL)
    with training_run(cfg) as run:
        parallel_model = ParallelModel(cfg, run.mesh, run.device, is_initialized=False)
        model = parallel_model.module
        optimizer = build_optimizer(model, cfg.optim)
        ema = build_ema(model, cfg.optim.ema_decay)
        loader = build_loader(cfg, run)
        by_source, full = SourceLosses(), decoder_of(cfg).seq_len
        ramp = cfg.train.sequence_ramp
        is_split = ramp is not None and ramp.method == "split"

        def loss_of(losses: Tensor, targets: Tensor) -> Tensor:
            by_source.note(losses)
            if is_split:  # the loss is that of whole samples, into however many rows they are split
                losses, targets = (each.reshape(-1, full) for each in (losses, targets))
            return sample_mean(losses, targets)

        gradients = parallel_model.step_gradients(run.local_batch, loss_of, run.timed)
        run.track(
            model=model, optimizer=optimizer, loader=loader, **parallel_model.loss_scale.tracked
        )
        if ema:
            run.track(ema=ema)
        run.emit_event(AttentionChosen(backend=parallel_model.attention))
        run.when_new(partial(initialize_parameters, cfg.init_from, parallel_model, ema, run))
        for batch in run.steps(loader, validate=_validation(cfg, run, gradients)):
            with run.timed("host_to_device"):
                windows = batch.data.to(run.device)
                given = next_token_batch(windows)
                sources = (
                    source_of_targets(windows.sources, given.targets, batch.datasets, PADDING)
                    if cfg.data.mixture is not None
                    else None
                )
                samples, length = len(given.targets), sequence_length(cfg, batch.seen)
                if ramp is not None:
                    given = shorter(given, length, ramp.method)
                    sources = None if sources is None else cut(sources, length, ramp.method)
                by_source.begin(sources)
            lr = set_lr(optimizer, cfg.optim, *run.schedule_point(batch.seen), run.lr_scale)
            if cfg.checkpoint.certify is not None:
                first = gradients.first_micro_batch(*given, samples=samples)
                run.note_computation(gradients.compute_alone, *first)
            optimizer.zero_grad()
            loss = gradients(*given, samples=samples)
            with run.timed("optimizer"):
                norm = parallel_model.clip_gradients(cfg.optim.grad_clip)
                scale = parallel_model.loss_scale
                is_update = run.should_update(loss=loss, grad_norm=norm, **scale.present)
                scale.step(optimizer, norm, is_update=is_update)
                balance = parallel_model.balance_experts(is_update=is_update)
                if ema and is_update:
                    ema.update()
            token_flops = per_token(replace(decoder_of(cfg), seq_len=length), cfg.lora)
            flops = given.targets.numel() * token_flops  # padding is computed as well
            run.log(loss=loss, grad_norm=norm, lr=lr, tokens=count_of(given.targets), flops=flops)
            run.log(**scale.metrics, **balance)
            if ramp is not None:
                run.log(sequence_length=float(length))
            if cfg.train.batch_ramp is not None:
                run.log(batch=float(batch.step_samples))
            if (found := by_source.take()) is not None:
                run.log_source_losses(*found)


def initialize_parameters(
    start: InitFromSpec | None, parallel_model: ParallelModel, ema: Ema | None, run: TrainingRun
) -> None:
    """Initialize the parameters of a new run, or load those that `start` names and write an event
    with their source."""
    about = parallel_model.initialize(start)
    if ema:
        ema.restart()
    if about:
        run.emit_event(ParametersRead(**about))


def build_loader(cfg: RunSpec, run: TrainingRun) -> Loader:
    """Return a loader whose batches hold `TokenWindows`."""
    return open_loader(cfg, run, **_loader_arguments(cfg))


def _validation(cfg: RunSpec, run: TrainingRun, gradients: StepGradients) -> Validate | None:
    def measure(batch: Batch) -> dict[str, Tensor]:
        given = next_token_batch(batch.data.to(run.device))
        return {"loss": sample_losses(gradients.outputs(*given), given.targets)}

    return build_validation(cfg, run, measure, **_loader_arguments(cfg))


def _loader_arguments(cfg: RunSpec) -> dict[str, Any]:
    """Return the arguments of a `data.Loader` that make token windows of samples."""
    model = decoder_of(cfg)
    length = model.seq_len + 1
    if cfg.data.text == "bytes":
        return {"transform": ByteWindow(length, text_columns(cfg)), "collate": stack}
    packing = Packing(
        length,
        pad=PADDING,
        vocab=model.vocab,
        balance=cfg.data.balance,
        micro_batch=cfg.train.micro_batch,
    )
    separated = stack_offsets if cfg.memory.attention == "varlen" else stack_separated
    collate = separated if cfg.data.document_mask else stack_contiguous
    if (mixture := cfg.data.mixture) is not None:
        packing = replace(packing, block=PACKED_BLOCKS * mixture.block)
        return {"pack": packing, "collate": partial(stack_with_sources, collate)}
    return {"pack": packing, "collate": collate}


def sample_mean(losses: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of each sample's mean loss.

    Every sample weighs the same however much of it is padding, so the mean over ranks does not
    depend on which rank took which sample.

    Args:
        losses: (batch, time), 0 where the target is `PADDING`.
        targets: (batch, time) tokens or `PADDING`.
    """
    return sample_losses(losses, targets).mean()


def sample_losses(losses: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each sample, (batch,), over its tokens; arguments as of
    `sample_mean`."""
    return losses.sum(1) / (targets != PADDING).sum(1).clamp(min=1)
