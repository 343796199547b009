"""The spec of a fork: a new run that continues another one's training from a checkpoint, with other
keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpckit.config.config_trees import project_tree
from hpckit.config.mixture import KEY, change_problems
from hpckit.config.run_identity import differences, with_identity_mixture
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.submit.compose import amend_spec
from hpckit.submit.preflight.checks import with_absolute_paths

_OF_STATE = (
    ("model.", "the checkpoint has the tensors of the other model"),
    ("lora", "the checkpoint has other tensors"),
    ("optim.kind", "the checkpoint has the state of the other optimizer"),
    ("optim.ema_decay", "the checkpoint has an average of the parameters, or has none"),
    ("precision.compute", "a checkpoint with fp16 has a loss scale, which others have not"),
    ("data.shards", "the place in the data is that of these shards"),
    ("data.text", "the place in the data is that of samples of this kind"),
    ("data.dtype", "the place in the data is that of these tokens"),
    ("data.end_of_text", "the place in the data is that of these documents"),
    ("data.column", "the place in the data is that of these tokens"),
    ("data.streams", "the order of the samples depends on it"),
    ("data.window", "the order of the samples depends on it"),
    ("data.remix_every", "the order of the samples depends on it"),
    ("train.seed", "the order of the samples depends on it"),
)
"""Keys that a fork cannot change, or prefixes of them, and why."""
_OTHER_WAY = "; to begin with the parameters alone: hpckit launch init_from=checkpoint"


@dataclass(frozen=True)
class ForkRequest:
    """A fork that is asked for."""

    parent: RunDir
    before: RunSpec
    """The spec of the parent's newest submission."""
    spec: RunSpec
    """The spec of the fork."""
    step: int
    """The step of the checkpoint that it begins with."""

    @property
    def store(self) -> str:
        """The store that has the parent's checkpoints."""
        return checkpoint_root(self.before, self.parent)

    @property
    def changes(self) -> list[tuple[str, Any, Any]]:
        """(key, value of the parent, value of the fork) for what is trained otherwise."""
        return differences(self.before, self.spec)


def fork_spec(parent: RunDir, overrides: Sequence[str]) -> tuple[RunSpec, RunSpec]:
    """Return the spec of the parent's newest submission, and that of the fork.

    Raises:
        SpecError: the overrides cannot be used.
    """
    number = parent.submission_numbers()[-1]
    before = read_spec(parent.spec(number))
    if before.command is not None:
        raise SpecError(
            [
                f"{parent.name} runs a program, whose checkpoints hpckit does not read: a fork "
                "needs a run of a training function"
            ]
        )
    tree = project_tree(parent.project_code(number))
    spec = amend_spec(with_identity_mixture(before), overrides, tree)
    spec = with_absolute_paths(spec, Path.cwd())
    url = spec.checkpoint.url or str(parent.checkpoints)
    spec = replace(
        spec,
        checkpoint=replace(spec.checkpoint, url=url),
        train=replace(spec.train, identity_steps=None),
        data=replace(spec.data, identity_mixture=None),
    )
    return before, with_identity_mixture(spec)  # sources that the parent has read may be paused


def fork_problems(fork: ForkRequest) -> list[str]:
    """Return why a fork cannot be, one line each; empty if it can. Pure."""
    return list(_problems(fork))


def _problems(fork: ForkRequest) -> Iterator[str]:
    before, spec = fork.before, fork.spec
    if run_name(before) == run_name(spec):
        yield (
            f"nothing differs from {fork.parent.name}: change a key of what is trained, or give "
            "the fork a name=OTHER"
        )
    if spec.checkpoint.url != fork.store:
        yield (
            f"checkpoint.url: must stay {fork.store}, as a fork shares the chunks of its "
            f"parent; got {spec.checkpoint.url}"
        )
    if spec.root != before.root and not Path(spec.root).is_absolute():
        yield f"root: must be an absolute path, got {spec.root}"
    mixtures = before.data.mixture, spec.data.mixture
    if None not in mixtures:
        yield from change_problems(*mixtures)  # type: ignore[arg-type]
    elif mixtures != (None, None):
        yield f"{KEY}: cannot begin or end in a fork, as the place in the data is another one" + (
            _OTHER_WAY
        )
    for key, was, now in fork.changes:
        for prefix, why in _OF_STATE:
            if key == "precision.compute" and "fp16" not in (was, now):
                continue
            if key.startswith(prefix):
                yield f"{key}: cannot change from {was} to {now}, as {why}{_OTHER_WAY}"
                break
    if spec.train.steps <= fork.step:
        yield (
            f"train.steps: {spec.train.steps} steps are done at step {fork.step}, where the fork "
            "begins; give more"
        )


def fork_lines(fork: ForkRequest) -> list[str]:
    """Return what is kept and what changes, for people. Pure."""
    lines = [
        f"kept: all of the state at step {fork.step} (parameters, optimizer, place in the data), "
        f"in {fork.store}, where nothing is copied",
        "code: that of the project here, as of hpckit launch",
    ]
    lines += [f"changed: {key}: {was} -> {now}" for key, was, now in fork.changes]
    if fork.before.train.batch_ramp != fork.spec.train.batch_ramp:
        lines.append(
            "train.batch_ramp: the batch is what the ramp of the fork has after as many samples as "
            "the parent has seen"
        )
    optim = fork.spec.optim
    if optim.schedule != "constant" and fork.before.train.steps != fork.spec.train.steps:
        lines.append(
            f"optim.schedule={optim.schedule} is that of {fork.spec.train.steps} steps from now on"
        )
    return lines
