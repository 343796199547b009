"""Rules for checkpoints, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.spec import CheckpointSpec, RunSpec


def checkpoint_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    yield from _intervals(spec.checkpoint)
    if spec.checkpoint.certify is None:
        return
    must = "checkpoint.certify: must be null"
    if spec.command is not None:
        yield f"{must} where command.arguments is given; hpckit does not compute a program's steps"
    if spec.parallel.pipeline > 1:
        yield f"{must} with parallel.pipeline > 1, where no rank has the gradients of all layers"
    if spec.parallel.expert > 1:
        yield f"{must} with parallel.expert > 1, where ranks compute the tokens of other ranks, too"


def _intervals(ckpt: CheckpointSpec) -> Iterator[str]:
    given = {
        "every_steps": ckpt.every_steps,
        "every_minutes": ckpt.every_minutes,
        "mtbf_hours": ckpt.mtbf_hours,
    }
    names = [f"checkpoint.{name}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        yield f"{names[-1]}: set only one of {', '.join(names)}, and the others to null"
