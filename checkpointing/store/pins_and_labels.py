"""Checkpoint marks: names for checkpoints, such as "best", and pins, which keep a checkpoint from
any prune."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from checkpointing.errors import CheckpointError, DamagedError, FormatError
from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.format.store_records import CheckpointMark, dump_mark, load_mark
from checkpointing.store.catalog import CheckpointInfo, committed
from checkpointing.store.deletion.deletion_marks import marked_for_deletion
from checkpointing.store.store import Store

PIN = "pin-"
EVALUATION = "eval-"
"""The beginning of the names of marks that have the metrics of evaluations."""
BEST = "best"
"""The mark of the checkpoint that a run's retention policies consider its best."""


def pin(store: Store, save: SaveId, why: str) -> None:
    """Keep a checkpoint until it is unpinned.

    Raises:
        CheckpointError: it does not exist, or a prune has begun to remove it.
    """
    put_mark(store, save, PIN + save.id, why, pinned=True)


def pin_of(store: Store, save: SaveId) -> CheckpointMark | None:
    """Return the pin that `pin` made for a checkpoint; None if there is none.

    Raises:
        DamagedError, FormatError: it cannot be read.
    """
    key = object_keys.mark(save.run, PIN + save.id)
    try:
        return load_mark(store.storage.get(key), key)
    except FileNotFoundError:
        return None


def unpin(store: Store, save: SaveId) -> None:
    """Remove the pin of a checkpoint, so that the policies decide again; does nothing if it is not
    pinned."""
    store.storage.delete([object_keys.mark(save.run, PIN + save.id)])


def put_metrics(store: Store, save: SaveId, metrics: Mapping[str, float], why: str) -> None:
    """Give a checkpoint metrics that were measured after its commit, in place of those that an
    earlier call has given it. They do not keep it from a prune.

    Args:
        metrics: finite numbers by name.

    Raises:
        CheckpointError: it does not exist.
    """
    _write_mark(store, save, EVALUATION + save.id, why, metrics=metrics)
    _manifest_of(store, save)


def marked_metrics(marks: Iterable[CheckpointMark]) -> dict[str, dict[str, float]]:
    """Return, by the ids of checkpoints, the metrics that marks have given them."""
    found: dict[str, dict[str, float]] = {}
    for mark in marks:
        if mark.metrics:
            found.setdefault(mark.id, {}).update(mark.metrics)
    return found


def with_marked_metrics(
    infos: Sequence[CheckpointInfo], named: Mapping[str, CheckpointMark]
) -> list[CheckpointInfo]:
    """Return checkpoints of one run with the metrics that its marks give them."""
    given = marked_metrics(named.values())
    return [
        replace(info, metrics={**info.metrics, **given[info.id]}) if info.id in given else info
        for info in infos
    ]


def remove_metrics(store: Store, saves: Iterable[SaveId]) -> None:
    """Remove the marks with the metrics of checkpoints that were removed."""
    store.storage.delete([object_keys.mark(one.run, EVALUATION + one.id) for one in saves])


def put_mark(store: Store, save: SaveId, name: str, why: str, *, pinned: bool = False) -> None:
    """Give a checkpoint a name, which another one may have had before.

    Raises:
        CheckpointError: the checkpoint does not exist; or a prune has begun to remove it, and then
            the mark was made all the same, in case the checkpoint stays.
    """
    _write_mark(store, save, name, why, pinned=pinned)
    # The mark is written before this look: a prune first marks for deletion, then looks at the
    # checkpoint marks. Deletion marks are read before manifests: what a deletion mark that is over
    # named is gone.
    going = marked_for_deletion(store)
    if _manifest_of(store, save) in going:
        # To withdraw the mark would undo that of another caller who was in time.
        raise CheckpointError(
            f"prune may be removing checkpoint {save.id} of run {save.run!r}: check whether it "
            "still exists, and if so mark it again"
        )


def _write_mark(
    store: Store,
    save: SaveId,
    name: str,
    why: str,
    *,
    pinned: bool = False,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a mark of a checkpoint that exists."""
    mark = CheckpointMark(save.id, pinned, why, time.time(), metrics or {})
    key = object_keys.mark(save.run, object_keys.check_mark(name))
    # first, or the name would be lost to the checkpoint that had it before
    _manifest_of(store, save)
    store.storage.replace(key, dump_mark(mark))


def marks(store: Store, run: str) -> Mapping[str, CheckpointMark]:
    """Return all marks of a run, by name.

    Raises:
        DamagedError, FormatError: a mark cannot be read, so that it is not known what it protects.
    """
    found = {}
    for entry in store.storage.list(object_keys.marks(run)):
        name = entry.key.removeprefix(object_keys.marks(run))
        try:
            found[name] = load_mark(store.storage.get(entry.key), entry.key)
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError) as error:
            raise type(error)(f"{error}; remove the mark, or set it again") from error
    return found


def readable_marks(store: Store, run: str) -> tuple[Mapping[str, CheckpointMark], list[str]]:
    """Return the marks of a run, or none and the error if they cannot be read."""
    try:
        return marks(store, run), []
    except (DamagedError, FormatError) as error:
        return {}, [f"the checkpoint marks cannot be read: {error}"]


def label_of(name: str, mark: CheckpointMark) -> str:
    """Return a mark as a word for people."""
    if name.startswith(PIN):
        return "pinned"
    return f"{name} (pinned)" if mark.pinned else name


def labels_by_id(named: Mapping[str, CheckpointMark]) -> dict[str, list[str]]:
    """Return the labels of checkpoints by their ids, without marks that only give metrics."""
    found: dict[str, list[str]] = {}
    for name, mark in named.items():
        if not mark.metrics:
            found.setdefault(mark.id, []).append(label_of(name, mark))
    return found


def pins(store: Store, run: str) -> dict[str, str]:
    """Return the ids that are pinned, with the reason."""
    return pinned_by(marks(store, run).values())


def pinned_by(marks: Iterable[CheckpointMark]) -> dict[str, str]:
    """Return the ids that marks pin, with the reason."""
    return {m.id: f"pinned: {m.why}" if m.why else "pinned" for m in marks if m.pinned}


def _manifest_of(store: Store, save: SaveId) -> str:
    """Return the key of the checkpoint's last revision.

    Raises:
        CheckpointError: it does not exist.
    """
    for found in committed(store, save.run)[0]:
        if found.stored.save == save:
            return found.stored.key
    raise CheckpointError(f"checkpoint {save.id} of run {save.run!r} does not exist (any more)")
