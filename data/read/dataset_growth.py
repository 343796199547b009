"""The versions of a dataset that has grown, in a saved state: what was read stays as it was, and
further shards come after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.errors import DataError, FingerprintError
from data.index.manifest import Manifest
from data.order.grown_order import DatasetVersion
from data.read.stream_identity import FINGERPRINT, State

_MOST_SEARCHED = 20_000  # shards; a search hashes about 20 bytes for each pair of them


@dataclass(frozen=True)
class DatasetGrowth:
    """How a dataset has grown between a state and its resume."""

    before: int
    """Shards of the dataset of the state."""
    after: int
    """Shards of the dataset now."""
    position: int
    """The position from which on all of them are read."""
    epoch: int
    """The epoch that begins there."""


def versions_of(state: State, manifest: Manifest) -> tuple[dict[str, Any], list[DatasetVersion]]:
    """Return the fields of a state besides its versions, and the versions, each of which has the
    first shards of `manifest`, or all; none if the state has another dataset, which is to be
    compared by its fingerprint.

    Raises DataError if the shards that the state has read are not the first ones any more.
    """
    saved = dict(state)
    grown, shards = saved.pop("grown", None), saved.pop("shards", None)
    fingerprint = saved.get("fingerprint")
    if not isinstance(fingerprint, str):
        return saved, []
    fingerprint = fingerprint[:FINGERPRINT]
    if shards is not None and (type(shards) is not int or shards < 1):
        raise DataError(f"not a loader's state: shards is {shards!r}")
    if grown is not None:
        found = _parsed(grown)
    else:
        count = shards or _count(manifest, fingerprint)
        if count is None:
            return saved, []
        found = [DatasetVersion(0, 0, count, fingerprint)]
    for version in found:
        _check_begin(version, manifest)
    return saved, found


def grown_error(before: DatasetVersion, manifest: Manifest) -> FingerprintError:
    """Return the error of a dataset that has grown and must not."""
    more = len(manifest) - before.shards
    there = f"{more} more shards" if more > 1 else "one more shard"
    return FingerprintError(
        {"fingerprint": (before.fingerprint, manifest.fingerprint[:FINGERPRINT])},
        f"the dataset has {there} than the {before.shards} of the state, from "
        f'{manifest.urls[before.shards]} on; grow="next_epoch" (data.grow=next_epoch of a run) '
        "reads them from the next epoch on",
    )


def explained(version: Mapping[str, Any], number: int, count: int) -> str:
    """Return a version of a dataset, as text."""
    return (
        f"dataset version {number + 1} of {count}: its first {version['shards']} shards, from "
        f"sample {version['begin']} of the stream on (epoch {int(version['epoch']) + 1})"
    )


def _check_begin(version: DatasetVersion, manifest: Manifest) -> None:
    what = f"the state has read a dataset of {version.shards} shards"
    if version.shards > len(manifest):
        raise DataError(
            f"{what}, and there are {len(manifest)}: some are missing; a dataset may grow, and not "
            "shrink: put them back"
        )
    if manifest.fingerprint_of(version.shards)[:FINGERPRINT] != version.fingerprint:
        raise DataError(
            f"{what}, which are not the first ones any more: one of the shards up to "
            f"{manifest.urls[version.shards - 1]} has changed, is missing, or was added before the "
            "last of them; restore the shards, and give new ones names that sort after all others"
        )


def _count(manifest: Manifest, fingerprint: str) -> int | None:
    """Return how many of the first shards have a fingerprint; None: no number of them has."""
    if manifest.fingerprint[:FINGERPRINT] == fingerprint:
        return len(manifest)
    if len(manifest) > _MOST_SEARCHED:
        return None
    for shards in range(len(manifest) - 1, 0, -1):
        if manifest.fingerprint_of(shards)[:FINGERPRINT] == fingerprint:
            return shards
    return None


def _parsed(saved: object) -> list[DatasetVersion]:
    kinds = (int, int, int, str)
    if not isinstance(saved, list) or not saved:
        raise DataError(f"not a loader's state: grown is {saved!r}")
    for each in saved:
        if not isinstance(each, list) or [type(field) for field in each] != list(kinds):
            raise DataError(f"not a loader's state: grown is {saved!r}")
    return [DatasetVersion(*each) for each in saved]
