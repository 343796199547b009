"""Programs that save, changed ones that restore, and whether what comes back is what was saved."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from checkpointing import Checkpointer, Last, StructureError, load
from tests.integration.checkpoint.single_process_saves import die
from tests.trainers import meshes
from tests.trainers.building import Trainer, own_values
from tests.trainers.changes import Change, draw_changes, draw_elsewhere
from tests.trainers.contents import (
    Contents,
    as_floats,
    but,
    contents,
    differences,
    everything,
    groups_of,
    mixes_groups,
    moments_of,
    write,
)
from tests.trainers.programs import Program, Setting, draw_program, draw_setting

CHANGES = 3
"""Of each program, beside none and another world."""
CASES = CHANGES + 3
"""Of each program, at least: with these, without any twice, and in another world."""
_OF_GROUPS = ("empty", "scheduler0/lr_lambdas", "scheduler1/lr_lambdas")
"""What depends on how many groups the program makes."""
_BAD = ("replicas_differ", "checkpoint_failed", "save_skipped", "checkpoint_skipped")
"""Events that no program here gives cause for."""


@dataclass(frozen=True)
class Group:
    """Programs that are played one after the other, by one Checkpointer."""

    number: int
    """Steps of later ones are greater."""
    seed: int
    """Of their setting."""
    seeds: tuple[int, ...]

    def step(self, seed: int) -> int:
        """Of a program's last save."""
        return 2 * (self.number * 100 + self.seeds.index(seed)) + 2


@dataclass
class Played:
    """What was done, as the first rank counts it."""

    cases: Counter[str] = field(default_factory=Counter)
    """By the kind of change."""
    tiers: Counter[str] = field(default_factory=Counter)
    refused: int = 0


@dataclass
class _Saved:
    """What a program had at the save, and after the steps that follow."""

    program: Program
    trainer: Trainer
    at_save: Contents
    later: Contents
    groups: Any
    whole: Contents


