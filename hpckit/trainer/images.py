"""The training function `hpckit.training.images:main`, which trains an image classifier."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from data import Batch, Loader
from hpckit.config.entry_points import IMAGES
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.config.spec_parser import require_usable
from hpckit.events.schema import AttentionChosen
from hpckit.planner.model.image_layers import per_sample
from hpckit.trainer.batches.labelled_images import ImageCrop, LabelledImages, stack
from hpckit.trainer.batches.loaders import build_validation, open_loader
from hpckit.trainer.language_model import initialize_parameters
from hpckit.trainer.metrics.source_losses import SourceLosses
from hpckit.trainer.models.batch_norm import BatchNormMoments, own_moments
from hpckit.trainer.optim import build_ema, build_optimizer, set_lr
from hpckit.trainer.parallel.parallel_model import ParallelModel, StepGradients
from hpckit.trainer.run_loop import TrainingRun, training_run
from hpckit.trainer.validation import Validate

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of red, green and blue over ImageNet, for values from 0 to 1, as for
the models of torchvision."""


def main(cfg: RunSpec) -> None:
    """Train the model that `cfg` describes, from the run's current step to its last one.

    Raises:
        SpecError: another training function calls this one, with a spec that cannot be used here.
    """
    require_usable(cfg, IMAGES)
    assert isinstance(cfg.model, ImageSpec)
    assert cfg.data.images is not None
    smoothing, accuracies = cfg.data.images.label_smoothing, list[Tensor]()
    is_mixed, by_source = cfg.data.mixture is not None, SourceLosses()

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        if is_mixed:
            by_source.note(
                functional.cross_entropy(logits.detach().float(), labels, reduction="none")
            )
        accuracies.append(accuracy(logits, labels))
        return smoothed_loss(logits, labels, smoothing)

    with training_run(cfg) as run:
        parallel_model = ParallelModel(cfg, run.mesh, run.device, is_initialized=False)
        model = parallel_model.module
        moments = BatchNormMoments(model)
        optimizer = build_optimizer(model, cfg.optim)
        ema = build_ema(model, cfg.optim.ema_decay)
        loader = build_loader(cfg, run)
        gradients = parallel_model.step_gradients(run.local_batch, loss_of, run.timed)
        colours = torch.tensor((MEAN, STD), device=run.device)
        run.track(
            model=model, optimizer=optimizer, loader=loader, **parallel_model.loss_scale.tracked
        )
        if ema:
            run.track(ema=ema)
        run.when_new(partial(initialize_parameters, cfg.init_from, parallel_model, ema, run))
        if parallel_model.attention:
            run.emit_event(AttentionChosen(backend=parallel_model.attention))

        def compute_alone(*micro_batch: Tensor) -> None:
            with own_moments(model):  # the other ranks compute other micro-batches meanwhile
                gradients.compute_alone(*micro_batch)
            moments.forget()
            accuracies.clear()

        for batch in run.steps(loader, validate=_validation(cfg, run, gradients, colours)):
            with run.timed("host_to_device"):
                images, labels = on_device(batch.data, colours)
                by_source.begin(
                    torch.tensor(batch.datasets, device=run.device) if is_mixed else None
                )
            samples = len(labels)
            lr = set_lr(optimizer, cfg.optim, *run.schedule_point(batch.seen), run.lr_scale)
            if cfg.checkpoint.certify is not None:
                first = gradients.first_micro_batch(images, labels, samples=samples)
                run.note_computation(compute_alone, *first)
            optimizer.zero_grad()
            loss = gradients(images, labels, samples=samples)
            with run.timed("optimizer"):
                norm = parallel_model.clip_gradients(cfg.optim.grad_clip)
                scale = parallel_model.loss_scale
                is_update = run.should_update(loss=loss, grad_norm=norm, **scale.present)
                scale.step(optimizer, norm, is_update=is_update)
                if is_update:
                    moments.update()
                else:
                    moments.forget()
                if ema and is_update:
                    ema.update()
            mean_accuracy = torch.stack(accuracies).mean()
            accuracies.clear()
            run.log(loss=loss, accuracy=mean_accuracy, grad_norm=norm, lr=lr, samples=samples)
            run.log(flops=samples * per_sample(cfg.model), **scale.metrics)
            if cfg.train.batch_ramp is not None:
                run.log(batch=float(batch.step_samples))
            if (found := by_source.take()) is not None:
                run.log_source_losses(*found)


def build_loader(cfg: RunSpec, run: TrainingRun) -> Loader:
    """Return a loader of images of the model's size, with labels of its classes."""
    assert cfg.data.images is not None
    return open_loader(cfg, run, transform=_crop(cfg, cfg.data.images.augment), collate=stack)


def _crop(cfg: RunSpec, augment: bool) -> ImageCrop:
    assert isinstance(cfg.model, ImageSpec)
    return ImageCrop(cfg.model.image_size, cfg.model.classes, augment)


def _validation(
    cfg: RunSpec, run: TrainingRun, gradients: StepGradients, colours: Tensor
) -> Validate | None:
    """Return the validation, which takes the middle of each image without augmentation and uses the
    running moments of batch normalisation."""

    def measure(batch: Batch) -> dict[str, Tensor]:
        images, labels = on_device(batch.data, colours)
        logits = gradients.outputs(images, labels).float()
        loss = functional.cross_entropy(logits, labels, reduction="none")
        return {"loss": loss, "accuracy": correct(logits, labels)}

    return build_validation(cfg, run, measure, transform=_crop(cfg, False), collate=stack)


def on_device(batch: LabelledImages, colours: Tensor) -> tuple[Tensor, Tensor]:
    """Move images and labels to the device of `colours`, and normalise the images.

    Args:
        colours: (2, 3), the mean and the standard deviation of each color.

    Returns:
        The normalised images (batch, 3, side, side), in the memory format channels_last, with which
        tensor cores are fastest; and the labels (batch,).
    """
    pixels, labels = (
        torch.from_numpy(array).to(colours.device, non_blocking=True)
        for array in (batch.pixels, batch.labels)
    )
    mean, std = colours
    return ((pixels / 255 - mean) / std).permute(0, 3, 1, 2), labels


def smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross-entropy in fp32, with `smoothing` of each label spread over all
    classes.

    Args:
        logits: (batch, classes).
        labels: (batch,).
    """
    return functional.cross_entropy(logits.float(), labels, label_smoothing=smoothing)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of samples whose likeliest class is right; arguments as of
    `smoothed_loss`."""
    return correct(logits, labels).mean()


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each sample whose likeliest class is right, and 0 for others: (batch,)."""
    return (logits.argmax(1) == labels).float()
