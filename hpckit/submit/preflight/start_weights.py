"""Checks before submission that the weights a run starts from exist and fit its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing import CheckpointError, local_folder
from hpckit.config.entry_points import LANGUAGE_MODEL, is_built_in
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import DecoderSpec, InitFromSpec, LlamaSpec, ModelSpec, RunSpec
from hpckit.events.checkpoints_left_behind import choices
from hpckit.events.earlier_events import ids_left_behind
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.rundir.run_origin import find_origin
from hpckit.system.store_timeouts import interactive_store_options

if TYPE_CHECKING:
    from checkpointing import CheckpointInfo


def start_problems(spec: RunSpec, run: RunDir) -> list[str]:
    """Returns the reasons why the run, which has `init_from` or adapters, cannot start from the
    given weights; empty if it can, or has started already."""
    try:
        if _checkpoints(checkpoint_root(spec, run), run_name(spec)):
            return []
        if spec.init_from is None:
            return [
                "lora: needs trained parameters; name them with init_from=huggingface or "
                "init_from=checkpoint"
            ]
        model = decoder_of(spec) if is_built_in(spec) else None
        if spec.init_from.kind == "huggingface":
            return list(_check_folder(spec.init_from, model))
        return list(_check_checkpoint(spec.init_from, model, run.path.parent))
    except (CheckpointError, OSError, ValueError) as error:
        return [f"init_from.path: {error}"]


def _check_folder(start: InitFromSpec, model: DecoderSpec | None) -> Iterator[str]:
    """Yields the problems of a transformers folder.

    Args:
        model: the model that is to begin with it. None: a training function of the user makes it.
    """
    if model is None:
        if not Path(start.path).exists():
            yield f"init_from.path: there is no {start.path}"
        return
    from hpckit.trainer.models.pretrained_folder import folder_problems

    for line in folder_problems(Path(start.path), model):
        yield f"init_from.path: {line}"


def _check_checkpoint(start: InitFromSpec, model: DecoderSpec | None, root: Path) -> Iterator[str]:
    """Yields the problems of a checkpoint.

    Args:
        root: the folder of the run directories, in which one that does not exist may be meant.
    """
    folder = local_folder(start.path)
    if folder is not None and not folder.exists():
        meant = root / folder.name
        yield (
            f"init_from.path: {folder} is not a run directory or a run in a store: it does not "
            f"exist{f'; did you mean {meant}?' if meant.exists() else ''}"
        )
        return
    origin = find_origin(start.path)
    found = _checkpoints(origin.url, origin.run)
    left_behind = ids_left_behind(origin.directory) if origin.directory else {}
    fitting = choices(found, start.step, left_behind)
    if not fitting:
        which = "checkpoint" if start.step is None else f"checkpoint of step {start.step}"
        steps = ", ".join(str(one.step) for one in found) or "none"
        yield f"init_from.path: no {which} of run {origin.run} in {origin.url}; there are: {steps}"
        if found and start.step is None:
            yield "init_from.step: name one; the run has left all of them behind"
    elif start.item not in (items := max(fitting, key=lambda one: (one.step, one.created)).items):
        yield f"init_from.item: that checkpoint has no {start.item}; it has {', '.join(items)}"
    if model is not None and origin.spec is not None and origin.spec.entry == LANGUAGE_MODEL:
        for line in _other_sizes(model, origin.spec.model):
            yield f"{line} in the run {start.path}"


def _other_sizes(mine: DecoderSpec, theirs: ModelSpec) -> Iterator[str]:
    if mine.kind != theirs.kind:
        yield f"model.kind: is {mine.kind}, and {theirs.kind}"
        return
    for name in (field.name for field in fields(mine)):
        if name == "seq_len" and isinstance(mine, LlamaSpec):
            continue  # no parameter depends on single positions
        here, there = getattr(mine, name), getattr(theirs, name)
        if here != there:
            yield f"model.{name}: is {here}, and {there}"


def _checkpoints(url: str, run: str) -> list[CheckpointInfo]:
    from checkpointing import list_run  # imports numpy, which few runs need

    found = list_run(url, run, interactive_store_options())
    return [one for one in found if one.state in ("committed", "partial")]
