"""Rules for optimizers and their schedules, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.batch_size import schedule_length
from hpckit.config.spec import OptimSpec, ResnetSpec, RunSpec


def optim_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    optim = spec.optim
    yield from _belongs("momentum", optim.momentum, "kind", optim.kind, {"muon", "sgd"})
    for name in ("beta1", "beta2", "eps"):
        value = getattr(optim, name)
        yield from _belongs(name, value, "kind", optim.kind, {"adamw", "muon"})
    if optim.kind == "muon" and isinstance(spec.model, ResnetSpec):
        yield "optim.kind: the blocks of a resnet have no matrices for muon; use sgd or adamw"
    yield from _belongs(
        "min_lr_ratio", optim.min_lr_ratio, "schedule", optim.schedule, {"cosine", "linear", "wsd"}
    )
    yield from _belongs("decay_ratio", optim.decay_ratio, "schedule", optim.schedule, {"wsd"})
    if (optim.base_batch is None) != (optim.scale is None):
        what = "is required" if optim.scale is None else "must be null"
        yield f"optim.scale: {what} when optim.base_batch={optim.base_batch or 'null'}"
    try:
        total = schedule_length(spec)
    except ValueError:  # of ramps or degrees, whose rules say what is wrong
        return
    what = f"train.steps={spec.train.steps}"
    if optim.schedule_unit != "steps":
        what += f", which have the {optim.schedule_unit} of {total:g} full steps"
    if optim.warmup_steps >= total:
        yield (
            f"optim.warmup_steps: {optim.warmup_steps} must be less than {what}, or no step trains "
            "at the full rate"
        )
    elif optim.warmup_steps + (decay := decay_steps(optim, total)) > total:
        yield (
            f"optim.decay_ratio: {decay} steps of decay begin before the {optim.warmup_steps} of "
            f"optim.warmup_steps end, of {what}"
        )


def decay_steps(optim: OptimSpec, steps: float) -> int:
    """Returns the number of `steps` at the end in which wsd decays, at least one; 0 for other
    schedules."""
    return 0 if optim.decay_ratio is None else max(1, round(optim.decay_ratio * steps))


def _belongs(key: str, value: object, to: str, chosen: str, takers: set[str]) -> Iterator[str]:
    if (value is None) == (chosen in takers):
        what = "is required" if value is None else "must be null"
        yield f"optim.{key}: {what} when optim.{to}={chosen}"
