"""Finds replicas of tensors that differ, by fingerprints that each rank adds to its part record.

Ranks that hold the same cells of the same tensors are a group. Each of them reports, for every
entry of the group, the fingerprint of what it holds; the commit compares them. An entry is the
cells of a tensor that one rank saves: most tensors are saved whole by one rank of a group, and very
large ones in parts by all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format.canonical_json import JsonReader

Fingerprints = NDArray[np.uint64]

_RANGES = re.compile(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*")

ROW = np.dtype("<u8")
NOT_TAKEN = 0
"""Takes the place of a fingerprint that this rank has not taken; it is compared with none."""

_SHOWN, _NAMED = 3, 10
MOST = 100
"""The largest number of tensors that a manifest names; of the others it gives the number."""
_MOST_RANKS = 1 << 24  # ranks in a difference mark, each counted as often as it is named


@dataclass(frozen=True)
class ReplicaGroup:
    """Content that several ranks hold, as one of them reports it.

    Attributes:
        id: 16 hex digits: equal on all its ranks, and of no other group.
        place: index of this rank among them.
        kind: "tensor", a parameter or a tensor of an optimizer; "buffer"; or "value", a value or a
            tensor of something else.
        count: number of entries.
        names: the name of each entry's tensor or value; like `savers`, reported by the first rank
            only.
        savers: for each entry, the index of the rank that saves it.
    """

    id: str
    place: int
    kind: str
    count: int
    names: tuple[str, ...] = ()
    savers: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankFingerprints:
    """What one rank holds that others also hold: groups, and the fingerprints of their entries, in
    this order, end to end."""

    groups: tuple[ReplicaGroup, ...]
    fingerprints: Fingerprints

    @property
    def by_group(self) -> list[tuple[ReplicaGroup, Fingerprints]]:
        ends = np.cumsum([group.count for group in self.groups])
        pieces = np.split(self.fingerprints, ends[:-1]) if self.groups else []
        return list(zip(self.groups, pieces, strict=True))

    @property
    def digests(self) -> dict[str, str]:
        """Returns a hash of the fingerprints of each group whose replicas should be equal."""
        return {
            group.id: blake3(to_bytes(prints)).hexdigest(8)
            for group, prints in self.by_group
            if group.kind == "tensor"
        }


@dataclass(frozen=True)
class ReplicaDifference:
    """A tensor or value whose replicas on several ranks differ.

    Attributes:
        ranks: the ranks, grouped by equal content; the largest group first, of equally large ones
            that with the lowest ranks.
        stored: the rank whose replica is in the checkpoint; None: it mixes several.
    """

    name: str
    kind: str
    ranks: tuple[tuple[int, ...], ...]
    stored: int | None

    @property
    def odd(self) -> tuple[int, ...]:
        """Returns the ranks that differ from what most ranks hold; none if no replica has a
        majority."""
        total = sum(map(len, self.ranks))
        if 2 * len(self.ranks[0]) <= total:
            return ()
        return tuple(sorted(rank for group in self.ranks[1:] for rank in group))


@dataclass(frozen=True)
class MarkedDifferences:
    """The difference mark of a checkpoint: the first differences, and how many there are."""

    count: int
    differences: tuple[ReplicaDifference, ...]

    @property
    def is_suspect(self) -> bool:
        """Whether parameters or optimizers differ, which should be equal on all ranks. Of buffers
        and values a checkpoint has one rank's, as it would if they were not compared, so they are
        no reason to use an older checkpoint."""
        return any(one.kind == "tensor" for one in self.differences)


def compare(reports: Mapping[int, RankFingerprints]) -> list[ReplicaDifference]:
    """Returns the tensors and values of which replicas differ, by name; a pure function of the
    ranks' reports.

    Args:
        reports: the report of each rank. A group that its first rank does not report is not
            compared.
    """
    groups: dict[str, list[tuple[int, ReplicaGroup, Fingerprints]]] = {}
    for rank, replicas in sorted(reports.items()):
        for group, prints in replicas.by_group:
            groups.setdefault(group.id, []).append((rank, group, prints))
    found: dict[tuple[str, str], list[_Entry]] = {}
    for members in groups.values():
        for name, kind, entry in _differing(members):
            found.setdefault((name, kind), []).append(entry)
    return [_difference(name, kind, entries) for (name, kind), entries in sorted(found.items())]


@dataclass(frozen=True)
class _Entry:
    """One entry whose replicas differ."""

    by_place: Mapping[int, tuple[int, int]]  # rank and fingerprint
    saver: int


def _differing(
    members: Sequence[tuple[int, ReplicaGroup, Fingerprints]],
) -> Iterable[tuple[str, str, _Entry]]:
    """Returns the entries of one group whose replicas differ, with the other entries of their
    tensors."""
    first = next((group for _, group, _ in members if group.place == 0), None)
    members = [one for one in members if first is not None and one[1].count == first.count]
    if first is None or len(members) < 2 or len(first.names) != first.count:
        return
    table = np.stack([prints for _, _, prints in members])
    taken = table != NOT_TAKEN
    lowest = np.where(taken, table, np.iinfo(np.uint64).max).min(axis=0)
    highest = np.where(taken, table, 0).max(axis=0)
    odd = {first.names[i] for i in np.flatnonzero(taken.any(axis=0) & (lowest != highest))}
    for index, name in enumerate(first.names) if odd else ():
        if name in odd:
            by_place = {
                group.place: (rank, int(prints[index]))
                for rank, group, prints in members
                if prints[index] != NOT_TAKEN
            }
            yield name, first.kind, _Entry(by_place, first.savers[index])


def _difference(name: str, kind: str, entries: Sequence[_Entry]) -> ReplicaDifference:
    """Returns the difference of one tensor. A replica is what the ranks at one index in all the
    groups hold together."""
    ranks: dict[tuple[int, ...], set[int]] = {}
    for place in {place for entry in entries for place in entry.by_place}:
        mine = [entry.by_place.get(place, (None, NOT_TAKEN)) for entry in entries]
        content = tuple(fingerprint for _, fingerprint in mine)
        ranks.setdefault(content, set()).update(rank for rank, _ in mine if rank is not None)
    same = [tuple(sorted(group)) for group in ranks.values()]
    ordered = tuple(sorted(same, key=lambda group: (-len(group), group)))
    return ReplicaDifference(name, kind, ordered, _stored(entries))


def _stored(entries: Sequence[_Entry]) -> int | None:
    """Returns the first rank whose replica is what was saved. A tensor of several groups, such as
    the shards of a hybrid sharding, was saved from the ranks at one index in all of them."""
    places = sorted({place for entry in entries for place in entry.by_place})
    for place in (entries[0].saver, *places):
        if all(_is_saved(entry, place) for entry in entries):
            return entries[0].by_place[place][0]
    return None


def _is_saved(entry: _Entry, place: int) -> bool:
    saved, mine = entry.by_place.get(entry.saver), entry.by_place.get(place)
    return saved is not None and mine is not None and saved[1] == mine[1]


def dump_groups(groups: Sequence[ReplicaGroup]) -> list[dict[str, Any]]:
    """Returns the groups as plain data for a part record."""
    return [
        {
            "id": group.id,
            "place": group.place,
            "kind": group.kind,
            "count": group.count,
            "names": list(group.names),
            "savers": list(group.savers),
        }
        for group in groups
    ]


def load_groups(read: JsonReader, key: str) -> tuple[ReplicaGroup, ...]:
    """Raises:
    DamagedError: it is not a list of groups.
    """
    return tuple(
        ReplicaGroup(
            id=one.text("id"),
            place=one.count("place"),
            kind=one.text("kind"),
            count=one.count("count"),
            names=tuple(one.texts("names")),
            savers=tuple(one.counts("savers")),
        )
        for one in read.children(key)
    )


def to_bytes(fingerprints: Fingerprints) -> bytes:
    return fingerprints.astype(ROW).tobytes()


def from_bytes(data: bytes, groups: Sequence[ReplicaGroup], where: str) -> Fingerprints:
    """Read the fingerprints of the groups' entries.

    Raises:
        DamagedError: there are more or fewer than the groups have entries.
    """
    if len(data) != ROW.itemsize * sum(group.count for group in groups):
        raise DamagedError(
            f"{where}: the number of its fingerprints differs from the number of "
            "entries of its groups"
        )
    return np.frombuffer(data, ROW).astype(np.uint64)


def dump_marked(marked: MarkedDifferences) -> dict[str, Any]:
    """Returns the mark as plain data for a manifest, with ranks as in "0-2,7"."""
    return {
        "count": marked.count,
        "first": [
            {
                "name": one.name,
                "kind": one.kind,
                "ranks": [ranges(group) for group in one.ranks],
                "stored": one.stored,
            }
            for one in marked.differences[:MOST]
        ],
    }


def load_marked(read: JsonReader) -> MarkedDifferences:
    """Raises:
    DamagedError: it is not a difference mark.
    """
    found, total = list[ReplicaDifference](), 0
    for one in read.children("first"):
        groups = [_runs(text, one.where) for text in one.texts("ranks")]
        total += sum(map(len, chain(*groups)))
        if total > _MOST_RANKS:
            raise DamagedError(f"{read.where}: more than {_MOST_RANKS:,} ranks")
        ranks = tuple(tuple(chain(*group)) for group in groups)
        stored = one.count("stored") if one.has("stored") else None
        found.append(ReplicaDifference(one.text("name"), one.text("kind"), ranks, stored))
    return MarkedDifferences(read.count("count"), tuple(found))


def mark_of(differences: Sequence[ReplicaDifference]) -> MarkedDifferences | None:
    """Returns the difference mark for these differences, None if there are none. Mixtures come
    first, then what makes a checkpoint suspect."""
    if not differences:
        return None
    first = sorted(
        differences, key=lambda one: (one.stored is not None, one.kind != "tensor", one.name)
    )
    return MarkedDifferences(len(differences), tuple(first[:MOST]))


def describe_difference(one: ReplicaDifference) -> str:
    """Describes a difference in one line."""
    if one.odd:
        verb = "differs" if len(one.odd) == 1 else "differ"
        how = f"{_ranks(one.odd)} {verb} from {_ranks(one.ranks[0])}"
    else:
        how = f"{' and '.join(_ranks(group) for group in one.ranks[:_SHOWN])} differ"
    kept = "a mixture" if one.stored is None else f"rank {one.stored}'s"
    return f"{one.kind} {one.name}: {how}; the checkpoint has {kept}"


def event_fields(marked: MarkedDifferences) -> dict[str, Any]:
    """Returns the first of the differences as fields of an event."""
    return {
        "count": marked.count,
        "summary": summary(marked),
        "tensors": [one.name for one in marked.differences[:_NAMED]],
        "odd_ranks": sorted({rank for one in marked.differences for rank in one.odd})[:_NAMED],
        "is_suspect": marked.is_suspect,
    }


def summary(marked: MarkedDifferences) -> str:
    """Describes the mark in one line: the first of the differences, and how many there are."""
    shown = "; ".join(describe_difference(one) for one in marked.differences[:_SHOWN])
    more = marked.count - min(_SHOWN, len(marked.differences))
    return f"{shown}; and {more} more" if more else shown


def ranges(ranks: Sequence[int]) -> str:
    """Formats 0, 1, 2 and 7 as "0-2,7"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def _runs(text: str, where: str) -> list[range]:
    if not _RANGES.fullmatch(text):
        raise DamagedError(f"{where}: {text!r} is not a list of ranks")
    runs = [run.partition("-") for run in text.split(",")]
    return [range(int(first), int(last or first) + 1) for first, _, last in runs]
