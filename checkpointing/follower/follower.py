"""The `Follower`, which takes the weights of each new step of a run from its store."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack, overload

from checkpointing.errors import (
    CheckpointError,
    DamagedError,
    FormatError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StructureError,
)
from checkpointing.follower.chunk_plan import WantedChunk, changed_names
from checkpointing.follower.fetched_bytes import counted
from checkpointing.follower.follow_record import BASES, STORED, WEIGHTS, FollowRecord
from checkpointing.follower.follow_targets import PublishedStep, open_target
from checkpointing.follower.follower_options import FollowerKeywords, FollowerOptions
from checkpointing.follower.step_choice import (
    HeldStep,
    OfferedStep,
    choose_step,
    current_line,
    next_look_s,
    went_back,
)
from checkpointing.follower.step_images import StepImages, check_image
from checkpointing.follower.weight_image import WeightImage
from checkpointing.follower.weight_layout import WeightLayout, lay_out, select_tensors
from checkpointing.storage import open_storage
from checkpointing.store.catalog import Catalog, CatalogEntry, read_catalog, suspected
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class FollowedStep:
    """A step whose weights were taken.

    Attributes:
        id: the checkpoint, "<step>-<session>".
        bytes: bytes that were read of the store for it: chunks, bases, manifest and tables.
        full_bytes: bytes of all its tensors as stored, decoded.
        chunks: chunks of these tensors; fetched: those that were read, without bases.
        changed: names of the tensors that differ from the step taken before; all, at the first.
        seconds: how long it took to read and publish it.
        age_s: seconds from its commit, by the storage's clock, to its publication, by this
            machine's.
        file: the file with the weights, if there is one.
    """

    run: str
    step: int
    id: str
    bytes: int
    full_bytes: int
    chunks: int
    fetched: int
    changed: tuple[str, ...]
    seconds: float
    age_s: float
    file: Path | None


class _StepRemovedError(Exception):
    """A checkpoint was removed before it was read."""


class Follower:
    """Takes the weights of newly committed steps of a run, each of them whole.

    A chunk is read only if its content is not held yet, and checked by its hash. While a checkpoint
    is read, a lease keeps prunes from it; if the store is not writable, a prune may remove it, and
    then a newer one is taken. Nothing else is written to the store. Not thread-safe, except `stop`.

        with Follower("s3://bucket/ckpts", run="gpt-7b", into="shm:gpt") as follower:
            for step in follower.steps():
                print(step.step, step.bytes)

    Args:
        store: the URL of a store, which must exist.
        configuration: all options.
        keywords: the fields of `FollowerOptions`, which describes them.

    Raises:
        FileNotFoundError: there is no store.
        StoreError: it is out of reach.
        CheckpointError: another process follows a run into the same place.
        OSError: that place cannot be used.
        ValueError: an option has a value that it cannot have.
    """

    @overload
    def __init__(self, store: str | os.PathLike[str], configuration: FollowerOptions) -> None: ...

    @overload
    def __init__(
        self, store: str | os.PathLike[str], **keywords: Unpack[FollowerKeywords]
    ) -> None: ...

    def __init__(
        self,
        store: str | os.PathLike[str],
        configuration: FollowerOptions | None = None,
        **keywords: Any,
    ) -> None:
        if configuration is None:
            configuration = FollowerOptions(**keywords)
        elif keywords:
            raise TypeError(f"give options as one value or as keywords, not both: {keywords}")
        self.options = configuration
        self._stopped = threading.Event()
        self._catalog: Catalog | None = None
        self._held: HeldStep | None = None
        self._images: StepImages | None = None
        self._ignored: set[str] = set()  # keys of manifests that cannot be used
        self._removed: set[str] = set()  # keys of manifests that were removed too early
        self._is_unprotected = False
        self._began_s: float | None = None  # monotonic time of the first failure in a row
        self._failures = 0
        with ExitStack() as undo:
            self._storage = counted(open_storage(os.fspath(store), options=configuration.options))
            undo.callback(self._storage.close)
            self._store = Store.at(self._storage)
            self._target = open_target(configuration.into, configuration.keep)
            undo.callback(self._target.close)
            self._restore()
            undo.pop_all()

    @property
    def step(self) -> int | None:
        """The step that is held; None: none."""
        return None if self._held is None else self._held.step

    def steps(self) -> Iterator[FollowedStep]:
        """Take one step after the other, for ever or until `stop`, and yield each once its weights
        were published. Between two listings of the run this waits for `interval_s`.

        Raises:
            StoreError: the store was out of reach for `give_up_s`.
            StructureError: a checkpoint has no tensors of these names.
            OSError: the weights cannot be written.
        """
        while not self._stopped.is_set():
            taken = self._try()
            if taken is not None:
                yield taken
            else:
                wait_s = next_look_s(self.options.interval_s, self._failures, random.random())
                self._stopped.wait(wait_s)

    def poll(self) -> FollowedStep | None:
        """List the run once, and take a step if there is a new one; otherwise return None. A
        damaged step is skipped with a warning, and so is one that retention has reduced to other
        items.

        Raises:
            StoreError: the store is out of reach.
            StructureError: the checkpoint has no tensors of these names.
            OSError: the weights cannot be written.
        """
        known, removed = self._catalog, set[str]()
        while True:
            entry = self._choose(known, removed)
            if entry is None:
                return None
            try:
                return self._take(entry)
            except _StepRemovedError:
                # A prune that is about to remove it may not have done so yet.
                removed.add(entry.stored.key)
                known = None
                if entry.stored.key not in self._removed:
                    logger.warning(
                        "%s was removed before it was read: a newer one is taken",
                        entry.stored.save.id,
                    )
                self._removed = removed
            except (DamagedError, FormatError, StructureError) as error:
                is_reduced = bool(entry.document.header.dropped)
                if isinstance(error, StructureError) and not is_reduced:
                    raise
                logger.warning("step %d is skipped: %s", entry.stored.save.step, error)
                self._ignored.add(entry.stored.key)

    def stop(self) -> None:
        """End `steps` after the present step; may be called from any thread or signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Release the target and the store. What was published stays."""
        if self._images is not None:
            self._images.close()
            if self._images.weights is not None:
                self._target.release(self._images.weights)
        self._target.close()
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _try(self) -> FollowedStep | None:
        """As `poll`, but a store that is out of reach is tried again, for a limited time."""
        try:
            taken = self.poll()
        except StoreError as error:
            now_s = time.monotonic()
            if self._began_s is None:
                self._began_s = now_s
                logger.warning(
                    "%s is out of reach, and is tried again for %.0f s; the weights stay those of "
                    "step %s: %s",
                    *(self._store.url, self.options.give_up_s, self.step, error),
                )
            self._failures += 1
            if now_s - self._began_s > self.options.give_up_s:
                raise
            return None
        if self._began_s is not None:
            silent_s = time.monotonic() - self._began_s
            logger.warning("%s answers again after %.0f s", self._store.url, silent_s)
        self._began_s, self._failures = None, 0
        return taken

    def _choose(self, known: Catalog | None, removed: set[str]) -> CatalogEntry | None:
        catalog = read_catalog(self._store, self.options.run, refused={}, known=known)
        if self._catalog is not None:
            there = {stored.key for stored in catalog.listed}
            for stored in self._catalog.listed:
                if stored.key not in there:
                    self._store.forget(stored.key)
            self._ignored &= there
        self._catalog = catalog
        for stored, mark in suspected(catalog.entries).items():
            if stored.key not in self._ignored:
                logger.warning(
                    "step %d is skipped: its replicas differed when it was saved (%d tensors)",
                    *(stored.save.step, mark.count),
                )
                self._ignored.add(stored.key)
        entries = {entry.stored.key: entry for entry in catalog.entries}
        offers = [_offer(entry) for entry in catalog.entries]
        chosen = choose_step(
            offers,
            self._held,
            every=self.options.every,
            order=self.options.order,
            ignored=self._ignored | removed,
        )
        if chosen is None:
            return None
        if self._held is not None and went_back(current_line(offers), self._held):
            logger.warning(
                "run %s went back from step %d to an earlier one: step %d is taken",
                *(self.options.run, self._held.step, chosen.step),
            )
        return entries[chosen.key]

    def _take(self, entry: CatalogEntry) -> FollowedStep:
        began_s, before = time.monotonic(), self._storage.bytes
        stored = entry.stored
        with self._protected(stored):
            try:
                return self._read(entry, began_s, before)
            except (DamagedError, FileNotFoundError) as error:
                if stored.key in {one.key for one in self._store.manifests(stored.save.run)}:
                    raise
                raise _StepRemovedError from error

    def _read(self, entry: CatalogEntry, began_s: float, before: int) -> FollowedStep:
        stored, header = entry.stored, entry.document.header
        checkpoint = Checkpoint(self._store, stored)
        layout = lay_out(select_tensors(checkpoint, self.options.names), self.options.dtype)
        images = self._images_of(layout)
        wanted = [
            WantedChunk(name, box, chunk, spec.dtype)
            for name, spec in layout.stored.items()
            for box, chunk in checkpoint.table_with(name).chunks[name].items()
        ]
        step, committed = stored.save.step, stored.modified
        image = self._target.begin(step, layout)
        try:
            images.make(checkpoint, wanted, image)
            ids = {} if images.weights is None else images.weights.ids
            names = [layout.names[name] for name in changed_names(wanted, ids)]
            held = HeldStep(step, stored.save.session, header.created)
            file = self._target.file_name(step)
            self._target.write_record(self._record(held, layout, file, image))
            self._target.publish(
                image, PublishedStep(stored.save.run, step, stored.save.id, committed, names)
            )
        except BaseException:
            self._target.release(image)  # its file may have no name any more
            raise
        self._replace_weights(images, image)
        self._held = held
        return FollowedStep(
            run=stored.save.run,
            step=step,
            id=stored.save.id,
            bytes=self._storage.bytes - before,
            full_bytes=sum(spec.bytes for spec in layout.stored.values()),
            chunks=images.counts.chunks,
            fetched=images.counts.fetched,
            changed=tuple(names),
            seconds=time.monotonic() - began_s,
            age_s=max(time.time() - committed, 0.0),
            file=self._target.path(file),
        )

    def _images_of(self, layout: WeightLayout) -> StepImages:
        if self._images is not None and self._images.layout == layout:
            return self._images
        if self._images is not None:
            logger.warning("the tensors of run %s have changed: all are read", self.options.run)
            former, self._images = self._images, None
            former.close()
            if former.weights is not None:
                self._target.release(former.weights)
        self._images = StepImages.open(self._target, layout)
        return self._images

    def _replace_weights(self, images: StepImages, image: WeightImage) -> None:
        former, images.weights = images.weights, image
        if former is not None:
            self._target.release(former)

    def _record(
        self, held: HeldStep, layout: WeightLayout, file: str, image: WeightImage
    ) -> FollowRecord:
        assert self._images is not None
        images = {BASES: self._images.bases.ids}
        if self._images.stored is None:
            images[WEIGHTS] = image.ids
        else:
            images[STORED] = self._images.stored.ids
        return FollowRecord(
            store=self._store.record.uuid,
            run=self.options.run,
            step=held.step,
            session=held.session,
            created=held.created,
            patterns=tuple(self.options.names),
            dtype=self.options.dtype,
            file=file,
            tensors=layout.stored,
            images=images,
        )

    def _restore(self) -> None:
        """Open what an earlier process has left in the target, and check it."""
        record = self._target.record()
        if record is None:
            return
        try:
            layout = lay_out(record.tensors, record.dtype)
        except CheckpointError as error:
            logger.warning("everything is fetched again: %s", error)
            return
        if (record.patterns, record.dtype) != (tuple(self.options.names), self.options.dtype):
            return
        self._images = StepImages.open(self._target, layout, record)
        found = self._target.restore(record, layout)
        if found is None:
            return
        if layout.is_cast:
            # What was cast has no hash: it is made again from the stored weights.
            self._target.release(found.image)
            return
        is_whole = not check_image(found.image)
        self._images.weights = found.image
        mine = (self._store.record.uuid, self.options.run)
        if is_whole and found.is_published and (record.store, record.run) == mine:
            self._held = HeldStep(record.step, record.session, record.created)

    @contextmanager
    def _protected(self, stored: StoredManifest) -> Iterator[None]:
        """Hold a lease on the checkpoint while the block runs, if the store is writable.

        Raises:
            _StepRemovedError: it was removed before.
        """
        with ExitStack() as stack:
            session = stack.enter_context(Session(self._store, stored.save.run))
            try:
                stack.enter_context(session.reading(stored.key))
            except FileNotFoundError as error:
                raise _StepRemovedError from error
            except (StoreAccessError, StoreFullError) as error:
                if not self._is_unprotected:
                    logger.warning(
                        "steps are read without a lease, so a prune may remove one meanwhile, and "
                        "then a newer one is taken: %s",
                        error,
                    )
                self._is_unprotected = True
            yield


def _offer(entry: CatalogEntry) -> OfferedStep:
    save, header = entry.stored.save, entry.document.header
    return OfferedStep(
        save.step, save.session, entry.stored.key, header.created, bool(header.source)
    )
