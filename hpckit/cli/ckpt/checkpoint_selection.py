"""Selection of a checkpoint from the user's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from checkpointing.errors import DamagedError
from checkpointing.format.object_keys import SaveId
from checkpointing.format.store_records import CheckpointMark
from checkpointing.retention import Best
from checkpointing.store import catalog, pins_and_labels
from checkpointing.store.catalog import CatalogEntry, CheckpointInfo
from checkpointing.store.store import Store
from hpckit.cli.ckpt.store_location import StoreLocation
from hpckit.cli.common.command_output import clean, listing, when
from hpckit.cli.common.store_errors import CommandUsageError

_ID = re.compile(r"\d{1,10}(-[0-9a-f]{0,8})?")
_STATES = ("committed", "partial")


@dataclass(frozen=True)
class CheckpointMatch:
    """A checkpoint that matches the text, and a note about it."""

    info: CheckpointInfo
    remark: str | None = None


def pick(
    infos: Sequence[CheckpointInfo],
    named: Mapping[str, CheckpointMark],
    text: str,
    where: str,
    left_behind: Mapping[str, str] | None = None,
) -> CheckpointMatch:
    """Return the checkpoint of a run that `text` names.

    Args:
        infos: the run's checkpoints, also unfinished and damaged ones, ordered by step and time.
        named: the marks by name.
        where: the place and the run, for messages.
        left_behind: as `checkpoints_left_behind`; `latest` and the best are others, if there are.

    Raises:
        CommandUsageError: there is none, or several; the message lists the existing ones.
    """
    whole = [info for info in infos if info.state in _STATES]
    whole = [info for info in whole if info.id not in (left_behind or ())] or whole
    if text == "latest":
        if not whole:
            raise CommandUsageError(f"no checkpoint in {where}")
        return CheckpointMatch(max(whole, key=lambda info: (info.step, info.created)))
    marked = [info for info in infos if text in named and info.id == named[text].id]
    if marked or (text in named and text != pins_and_labels.BEST):  # `best` may also be a metric's
        return _one(marked, infos, text, where)
    if text == "best" or text.startswith("best:"):
        return CheckpointMatch(_best(whole, text, where))
    if text.isascii() and text.isdecimal() and len(text) <= 20:
        same = [info for info in infos if info.step == int(text)]
        if same:
            return _newest(same)
    matching = [info for info in infos if _ID.fullmatch(text) and info.id.startswith(text)]
    return _one(matching, infos, text, where)


def unmatched(globs: Sequence[str], what: str, names: Iterable[str]) -> CommandUsageError:
    """Return the error for a --tensor that selects nothing.

    Args:
        what: the subject of the sentence, as "no tensor".
        names: those that could have been selected.
    """
    there = listing([clean(name) for name in names], 3)
    return CommandUsageError(f"--tensor: {what} is {' or '.join(globs)}; there are {there}")


def checkpoint_label(info: CheckpointInfo) -> str:
    """Return a label that distinguishes a checkpoint from others of its step."""
    origin = f"imported from {info.source}, " if info.source else ""
    return f"{info.id} ({origin}{when(info.created, exact=True)})"


def _newest(same: Sequence[CheckpointInfo]) -> CheckpointMatch:
    """Return the newest of the checkpoints of one step, which may have been saved several times."""
    usable = [info for info in same if info.state in _STATES] or same
    chosen = max(usable, key=lambda info: info.created)
    others = [checkpoint_label(info) for info in same if info is not chosen]
    taken = checkpoint_label(chosen)
    remark = f"step {chosen.step} was saved {len(same)} times: using {taken}, the newest"
    return CheckpointMatch(chosen, f"{remark}; also: {listing(others)}" if others else None)


def _one(
    found: Sequence[CheckpointInfo], infos: Sequence[CheckpointInfo], text: str, where: str
) -> CheckpointMatch:
    if len(found) > 1:
        ids = listing([checkpoint_label(info) for info in found])
        raise CommandUsageError(f"{text!r} is the beginning of {len(found)} ids in {where}: {ids}")
    if not found:
        whole = {info.step for info in infos if info.state in _STATES}
        steps = listing([str(step) for step in sorted(whole, reverse=True)])
        there = f"there are the steps {steps}" if whole else "there are none"
        raise CommandUsageError(
            f"no checkpoint {text!r} in {where}; {there}, and latest, best and best:METRIC"
        )
    return CheckpointMatch(found[0])


def _best(infos: Sequence[CheckpointInfo], text: str, where: str) -> CheckpointInfo:
    metrics = sorted({name for info in infos for name in info.metrics})
    there = f"the metrics are: {listing(metrics)}" if metrics else "no checkpoint has any metric"
    _, metric, mode = _parse_best(text)
    if not metric and len(metrics) == 1:
        metric = metrics[0]
    if metric not in metrics:
        problem = (
            f"no checkpoint has the metric {metric!r}"
            if metric
            else "give the metric as best:METRIC"
        )
        raise CommandUsageError(f"{text!r} in {where}: {problem}; {there}")
    newest_first = sorted(infos, key=lambda i: (i.step, i.created), reverse=True)
    best = Best(metric, mode).reasons(newest_first)
    if not best:
        raise CommandUsageError(f"{text!r} in {where}: every checkpoint's {metric} is NaN")
    return next(info for info in infos if info.id in best)


def _parse_best(text: str) -> tuple[str, str, Literal["min", "max"]]:
    head, _, metric = text.partition(":")
    if metric.endswith(":max"):
        return head, metric.removesuffix(":max"), "max"
    return head, metric.removesuffix(":min"), "min"


@dataclass(frozen=True)
class SelectedCheckpoint:
    """A checkpoint with its manifest."""

    place: StoreLocation
    found: CatalogEntry

    @property
    def store(self) -> Store:
        return self.place.store

    @property
    def run(self) -> str:
        return self.found.stored.save.run

    @property
    def save(self) -> SaveId:
        return self.found.stored.save


def choose_checkpoint(
    place: StoreLocation, text: str, note: Callable[[str], None]
) -> SelectedCheckpoint:
    """Return the checkpoint of the place's run that `text` names.

    Args:
        note: called with notes for the user, such as that a step was saved twice.

    Raises:
        CommandUsageError: there is none.
        DamagedError: the manifest of the checkpoint cannot be read.
    """
    return SelectedCheckpoint(place, _found(place, choose_any(place, text, note)))


def choose_any(place: StoreLocation, text: str, note: Callable[[str], None]) -> CheckpointInfo:
    """Return the checkpoint as `choose_checkpoint` does, but accept a damaged or unfinished one."""
    run = place.only_run()
    where = f"{place.store.url}, run {run}"
    named, problems = pins_and_labels.readable_marks(place.store, run)
    for problem in problems:
        note(f"warning: {problem}")
    listed = catalog.list_checkpoints(place.store, run, refused={})
    left_behind = _left_behind(place)
    whole = pins_and_labels.with_marked_metrics(listed, named)
    picked = pick(whole, named, text, where, left_behind)
    if picked.remark:
        note(picked.remark)
    if (why := left_behind.get(picked.info.id)) is not None:
        note(f"the run does not use step {picked.info.step} ({picked.info.id}) any more: {why}")
    return picked.info


def _left_behind(place: StoreLocation) -> Mapping[str, str]:
    """Return what the run does not use any more, as `checkpoints_left_behind`; nothing if only its
    store is known."""
    if place.directory is None:
        return {}
    from hpckit.events.earlier_events import ids_left_behind
    from hpckit.rundir.directory import RunDir

    return ids_left_behind(RunDir(place.directory))


def _found(place: StoreLocation, info: CheckpointInfo) -> CatalogEntry:
    if info.state == "incomplete":
        raise CommandUsageError(
            f"step {info.step} ({info.id}) is not a checkpoint: {info.problem}. If all ranks had "
            f"finished, `hpckit ckpt repair {place.text} --adopt` commits it"
        )
    found, problems = catalog.committed(place.store, info.run)
    for candidate in found:
        if candidate.stored.save == info.save:
            return candidate
    if problem := problems.get(info.save):
        raise DamagedError(
            f"step {info.step} ({info.id}) is damaged: {problem}. `hpckit ckpt repair "
            f"{place.text} {info.id} --from OTHER` can take the manifest from another store"
        )
    raise CommandUsageError(f"step {info.step} ({info.id}) was removed in the meantime")