class Player:
    """One rank's part. All ranks of the larger world play the same groups."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder, self.played = rank, folder, Played()
        self._whole: dict[int, Contents] = {}
        self._bad: list[str] = []

    def play(self, group: Group) -> None:
        """Raises AssertionError: what came back is not what was saved; says of which seed."""
        setting = draw_setting(group.seed)
        if self.rank < setting.world:
            with self._world(setting.world, group, is_alone=setting.is_alone):
                self._save_and_restore(group, setting)
        if self.rank < setting.other_world:
            with self._world(setting.other_world, group, is_alone=setting.is_other_alone):
                self._restore_elsewhere(group, setting)
        self._whole.clear()

    @contextmanager
    def _world(self, size: int, group: Group, *, is_alone: bool) -> Iterator[None]:
        if is_alone:
            yield
            return
        meeting = self.folder / f"world-{group.number}-{size}"
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=self.rank, world_size=size
        )
        yield
        dist.barrier()
        meshes.forget()
        dist.destroy_process_group()

    def _checkpointer(self, setting: Setting) -> Checkpointer:
        def hear(kind: str, **fields: Any) -> None:
            # of who restores again before what it has taken from memory is durable
            is_fenced = "took over the run" in str(fields.get("error"))
            if kind in _BAD and not is_fenced:
                self._bad.append(f"{kind}: {fields}")
            if kind == "checkpoint_restored":
                self.played.tiers[fields["tier"]] += 1

        keep, store = [Last(40)], self.folder / "store"
        return Checkpointer(store, run="r", keep=keep, on_event=hear, **setting.options)

    def _save_and_restore(self, group: Group, setting: Setting) -> None:
        ckpt = self._checkpointer(setting)
        for seed in group.seeds:
            program = draw_program(seed, setting)
            with self._named(seed, "the save", program):
                saved = self._save(ckpt, program, group.step(seed))
            if self._is_killed(seed):
                die(ckpt)
                ckpt = self._checkpointer(setting)
            for change in draw_changes(program, setting, CHANGES):
                with self._named(seed, change.kind, change.program):
                    self._check(change, saved, ckpt.restore)
            again = Change("loaded", program)
            with self._named(seed, again.kind, program):
                ckpt.wait()
                self._check(again, saved, self._loader(group.step(seed)))
        ckpt.close()

    def _restore_elsewhere(self, group: Group, setting: Setting) -> None:
        newest_first = sorted(group.seeds, key=group.step, reverse=True)
        ckpt = self._checkpointer(setting)
        for seed in newest_first:
            program = draw_program(seed, setting)
            change = draw_elsewhere(program, setting)
            ways = [self._loader(group.step(seed))]
            ways += [ckpt.restore] if seed == newest_first[0] else []
            for restore in ways:
                with self._named(seed, change.kind, change.program):
                    self._check_elsewhere(change, self._whole.get(seed), setting.world, restore)
        ckpt.close()

    def _save(self, ckpt: Checkpointer, program: Program, step: int) -> _Saved:
        trainer, draw = Trainer(program, weights=1), Random(f"saves {program.seed}")
        early = draw.randint(0, len(program.steps)) if draw.random() < 0.4 else -1
        for number, used in enumerate(program.steps, 1):
            trainer.train(number, used)
            if number == early:
                ckpt.save(step - 1, trainer.state)
        if draw.random() < 0.3:
            trainer.take_gradients(99, frozenset(program.layers))
        ckpt.wait()
        at_save, groups = contents(trainer), groups_of(trainer)
        whole = contents(trainer, whole=True)
        ckpt.save(step, trainer.state)
        self._go_on(trainer, program)
        if not self._is_killed(program.seed) or draw.random() < 0.5:
            ckpt.wait()
        self._look_at_events()
        if self.rank == 0:
            self._whole[program.seed] = whole
        at_save |= self._moments_of_first(trainer, at_save)
        return _Saved(program, trainer, at_save, contents(trainer), groups, whole)

    def _is_killed(self, seed: int) -> bool:
        """Whether others go on from the program's save, which may be in memory alone."""
        return Random(f"killed {seed}").random() < 0.6

    def _go_on(self, trainer: Trainer, program: Program) -> None:
        for number, used in enumerate(program.later, 1 + len(program.steps)):
            trainer.train(number, used)

    def _moments_of_first(self, trainer: Trainer, held: Contents) -> Contents:
        """What the first rank has in the buffers that ranks have of their own."""
        names = moments_of(trainer)
        if not names or not dist.is_initialized():
            return {}
        told: Contents = self._told({name: held[name] for name in names})
        return told

    def _told(self, thing: Any) -> Any:
        if not dist.is_initialized():
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def _check(
        self, change: Change, saved: _Saved, restore: Callable[[dict[str, Any]], object]
    ) -> None:
        trainer = self._changed(change)
        says = change.says
        if change.has_other_groups and mixes_groups(saved.groups, groups_of(trainer)):
            says = "its groups have other parameters"
        if not self._restored(trainer, restore, says):
            return
        empty = _OF_GROUPS if change.has_other_groups else ()
        if change.is_same_tensors:
            found, expected = contents(trainer), saved.at_save
        else:
            found, expected = contents(trainer, whole=True), self._told(saved.whole)
            # in the same world each rank has its own again
            expected |= {n: one for n, one in saved.at_save.items() if n.startswith("own")}
        if change.has_other_groups:  # an option that the program alone knows stays its own
            found, expected = (_of_both(one, expected) for one in (found, expected))
        _agree(but(found, empty), but(expected, empty), "after the restore")
        if not change.goes_on:
            return
        trainer.freeze_as(saved.trainer)
        trainer.forget_gradients()
        self._go_on(trainer, saved.program)
        mine = () if self.rank == 0 else moments_of(trainer)
        left_out = (*empty, *mine)
        found, expected = but(contents(trainer), left_out), but(saved.later, left_out)
        if change.has_other_groups:
            found, expected = (_of_both(one, expected) for one in (found, expected))
        _agree(found, expected, "going on")

    def _check_elsewhere(
        self,
        change: Change,
        whole: Contents | None,
        world: int,
        restore: Callable[[dict[str, Any]], object],
    ) -> None:
        """
        Args:
            whole: what the first rank of the world of the save had, on the first rank.
            world: its size.
        """
        trainer, expected = self._changed(change), dict(self._told(whole))
        if not self._restored(trainer, restore, change.says):
            return
        if "own_values" in change.program.values:
            its = own_values(len(change.program.steps), (self.rank + 1) % world)
            write(its, "own_values", expected)
        _agree(contents(trainer, whole=True), expected, "after the restore")

    def _changed(self, change: Change) -> Trainer:
        trainer, program = Trainer(change.program, weights=2), change.program
        for number in range(change.trained):
            trainer.train(50 + number, frozenset(program.layers))
        trainer.forget_gradients()
        if change.has_gradients:
            trainer.take_gradients(70, frozenset(program.layers))
        return trainer

    def _restored(
        self, trainer: Trainer, restore: Callable[[dict[str, Any]], object], says: str | None
    ) -> bool:
        """Whether it was restored: else it was refused as it should, and is what it was."""
        torch.manual_seed(5)
        before = everything(trainer)
        try:
            restore(trainer.state)
        except StructureError as error:
            if says is None:
                raise
            if says not in str(error):
                raise AssertionError(f"the refusal does not speak of {says!r}: {error}") from error
            _agree(everything(trainer), before, "after the refusal")
            self.played.refused += self.rank == 0
            return False
        assert says is None, f"it is to be refused, by {says!r}"
        kept = ("gradient/", "is_trained/", "random")
        after = everything(trainer)
        still = {name: one for name, one in before.items() if name.startswith(kept)}
        _agree({n: one for n, one in after.items() if n.startswith(kept)}, still, "untouched")
        self._look_at_events()
        return True

    def _look_at_events(self) -> None:
        told, self._bad = self._bad, []
        assert not told, f"events: {told}"

    def _loader(self, step: int) -> Callable[[dict[str, Any]], object]:
        store = self.folder / "store"
        return lambda state: load(state, store, run="r", step=step)

    @contextmanager
    def _named(self, seed: int, kind: str, program: Program) -> Iterator[None]:
        (self.folder / f"at-{self.rank}").write_text(f"seed {seed}, {kind}")
        if kind != "the save" and self.rank == 0:
            self.played.cases[kind] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            where = "".join(traceback.format_exception(error)[-4:])
            raise AssertionError(
                f"seed {seed}, {kind}, rank {self.rank}: {type(error).__name__}: {error}\n{where}"
                f"  of {program}\n  again: python -m tests.trainers --seed {seed}"
            ) from error


def _of_both(found: Contents, expected: Contents) -> Contents:
    """Without options of groups that the checkpoint does not know, and how many there are; of
    groups that were merged all have the first one's, which may have written 0 as 0.0."""
    shared = {
        name: one
        for name, one in found.items()
        if name.startswith("group") and name in expected and not name.endswith(" is")
    }
    return but(found, ("group",)) | as_floats(shared)


def _agree(found: Contents, expected: Contents, when: str) -> None:
    if told := differences(found, expected):
        shown = "\n    ".join(told[:6])
        raise AssertionError(f"{len(told)} differences {when}:\n    {shown}")
