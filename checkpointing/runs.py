"""Operations on whole runs of a store. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from checkpointing.errors import CheckpointError, DamagedError, StoreError
from checkpointing.format import object_keys
from checkpointing.format.manifest import ManifestContent, build_manifest
from checkpointing.format.object_keys import SaveId, check_run
from checkpointing.store import catalog
from checkpointing.store.catalog import CheckpointInfo
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.inspection.integrity_check import verify as full_verify
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import check_packs, make_manifest


@contextmanager
def opened(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> Iterator[Store]:
    """Open the store at `url` for the duration of the block; raises as `Store.open`."""
    store = Store.open(url, options=options)
    try:
        yield store
    finally:
        store.close()


def list_checkpoints(
    url: str | os.PathLike[str], run: str | None = None, options: Mapping[str, Any] | None = None
) -> list[CheckpointInfo]:
    """Returns the checkpoints in the store at `url`, of one run or all, ordered by run, step and
    time.

    Raises:
        FileNotFoundError: there is no store.
        StoreError: it is unreachable.
    """
    with opened(url, options) as store:
        return catalog.list_checkpoints(store, run)


def list_run(
    url: str | os.PathLike[str], run: str, options: Mapping[str, Any] | None = None
) -> list[CheckpointInfo]:
    """As `list_checkpoints`, but returns an empty list if the store does not exist yet."""
    try:
        return list_checkpoints(url, run, options)
    except FileNotFoundError:
        return []


def verify(
    url: str | os.PathLike[str], info: CheckpointInfo, options: Mapping[str, Any] | None = None
) -> list[str]:
    """Read every byte of a checkpoint and check it. Returns the problems found, none if it is
    whole."""
    with opened(url, options) as store:
        for found in catalog.committed(store, info.run)[0]:
            if found.stored.save == info.save:
                return [str(problem) for problem in full_verify(store, found)]
    return [info.problem or f"checkpoint {info.id} does not exist"]


def rename_run(
    url: str | os.PathLike[str], run: str, name: str, options: Mapping[str, Any] | None = None
) -> None:
    """Move the checkpoints of `run` to another run's name, so that `run` can start afresh.

    No process may save `run` meanwhile. Each checkpoint gets a manifest under the new name before
    the one under the old name is removed, so a crash leaves some of them under both. Manifests that
    cannot be read, and checkpoint marks, are copied as they are.

    Raises:
        StoreError: the store is unreachable, or already has a run of that name.
    """
    check_run(name)
    if not list_run(url, run, options):
        return
    with opened(url, options) as store:
        if store.manifests(name):
            raise StoreError(f"{store.url} already has a run {name!r}")
        found, unreadable = catalog.committed(store, run)
        as_they_are = [entry.key for entry in store.storage.list(object_keys.marks(run))]
        as_they_are += [s.key for s in store.manifests(run) if s.save in unreadable]
        with Session(store, name) as session:
            for one in found:
                try:
                    content = one.document.content()
                except DamagedError:
                    as_they_are.append(one.stored.key)
                else:
                    _save_as(store, session, content, name)
        for key in as_they_are:
            new = f"{object_keys.RUNS}{name}/{key.removeprefix(f'{object_keys.RUNS}{run}/')}"
            store.storage.put(new, [store.storage.get(key)])
        # locks are left there, since another process may hold one
        for folder in ("steps", "parts", "marks"):
            listed = store.storage.list(f"{object_keys.RUNS}{run}/{folder}/")
            store.storage.delete(entry.key for entry in listed)


def fork_run(
    url: str | os.PathLike[str],
    run: str,
    name: str,
    step: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> CheckpointInfo:
    """Give the new run `name` a checkpoint of `run` as its first one, and return it.

    No tensor is copied: both checkpoints refer to the same packs, which stay as long as either of
    them does. A trainer with `run=name` resumes from it.

    Args:
        step: step of the checkpoint; None: the newest one whose replicas are equal.

    Raises:
        CheckpointError: there is no such checkpoint, or retention has removed items of it.
        SaveError: a prune is removing it.
        StoreError: the store is unreachable, or already has a run of that name.
        FileNotFoundError: there is no store.
    """
    check_run(name)
    with opened(url, options) as store:
        found = _checkpoint_at(store, run, step)
        if store.manifests(name):
            raise StoreError(f"{store.url} already has a run {name!r}")
        old = found.stored.save
        save = SaveId(name, old.step, old.session)
        with Session(store, name) as session:
            session.announce(save.manifest())
            # in the order of every save: the announcement, the deletion marks, then what exists
            marked_packs = packs_marked_for_deletion(store)
            content = _checkpoint_at(store, run, old.step).document.content()
            header = replace(
                content.header, save=save, revision=0, source=f"run {run}, checkpoint {old.id}"
            )
            check_packs(save, content, marked_packs)
            content = replace(content, header=header)
            make_manifest(store, save.manifest(), content, session.check)
            session.end(save.manifest())
        (info,) = catalog.list_checkpoints(store, name)
    return info


def _checkpoint_at(store: Store, run: str, step: int | None) -> catalog.CatalogEntry:
    """Return the checkpoint of a step from which training can resume; None: the newest one without
    a difference mark.

    Raises:
        CheckpointError: there is none.
    """
    entries, _ = catalog.committed(store, run)
    whole = [one for one in entries if not one.document.header.dropped]
    if step is None:
        equal = [one for one in whole if not one.document.header.is_suspect]
        if equal or whole:
            return (equal or whole)[0]
    else:
        for one in whole:
            if one.stored.save.step == step:
                return one
    steps = ", ".join(str(one.stored.save.step) for one in reversed(whole)) or "none"
    what = "checkpoint" if step is None else f"checkpoint of step {step}"
    raise CheckpointError(
        f"{store.url} has no {what} of run {run!r} to resume from; its steps: {steps}"
    )


def _save_as(store: Store, session: Session, content: ManifestContent, name: str) -> None:
    """Commit the same checkpoint under another run's name."""
    old = content.header.save
    save = SaveId(name, old.step, old.session)
    session.announce(save.manifest())
    header = replace(content.header, save=save, revision=0)
    data = build_manifest(replace(content, header=header))
    if not store.storage.create(save.manifest(), data):
        raise StoreError(f"{store.url} has a new run {name!r}; choose another name")
    session.end(save.manifest())
