"""Sources of batches whose position is that of one rank: loaders of other libraries, with and
without a state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from checkpointing import PerRank
from checkpointing.format.values.json_values import encode
from hpckit.trainer.batches.loader_state import (
    epoch_setters,
    generators_of,
    methods_of,
    packed,
    unpacked,
)
from hpckit.trainer.batches.step_source import SkippedBatches, StepSource, StepSourceOptions
from hpckit.trainer.errors import TrainingError

_NEXT = -1
"""In place of the first step of an epoch: that with which the run resumes."""
_KEEPS_WORLD = (
    "Resume on as many ranks as before, or choose what becomes of the position by "
    'run.steps(..., other_world="next_epoch" | "first" | a function). Only data.Loader and '
    "from_wds continue exactly on any number of ranks"
)


class PerRankSource(StepSource):
    """A source whose position is that of one rank, and is saved for each rank."""

    @property
    def tracked(self) -> Any:
        return PerRank(self, other_world=self._choose)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that were taken, as plain values."""
        return {
            "epoch": self._epoch,
            "first_step": self._first_step,
            "part": self._options.part,
            **self._own_state(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue at a position.

        Raises:
            TrainingError: it belongs to another part of the global batch.
        """
        if self._options.repeats_first:
            return
        if tuple(saved["part"]) != self._options.part:
            (was, count), (now, size) = saved["part"], self._options.part
            raise TrainingError(
                f"run.steps({self.name}): the checkpoint has the position of part {was} of {count} "
                f"of each batch, and this rank takes part {now} of {size}. {_KEEPS_WORLD}"
            )
        self._epoch, self._first_step = saved["epoch"], saved["first_step"]
        self._load_own(saved)

    def _own_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load_own(self, saved: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _in_next_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the position at the begin of an epoch, whose first step is the next one."""
        raise NotImplementedError

    def _choose(self, states: Sequence[Any], rank: int, world: int) -> dict[str, Any]:
        """Return the position of this rank, given those of all ranks of another world size.

        Raises:
            TrainingError: the rule is to refuse that.
        """
        rule, mine = self._options.other_world, {"part": self._options.part}
        if rule == "error":
            raise TrainingError(
                f"run.steps({self.name}): the checkpoint has the positions of {len(states)} ranks, "
                f'and here are {world}. The rule is other_world="error". {_KEEPS_WORLD}'
            )
        if rule == "next_epoch":
            epoch = max(state["epoch"] for state in states) + 1
            return {**self._in_next_epoch(epoch), **mine}
        if rule == "first":
            return {**states[0], **mine}
        assert callable(rule)
        chosen = rule([unpacked(state.get("state")) for state in states], rank, world)
        return {**states[0], **mine, "state": packed(chosen)}

    def resume(self, step: int, beat: Callable[[], None]) -> SkippedBatches | None:
        if self._first_step == _NEXT:
            self._first_step = step
        return None


class StatefulSource(PerRankSource):
    """A loader that has a state on each rank, such as torchdata's StatefulDataLoader."""

    def __init__(self, loader: Iterable[Any], options: StepSourceOptions) -> None:
        super().__init__(loader, options)
        self._methods = methods_of(loader)
        self._restored: Any = None
        """The loaded state; None: it begins at its begin."""
        self._is_checked = False
        """Whether a batch was taken, and the state after it can be saved."""

    def _take(self, step: int) -> Any:
        batch = super()._take(step)
        if not self._is_checked:
            self._check_state()
        return batch

    def _check_state(self) -> None:
        """Check, once, that the state can be saved, rather than at the first save."""
        state = self._methods.take()
        if state is None:
            raise TrainingError(f"run.steps({self.name}): its state is None after a batch")
        try:
            encode(packed(state), self.name)
        except TypeError as error:
            raise TrainingError(f"run.steps({self.name}): its state: {error}") from error
        self._is_checked = True

    def _own_state(self) -> dict[str, Any]:
        return {"state": packed(self._methods.take()) if self._is_checked else self._restored}

    def _load_own(self, saved: Mapping[str, Any]) -> None:
        self._restored = saved["state"]
        if self._restored is not None:
            self._methods.load(unpacked(self._restored))

    def _in_next_epoch(self, epoch: int) -> dict[str, Any]:
        return {"epoch": epoch, "first_step": _NEXT, "state": None}


class StatelessSource(PerRankSource):
    """An iterable without a state. What the run has seen is read again and discarded: from the
    begin of the epoch if `set_epoch` chooses its order, else from the first batch."""

    def __init__(self, loader: Iterable[Any], options: StepSourceOptions) -> None:
        super().__init__(loader, options)
        self._origin = (0, 0)
        """The epoch and step from which it has to be read again."""
        self._generators = {name: one.get_state() for name, one in generators_of(loader).items()}
        """The states of the generators of its sampler there."""

    def _own_state(self) -> dict[str, Any]:
        return {"origin": self._origin, "generators": packed(self._generators)}

    def _load_own(self, saved: Mapping[str, Any]) -> None:
        self._origin = tuple(saved["origin"])
        self._generators |= unpacked(saved["generators"])
        for name, one in generators_of(self.loader).items():
            one.set_state(self._generators[name])

    def _in_next_epoch(self, epoch: int) -> dict[str, Any]:
        return {"epoch": epoch, "first_step": _NEXT, "origin": (epoch, _NEXT), "generators": {}}

    def resume(self, step: int, beat: Callable[[], None]) -> SkippedBatches | None:
        super().resume(step, beat)
        epoch, origin_step = self._origin
        self._origin = (epoch, step if origin_step == _NEXT else origin_step)
        if self._options.repeats_first:
            return None
        reached = self._epoch, self._first_step
        if not epoch_setters(self.loader):
            self._epoch, self._first_step = self._origin
        first, began_s = self._first_step, time.monotonic()
        for at in range(first, step):
            self._take(at)
            beat()
        if (self._epoch, self._first_step) != reached and first < step:
            raise TrainingError(
                f"run.steps({self.name}): epoch {reached[0] + 1} began after step {reached[1]}, "
                f"and now epoch {self._epoch + 1} began after step {self._first_step}: its epochs "
                "have another number of batches than before"
            )
        if first == step:
            return None
        seconds = time.monotonic() - began_s
        return SkippedBatches(self.name, step - first, seconds, self._iterator is self.loader)
