"""A loader that keeps the names of a run's shards in its run directory, so that a dataset which has
changed otherwise than by growing is refused with the shards that have."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data import Batch, DataError, Loader, Manifest, open_manifest
from data.index.manifest import save_manifest
from data.source.address import masked

log = logging.getLogger(__name__)

_MOST_NAMES = 4
"""The largest number of shards of each kind that a message lists."""


class RecordedLoader(Loader):
    """A loader of one dataset. Without a record, as in runs of earlier releases, it is a `Loader`.

    `record` is the file that rank 0 writes when batches are first asked for; None: no file.
    """

    record: Path | None = None
    is_writer: bool = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved, as `Loader.load_state_dict`, whose errors are raised
        with the names of the shards that differ from the record."""
        try:
            super().load_state_dict(state)
        except DataError as error:
            differing = self._differing_shards()
            if differing is None:
                raise
            raise DataError(f"{error}. Since the run last read them, {differing}") from error

    def __iter__(self) -> Iterator[Batch]:
        if self.is_writer and self.record is not None:
            _write(self._manifest, self.record)
        return super().__iter__()

    @property
    def _manifest(self) -> Manifest:
        return self._plan.stream.datasets[0].manifest

    def _differing_shards(self) -> str | None:
        if self.record is None or not self.record.is_file():
            return None
        try:
            return differing_shards(open_manifest(self.record), self._manifest)
        except (DataError, OSError) as problem:  # the refusal itself does not need the names
            log.warning("the shards that the run has read are not known: %s", problem)
            return None


def differing_shards(before: Manifest, now: Manifest) -> str | None:
    """Return which shards of a dataset are missing, have changed, or were added before the last of
    those that it had, as text; None: none of them."""
    there = {now.urls[number]: number for number in range(len(now))}
    names = [before.urls[number] for number in range(len(before))]
    missing = [name for name in names if name not in there]
    changed = [
        name
        for number, name in enumerate(names)
        if name in there and before.digest(number) != now.digest(there[name])
    ]
    last = max((there[name] for name in names if name in there), default=-1)
    had = set(names)
    between = [name for name, number in there.items() if name not in had and number < last]
    kinds = {"are missing": missing, "have changed": changed, "were added between them": between}
    found = [f"{_listed(each)} {what}" for what, each in kinds.items() if each]
    return "; ".join(found) or None


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(map(masked, names[:_MOST_NAMES]))
    return f"{shown} and {more} more" if more > 0 else shown


def _write(manifest: Manifest, record: Path) -> None:
    """Write the record, unless it is of the same dataset; a full disk is no reason to stop."""
    try:
        if record.is_file() and open_manifest(record).fingerprint == manifest.fingerprint:
            return
        record.parent.mkdir(parents=True, exist_ok=True)
        save_manifest([manifest.row(number) for number in range(len(manifest))], record)
    except (DataError, OSError) as problem:
        log.warning("the names of the shards cannot be kept in %s: %s", record, problem)
