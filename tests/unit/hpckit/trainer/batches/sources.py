"""Iterables as users have them, and a run's loop over their source without the run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from checkpointing import PerRank
from hpckit.trainer.batches.source_choice import open_source
from hpckit.trainer.batches.step_source import SkippedBatches, StepSource, StepSourceOptions
from hpckit.trainer.random_seeds import seed_step


def seed(step: int) -> None:
    seed_step(1, step, 0)


def source_of(loader: object, tracked: Mapping[str, Any] | None = None, **more: Any) -> StepSource:
    return open_source(loader, StepSourceOptions(seed, **more), tracked or {})


class Interrupted:
    """A loop over sources, one after the other, each of which continues where the one before
    was."""

    def __init__(self, make: Any, **more: Any) -> None:
        self._make, self._more = make, more
        self.step = 0
        self._saved: Any = None
        self.skipped: list[SkippedBatches | None] = []

    def run(self, steps: int) -> list[Any]:
        """The batches of so many steps of a new process."""
        seed(self.step)  # a sampler may draw its order when it is made
        source = source_of(self._make(), **self._more)
        tracked = source.tracked
        held = tracked.held if isinstance(tracked, PerRank) else tracked
        before = held.state_dict()  # a restore looks at the structure of the state first
        if self._saved is not None:
            held.load_state_dict(self._saved)
            assert held.state_dict() == (before if self._more else self._saved)
        self.skipped.append(source.resume(self.step, lambda: None))
        taken = [source.take(self.step + number) for number in range(steps)]
        self.step, self._saved = self.step + steps, held.state_dict()
        source.close()
        return taken


class Epochs:
    """A finite iterable without a state. Its order is drawn from Python's generator; its batches
    are numbers, with one that is drawn as they are made."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        order = random.sample(range(self.length), self.length)
        for number in order:
            yield self.epoch, number, int(torch.randint(1000, (1,)))


class NumberedEpochs(Epochs):
    """Its order is that of its epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Counter:
    """An endless loader with a state of its own."""

    def __init__(self) -> None:
        self.at, self.cells = 0, torch.zeros(3, dtype=torch.int32)

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            self.cells += 1
            yield int(self.cells[0])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "cells": self.cells, "rng": {"state": 1 << 100, "b": b"x"}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at, self.cells = state["at"], state["cells"]


class Numbers(Iterator[int]):
    """An iterator with a state, which ends: its methods are named as those of Grain."""

    def __init__(self, count: int) -> None:
        self._at, self._count = 0, count

    def __next__(self) -> int:
        if self._at == self._count:
            raise StopIteration
        self._at += 1
        return self._at

    def get_state(self) -> bytes:
        return str(self._at).encode()

    def set_state(self, state: bytes) -> None:
        self._at = int(state)


def epoch_lengths(taken: Iterable[tuple[int, ...]], length: int) -> bool:
    """Whether each `length` batches in a row are an epoch, and the last are the begin of one."""
    numbers = [one[1] for one in taken]
    cuts = [numbers[at : at + length] for at in range(0, len(numbers), length)]
    whole = all(sorted(cut) == list(range(length)) for cut in cuts[:-1])
    return whole and len({*cuts[-1]}) == len(cuts[-1])
