"""Overrides for a run that continues: they may change where, how fast or how carefully it runs, but
not what it trains."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from checkpointing import CheckpointError
from hpckit.config.batch_size import samples_before, schedule_point
from hpckit.config.config_trees import project_tree
from hpckit.config.entry_points import is_built_in
from hpckit.config.last_step import planned_steps
from hpckit.config.learning_rate import lr_factor
from hpckit.config.mixture import change_problems
from hpckit.config.run_identity import differences, with_identity_mixture
from hpckit.config.spec import OptimSpec, RunSpec
from hpckit.config.spec_parser import SpecError, read_spec, spec_values
from hpckit.rundir.directory import RunDir, checkpoint_root
from hpckit.submit import manual_page
from hpckit.submit.compose import amend_spec
from hpckit.submit.preflight.checks import place_problems, with_absolute_paths
from hpckit.submit.program.program_command import SEPARATOR, split, unread_key_problems
from hpckit.system.atomic_files import read_json

_MAX_KEYS = 4
"""The largest number of keys that a message lists among those that would make another run."""


def amended(run: RunDir, submission: int, overrides: Sequence[str]) -> RunSpec:
    """Returns the spec of a submission with `overrides`, whose config groups are looked up in the
    submission's own code.

    Raises:
        SpecError: the overrides cannot be used, or would make another run.
    """
    before, spec = _before_and_after(run, submission, overrides)
    if problems := [
        *_store_problems(run, before, spec),
        *place_problems(spec, run),
        *_extension_problems(run, before, spec),
        *_mixture_problems(before, spec),
    ]:
        raise SpecError(problems)
    return spec


def _mixture_problems(before: RunSpec, after: RunSpec) -> list[str]:
    if after.data.mixture is None:
        return []
    from hpckit.submit.preflight.dataset_checks import changed_mixture_problems

    return changed_mixture_problems(before, after)


def is_extended(run: RunDir, submission: int, overrides: Sequence[str]) -> bool:
    """Returns whether `overrides` give a run more steps than its submission has.

    Raises:
        SpecError: the overrides cannot be used, or would make another run.
    """
    if not any(word.lstrip("+").startswith("train.steps=") for word in overrides):
        return False
    before, spec = _before_and_after(run, submission, overrides)
    return _gets_longer(before, spec)


def extension_lines(run: RunDir, before: RunSpec, after: RunSpec) -> list[str]:
    """Returns what to tell a user whose run gets more steps: above all, what becomes of the
    learning rate, which may depend on their number. Empty if the run gets no more steps."""
    was, now = planned_steps(before), planned_steps(after)
    if was is None or now is None or now <= was:
        return []
    step = int((read_json(run.verdict) or {}).get("saved_step") or 0)
    lines = [f"{run.name} gets train.steps={now}, not {was}, and continues after step {step}"]
    if not is_built_in(after):
        lines.append(
            "what your training function computes from train.steps, such as a learning rate "
            "schedule, changes with it"
        )
    elif after.optim.min_lr_ratio is not None:
        old, new = (
            spec.optim.lr * lr_factor(*_schedule_point(spec, at))
            for spec, at in ((before, max(0, step - 1)), (after, step))
        )
        lines.append(
            f"optim.schedule={after.optim.schedule} is that of {now} steps from now on: the "
            f"learning rate was {old:.3g} at step {step}, and is {new:.3g} at the next one"
        )
    return lines


def with_kept_extension(run: RunDir, spec: RunSpec) -> RunSpec:
    """Returns the spec of a run that is launched again by its first command, with the steps and the
    mixture that `hpckit resume RUN train.steps=N data.mixture...` has given it since."""
    numbers = run.submission_numbers()
    if spec.command is not None or not numbers:
        return spec
    try:
        newest = read_spec(run.spec(numbers[-1]))
        train, data = newest.train, newest.data
    except (SpecError, OSError):  # of another release: the launch says what it needs
        return spec
    first = data.identity_mixture
    if first is not None and first == spec_values(spec)["data"]["mixture"]:
        spec = replace(spec, data=replace(spec.data, mixture=data.mixture, identity_mixture=first))
    if train.identity_steps != spec.train.steps or spec.train.identity_steps is not None:
        return spec
    kept = replace(spec.train, steps=train.steps, identity_steps=train.identity_steps)
    return replace(spec, train=kept)


def _schedule_point(spec: RunSpec, step: int) -> tuple[float, OptimSpec, float]:
    """Return the arguments of `lr_factor` for a step."""
    world, seen = spec.launch.nodes * spec.launch.nproc_per_node, samples_before(spec, step)
    point = schedule_point(spec, world, step, seen)
    return point.at, spec.optim, point.total


def _gets_longer(before: RunSpec, after: RunSpec) -> bool:
    was, now = planned_steps(before), planned_steps(after)
    return was is not None and now is not None and now > was


def _extended(before: RunSpec, after: RunSpec) -> RunSpec:
    """Returns `after`, which is the same run as `before` even if it has more steps, or mixes its
    data by other weights."""
    if after.command is not None:
        return after
    old, new = before.data.mixture, after.data.mixture
    is_changed = old is not None and new is not None and old != new
    mixture = (with_identity_mixture(before) if is_changed else before).data.identity_mixture
    after = replace(after, data=replace(after.data, identity_mixture=mixture))
    if after.train.steps <= before.train.steps:
        return after
    first = before.train.identity_steps or before.train.steps
    return replace(after, train=replace(after.train, identity_steps=first))


def _extension_problems(run: RunDir, before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the problem if a run that is to get more steps has nothing to continue from."""
    if not _gets_longer(before, after) or read_json(run.verdict) is None:
        return []
    from hpckit.submit.newest_checkpoint import newest_step  # imports the events of a run

    try:
        newest = newest_step(after, run)
    except CheckpointError as error:
        return [f"train.steps: {error}"]
    if newest > 0:
        return []
    return [
        f"train.steps: {checkpoint_root(after, run)} has no checkpoint of the run any more, so "
        "that more steps would begin at step 0; start it again with --fresh, or as a new run"
    ]


