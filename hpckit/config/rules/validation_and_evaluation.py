"""Rules for validation within a run, and for evaluations of its checkpoints beside it, as pure
functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checkpointing import Best
from hpckit.config.entry_points import is_built_in
from hpckit.config.rules.cluster import option_problem
from hpckit.config.spec import EvalSpec, RunSpec

PREFIX = "val_"
"""Prefix of the names of validation metrics."""
EVAL_PREFIX = "eval_"
"""Prefix of the names of metrics of evaluations."""
METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./@-]{0,99}")
"""What names of metrics may be."""
_KEYS = {"partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint"}
_KEYS |= {"mem": "memory", "cpus-per-task": "cpus_per_node", "nice": "nice"}


def best_policy(spec: EvalSpec) -> Best | None:
    """Returns the policy that keeps the best checkpoint by `eval.metric`, or None without one."""
    return None if spec.metric is None else Best(f"{EVAL_PREFIX}{spec.metric}", spec.mode)


def evaluation_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    found, keep = spec.eval, spec.checkpoint.keep
    if spec.command is not None:
        for key, value in (("every", found.every), ("entry", found.entry)):
            if value is not None:
                yield (
                    f"eval.{key}: must be null where command.arguments is given; hpckit does not "
                    "know where and how a program stores its checkpoints"
                )
        return
    if found.every is not None and found.entry is None:
        yield (
            f"eval.entry: is required when eval.every={found.every}; give module:function, a "
            "function that returns metrics of a checkpoint"
        )
    if found.metric is not None:
        if found.entry is None:
            yield f"eval.metric: {found.metric} is measured by eval.entry, which is null"
        if keep.best is not None:
            yield (
                f"checkpoint.keep.best: must be null when eval.metric={found.metric} is given, as "
                f"there is one mark best; got {keep.best}"
            )
        if not METRIC_NAME.fullmatch(found.metric):
            yield f"eval.metric: must be letters, digits and _ . / @ -; got {found.metric!r}"
    if is_built_in(spec) and found.entry is not None and found.item not in ("model", "ema"):
        yield f"eval.item: must be model or ema, got {found.item!r}"
    if is_built_in(spec) and found.item == "ema" and spec.optim.ema_decay is None:
        yield "eval.item: ema is saved only with optim.ema_decay, and that is null"
    for option in sorted(found.slurm.options):
        key = f"eval.slurm.options.{option}"
        if option in _KEYS:
            yield f"{key}: use eval.slurm.{_KEYS[option]} instead"
        elif option == "time":
            yield f"{key}: use eval.time_limit instead"
        elif option == "comment":
            yield f"{key}: hpckit finds evaluations by their comments"
        elif problem := option_problem(option):
            yield f"{key}: {problem}"
    slurm = spec.cluster.slurm
    if slurm is not None and slurm.container is not None and found.every is not None:
        yield (
            "eval.every: evaluations run outside of containers, and cluster.slurm.container is "
            "given; evaluate in the container by hand: hpckit eval RUN@STEP"
        )


def validation_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    every, shards, best = spec.train.validate_every, spec.data.validation, spec.checkpoint.keep.best
    is_ours = is_built_in(spec)
    if is_ours and every is not None and shards is None:
        yield f"data.validation: is required when train.validate_every={every}"
    if is_ours and every is None and shards is not None:
        yield (
            "data.validation: is used only when train.validate_every has a value, and that is null"
        )
    if best is not None and best.startswith(PREFIX) and every is None:
        yield f"checkpoint.keep.best: {best} requires validation; set train.validate_every"
