"""The choice of the source of a run's batches, by what the iterable of `run.steps` can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkpointing import PerRank
from hpckit.trainer.batches.loader_state import parts_of, state_methods
from hpckit.trainer.batches.per_rank_source import StatefulSource, StatelessSource
from hpckit.trainer.batches.step_source import SharedStateSource, StepSource, StepSourceOptions
from hpckit.trainer.errors import TrainingError

_RULES = ("error", "first", "next_epoch")


def open_source(
    loader: object, options: StepSourceOptions, tracked: Mapping[str, Any]
) -> StepSource:
    """Return the source of the batches of `loader`, of the kind that its state allows.

    Args:
        tracked: the objects of the run's state, by name.

    Raises:
        TrainingError: it is not iterable, or a part of it is tracked besides, or the rule for
            another number of ranks is none.
    """
    if not isinstance(loader, Iterable):
        advice = ": call it" if callable(loader) else ", such as a DataLoader over it"
        kind = type(loader).__name__
        raise TrainingError(f"run.steps({kind}): it is not iterable; give an iterable{advice}")
    rule = options.other_world
    if not callable(rule) and rule not in _RULES:
        raise TrainingError(
            f"run.steps(other_world=): {', '.join(_RULES)} or a function, not {rule!r}"
        )
    if getattr(loader, "has_shared_state", False):
        return SharedStateSource(loader, options)
    if state_methods(loader) is not None:
        return StatefulSource(loader, options)
    _refuse_tracked_parts(loader, tracked)
    return StatelessSource(loader, options)


def _refuse_tracked_parts(loader: Iterable[Any], tracked: Mapping[str, Any]) -> None:
    """Refuse to restore a part of an iterable that is read again from its begin."""
    for part, held in parts_of(loader).items():
        for name, one in tracked.items():
            if one is held or (isinstance(one, PerRank) and one.held is held):
                kind = type(loader).__name__
                raise TrainingError(
                    f"run.track({name}=...) is the {part} of the {kind} in run.steps, which has no "
                    "state and is read again from its begin: restored besides, it would skip twice."
                    " Do not track it, or use torchdata's StatefulDataLoader"
                )