def done_lines(run: RunDir, submission: int, overrides: Sequence[str]) -> list[str]:
    """Returns what to tell a user who resumes a run that is done: that nothing is left to do, which
    overrides are ignored, and what to do instead.

    Raises:
        SpecError: the overrides cannot be used, or would make another run.
    """
    spec = read_spec(run.spec(submission))
    if overrides:
        spec, _ = _before_and_after(run, submission, overrides)
    last = planned_steps(spec)
    at = "" if last is None else f", at its last step, {last}"
    lines = [f"{run.name} is done{at}; nothing to resume"]
    if overrides:
        verb = "is" if len(overrides) == 1 else "are"
        lines.append(f"{shlex.join(overrides)} {verb} ignored: no step is left that could use it")
    again = shlex.join(typed_again(run, submission, [*overrides, "--fresh"]))
    lines.append(f"to run it again from the beginning: {manual_page.program()} {again}")
    if last is not None:
        lines.append(
            f"to train longer: hpckit resume {shlex.quote(str(run.path))} train.steps=N, with N "
            f"above {last}"
        )
    return lines


def typed_again(run: RunDir, submission: int, words: Sequence[str]) -> list[str]:
    """Returns the overrides of a submission and further words, with a program after them."""
    typed, program = split(overrides_of(run, submission))
    return [*typed, *words, *([] if program is None else [SEPARATOR, *program])]


def _before_and_after(
    run: RunDir, submission: int, overrides: Sequence[str]
) -> tuple[RunSpec, RunSpec]:
    """Returns the spec of a submission without and with `overrides`.

    Raises:
        SpecError: the overrides cannot be used, or would make another run.
    """
    before = read_spec(run.spec(submission))
    if before.command is not None and (problems := unread_key_problems(overrides)):
        raise SpecError(problems)
    tree = project_tree(run.project_code(submission))
    spec = amend_spec(with_identity_mixture(before), overrides, tree)
    spec = _extended(before, with_absolute_paths(spec, Path.cwd()))
    if before.train.identity_steps is not None and spec.train.steps < before.train.steps:
        raise SpecError(
            [
                f"train.steps: {spec.train.steps} is less than {before.train.steps}, which the run "
                "has; it can only get more"
            ]
        )
    mixtures = before.data.mixture, spec.data.mixture
    if None not in mixtures and (problems := change_problems(*mixtures)):  # type: ignore[arg-type]
        raise SpecError(problems)
    if problems := identity_problems(before, spec, typed_again(run, submission, overrides)):
        raise SpecError(problems)
    return before, spec


def overrides_of(run: RunDir, submission: int) -> list[str]:
    """Returns the overrides with which a submission was made."""
    import yaml

    text = (run.submission(submission) / "overrides.yaml").read_text(encoding="utf-8")
    return [str(word) for word in yaml.safe_load(text)]


def identity_problems(before: RunSpec, after: RunSpec, words: Sequence[str]) -> list[str]:
    """Returns the reasons why `after` is not the same run as `before`, and what to type instead.
    Pure.

    Args:
        words: the overrides with which to start the other run.
    """
    if before.root != after.root:
        return [
            "root: a run stays in the directory where it started; move that directory, then: "
            "hpckit resume FOLDER"
        ]
    found = differences(before, after)
    if before.name != after.name:
        found = [("name", before.name, after.name), *found]
    if not found:
        return []
    changes = ", ".join(f"{key} ({was} -> {now})" for key, was, now in found[:_MAX_KEYS])
    more = f" and {len(found) - _MAX_KEYS} more" if len(found) > _MAX_KEYS else ""
    return [
        f"{changes}{more}: would make it another run; to start that one: "
        f"{manual_page.program()} {shlex.join(words)}"
    ]


def _store_problems(run: RunDir, before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the problem if the run's checkpoints are in another store than the one where it would
    look."""
    here, there = checkpoint_root(before, run), checkpoint_root(after, run)
    if here == there:
        return []
    from hpckit.submit.newest_checkpoint import newest_step

    try:
        newest, found = (newest_step(one, run) for one in (before, after))
    except CheckpointError as error:
        return [f"checkpoint.url: {error}"]
    if found >= newest:
        return []
    has = f"its newest there is of step {found}" if found else "it has none there"
    return [
        f"checkpoint.url: the checkpoint of step {newest} is in {here}, and {has}: it would resume "
        "from an older step; leave the key out"
    ]
